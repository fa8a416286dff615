"""A bad network on one machine: a TCP proxy that delays, stalls, cuts and half-delivers while it runs."""

from __future__ import annotations

import math
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tickrate import clock
from tickrate.errors import WireError
from tickrate.testing.link_connection import LIMIT_S, Connection, reset


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
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._commands: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._connections: list[Connection] = []
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
            if self._half is order and not order.begun:
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
            reset(client)
            return
        self._seen += 1
        self._connections.append(Connection(client, self._buffer_bytes))

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

    def _deliver(self, connection: Connection, now: float) -> None:
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
