"""A hub with keys, over real TLS sockets: who may say what, and what changed keys do to a running hub."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tickrate import clock
from tickrate.errors import CertificateExpired, CredentialsError, NameRefused, WireError
from tickrate.wire.credentials import Credentials
from tickrate.wire.keys_folder import KeysFolder
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 20.0
NAMES = {"w0": "worker", "w1": "worker", "trainer": "trainer", "wall": "viewer"}


def until(condition: Callable[[], object], limit_s: float = LONG_S) -> float:
    """Wait until it is true; return how long that took."""
    begin = clock.now()
    while not condition():
        assert clock.now() < begin + limit_s, "it never came true"
        clock.sleep(0.005)
    return clock.now() - begin


@pytest.fixture
def keys(tmp_path) -> KeysFolder:
    folder = KeysFolder.init(tmp_path / "keys", [])
    for name, role in NAMES.items():
        folder.add(name, role)
    return folder


def key(keys: KeysFolder, name: str) -> Credentials:
    return Credentials.load(keys.path / f"{name}.tickrate-key")


@pytest.fixture
def place(keys) -> Iterator[tuple[ZenohHub, dict[str, ZenohCarrier]]]:
    """A hub, and everybody joined."""
    with ExitStack() as stack:
        hub = stack.enter_context(ZenohHub(keys=keys))
        carriers = {
            name: stack.enter_context(ZenohCarrier(hub.endpoint, LONG_S, key(keys, name))) for name in NAMES
        }
        yield hub, carriers


ALLOWED = [
    *[(name, f"{kind}/{name}", "trainer") for name in ("w0", "w1") for kind in ("hello", "ping", "rows")],
    ("w0", "report/w0", "wall"),
    ("w0", "status/w0", "w1"),
    ("w0", "infer/w0", "trainer"),
    *[("trainer", f"{kind}/w0", "w0") for kind in ("ack", "refusal", "answer", "command")],
    *[("trainer", f"{kind}/trainer", "w0") for kind in ("weights", "hello", "status", "overview")],
    ("trainer", "status/trainer", "wall"),
    ("trainer", "command/w0", "w1"),
]
FORBIDDEN = [
    *[("w0", f"{kind}/w1", "trainer") for kind in ("hello", "ping", "rows", "report", "status", "infer")],
    ("w0", "hello/trainer", "w1"),
    ("w0", "weights/trainer", "w1"),
    ("w0", "weights/trainer", "trainer"),
    ("w0", "weights/w0", "trainer"),
    ("w0", "ack/w1", "w1"),
    ("w0", "ack/w0", "trainer"),
    ("w0", "overview/trainer", "w1"),
    ("w0", "command/w1", "w1"),
    ("wall", "command/w1", "w1"),
    ("wall", "status/wall", "trainer"),
    ("wall", "rows/wall", "trainer"),
    ("trainer", "rows/w0", "trainer-2"),
    ("trainer", "ack/w0", "w1"),
    ("trainer", "answer/w1", "w0"),
    ("w0", "rows/w0", "w1"),
    ("w0", "rows/w0", "wall"),
    ("trainer", "weights/trainer", "wall"),
]
"""(who says, under which kind and name, who listens)"""


def test_a_name_speaks_only_for_itself(place, keys):
    """Everybody asks for everything; what arrives is what is allowed, and every forbidden word is lost."""
    hub, carriers = place
    keys.add("trainer-2", "trainer")
    until(lambda: hub.reopened == 1)
    with ZenohCarrier(hub.endpoint, LONG_S, key(keys, "trainer-2")) as other:
        carriers = carriers | {"trainer-2": other}
        until(lambda: all(c.connected for c in carriers.values()))
        words = [*ALLOWED, *FORBIDDEN]
        # One mailbox for each word: the local subscriber of one's own session would hear oneself.
        boxes = [
            carriers[listener].subscribe(f"tickrate/r{i}/{key}", capacity=10)
            for i, (_, key, listener) in enumerate(words)
        ]
        wide = [carriers["w1"].subscribe(pattern, capacity=1000) for pattern in ("tickrate/**", "**")]

        def say() -> bool:
            for i, (speaker, key, _) in enumerate(words):
                carriers[speaker].publish(f"tickrate/r{i}/{key}", key.encode())
            return all(len(box) for box in boxes[: len(ALLOWED)])

        until(say)
        say()
        clock.sleep(0.2)  # what was on its way has arrived
        heard = [word for word, box in zip(words, boxes, strict=True) if len(box)]
        own = [word for word in FORBIDDEN if word[0] == word[2]]
        assert [word for word in heard if word not in own] == ALLOWED
        # Asking for everything brings no more than asking for what is one's own.
        ours = {key.encode() for speaker, key, _ in words if speaker == "w1"}
        ours |= {key.encode() for _, key, listener in ALLOWED if listener == "w1"}
        assert {p for box in wide for p in box.drain(2000)} <= ours


def test_presence_is_ones_own_and_seen_by_all(place):
    _, carriers = place
    rosters = [carriers[name].watch("tickrate/r/present/*") for name in NAMES]
    carriers["w0"].announce("tickrate/r/present/w1")
    carriers["wall"].announce("tickrate/r/present/wall")
    for name in ("w0", "trainer"):
        carriers[name].announce(f"tickrate/r/present/{name}")
    for name, roster in zip(NAMES, rosters, strict=True):
        for present in ("w0", "trainer"):
            assert roster.wait_for(f"tickrate/r/present/{present}", LONG_S), name
        # What one announces in vain is seen in one's own session at most.
        forged = {"w0": "w1", "wall": "wall"}
        for liar, claimed in forged.items():
            assert name == liar or f"tickrate/r/present/{claimed}" not in roster.present


def test_other_kinds_of_messages_are_denied(place):
    """Zenoh's queries, answers and deletions are no part of the protocol, so nobody may send any."""
    _, carriers = place
    worker, trainer = carriers["w0"]._session, carriers["trainer"]._session
    deletions: list[str] = []
    listening = trainer.declare_subscriber("tickrate/r/rows/*", lambda s: deletions.append(str(s.kind)))
    answering = trainer.declare_queryable("tickrate/r/rows/*", lambda q: q.reply(q.key_expr, b"x"))

    def put_arrives() -> bool:
        worker.delete("tickrate/r/rows/w0")
        worker.put("tickrate/r/rows/w0", b"")
        return bool(deletions)

    until(put_arrives)
    assert set(deletions) == {"SampleKind.PUT"}
    assert [r for r in worker.get("tickrate/r/rows/w0", timeout=0.3) if r.ok is not None] == []
    answering.undeclare()
    listening.undeclare()


def test_revoking_cuts_off_within_five_seconds_and_the_others_go_on(place, keys):
    hub, carriers = place
    roster = carriers["trainer"].watch("tickrate/r/present/*")
    box = carriers["trainer"].subscribe("tickrate/r/rows/*", capacity=1000)
    for name in ("w0", "w1"):
        carriers[name].announce(f"tickrate/r/present/{name}")
        assert roster.wait_for(f"tickrate/r/present/{name}", LONG_S)
    revoked = key(keys, "w0")
    keys.revoke("w0")
    assert until(lambda: not carriers["w0"].connected) < 5.0
    until(lambda: carriers["w1"].connected and carriers["trainer"].connected)
    assert roster.wait_for("tickrate/r/present/w0", LONG_S, present=False)
    assert roster.wait_for("tickrate/r/present/w1", LONG_S)
    with pytest.raises(NameRefused, match=r"does not let in the name 'w0'.*tickrate keys list"):
        ZenohCarrier(hub.endpoint, 0.3, revoked)
    assert not carriers["w0"].connected
    box.drain(1000)
    carriers["w0"].publish("tickrate/r/rows/w0", b"out")

    def w1_is_heard() -> bool:
        carriers["w1"].publish("tickrate/r/rows/w1", b"in")
        return bool(len(box))

    until(w1_is_heard)
    assert set(box.drain(1000)) == {b"in"}


def test_adding_works_without_a_restart(place, keys):
    hub, carriers = place
    keys.add("late")
    with ZenohCarrier(hub.endpoint, LONG_S, key(keys, "late"), wait_for_hub=False) as late:
        assert until(lambda: late.connected) < 5.0
        until(lambda: all(c.connected for c in carriers.values()))
    assert hub.reopened == 1


def test_a_certificate_and_the_password_of_another_do_not_go_together(place, keys):
    hub, carriers = place
    w0, w1 = key(keys, "w0"), key(keys, "w1")
    mixed = Credentials(
        name="w1",
        role="worker",
        password=w1.password,
        ca_certificate=w0.ca_certificate,
        certificate=w0.certificate,
        private_key=w0.private_key,
    )
    box = carriers["trainer"].subscribe("tickrate/r/rows/*", capacity=10)
    with ZenohCarrier(hub.endpoint, LONG_S, mixed) as thief:

        def honest_is_heard() -> bool:
            for name in ("w0", "w1"):
                thief.publish(f"tickrate/r/rows/{name}", b"stolen")
            carriers["w0"].publish("tickrate/r/rows/w0", b"honest")
            return bool(len(box))

        until(honest_is_heard)
        assert set(box.drain(10)) == {b"honest"}


@pytest.mark.long
def test_a_holder_is_cut_off_when_the_certificate_expires(keys):
    keys.add("brief", days=3 / 86400)
    with ZenohHub(keys=keys) as hub, ZenohCarrier(hub.endpoint, LONG_S, key(keys, "brief")) as brief:
        assert brief.connected
        until(lambda: not brief.connected)
        clock.sleep(1.0)
        assert not brief.connected
        assert clock.wall_time() > keys.entries()[1].expires


def test_without_any_names_nobody_gets_in(tmp_path):
    keys = KeysFolder.init(tmp_path / "keys", [])
    stranger = Credentials.load(KeysFolder(keys.path).add("w0"))
    keys.revoke("w0")
    with ZenohHub(keys=keys) as hub, pytest.raises(NameRefused):
        ZenohCarrier(hub.endpoint, 0.3, stranger)


def test_damaged_keys_leave_the_door_as_it_is_until_they_are_mended(place, keys, caplog):
    hub, carriers = place
    registry = keys.path / "names.json"
    whole = registry.read_text()
    registry.write_text("{", encoding="utf-8")
    until(lambda: "cannot be used" in caplog.text)
    assert all(carrier.connected for carrier in carriers.values())
    registry.write_text(whole, encoding="utf-8")
    until(lambda: hub.reopened == 1)
    until(lambda: all(c.connected for c in carriers.values()))


def test_a_hub_starts_with_whole_and_valid_keys_only(tmp_path):
    keys = KeysFolder.init(tmp_path / "keys", [], days=-1)
    with pytest.raises(CertificateExpired, match=r"hub's certificate .* expired on .*keys init --renew"):
        ZenohHub(keys=keys)
    (keys.path / "hub.crt").write_text("no certificate", encoding="utf-8")
    with pytest.raises(CredentialsError, match=r"a certificate in .* is damaged"):
        ZenohHub(keys=keys)
    (keys.path / "hub.crt").unlink()
    with pytest.raises(CredentialsError, match=r"cannot read .*hub\.crt"):
        ZenohHub(keys=keys)


def test_without_keys_loopback_only_and_by_default():
    with ZenohHub() as hub:
        assert hub.endpoint.startswith("tcp/127.0.0.1:")
        port = int(hub.endpoint.rpartition(":")[2])
        listening = [c.laddr.ip for c in listeners() if c.laddr.port == port]
        assert listening == ["127.0.0.1"]
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(WireError, match=r"loopback only.*tickrate keys init HOST.*tickrate hub --keys"):
            ZenohHub(host)


def listeners():
    psutil = pytest.importorskip("psutil")
    return [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def test_a_port_in_use_is_said_with_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        who = rf" by process {os.getpid()} \(.*python" if sys.platform == "linux" else ""
        with pytest.raises(
            WireError, match=rf"cannot listen on tcp/127.0.0.1:{port}: port {port} is taken{who}"
        ):
            ZenohHub(port=port)


def test_an_address_of_another_machine_is_said(keys):
    with pytest.raises(WireError, match=r"cannot listen on tls/192\.0\.2\.1:7447: .*assign"):
        ZenohHub("192.0.2.1", 7447, keys)


def test_a_key_and_a_plain_address_do_not_go_together(keys):
    with pytest.raises(CredentialsError, match="not encrypted"):
        ZenohCarrier("tcp/127.0.0.1:7447", 0.1, key(keys, "w0"))
    with pytest.raises(CredentialsError, match=r"needs credentials.*tickrate keys add"):
        ZenohCarrier("tls/127.0.0.1:7447", 0.1)
    with pytest.raises(WireError, match=r"tls/\[::1\]:7447: .*by a host name"):
        ZenohCarrier("tls/[::1]:7447", 0.1, key(keys, "w0"))


# --- Roles that start before the hub, and hubs that are killed ---

HUB = """
import sys
from tickrate.wire.keys_folder import KeysFolder
from tickrate.wire.zenoh_hub import ZenohHub
keys = KeysFolder(sys.argv[2]) if len(sys.argv) > 2 else None
hub = ZenohHub(port=int(sys.argv[1]), keys=keys)
print("up", flush=True)
sys.stdin.read()
"""


class HubProcess:
    """A hub in a process of its own, to be killed."""

    def __init__(self, port: int, keys: KeysFolder | None) -> None:
        command = [sys.executable, "-c", HUB, str(port), *([str(keys.path)] if keys else [])]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        assert self._child.stdout is not None
        assert self._child.stdout.readline().strip() == b"up"

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(LONG_S)
        for stream in (self._child.stdin, self._child.stdout):
            stream.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_roles_start_before_the_hub_and_outlive_it(keys, secure):
    port = free_port()
    endpoint = f"{'tls' if secure else 'tcp'}/127.0.0.1:{port}"
    begin = clock.now()
    with ExitStack() as stack:
        worker, trainer = (
            stack.enter_context(
                ZenohCarrier(endpoint, key=key(keys, name) if secure else None, wait_for_hub=False)
            )
            for name in ("w0", "trainer")
        )
        box = trainer.subscribe("tickrate/r/rows/*", capacity=10_000)
        roster = trainer.watch("tickrate/r/present/*")
        worker.announce("tickrate/r/present/w0")
        worker.publish("tickrate/r/rows/w0", b"lost, without an error and without waiting")
        assert clock.now() - begin < 1.0
        assert not worker.connected

        def heard() -> bool:
            worker.publish("tickrate/r/rows/w0", b"heard")
            return bool(len(box))

        for _ in range(2 if secure else 1):
            hub = HubProcess(port, keys if secure else None)
            took = until(lambda: worker.connected and trainer.connected)
            assert took < 2.0
            assert roster.wait_for("tickrate/r/present/w0", LONG_S)
            until(heard)
            assert set(box.drain(10_000)) == {b"heard"}
            hub.kill()
            until(lambda: not (worker.connected or trainer.connected))
            assert roster.wait_for("tickrate/r/present/w0", LONG_S, present=False)
            box.drain(10_000)


def test_closing_a_carrier_that_never_found_a_hub(keys):
    carrier = ZenohCarrier(f"tcp/127.0.0.1:{free_port()}", wait_for_hub=False)
    box = carrier.subscribe("tickrate/r/rows/*", capacity=1)
    with pytest.raises(WireError, match="cannot use the key"):
        carrier.subscribe("tickrate//x", capacity=1)
    carrier.close()
    assert box.get(LONG_S) is None
    with pytest.raises(WireError, match="closed"):
        carrier.announce("tickrate/r/present/w")
