"""A carrier that loses, repeats and reorders a share of what is published, the same share every time."""

from __future__ import annotations

import threading
from collections.abc import Collection

import numpy as np

from tickrate.wire.carrier import Carrier, Roster
from tickrate.wire.mailbox import DEFAULT_MAX_BYTES, Accept, Mailbox

MOST_OVERTAKEN = 3
"""Later payloads that may overtake one that is reordered."""


class FaultyCarrier:
    """Wraps a `Carrier` and treats what is published through it badly; what is received is left alone.

    Each payload of the chosen kinds meets one fate, drawn from a seeded generator: it is dropped, published
    twice, held back until one to three later ones have overtaken it, or passed on. One that is held back when
    nothing follows stays so until `release` or `close`. May be used from several threads.

    Args:
        carrier: what really publishes; closed with this one.
        kinds: the kinds (third part of a key) to treat so; all when omitted.
        drop: share of payloads lost, 0 to 1.
        duplicate: share of payloads that arrive twice.
        reorder: share of payloads that are overtaken.
        seed: of the fates.

    Attributes:
        active: set it to False to pass everything on from now on.
        passed: payloads of the chosen kinds that were published once, in their turn.
        dropped: payloads lost.
        duplicated: payloads published twice.
        reordered: payloads held back.

    Raises:
        ValueError: if the shares are no shares, or together more than 1.
    """

    def __init__(
        self,
        carrier: Carrier,
        *,
        kinds: Collection[str] | None = None,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        seed: int = 0,
    ) -> None:
        shares = (drop, duplicate, reorder)
        if not all(0.0 <= share <= 1.0 for share in shares) or sum(shares) > 1.0 + 1e-9:
            raise ValueError(
                f"drop {drop}, duplicate {duplicate}, reorder {reorder}: give shares, at most 1 in all"
            )
        self._carrier = carrier
        self._kinds = None if kinds is None else frozenset(kinds)
        self._bounds = np.cumsum(shares)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._held: list[tuple[int, str, bytes]] = []  # (payloads that may still overtake it, key, payload)
        self.active = True
        self.passed = self.dropped = self.duplicated = self.reordered = 0

    @property
    def connected(self) -> bool:
        """True while the hub can be reached."""
        return self._carrier.connected

    def publish(self, key: str, payload: bytes, *, wait: bool = True) -> None:
        """Publish a payload, or do worse with it. See `Carrier`."""
        for each_key, each in self._fate(key, payload):
            self._carrier.publish(each_key, each, wait=wait)

    def _fate(self, key: str, payload: bytes) -> list[tuple[str, bytes]]:
        """Return what is to be published now in place of a payload."""
        if self._kinds is not None and key.split("/")[2] not in self._kinds:
            return [(key, payload)]
        with self._lock:
            fate = int(np.searchsorted(self._bounds, self._rng.random(), side="right"))
            overtaken = int(self._rng.integers(1, MOST_OVERTAKEN + 1))
            if not self.active:
                fate = len(self._bounds)
            now: list[tuple[str, bytes]] = []
            match fate:
                case 0:
                    self.dropped += 1
                case 1:
                    self.duplicated += 1
                    now += [(key, payload)] * 2
                case 2:
                    self.reordered += 1
                case _:
                    self.passed += 1
                    now.append((key, payload))
            now += self._overtake(len(now))
            if fate == 2:
                self._held.append((overtaken, key, payload))
            return now

    def _overtake(self, count: int) -> list[tuple[str, bytes]]:
        """Note that ``count`` payloads overtake those held back; return the ones whose time has come."""
        left = [(waits - count, key, payload) for waits, key, payload in self._held]
        self._held = [item for item in left if item[0] > 0]
        return [(key, payload) for waits, key, payload in left if waits <= 0]

    def release(self) -> None:
        """Publish what is held back."""
        with self._lock:
            held, self._held = self._held, []
        for _, key, payload in held:
            self._carrier.publish(key, payload)

    def subscribe(
        self,
        key: str,
        *,
        capacity: int,
        newest_only: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        accept: Accept | None = None,
    ) -> Mailbox:
        """Return a mailbox for what is published from now on. See `Carrier`."""
        return self._carrier.subscribe(
            key, capacity=capacity, newest_only=newest_only, max_bytes=max_bytes, accept=accept
        )

    def announce(self, key: str) -> None:
        """Be present under ``key`` until closed. See `Carrier`."""
        self._carrier.announce(key)

    def watch(self, key: str) -> Roster:
        """Return who is present under matching keys. See `Carrier`."""
        return self._carrier.watch(key)

    def close(self) -> None:
        """Lose what is still held back, and leave the hub. See `Carrier`."""
        with self._lock:
            self._held.clear()
        self._carrier.close()
