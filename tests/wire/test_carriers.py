"""One set of promises, checked on the in-memory carrier and on Zenoh over a real loopback socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tickrate import clock
from tickrate.errors import HubUnreachable, WireError
from tickrate.wire import carrier as carriers
from tickrate.wire import zenoh_hub
from tickrate.wire.carrier import Carrier, key_matches, make_key
from tickrate.wire.mailbox import Mailbox
from tickrate.wire.memory import MemoryCarrier, MemoryHub
from tickrate.wire.messages import MAX_MESSAGE_BYTES
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub
from tickrate.wire.zenoh_settings import within

LONG_S = 20.0
"""A limit that a correct carrier never comes near."""

Join = Callable[[], Carrier]


@pytest.fixture(params=["memory", "zenoh"])
def join(request) -> Iterator[Join]:
    """Return a function that makes one more carrier at a common hub."""
    with ExitStack() as stack:
        if request.param == "memory":
            memory_hub = stack.enter_context(MemoryHub())
            yield lambda: stack.enter_context(MemoryCarrier(memory_hub))
        else:
            hub = stack.enter_context(ZenohHub())
            yield lambda: stack.enter_context(ZenohCarrier(hub.endpoint, LONG_S))


def until(condition: Callable[[], bool]) -> None:
    deadline = clock.now() + LONG_S
    while not condition():
        assert clock.now() < deadline, "it never came true"
        clock.sleep(0.005)


def settle(sender: Carrier, receiver: Carrier) -> None:
    """Wait until the sender has learned of the receiver's subscriptions, which reach it in their own time."""
    box = receiver.subscribe("tickrate/r/settle/x", capacity=1000)
    deadline = clock.now() + LONG_S
    while box.get(0.01) is None:
        sender.publish("tickrate/r/settle/x", b"")
        assert clock.now() < deadline


def test_a_stream_arrives_whole_and_in_order(join):
    sender, receiver = join(), join()
    box = receiver.subscribe(make_key("r", "rows", "*"), capacity=1000)
    settle(sender, receiver)
    payloads = [bytes([i % 256]) * (i * 97 % 5000) for i in range(500)]
    for payload in payloads:
        sender.publish(make_key("r", "rows", "w0"), payload)
    assert [box.get(LONG_S) for _ in payloads] == payloads
    assert box.dropped == 0


def test_keys_keep_runs_and_kinds_apart(join):
    sender, receiver = join(), join()
    box = receiver.subscribe("tickrate/r/rows/*", capacity=10)
    settle(sender, receiver)
    for key in [
        "tickrate/other/rows/w",
        "tickrate/r/status/w",
        "tickrate/r/rows/w/deeper",
        "tickrate/r/rows/w",
    ]:
        sender.publish(key, key.encode())
    assert box.get(LONG_S) == b"tickrate/r/rows/w"
    assert box.get(0.0) is None


def test_newest_wins_for_each_key(join):
    sender, receiver = join(), join()
    box = receiver.subscribe("tickrate/r/status/*", capacity=10, newest_only=True)
    settle(sender, receiver)
    for i in range(50):
        sender.publish("tickrate/r/status/a", b"a%d" % i)
        sender.publish("tickrate/r/status/b", b"b%d" % i)
    sender.publish("tickrate/r/status/c", b"the end")
    until(lambda: len(box) == 3)
    assert box.drain(10) == [b"a49", b"b49", b"the end"]
    assert box.dropped == 0


def test_nobody_reading_drops_the_oldest_and_counts(join):
    sender, receiver = join(), join()
    box = receiver.subscribe("tickrate/r/rows/*", capacity=10)
    settle(sender, receiver)
    for i in range(35):
        sender.publish("tickrate/r/rows/w", b"%d" % i)
    until(lambda: box.dropped == 25)
    assert box.drain(100) == [b"%d" % i for i in range(25, 35)]


def test_megabytes_arrive(join):
    sender, receiver = join(), join()
    box = receiver.subscribe("tickrate/r/weights/all", capacity=2, newest_only=True)
    settle(sender, receiver)
    payload = bytes(range(256)) * 8192
    sender.publish("tickrate/r/weights/all", payload)
    assert box.get(LONG_S) == payload


def test_what_need_not_wait_arrives_when_there_is_room(join):
    sender, receiver = join(), join()
    box = receiver.subscribe("tickrate/r/status/*", capacity=10, newest_only=True)
    settle(sender, receiver)
    deadline = clock.now() + LONG_S
    while box.get(0.05) != b"acting":
        sender.publish("tickrate/r/status/w", b"acting", wait=False)
        assert clock.now() < deadline


def test_presence_follows_announcements_and_closing(join):
    early, worker = join(), join()
    before = early.watch("tickrate/r/alive/*")
    key = make_key("r", "alive", "w0")
    worker.announce(key)
    after = join().watch("tickrate/r/alive/*")
    for roster in (before, after):
        assert roster.wait_for(key, LONG_S)
        assert roster.present == {key}
    worker.close()
    for roster in (before, after):
        assert roster.wait_for(key, LONG_S, present=False)
        assert roster.present == frozenset()


def test_use_after_close_is_an_error_and_closing_twice_is_not(join):
    one = join()
    box = one.subscribe("tickrate/r/rows/*", capacity=1)
    assert one.connected
    one.close()
    one.close()
    assert not one.connected
    assert box.get(LONG_S) is None  # closed, so it does not wait
    for use in (
        lambda: one.publish("tickrate/r/rows/w", b""),
        lambda: one.subscribe("tickrate/r/rows/w", capacity=1),
        lambda: one.announce("tickrate/r/alive/w"),
        lambda: one.watch("tickrate/r/alive/*"),
    ):
        with pytest.raises(WireError, match="closed"):
            use()


def test_what_cannot_be_published_is_refused(join):
    one = join()
    with pytest.raises(WireError, match="over the limit"):
        one.publish("tickrate/r/rows/w", bytes(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(WireError, match="name one key"):
        one.publish("tickrate/r/rows/*", b"")


# --- Zenoh: the hub absent, taken, killed, and strangers at the door ---


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_an_absent_hub_is_named_with_what_to_do():
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    with pytest.raises(
        HubUnreachable, match=rf"within 0.3 s: .*{endpoint}: nothing listens there.*tickrate train"
    ):
        ZenohCarrier(endpoint, timeout_s=0.3)


def test_something_else_at_the_address_is_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp/127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(HubUnreachable, match="does not answer as a hub"):
            ZenohCarrier(endpoint, timeout_s=0.3)


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:7447", "tcp/127.0.0.1", "tcp/:1", "tcp/x:0", "udp/127.0.0.1:1", ""]
)
def test_an_address_that_is_none_is_refused(endpoint):
    with pytest.raises(WireError, match="no hub address"):
        ZenohCarrier(endpoint, timeout_s=0.1)


def test_a_hub_that_comes_late_is_found():
    port = free_port()
    found: list[ZenohCarrier] = []
    thread = threading.Thread(target=lambda: found.append(ZenohCarrier(f"tcp/127.0.0.1:{port}", LONG_S)))
    thread.start()
    clock.sleep(0.15)
    with ZenohHub(port=port):
        thread.join(LONG_S)
        assert found[0].connected
        found[0].close()


def test_the_hub_listens_on_loopback_only():
    with pytest.raises(WireError, match="loopback only"):
        ZenohHub("0.0.0.0")


def test_a_taken_port_is_said():
    with ZenohHub() as hub, pytest.raises(WireError, match=r"cannot listen on .*another run"):
        ZenohHub(port=int(hub.endpoint.rpartition(":")[2]))


def test_delivery_resumes_when_the_hub_comes_back():
    port = free_port()
    endpoint = f"tcp/127.0.0.1:{port}"
    with ExitStack() as stack:
        hub = stack.enter_context(ZenohHub(port=port))
        sender, receiver = (stack.enter_context(ZenohCarrier(endpoint, LONG_S)) for _ in range(2))
        box = receiver.subscribe("tickrate/r/rows/*", capacity=1000)
        roster = receiver.watch("tickrate/r/alive/*")
        sender.announce("tickrate/r/alive/w")
        settle(sender, receiver)
        assert roster.wait_for("tickrate/r/alive/w", LONG_S)

        hub.close()
        until(lambda: not (sender.connected or receiver.connected))
        assert roster.wait_for("tickrate/r/alive/w", LONG_S, present=False)
        sender.publish("tickrate/r/rows/w", b"lost, without an error and without waiting")
        assert box.get(0.05) is None

        stack.enter_context(ZenohHub(port=port))
        until(lambda: sender.connected and receiver.connected)
        assert roster.wait_for("tickrate/r/alive/w", LONG_S)
        deadline = clock.now() + LONG_S
        while box.get(0.01) != b"back":
            sender.publish("tickrate/r/rows/w", b"back")
            assert clock.now() < deadline


CHILD = """
import sys
from tickrate.wire.zenoh_carrier import ZenohCarrier
carrier = ZenohCarrier(sys.argv[1], 10.0)
carrier.announce("tickrate/r/alive/child")
carrier.publish("tickrate/r/rows/child", b"hello")
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_is_seen_to_leave():
    root = Path(__file__).resolve().parents[2]
    with ZenohHub() as hub, ZenohCarrier(hub.endpoint, LONG_S) as own:
        roster = own.watch("tickrate/r/alive/*")
        box = own.subscribe("tickrate/r/rows/*", capacity=10)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, hub.endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
        )
        with child:
            try:
                assert roster.wait_for("tickrate/r/alive/child", LONG_S)
                assert box.get(LONG_S) == b"hello"
            finally:
                child.kill()
            assert roster.wait_for("tickrate/r/alive/child", LONG_S, present=False)


FORGETFUL = """
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub
hub = ZenohHub()
carriers = [ZenohCarrier(hub.endpoint, 10.0) for _ in range(2)]
box = carriers[1].subscribe("tickrate/r/rows/*", capacity=10)
roster = carriers[1].watch("tickrate/r/alive/*")
for i in range(500):
    carriers[0].publish("tickrate/r/rows/w", bytes(100))
raise SystemExit(3)
"""


def test_a_process_that_forgot_to_close_still_ends():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", FORGETFUL], cwd=root, timeout=LONG_S, check=False)
    assert done.returncode == 3


def test_what_has_to_end_ends_where_no_thread_can_start(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    ended = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert within(lambda: ended.append(True), LONG_S, "closing")
    assert ended == [True]


def test_strangers_that_speak_no_zenoh_do_not_disturb_the_hub():
    with ExitStack() as stack:
        hub = stack.enter_context(ZenohHub())
        port = int(hub.endpoint.rpartition(":")[2])
        sender, receiver = (stack.enter_context(ZenohCarrier(hub.endpoint, LONG_S)) for _ in range(2))
        box = receiver.subscribe("tickrate/r/rows/*", capacity=1000)
        settle(sender, receiver)
        for noise in [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10_000, b"\x80\x04\x95", b""]:
            with socket.create_connection(("127.0.0.1", port), timeout=LONG_S) as stranger:
                stranger.sendall(noise)
        sender.publish("tickrate/r/rows/w", b"still here")
        assert box.get(LONG_S) == b"still here"


def test_closing_that_hangs_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(zenoh_hub, "CLOSE_TIMEOUT_S", 0.05)
    release = threading.Event()
    hub = ZenohHub()
    session, hub._session = hub._session, type("Stuck", (), {"close": lambda self: release.wait(LONG_S)})()
    hub.close()
    assert "was left behind" in caplog.text
    release.set()
    session.close()


# --- keys and mailboxes ---


def test_keys_are_checked():
    assert make_key("run-1", "rows", carriers.ANY) == "tickrate/run-1/rows/*"
    for part in ["", "a/b", "**", "*x", "$", "a?b", ".hidden", "x" * 129, "ä"]:
        with pytest.raises(WireError, match="cannot be part of a key"):
            make_key("r", "rows", part)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/c", False),
        ("a/*", "a/b/c", False),
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
    ],
)
def test_patterns_match_whole_parts(pattern, key, expected):
    assert key_matches(pattern, key) is expected


def test_a_mailbox_wakes_its_reader():
    box = Mailbox(2)
    got: list[bytes | None] = []
    reader = threading.Thread(target=lambda: got.append(box.get(LONG_S)))
    reader.start()
    box.put("k", b"x")
    reader.join(LONG_S)
    assert got == [b"x"]


def test_closing_wakes_the_reader_and_keeps_what_waits():
    box = Mailbox(2)
    got: list[bytes | None] = []
    reader = threading.Thread(target=lambda: got.append(box.get(LONG_S)))
    reader.start()
    box.close()
    reader.join(LONG_S)
    assert got == [None]
    full = Mailbox(2)
    full.put("k", b"x")
    full.close()
    full.put("k", b"late")
    assert full.drain(9) == [b"x"]


def test_newest_only_is_bounded_in_keys():
    box = Mailbox(2, newest_only=True)
    for key in "abca":
        box.put(key, key.encode())
    assert (box.drain(9), box.dropped) == ([b"c", b"a"], 2)


def test_oversize_payloads_are_dropped_at_the_door():
    box = Mailbox(2)
    box.put("k", bytes(MAX_MESSAGE_BYTES + 1))
    assert (len(box), box.dropped) == (0, 1)


def test_a_mailbox_of_nothing_is_refused():
    with pytest.raises(ValueError, match="give 1 or more"):
        Mailbox(0)
