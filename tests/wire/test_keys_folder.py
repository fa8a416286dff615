"""Keys folder and credentials: what is made, who may read it, and what is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tickrate import clock
from tickrate.errors import CredentialsError
from tickrate.wire import certificates
from tickrate.wire.credentials import Credentials
from tickrate.wire.keys_folder import KeysFolder

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86400.0


@pytest.fixture
def keys(tmp_path) -> KeysFolder:
    return KeysFolder.init(tmp_path / "keys", ["hub.example.org", "192.0.2.7", "fd00::7"], days=100)


def test_one_file_carries_everything(keys):
    path = keys.add("w0", days=50, hub="tls/hub.example.org:7447")
    assert path == keys.path / "w0.tickrate-key"
    key = Credentials.load(path)
    assert (key.name, key.role, key.hub) == ("w0", "worker", "tls/hub.example.org:7447")
    assert key.ca_certificate == keys.hub_files().ca_certificate
    assert certificates.valid_until(key.certificate) == pytest.approx(clock.wall_time() + 50 * DAY_S, abs=60)
    entry = keys.hub_files().entries[0]
    assert (entry.name, entry.password) == ("w0", key.password)
    for secret in (key.password, "PRIVATE KEY"):
        assert secret not in repr(key)


def test_the_hub_certificate_names_its_hosts_and_loopback(keys):
    hosts = certificates.hosts_of(keys.hub_files().certificate)
    assert set(hosts) == {"hub.example.org", "localhost", "192.0.2.7", "fd00::7", "127.0.0.1", "::1"}


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX")
def test_secrets_are_the_owners_alone(keys, caplog):
    path = keys.add("w0")
    keys.write_passwords(keys.hub_files().entries)
    for file in (path, *(keys.path / n for n in ("ca.key", "hub.key", "names.json", "passwords.txt"))):
        assert file.stat().st_mode & 0o777 == 0o600, file
    assert keys.path.stat().st_mode & 0o777 == 0o700
    Credentials.load(path)
    assert "can be read by other users" not in caplog.text
    path.chmod(0o644)
    Credentials.load(path)
    assert "can be read by other users" in caplog.text


@pytest.mark.parametrize(
    ("name", "asked", "role"),
    [
        ("w0", None, "worker"),
        ("trainer", None, "trainer"),
        ("ann", "trainer", "trainer"),
        ("wall", "viewer", "viewer"),
    ],
)
def test_roles_by_default_and_by_choice(keys, name, asked, role):
    assert Credentials.load(keys.add(name, asked)).role == role


@pytest.mark.parametrize("name", ["", "a/b", "*", "a b", "ä", ".x", "x" * 65, "a:b", "hub", "HUB"])
def test_names_that_cannot_be_are_refused(keys, name):
    with pytest.raises(CredentialsError):
        keys.add(name)
    assert [e.name for e in keys.entries()] == ["hub"]
    assert not list(keys.path.glob("*.tickrate-key"))


def test_the_trainers_name_is_kept_for_the_trainer(keys):
    for name in ("trainer", "Trainer"):
        with pytest.raises(CredentialsError, match="kept for the trainer"):
            keys.add(name, "worker")


def test_a_name_is_given_out_once(keys):
    keys.add("w0")
    with pytest.raises(CredentialsError, match=r"'w0' may join already.*--renew.*keys revoke w0"):
        keys.add("w0")
    with pytest.raises(CredentialsError, match="'w0' may join already"):
        keys.add("W0")
    before = Credentials.load(keys.path / "w0.tickrate-key")
    after = Credentials.load(keys.add("w0", renew=True))
    assert before.password != after.password
    assert [e.password for e in keys.hub_files().entries] == [after.password]


def test_revoking(keys):
    path = keys.add("w0")
    keys.add("w1")
    with pytest.raises(CredentialsError, match=r"no 'w' among .*w0, w1.*Did you mean 'w[01]'"):
        keys.revoke("w")
    with pytest.raises(CredentialsError, match="no 'hub'"):
        keys.revoke("hub")
    keys.revoke("w0")
    assert not path.exists()
    assert [e.name for e in keys.hub_files().entries] == ["w1"]
    assert [(e.name, e.live) for e in keys.entries()] == [("hub", True), ("w1", True), ("w0", False)]
    with pytest.raises(CredentialsError, match="no 'w0'"):
        keys.revoke("w0")
    keys.add("w0")
    assert [e.name for e in keys.hub_files().entries] == ["w1", "w0"]


def test_expiry_is_warned_of_before_it_bites(keys):
    keys.add("soon", days=29)
    keys.add("later", days=31)
    keys.add("past", days=-1)
    warnings = {e.name: e.warning for e in keys.entries()}
    assert "expires on" in warnings["soon"]
    assert "tickrate keys add soon --renew" in warnings["soon"]
    assert "expired on" in warnings["past"]
    assert warnings["later"] == warnings["hub"] == ""
    assert {e.name: round(e.days_left) for e in keys.entries()} == {
        "hub": 100,
        "soon": 29,
        "later": 31,
        "past": -1,
    }


def test_a_second_init_refuses_renews_or_replaces(keys):
    keys.add("w0")
    before = keys.hub_files()
    with pytest.raises(CredentialsError, match=r"holds keys already: --renew .*--replace"):
        KeysFolder.init(keys.path, ["x"])
    assert keys.hub_files() == before
    KeysFolder.init(keys.path, [], days=200, existing="renew")
    renewed = keys.hub_files()
    assert renewed.ca_certificate == before.ca_certificate
    assert [e.name for e in renewed.entries] == ["w0"]
    assert set(certificates.hosts_of(renewed.certificate)) == set(certificates.hosts_of(before.certificate))
    assert certificates.valid_until(renewed.certificate) > certificates.valid_until(before.certificate)
    KeysFolder.init(keys.path, ["y"], existing="replace")
    assert keys.hub_files().ca_certificate != before.ca_certificate
    assert keys.hub_files().entries == []


def test_nothing_to_renew(tmp_path):
    with pytest.raises(CredentialsError, match="no keys that could be renewed"):
        KeysFolder.init(tmp_path / "none", [], existing="renew")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("host", ["tls/hub:7447", "a b", "", "hub_1", "-x", "a..b", "x" * 300])
def test_hosts_are_checked(tmp_path, host):
    with pytest.raises(CredentialsError, match="neither a host name nor an IP address"):
        KeysFolder.init(tmp_path / "keys", [host])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("file", ["names.json", "ca.crt", "hub.crt", "hub.key"])
def test_a_missing_file_is_named_at_once(keys, file):
    (keys.path / file).unlink()
    with pytest.raises(CredentialsError, match=f"cannot read .*{file}: No such file.*tickrate keys init"):
        KeysFolder(keys.path)


def test_adding_needs_the_authoritys_key_and_a_hub_does_not(keys):
    (keys.path / "ca.key").unlink()
    assert KeysFolder(keys.path).hub_files()
    with pytest.raises(CredentialsError, match=r"cannot read .*ca\.key"):
        keys.add("w0")
    assert [e.name for e in keys.entries()] == ["hub"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"names": [{"name": 3}]}', '{"version": 9}'])
def test_a_damaged_registry_is_named(keys, text):
    (keys.path / "names.json").write_text(text, encoding="utf-8")
    with pytest.raises(CredentialsError, match=r"names\.json is damaged"):
        keys.entries()


def test_a_folder_that_cannot_be_made(tmp_path):
    with pytest.raises(CredentialsError, match="cannot make the folder"):
        KeysFolder.init(tmp_path / "no" / "parent", [])


def test_credentials_that_are_none_are_refused_with_the_path(keys, tmp_path):
    with pytest.raises(CredentialsError, match=r"cannot read .*gone\.tickrate-key: No such file"):
        Credentials.load(tmp_path / "gone.tickrate-key")
    whole = json.loads(keys.add("w0").read_text())
    cases = {"no json": "x", "a list": "[]", "unknown": json.dumps(whole | {"more": 1})}
    cases |= {f"no {field}": json.dumps({k: v for k, v in whole.items() if k != field}) for field in whole}
    cases |= {"name": json.dumps(whole | {"name": "a/b"}), "role": json.dumps(whole | {"role": "hub"})}
    optional = {"no hub", "no tickrate_key"}
    for label, text in cases.items():
        path = tmp_path / "bad.tickrate-key"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        if label in optional:
            Credentials.load(path)
            continue
        with pytest.raises(CredentialsError):
            Credentials.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CredentialsError, match="no text"):
        Credentials.load(path)


ADD = """
import sys
from tickrate.wire.keys_folder import KeysFolder
for i in range(5):
    KeysFolder(sys.argv[1]).add(f"{sys.argv[2]}-{i}")
"""


def test_two_commands_at_the_same_time_lose_nothing(keys):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ADD, str(keys.path)]
    children = [subprocess.Popen([*command, name], env=environment) for name in ("a", "b")]
    assert [child.wait(30) for child in children] == [0, 0]
    expected = {f"{name}-{i}" for name in "ab" for i in range(5)}
    assert {e.name for e in keys.hub_files().entries} == expected
