"""The bounded queue between a carrier's receiving thread and the code that reads messages."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from tickrate.clock import now
from tickrate.wire.messages import MAX_MESSAGE_BYTES

Accept = Callable[[str, bytes], bool]
"""Tells whether a payload that came under a key is let in."""

DEFAULT_MAX_BYTES = 4 * MAX_MESSAGE_BYTES
"""Memory that waiting payloads of one subscription may take."""


class Mailbox:
    """Payloads that have arrived for one subscription and wait to be read.

    It never makes the carrier wait: when it is full the oldest payload is dropped and counted. With
    ``newest_only`` it keeps the newest payload of each key instead (weights, status lines); a payload that a
    newer one of its key replaces has done its work and is not counted as dropped.

    Args:
        capacity: most payloads kept; with ``newest_only``, most keys.
        newest_only: keep one payload a key, the newest.
        max_bytes: most bytes kept; beyond it the oldest payloads are dropped.
        accept: looks at each key and payload, in the carrier's thread; what it refuses is counted and left
        out.

    Raises:
        ValueError: if ``capacity`` is below 1.
    """

    def __init__(
        self,
        capacity: int,
        *,
        newest_only: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        accept: Accept | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a mailbox of capacity {capacity} holds nothing; give 1 or more")
        self._capacity = capacity
        self._max_bytes, self._bytes = max_bytes, 0
        self._newest_only = newest_only
        self._ready = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._by_key: OrderedDict[str, bytes] = OrderedDict()
        self._dropped = 0
        self._closed = False
        self._accept = accept
        self.refused = 0
        """Payloads that were refused."""

    @property
    def dropped(self) -> int:
        """Payloads lost because nobody read them in time, or because they were over the size limit."""
        return self._dropped

    def __len__(self) -> int:
        """Return the number of payloads that wait."""
        return len(self._by_key) if self._newest_only else len(self._queue)

    def put(self, key: str, payload: bytes) -> None:
        """Take in a payload; called by the carrier, from any thread. Never waits for a reader."""
        if self._accept is not None and len(payload) <= MAX_MESSAGE_BYTES and not self._accept(key, payload):
            self.refused += 1
            return
        with self._ready:
            if self._closed:
                return
            if len(payload) > MAX_MESSAGE_BYTES:
                self._dropped += 1
                return
            if self._newest_only:
                self._bytes -= len(self._by_key.pop(key, b""))
                self._by_key[key] = payload
            else:
                self._queue.append(payload)
            self._bytes += len(payload)
            while len(self) > self._capacity or (self._bytes > self._max_bytes and len(self) > 1):
                self._pop()
                self._dropped += 1
            self._ready.notify()

    def get(self, timeout_s: float) -> bytes | None:
        """Return the oldest payload, waiting up to ``timeout_s`` seconds; None if none came."""
        deadline = now() + timeout_s
        with self._ready:
            while not len(self):
                left = deadline - now()
                if self._closed or left <= 0:
                    return None
                self._ready.wait(left)
            return self._pop()

    def drain(self, limit: int) -> list[bytes]:
        """Return up to ``limit`` payloads, oldest first, without waiting."""
        with self._ready:
            return [self._pop() for _ in range(min(limit, len(self)))]

    def close(self) -> None:
        """Take in nothing more and wake the readers; what waits can still be read."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def _pop(self) -> bytes:
        payload = self._by_key.popitem(last=False)[1] if self._newest_only else self._queue.popleft()
        self._bytes -= len(payload)
        return payload
