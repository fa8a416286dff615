"""``tickrate keys`` and ``tickrate hub`` as a person types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zenoh

from tickrate import __main__ as command
from tickrate import clock
from tickrate.cli.hub import HubOptions, open_hub
from tickrate.errors import CredentialsError, NameRefused
from tickrate.wire.credentials import Credentials
from tickrate.wire.keys_folder import KeysFolder
from tickrate.wire.zenoh_carrier import ZenohCarrier

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 20.0


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    return command.main(list(words))


def test_from_nothing_to_a_file_to_carry(here, capsys):
    assert run("keys", "init", "hub.example.org") == 0
    out = capsys.readouterr().out
    assert "tickrate keys add trainer\n" in out
    assert "tickrate hub --keys tickrate-keys" in out
    assert run("keys", "add", "trainer") == 0
    assert run("keys", "add", "w0", "--hub", "tls/hub.example.org:7447", "--days", "10") == 0
    out = capsys.readouterr().out
    assert "trainer may join as trainer" in out
    assert "tickrate worker EXPERIMENT --name w0 --hub tls/hub.example.org:7447 --key w0.tickrate-key" in out
    assert Credentials.load(here / "tickrate-keys/w0.tickrate-key").role == "worker"
    assert run("keys", "list") == 0
    out = capsys.readouterr().out
    assert re.search(r"^w0 +worker +10 days left$", out, re.M)
    assert re.search(r"^hub +hub +365 days left$", out, re.M)
    assert re.search(r"^warning: w0 expires on .* tickrate keys add w0 --renew$", out, re.M)
    assert run("keys", "revoke", "w0") == 0
    capsys.readouterr()
    assert run("keys", "list") == 0
    out = capsys.readouterr().out
    assert re.search(r"^w0 +worker +revoked$", out, re.M)
    assert "warning" not in out


@pytest.mark.parametrize("name", ["init", "add", "revoke", "list", "router-config"])
def test_each_part_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as end:
        run("keys", name, "--help")
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"tickrate keys {name}" in out.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["keys", "init"], "tickrate keys init hub.example.org"),
        (["keys", "init", "a:1"], "neither a host name"),
        (["keys", "init", "a", "--renew", "--replace"], "choose one"),
        (["keys", "add", "w0"], "cannot read tickrate-keys"),
        (["keys", "list", "--keys", "elsewhere"], "tickrate keys init HOST... --keys elsewhere"),
        (["hub", "--keys", "elsewhere"], "elsewhere"),
        (["hub", "--listen", "tls/0.0.0.0:7447"], "tickrate keys init"),
        (["hub", "--listen", "tcp/0.0.0.0:7447"], "tickrate keys init HOST"),
        (["hub", "--listen", "here"], "no hub address"),
    ],
)
def test_a_mistake_is_one_plain_message(words, message, capsys, here):
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert list(here.iterdir()) == []


def test_the_router_of_ones_own_keeps_the_same_rules(here, capsys):
    keys = KeysFolder.init(here / "tickrate-keys", [])
    for name in ("w0", "trainer"):
        keys.add(name)
    revoked = Credentials.load(keys.add("out"))
    keys.revoke("out")
    with open_hub(HubOptions(keys=keys.path, listen="tls/127.0.0.1:0"))[0] as probe:
        endpoint = probe.endpoint
    assert run("keys", "router-config", "--listen", endpoint) == 0
    config = capsys.readouterr().out
    assert "PRIVATE KEY" not in config
    router = zenoh.open(zenoh.Config.from_json5(config))
    try:
        worker, trainer = (
            ZenohCarrier(endpoint, LONG_S, Credentials.load(keys.path / f"{name}.tickrate-key"))
            for name in ("w0", "trainer")
        )
        box = trainer.subscribe("tickrate/r/rows/*", capacity=10)
        deadline = clock.now() + LONG_S
        while not len(box):
            worker.publish("tickrate/r/rows/other", b"another's")
            worker.publish("tickrate/r/rows/w0", b"own")
            assert clock.now() < deadline
            clock.sleep(0.01)
        assert set(box.drain(10)) == {b"own"}
        with pytest.raises(NameRefused):
            ZenohCarrier(endpoint, 0.3, revoked)
        worker.close()
        trainer.close()
    finally:
        router.close()


def test_keys_and_plain_address_do_not_go_together(here):
    keys = KeysFolder.init(here / "k", [])
    with pytest.raises(CredentialsError, match=r"write --listen tls/127.0.0.1:7447"):
        open_hub(HubOptions(listen="tcp/127.0.0.1:7447", keys=keys.path))


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process there")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_hub_says_where_it_is_and_who_comes_and_goes(here, number):
    keys = KeysFolder.init(here / "k", [])
    w0 = Credentials.load(keys.add("w0"))
    child = subprocess.Popen(
        [sys.executable, "-m", "tickrate", "hub", "--keys", "k", "--listen", "tls/127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with child:
        first = child.stdout.readline()
        endpoint = re.match(r"hub at (tls/127\.0\.0\.1:\d+), open to: w0$", first)[1]
        lines = [child.stdout.readline() for _ in range(4)]
        assert f"--name NAME --hub {endpoint} --key NAME.tickrate-key" in lines[1]
        with ZenohCarrier(endpoint, LONG_S, w0) as carrier:
            carrier.announce("tickrate/race/present/w0")
            assert child.stdout.readline().endswith("w0 (run race) joined\n")
        assert child.stdout.readline().endswith("w0 (run race) left\n")
        child.send_signal(number)
        assert child.stdout.read() == "the hub is closed\n"
    assert child.returncode == 0
