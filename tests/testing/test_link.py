"""The bad network is exactly as bad as it is told to be: real sockets, both ways, while bytes flow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tickrate import clock
from tickrate.errors import WireError
from tickrate.testing import LinkProxy

LONG_S = 20.0
"""A limit that a correct proxy never comes near."""


class Ends:
    """A proxy to a listener of our own, and pairs of sockets connected through it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(LONG_S)
        self.proxy = stack.enter_context(LinkProxy(self.listener.getsockname()))

    def dial(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.proxy.port), LONG_S)
        return self._stack.enter_context(client)

    def accept(self) -> socket.socket:
        server = self._stack.enter_context(self.listener.accept()[0])
        server.settimeout(LONG_S)
        return server

    def pair(self) -> tuple[socket.socket, socket.socket]:
        return self.dial(), self.accept()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(stack)


def read_exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := end.recv(count - len(data))):
        data += part
    return data


def read_all(end: socket.socket) -> bytes:
    """Return what comes until the end of the stream, whichever way it ends."""
    parts = []
    try:
        while part := end.recv(1 << 20):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def until(condition: Callable[[], bool]) -> None:
    deadline = clock.now() + LONG_S
    while not condition():
        assert clock.now() < deadline, "it never came true"
        clock.sleep(0.002)


def is_over(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b""
    except ConnectionError:
        return True


def is_refused(ends: Ends) -> bool:
    """Tell whether a new connection is reset: while it is made, or as soon as it is used."""
    try:
        return is_over(ends.dial())
    except ConnectionError:
        return True


def test_bytes_go_through_both_ways_and_are_counted(ends):
    client, server = ends.pair()
    client.sendall(b"ping")
    assert read_exactly(server, 4) == b"ping"
    server.sendall(b"answer")
    assert read_exactly(client, 6) == b"answer"
    until(lambda: ends.proxy.counters.bytes_back == 6)  # counted just after it was delivered
    counters = ends.proxy.counters
    assert (counters.bytes_forward, counters.bytes_back) == (4, 6)
    assert (counters.connections, counters.open, counters.refused, counters.cuts) == (1, 1, 0, 0)
    assert (counters.bytes_in_flight, counters.bytes_lost) == (0, 0)


def test_a_stream_larger_than_the_buffer_arrives_whole(ends):
    client, server = ends.pair()
    data = bytes(range(256)) * (20 << 12)  # 20 MiB through 8 MiB of buffer
    sender = threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)))
    sender.start()
    assert read_all(server) == data
    sender.join(LONG_S)
    server.sendall(b"thank you")  # the other direction stands after a half-close
    server.close()
    assert read_all(client) == b"thank you"
    until(lambda: ends.proxy.counters.open == 0)
    assert ends.proxy.counters.bytes_lost == 0


def test_a_delay_is_seen_in_each_direction(ends):
    client, server = ends.pair()
    ends.proxy.delay_s = 0.05
    for sender, receiver in ((client, server), (server, client)):
        begin = clock.now()
        sender.sendall(b"x")
        assert receiver.recv(1) == b"x"
        assert clock.now() - begin >= 0.05
    ends.proxy.delay_s = 0.0
    client.sendall(b"y")
    assert server.recv(1) == b"y"


def test_a_shorter_delay_overtakes_nothing(ends):
    client, server = ends.pair()
    ends.proxy.delay_s = 0.1
    client.sendall(b"first")
    until(lambda: ends.proxy.counters.bytes_in_flight == 5)
    ends.proxy.delay_s = 0.0
    client.sendall(b"second")
    assert read_exactly(server, 11) == b"firstsecond"


def test_the_delay_does_not_limit_the_throughput(ends):
    client, server = ends.pair()
    ends.proxy.delay_s = 0.1
    begin = clock.now()
    pieces = 200
    for number in range(pieces):
        client.sendall(number.to_bytes(2, "big") * 500)
    data = read_exactly(server, pieces * 1000)
    assert data == b"".join(number.to_bytes(2, "big") * 500 for number in range(pieces))
    assert clock.now() - begin < pieces * 0.1 / 4  # one after the other they would take 20 s


@pytest.mark.parametrize("swallow", [False, True])
def test_a_cut_ends_both_sides_and_a_mended_link_takes_new_ones(ends, swallow):
    client, server = ends.pair()
    ends.proxy.cut(swallow=swallow)
    assert is_over(client)
    assert is_over(server)
    if swallow:
        late = ends.dial()
        late.sendall(b"hello?")
        late.settimeout(0.05)
        with pytest.raises(TimeoutError):
            late.recv(1)
        late.settimeout(LONG_S)
        until(lambda: ends.proxy.counters.bytes_in_flight == 6)
        ends.proxy.mend()
        assert read_exactly(ends.accept(), 6) == b"hello?"
    else:
        assert is_refused(ends)
        ends.proxy.mend()
    client, server = ends.pair()
    client.sendall(b"again")
    assert read_exactly(server, 5) == b"again"
    counters = ends.proxy.counters
    assert (counters.cuts, counters.refused) == (1, 0 if swallow else 1)


def test_what_is_in_flight_at_a_cut_is_lost_and_counted(ends):
    client, server = ends.pair()
    ends.proxy.stall()
    client.sendall(b"x" * 1000)
    until(lambda: ends.proxy.counters.bytes_in_flight == 1000)
    ends.proxy.cut()
    assert read_all(server) == b""
    assert ends.proxy.counters.bytes_lost == 1000


def test_a_stall_holds_bytes_with_the_connection_standing(ends):
    client, server = ends.pair()
    ends.proxy.stall()
    client.sendall(b"held")
    server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        server.recv(4)
    server.settimeout(LONG_S)
    assert ends.proxy.counters.open == 1
    ends.proxy.go_on()
    assert read_exactly(server, 4) == b"held"


def test_half_delivers_exactly_the_first_part_each_way(ends):
    client, server = ends.pair()
    up, down = bytes(range(250)) * 4, b"answer"
    ends.proxy.stall()
    client.sendall(up)
    server.sendall(down)
    until(lambda: ends.proxy.counters.bytes_in_flight == 1006)
    assert ends.proxy.half() == 503
    assert read_all(server) == up[:500]
    assert read_all(client) == b"ans"
    assert is_refused(ends)
    ends.proxy.go_on()
    ends.proxy.mend()
    assert ends.proxy.counters.bytes_lost == 503
    client, server = ends.pair()
    client.sendall(b"whole")
    assert read_exactly(server, 5) == b"whole"


def test_half_waits_for_the_next_bytes(ends):
    client, server = ends.pair()
    lost: list[int] = []
    caller = threading.Thread(target=lambda: lost.append(ends.proxy.half(0.25)))
    caller.start()
    clock.sleep(0.05)
    client.sendall(b"abcdefgh")
    caller.join(LONG_S)
    assert lost == [6]
    assert read_all(server) == b"ab"


def test_half_of_nothing_changes_nothing(ends):
    client, server = ends.pair()
    with pytest.raises(TimeoutError, match=r"no bytes came within 0.02 s"):
        ends.proxy.half(wait_s=0.02)
    client.sendall(b"whole")
    assert read_exactly(server, 5) == b"whole"


def test_nobody_at_the_target_is_a_reset(ends):
    ends.listener.close()
    assert is_refused(ends)
    until(lambda: ends.proxy.counters.refused == 1)


def test_closing_ends_everything_and_leaves_no_thread(ends):
    client, server = ends.pair()
    ends.proxy.close()
    ends.proxy.close()
    assert is_over(client)
    assert is_over(server)
    assert not any(thread.name.startswith("link proxy") for thread in threading.enumerate())
    with pytest.raises(ConnectionError):
        ends.dial()
    with pytest.raises(WireError, match="closed"):
        ends.proxy.cut()


def test_addresses_are_taken_and_told_as_a_hub_s():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with LinkProxy(f"tls/127.0.0.1:{port}") as proxy:
            assert proxy.endpoint == f"tls/127.0.0.1:{proxy.port}"
    for wrong in ("127.0.0.1", "tcp/:1", "tcp/x:0", ""):
        with pytest.raises(WireError, match="no address"):
            LinkProxy(wrong)


def test_impossible_numbers_are_refused(ends):
    for delay in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="delay"):
            ends.proxy.delay_s = delay
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="share"):
            ends.proxy.half(share)
