"""The carrier within one process, for tests and the serial mode: same contract, no sockets, no threads."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tickrate.errors import WireError
from tickrate.wire.carrier import ANY, Roster, key_matches
from tickrate.wire.mailbox import DEFAULT_MAX_BYTES, Accept, Mailbox
from tickrate.wire.messages import MAX_MESSAGE_BYTES


class MemoryHub:
    """Joins the `MemoryCarrier` objects that are made with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mailboxes: list[tuple[str, Mailbox]] = []
        self._rosters: list[tuple[str, Roster]] = []
        self._announced: list[str] = []
        self.closed = False

    def publish(self, key: str, payload: bytes) -> None:
        """Hand a payload to every mailbox whose key matches."""
        with self._lock:
            receivers = [box for pattern, box in self._mailboxes if key_matches(pattern, key)]
        for box in receivers:
            box.put(key, payload)

    def add_mailbox(self, key: str, mailbox: Mailbox) -> None:
        """Deliver to ``mailbox`` what is published under ``key`` from now on."""
        with self._lock:
            self._mailboxes.append((key, mailbox))

    def add_roster(self, key: str, roster: Roster) -> None:
        """Keep ``roster`` up to date with who is present under keys that match ``key``."""
        with self._lock:
            self._rosters.append((key, roster))
            for announced in self._announced:
                if key_matches(key, announced):
                    roster.update(announced, present=True)

    def announce(self, key: str) -> None:
        """Note that a role is present."""
        with self._lock:
            self._announced.append(key)
            self._tell(key, present=True)

    def leave(self, announced: list[str], mailboxes: list[Mailbox], rosters: list[Roster]) -> None:
        """Forget what belongs to a carrier that closes."""
        with self._lock:
            self._mailboxes = [
                (k, m) for k, m in self._mailboxes if all(m is not other for other in mailboxes)
            ]
            self._rosters = [(k, r) for k, r in self._rosters if all(r is not other for other in rosters)]
            for key in announced:
                self._announced.remove(key)
                if key not in self._announced:
                    self._tell(key, present=False)

    def close(self) -> None:
        """Deliver nothing more; carriers that stay behind lose what they publish."""
        with self._lock:
            self.closed = True
            self._mailboxes.clear()
            for key in self._announced:
                self._tell(key, present=False)

    def _tell(self, key: str, *, present: bool) -> None:
        for pattern, roster in self._rosters:
            if key_matches(pattern, key):
                roster.update(key, present=present)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MemoryCarrier:
    """A `Carrier` for roles that live in one process and share a `MemoryHub`."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub
        self._announced: list[str] = []
        self._mailboxes: list[Mailbox] = []
        self._rosters: list[Roster] = []
        self._closed = False

    @property
    def connected(self) -> bool:
        """True until the hub or this carrier is closed."""
        return not (self._closed or self._hub.closed)

    def publish(self, key: str, payload: bytes, *, wait: bool = True) -> None:
        """Put the payload into the mailboxes at once; ``wait`` makes no difference here. See `Carrier`."""
        self._check_open()
        if ANY in key:
            raise WireError(f"cannot publish under {key!r}: name one key, '*' is for subscriptions")
        if len(payload) > MAX_MESSAGE_BYTES:
            raise WireError(f"a payload of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        self._hub.publish(key, payload)

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
        self._check_open()
        mailbox = Mailbox(capacity, newest_only=newest_only, max_bytes=max_bytes, accept=accept)
        self._mailboxes.append(mailbox)
        self._hub.add_mailbox(key, mailbox)
        return mailbox

    def announce(self, key: str) -> None:
        """Be present under ``key`` until closed. See `Carrier`."""
        self._check_open()
        self._announced.append(key)
        self._hub.announce(key)

    def watch(self, key: str) -> Roster:
        """Return who is present under matching keys. See `Carrier`."""
        self._check_open()
        roster = Roster()
        self._rosters.append(roster)
        self._hub.add_roster(key, roster)
        return roster

    def close(self) -> None:
        """Leave the hub. See `Carrier`."""
        if self._closed:
            return
        self._closed = True
        self._hub.leave(self._announced, self._mailboxes, self._rosters)
        for mailbox in self._mailboxes:
            mailbox.close()

    def _check_open(self) -> None:
        if self._closed:
            raise WireError("this carrier is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
