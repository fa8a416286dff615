"""Which hub and which key a role gets: from its options, its key file, the experiment, or the launcher."""

import pytest

from tickrate.cli.role import resolve, role_parser
from tickrate.errors import ConfigError, CredentialsError
from tickrate.runtime.network import DEFAULT_HUB
from tickrate.wire.keys_folder import KeysFolder

EXPERIMENT = (
    "environment: {id: circuit}\nnetwork: {hub: 'tls/hub.example.org:7447', key: gone.tickrate-key}\n"
)


def network(*words):
    experiment, _ = resolve(role_parser("worker", "").parse_args(list(words)))
    return experiment.network


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("environment: {id: circuit}\n")
    return str(path)


def test_without_a_word_the_hub_is_on_this_machine(plain):
    assert (network(plain).hub, network(plain).key) == (DEFAULT_HUB, "")
    assert network(plain, "--hub", "tcp/127.0.0.1:7000").hub == "tcp/127.0.0.1:7000"


def test_a_key_file_says_where_its_hub_is_and_an_option_overrules_it(plain, tmp_path):
    keys = KeysFolder.init(tmp_path / "keys", ["127.0.0.1"])
    file = str(keys.add("arm", hub="tls/127.0.0.1:7999"))
    assert network(plain, "--key", file).hub == "tls/127.0.0.1:7999"
    assert network(plain, "--key", file, "--hub", "tls/localhost:1").hub == "tls/localhost:1"
    with pytest.raises(CredentialsError, match="no-such-file"):
        network(plain, "--key", "no-such-file")


def test_the_same_file_runs_all_in_one_on_the_launchers_hub_without_keys(tmp_path):
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    launched = network("--run-dir", str(tmp_path), "--hub", "tcp/127.0.0.1:7001")
    assert (launched.hub, launched.key) == ("tcp/127.0.0.1:7001", "")
    alone = network(str(tmp_path / "experiment.yaml"))
    assert (alone.hub, alone.key) == ("tls/hub.example.org:7447", "gone.tickrate-key")


def test_a_role_needs_an_experiment():
    with pytest.raises(ConfigError, match="name the experiment file"):
        network()
