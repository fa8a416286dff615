"""One connection through a `LinkProxy`: two sockets, and the bytes between them, each due at its time."""

from __future__ import annotations

import errno
import math
import selectors
import socket
import struct
import sys
from collections import deque

from tickrate import clock

LIMIT_S = 5.0
"""Longest time that a connection to the target, or the delivery of a last part, may take."""

_READ_BYTES = 1 << 18
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class Pipe:
    """One direction of a connection: bytes in order, each with the time at which it is due."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[float, memoryview]] = deque()
        """An empty chunk is the end of the stream."""
        self.held = 0
        self.read_all = False
        self.written_all = False
        self.blocked = False

    def put(self, due: float, data: bytes) -> None:
        """Take in what was read; no bytes are the end of the stream."""
        self.chunks.append((due, memoryview(data)))
        self.held += len(data)
        self.read_all = not data


class Connection:
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
        self.pipes = (Pipe(), Pipe())
        self._limit = buffer_bytes
        self._deadline = math.inf
        self._masks: dict[socket.socket, int] = {}

    @property
    def in_flight(self) -> int:
        """Bytes taken in and not yet written, both ways."""
        return sum(pipe.held for pipe in self.pipes)

    @property
    def longest(self) -> int:
        """Bytes in flight in the fuller direction."""
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

    def deliver(self, pipe: Pipe, now: float) -> int:
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

    def _interest(self, source: Pipe, sink: Pipe) -> int:
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
                reset(each)
        lost = self.in_flight
        for pipe in self.pipes:
            pipe.held = 0
        return lost


def _send_at_once(end: socket.socket) -> None:
    """Send small pieces without waiting to fill a packet: the delay is ours to choose."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reset(end: socket.socket) -> None:
    """Close with a reset, as a broken connection ends."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:  # the other side has reset it already
        pass
    end.close()
