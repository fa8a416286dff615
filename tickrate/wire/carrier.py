"""What a carrier is: the one seam between the roles of a run and whatever moves their bytes.

A carrier delivers payloads to whoever listens at the time, and may lose them when the way is broken. What one
publisher sends reaches one mailbox in order; two mailboxes are not ordered against each other. "Nothing lost,
nothing twice" is made above it, from numbers and acknowledgements.

Keys have four parts, ``tickrate/<run>/<kind>/<worker>``; in the key of a subscription a part may be ``*``.
"""

from __future__ import annotations

import re
import threading
from typing import Protocol

from tickrate.errors import WireError
from tickrate.wire.mailbox import DEFAULT_MAX_BYTES, Accept, Mailbox

ANY = "*"
"""Matches one whole part of a key."""

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Carrier(Protocol):
    """Moves payloads between roles; `MemoryCarrier` within a process, `ZenohCarrier` between processes."""

    @property
    def connected(self) -> bool:
        """True while the hub can be reached."""
        ...

    def publish(self, key: str, payload: bytes, *, wait: bool = True) -> None:
        """Send a payload to those who subscribe to ``key``.

        Args:
            key: a key without ``*``.
            payload: at most ``MAX_MESSAGE_BYTES``.
            wait: when the way is congested, wait (some seconds at most) for room; if False, drop it. Rows and
                weights wait, status lines need not; a large payload that does not wait is dropped easily.
                Never waits for a receiver to read, nor for a hub that is gone.

        Raises:
            WireError: if the carrier is closed or the payload too long.
        """
        ...

    def subscribe(
        self,
        key: str,
        *,
        capacity: int,
        newest_only: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        accept: Accept | None = None,
    ) -> Mailbox:
        """Return a mailbox for what is published from now on under ``key``, in which parts may be ``*``.

        See `Mailbox` for the options.
        """
        ...

    def announce(self, key: str) -> None:
        """Be present under ``key`` until this carrier is closed or its process dies."""
        ...

    def watch(self, key: str) -> Roster:
        """Return who is present under keys that match, from now on kept up to date."""
        ...

    def close(self) -> None:
        """Let go of everything, within a bounded time; a second call does nothing."""
        ...


class Roster:
    """The keys under which roles are present now; a carrier keeps it up to date from its own thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._present: set[str] = set()

    @property
    def present(self) -> frozenset[str]:
        """The keys present now; all vanish while the hub is gone."""
        with self._changed:
            return frozenset(self._present)

    def wait_for(self, key: str, timeout_s: float, *, present: bool = True) -> bool:
        """Wait up to ``timeout_s`` seconds until ``key`` is present (or absent); return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: (key in self._present) == present, timeout_s)

    def update(self, key: str, *, present: bool) -> None:
        """Note that a role came or went; called by the carrier."""
        with self._changed:
            if present:
                self._present.add(key)
            else:
                self._present.discard(key)
            self._changed.notify_all()


def make_key(run: str, kind: str, worker: str) -> str:
    """Return ``tickrate/<run>/<kind>/<worker>``; each part a name, or ``*`` in the key of a subscription.

    Raises:
        WireError: if a part is no name: letters, digits, ``.``, ``_``, ``-``, a letter or digit first.
    """
    for part in (run, kind, worker):
        if part != ANY and not _PART.fullmatch(part):
            raise WireError(
                f"{part!r} cannot be part of a key: use letters, digits, '.', '_' and '-', at most 128, "
                "beginning with a letter or digit"
            )
    return f"tickrate/{run}/{kind}/{worker}"


def key_matches(pattern: str, key: str) -> bool:
    """Return whether ``key`` matches a pattern in which whole parts may be ``*``."""
    ours, theirs = pattern.split("/"), key.split("/")
    return len(ours) == len(theirs) and all(o in (ANY, t) for o, t in zip(ours, theirs, strict=True))
