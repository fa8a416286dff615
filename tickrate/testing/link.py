"""A bad network on one machine: a TCP proxy that delays, stalls, cuts and half-delivers while it runs."""

from __future__ import annotations

import errno
import math
import selectors
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tickrate import clock
from tickrate.errors import WireError

LIMIT_S = 5.0
"""Longest time that a control call, a connection to the target or the end of the proxy may take."""

_READ_BYTES = 1 << 18
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


@dataclass(frozen=True)
class LinkCounters:
    """What a `LinkProxy` has seen since it was made."""

    connections: int
    """Connections taken in."""
    open: int
    """Connections that stand now."""
    refused: int
    """Connections turned away while the link was cut, or because nothing listened at the target."""
    cuts: int
    """Calls of `cut` and `half` that were carried out."""
    bytes_forward: int
    """Bytes delivered to the target."""
    bytes_back: int
    """Bytes delivered to those who dialled in."""
    bytes_in_flight: int
    """Bytes taken in and not yet delivered."""
    bytes_lost: int
    """Bytes taken in that were never delivered, because their connection was dropped."""


class LinkProxy:
    """Forwards what arrives at a loopback port to a target, as a link of your choice would.

    It runs in a daemon thread of its own. Every control may be used from any thread while bytes flow, and has
    taken effect when it returns. TCP stays TCP: on a connection that stands, bytes are never lost, repeated
    or reordered; for that, see `FaultyCarrier`.

    Args:
        target: where to forward to, as ``(host, port)`` or ``"tcp/127.0.0.1:7447"``.
        delay_s: time that bytes take in each direction, in seconds. It does not limit the throughput, as long
            as ``buffer_bytes`` hold what is sent in that time.
        host: the address to listen on.
        port: the port to listen on; 0 takes a free one.
        buffer_bytes: bytes kept in flight in each direction of each connection; then the sender has to wait,
            as it would on a real link.

    Attributes:
        host: the address it listens on.
        port: the port it listens on.

    Raises:
        WireError: if the target is no address.
        OSError: if the port cannot be listened on.
        ValueError: if the delay is negative or not finite.
    """

    def __init__(
        self,
        target: str | tuple[str, int],
        *,
        delay_s: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
        buffer_bytes: int = 8 << 20,
    ) -> None:
        self._kind, self._target = _parse(target)
        self._delay_s = _checked_delay(delay_s)
        self._buffer_bytes = buffer_bytes
        self._listener = socket.create_server((host, port))
        self._listener.setblocking(False)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, _READ)
        self._selector.register(self._wake_reader, _READ)
        self._commands: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._connections: list[_Connection] = []
        self._state: Literal["open", "refuse", "swallow"] = "open"
        self._stalled = False
        self._half: _Half | None = None
        self._closing = False
        self._seen = self._refused = self._cuts = self._lost = 0
        self._delivered = [0, 0]
        self._thread = threading.Thread(target=self._run, name=f"link proxy {self.port}", daemon=True)
        self._thread.start()

    # --- what it is ----------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """The proxy's own address in the form of a hub's, ``tcp/127.0.0.1:PORT``."""
        return f"{self._kind}/{self.host}:{self.port}"

    @property
    def delay_s(self) -> float:
        """Time that bytes take in each direction, in seconds; it counts for bytes taken in from now on."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        self._delay_s = _checked_delay(seconds)

    @property
    def counters(self) -> LinkCounters:
        """What was seen so far."""
        standing = list(self._connections)
        return LinkCounters(
            connections=self._seen,
            open=len(standing),
            refused=self._refused,
            cuts=self._cuts,
            bytes_forward=self._delivered[0],
            bytes_back=self._delivered[1],
            bytes_in_flight=sum(connection.in_flight for connection in standing),
            bytes_lost=self._lost,
        )

    # --- what it can be told -------------------------------------------------------------------------------

    def cut(self, *, swallow: bool = False) -> None:
        """Drop every connection, and let no new one through until `mend`.

        Args:
            swallow: what new connections meet: False, a reset at once, as where a program has gone; True,
                silence, as where a cable is out. Those are joined to the target when the link is mended.
        """

        def act() -> None:
            self._cut("swallow" if swallow else "refuse")

        self._call(act)

    def mend(self) -> None:
        """Let connections through again."""

        def act() -> None:
            self._state = "open"

        self._call(act)

    def stall(self) -> None:
        """Hold all bytes back, with every connection standing, until `go_on`."""

        def act() -> None:
            self._stalled = True

        self._call(act)

    def go_on(self) -> None:
        """Deliver again, first what was held back."""

        def act() -> None:
            self._stalled = False

        self._call(act)

    def half(self, share: float = 0.5, *, wait_s: float = LIMIT_S) -> int:
        """Deliver only the first part of what is in flight, then cut; return the number of bytes lost.

        If nothing is in flight now, it happens to the next bytes that come. What is delivered is followed by
        a regular end of the connection, so the receiver reads exactly that part. Until `mend`, new
        connections are reset.

        Args:
            share: which part of each direction of each connection, above 0 and below 1; at least one byte is
                lost of each.
            wait_s: how long to wait for bytes, in seconds.

        Raises:
            TimeoutError: if no bytes came in time; the link is as it was.
        """
        if not 0.0 < share < 1.0:
            raise ValueError(f"half({share}): the share must be above 0 and below 1")
        order = _Half(share)

        def arm() -> None:
            self._half = order

        def disarm() -> None:
            if self._half is order:
                self._half = None

        self._call(arm)
        if not order.done.wait(wait_s):
            self._call(disarm)
            if not order.begun:
                raise TimeoutError(f"half(): no bytes came within {wait_s:g} s")
            order.done.wait(LIMIT_S)
        return order.lost

    def close(self) -> None:
        """Drop every connection and stop listening; a second call does nothing."""
        if not self._closing:
            self._closing = True
            self._wake()
            self._thread.join(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, action: Callable[[], None]) -> None:
        """Run an action in the proxy's thread and wait until it is done."""
        if self._closing:
            raise WireError("this link proxy is closed")
        done = threading.Event()
        self._commands.append((action, done))
        self._wake()
        if not done.wait(LIMIT_S):
            raise TimeoutError(f"the link proxy on port {self.port} did not answer within {LIMIT_S:g} s")

    def _wake(self) -> None:
        try:
            self._wake_writer.send(b"\0")
        except OSError:  # it is full, so the thread will wake; or closed, so there is nobody to wake
            pass

    # --- the proxy's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                timeout_s = self._move()
                for key, mask in self._selector.select(timeout_s):
                    if key.data is not None:
                        key.data.ready(key.fileobj, mask, self._delay_s)
                    elif key.fileobj is self._listener:
                        self._accept()
                self._obey()  # last: it may close what there was an event for
        finally:
            for connection in self._connections:
                connection.drop(self._selector)
            self._connections.clear()
            self._selector.close()
            for end in (self._listener, self._wake_reader, self._wake_writer):
                end.close()

    def _obey(self) -> None:
        try:
            while self._wake_reader.recv(4096):
                pass
        except BlockingIOError:
            pass
        while self._commands:
            action, done = self._commands.popleft()
            action()
            done.set()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it gave up between the notice and now
            return
        if self._state == "refuse":
            self._refused += 1
            _reset(client)
            return
        self._seen += 1
        self._connections.append(_Connection(client, self._buffer_bytes))

    def _cut(self, state: Literal["refuse", "swallow"]) -> None:
        self._state, self._cuts = state, self._cuts + 1
        for connection in self._connections:
            self._lost += connection.drop(self._selector)
        self._connections.clear()

    def _move(self) -> float:
        """Deliver what is due, forget what has ended, and return how long there is nothing to do, in s."""
        now = clock.now()
        self._cut_in_half(now)
        wait_s = 1.0
        for connection in list(self._connections):
            if not connection.joined and self._state == "open":
                connection.dial(self._target, now)
            if not self._stalled or connection.ending:
                self._deliver(connection, now)
            wait_s = min(wait_s, connection.next_due() - now if not self._stalled else 1.0)
            if connection.over(now):
                self._refused += connection.unreachable
                self._lost += connection.drop(self._selector, regularly=connection.ending)
                self._connections.remove(connection)
            else:
                connection.listen(self._selector)
        self._finish_half()
        return max(0.0, wait_s)

    def _deliver(self, connection: _Connection, now: float) -> None:
        for way, pipe in enumerate(connection.pipes):
            self._delivered[way] += connection.deliver(pipe, now)

    def _cut_in_half(self, now: float) -> None:
        order = self._half
        if order is None or order.begun or not any(c.longest > 1 for c in self._connections):
            return
        order.begun, self._state, self._cuts = True, "refuse", self._cuts + 1
        for connection in self._connections:
            order.lost += connection.keep_first(order.share, now)
        self._lost += order.lost

    def _finish_half(self) -> None:
        order = self._half
        if order is not None and order.begun and not any(c.ending for c in self._connections):
            order.done.set()
            self._half = None


class _Half:
    """An order to deliver half of what is in flight: what came of it, and whether it is done."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.begun = False
        self.lost = 0
        self.done = threading.Event()


class _Pipe:
    """One direction of a connection: bytes in order, each with the time at which it is due."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[float, memoryview]] = deque()
        """An empty chunk is the end of the stream."""
        self.held = 0
        self.read_all = False
        self.written_all = False
        self.blocked = False

    def put(self, due: float, data: bytes) -> None:
        self.chunks.append((due, memoryview(data)))
        self.held += len(data)
        self.read_all = not data


class _Connection:
    """One who dialled in, the connection to the target that belongs to it, and the bytes between them."""

    def __init__(self, client: socket.socket, buffer_bytes: int) -> None:
        client.setblocking(False)
        _send_at_once(client)
        self.client = client
        self.server: socket.socket | None = None
        self.joined = False  # whether the target was dialled
        self.connected = False  # whether it has answered
        self.ending = False
        self.broken = self.unreachable = False
        self.pipes = (_Pipe(), _Pipe())
        self._limit = buffer_bytes
        self._deadline = math.inf
        self._masks: dict[socket.socket, int] = {}

    @property
    def in_flight(self) -> int:
        return sum(pipe.held for pipe in self.pipes)

    @property
    def longest(self) -> int:
        return max(pipe.held for pipe in self.pipes)

    def dial(self, target: tuple[str, int], now: float) -> None:
        """Begin to connect to the target."""
        self.joined, self._deadline = True, now + LIMIT_S
        family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
        self.server = socket.socket(family, socket.SOCK_STREAM)
        self.server.setblocking(False)
        _send_at_once(self.server)
        if self.server.connect_ex(target) not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self.broken = self.unreachable = True

    def ready(self, end: socket.socket, mask: int, delay_s: float) -> None:
        """Read what has come, and note where there is room to write."""
        if mask & _WRITE:
            if end is self.server and not self.connected:
                self.connected, self._deadline = True, math.inf
                self.broken = self.unreachable = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
            self.pipes[0 if end is self.server else 1].blocked = False
        if mask & _READ and not self.broken:
            try:
                data = end.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                return
            self.pipes[0 if end is self.client else 1].put(clock.now() + delay_s, data)

    def deliver(self, pipe: _Pipe, now: float) -> int:
        """Write what is due of one direction, as far as there is room; return the number of bytes."""
        sink = self.server if pipe is self.pipes[0] else self.client
        if sink is None or not self.connected or pipe.blocked:
            return 0
        done = 0
        try:
            while pipe.chunks and pipe.chunks[0][0] <= now:
                due, data = pipe.chunks[0]
                if not data:
                    pipe.written_all = True
                    sink.shutdown(socket.SHUT_WR)
                sent = sink.send(data) if data else 0
                done += sent
                pipe.held -= sent
                if sent < len(data):
                    pipe.chunks[0] = due, data[sent:]
                else:
                    pipe.chunks.popleft()
        except BlockingIOError:
            pipe.blocked = True
        except OSError:
            self.broken = True
        return done

    def keep_first(self, share: float, now: float) -> int:
        """Keep the first part of each direction, to be followed by its end; return the bytes given up."""
        lost = 0
        self.ending, self._deadline = True, now + LIMIT_S
        for pipe in self.pipes:
            data = b"".join(bytes(chunk) for _, chunk in pipe.chunks)
            kept = data[: min(len(data) - 1, max(1, int(len(data) * share)))] if data else b""
            lost += len(data) - len(kept)
            pipe.chunks.clear()
            pipe.held = 0
            if kept:
                pipe.put(now, kept)
            pipe.put(now, b"")
        return lost

    def next_due(self) -> float:
        """Return when bytes are due next; those that wait for room or for the target are not waited for."""
        sinks = [pipe.chunks[0][0] for pipe in self.pipes if pipe.chunks and not pipe.blocked]
        return min([math.inf, *sinks]) if self.connected else math.inf

    def over(self, now: float) -> bool:
        """Tell whether nothing more can come of this connection."""
        if now > self._deadline:
            self.unreachable = not self.connected and not self.ending
            return True
        gone_early = self.ending and not self.connected
        return self.broken or gone_early or all(pipe.written_all for pipe in self.pipes)

    def listen(self, selector: selectors.BaseSelector) -> None:
        """Ask for the events that matter now."""
        up, down = self.pipes
        wanted = {self.client: self._interest(up, down)}
        if self.server is not None:
            wanted[self.server] = self._interest(down, up) if self.connected else _WRITE
        for end, mask in wanted.items():
            before = self._masks.get(end, 0)
            if mask == before:
                continue
            if not before:
                selector.register(end, mask, self)
            elif not mask:
                selector.unregister(end)
            else:
                selector.modify(end, mask, self)
            self._masks[end] = mask

    def _interest(self, source: _Pipe, sink: _Pipe) -> int:
        room = not source.read_all and source.held < self._limit
        return (_READ if room else 0) | (_WRITE if sink.blocked else 0)

    def drop(self, selector: selectors.BaseSelector, *, regularly: bool = False) -> int:
        """Close both sides, by a reset unless the end was a regular one; return the bytes that are lost."""
        for end, mask in self._masks.items():
            if mask:
                selector.unregister(end)
        self._masks.clear()
        regularly = regularly or all(pipe.written_all for pipe in self.pipes)
        for each in (self.client, self.server):
            if each is not None and regularly:
                each.close()
            elif each is not None:
                _reset(each)
        lost = self.in_flight
        for pipe in self.pipes:
            pipe.held = 0
        return lost


def _parse(target: str | tuple[str, int]) -> tuple[str, tuple[str, int]]:
    """Return the kind of a hub's address and its host and port."""
    if isinstance(target, tuple):
        return "tcp", (target[0], target[1])
    kind, _, address = target.rpartition("/")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WireError(f"{target!r} is no address: write it as tcp/HOST:PORT, or as (host, port)")
    return kind or "tcp", (host.strip("[]"), int(port))


def _checked_delay(seconds: float) -> float:
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"a delay of {seconds} s: give seconds, 0 or more")
    return float(seconds)


def _send_at_once(end: socket.socket) -> None:
    """Send small pieces without waiting to fill a packet: the delay is ours to choose."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reset(end: socket.socket) -> None:
    """Close with a reset, as a broken connection ends."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:  # the other side has reset it already
        pass
    end.close()
