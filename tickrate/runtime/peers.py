"""The trainer's book of workers: who is admitted, how far its rows have come, when it last spoke."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tickrate import __version__
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError, MessageError, Refused, TickrateError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.figures import Rate
from tickrate.runtime.ledger import Ledger
from tickrate.wire import messages
from tickrate.wire.delivery import Receiver

STALLED_AFTER_S = 5.0
"""A worker that has said nothing for so long is stalled: another start may take its name."""
WINDOW_BYTES = 16 << 20
"""Rows that one worker may have under way or unread, in bytes ..."""
WINDOW_ROWS = 16_384
"""... and in rows; over ten minutes at 20 Hz."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RESERVED = ("trainer", "hub", "launcher", "worker")


@dataclass
class Peer:
    """One admitted worker.

    Attributes:
        hello: its last greeting.
        stream: its number in the ledger, for its present outbox.
        receiver: how far its rows have come.
        heard_at: when it last spoke, s.
        ping: its last ping, None before the first.
        status: its last status, None before the first.
        stored_at: when rows of it were last stored, s.
        rate: rows stored a second.
        reports: number of its last episode report (in this boot).
        policy: version of the policy that chose the newest action, and that action's time on the trainer's
            clock minus the time at which the policy was made, s (None if unknown).
        proved: transitions that were proved equal to what the worker saw (checksum mode).
        different: transitions that were not equal.
        unproved: number of the newest row, while it waits for its successor.
        to_acknowledge: whether something new is to be said to it.
        resend: whether it is to be asked to send again.
        asked_for: the row from which it was last asked to.
        sent_before: rows below this number had been sent by the time of its last ping.
        echoed: whether its last ping has been answered.
        granted: the grant that it was last told.
    """

    hello: messages.Hello
    stream: int
    receiver: Receiver
    heard_at: float
    ping: messages.Ping | None = None
    ping_at: float = 0.0
    status: messages.Status | None = None
    stored_at: float = -float("inf")
    rate: Rate = field(default_factory=Rate)
    rows: int = 0
    episodes: int = 0
    steps: int = 0
    last_return: float | None = None
    reports: int = 0
    policy: tuple[int, float | None] = (0, None)
    proved: int = 0
    different: int = 0
    unproved: int | None = None
    to_acknowledge: bool = True
    resend: bool = False
    asked_for: int = -1
    sent_before: int = 0
    echoed: bool = True
    granted: int = 0

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.hello.worker

    @property
    def used_half_of_its_grant(self) -> bool:
        """Whether it will soon have to wait for a new grant."""
        return self.receiver.granted - self.granted > self.receiver.window // 2

    @property
    def clock_offset_s(self) -> float | None:
        """The trainer's clock minus the worker's, None while it is unknown."""
        return None if self.ping is None else self.ping.clock_offset_s

    def greeted(self, hello: messages.Hello, now: float) -> None:
        """Note that the worker has greeted (again); another boot is a new companion of the same outbox."""
        if hello.boot != self.hello.boot:
            self.ping = self.status = None
            self.reports, self.asked_for, self.resend, self.echoed = 0, -1, False, True
            self.sent_before = 0
        self.hello, self.heard_at, self.to_acknowledge = hello, now, True
        self.reports = max(self.reports, hello.reports)
        self.receiver.on_dropped(hello.oldest)


class Peers:
    """Admits workers, one process a name, and finds the peer behind each message.

    Args:
        ledger: the streams of the run.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._peers: dict[str, Peer] = {}
        self._evicted: dict[tuple[str, int], str] = {}
        self.contract: EnvironmentContract | None = None

    def all(self) -> list[Peer]:
        """Return the admitted workers, by the order of their first coming."""
        return list(self._peers.values())

    def behind(self, version: int) -> bool:
        """Tell whether a training worker says that it has an older policy than this version."""
        said = (p.status.metrics for p in self.all() if p.status is not None and p.hello.purpose == "train")
        return any(metrics.get("worker/policy_version", version) < version for metrics in said)

    def of(self, message: messages.Message) -> Peer | None:
        """Return the peer that sent a message, None if it is not (or no longer) admitted."""
        peer = self._peers.get(message.worker)
        return peer if peer is not None and peer.hello.boot == message.boot else None

    def evicted(self, message: messages.Message) -> str | None:
        """Return why the sender was evicted, or None if it was not."""
        return self._evicted.get((message.worker, message.boot))

    def admit(self, hello: messages.Hello, now: float) -> Peer | messages.Refusal:
        """Admit a worker, or find it again; if it cannot join, return what to answer."""
        try:
            return self._admitted(hello, now)
        except _NotAdmittedError as error:
            return error.refusal

    def _admitted(self, hello: messages.Hello, now: float) -> Peer:
        contract = self._contract_of(hello)
        before = self._peers.get(hello.worker)
        other = before is not None and before.hello.outbox != hello.outbox
        if before is not None and other and before.hello.boot != hello.boot:
            self._refuse_if_alive(before, hello, now)
        try:
            stream = self._ledger.stream(hello.worker, hello.outbox)
        except Refused as error:
            raise _NotAdmittedError(hello, "full", str(error)) from error
        if self.contract is None:
            self.contract = contract
        if before is not None and not other:
            before.greeted(hello, now)
            return before
        if before is not None and before.hello.boot != hello.boot:
            self._evict(before, hello, now)
        row_bytes = contract.schema().row_dtype.itemsize
        window = max(16, min(WINDOW_ROWS, WINDOW_BYTES // row_bytes))
        receiver = Receiver(window, self._ledger.expected(stream))
        receiver.on_dropped(hello.oldest)
        peer = Peer(hello, stream, receiver, now, reports=hello.reports)
        self._peers[hello.worker] = peer
        return peer

    def _contract_of(self, hello: messages.Hello) -> EnvironmentContract:
        """Return the worker's contract if it fits the run's.

        Raises:
            _NotAdmittedError: if it does not; the message names both sides and the leaf.
        """
        who = f"{hello.worker} ({hello.host}, tickrate {hello.version})"
        try:
            check_worker_name(hello.worker)
            schema = RecordSchema.from_json(hello.schema)
            contract = EnvironmentContract.from_dict(messages.json_of(hello.contract))
            if contract.schema().digest() != schema.digest():
                raise MessageError("its record schema does not follow from its contract")
        except (TickrateError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _NotAdmittedError(hello, "mismatch", f"{who}: {error}") from error
        if self.contract is not None and (difference := self.contract.difference(contract)):
            text = f"{who} does not fit the run (here: the trainer, tickrate {__version__}): {difference}"
            raise _NotAdmittedError(hello, "mismatch", text)
        return contract

    @staticmethod
    def _refuse_if_alive(before: Peer, hello: messages.Hello, now: float) -> None:
        """Decide between two processes of one name: the one that speaks stays.

        Raises:
            _NotAdmittedError: if the other one is alive.
        """
        silent = now - before.heard_at
        if silent < STALLED_AFTER_S:
            text = (
                f"another worker named {hello.worker!r} is connected ({before.hello.host}, heard "
                f"{silent:.1f} s ago); this is {hello.host}: give this one another --name, or stop the other"
            )
            raise _NotAdmittedError(hello, "duplicate", text)

    def _evict(self, before: Peer, hello: messages.Hello, now: float) -> None:
        """Remember what to tell the process that had the name, should it come back."""
        self._evicted[before.name, before.hello.boot] = (
            f"{before.hello.host} was silent for {now - before.heard_at:.0f} s, and {hello.host} took its "
            f"name {before.name!r}: this worker was evicted. What it has recorded stays in its outbox; start "
            "it again to deliver it"
        )
        while len(self._evicted) > 1000:
            self._evicted.pop(next(iter(self._evicted)))


def check_worker_name(name: str) -> None:
    """Check that a worker may be called so.

    Raises:
        ConfigError: if not.
    """
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ConfigError(
            f"a worker cannot be called {name!r}: use letters, digits, '.', '_' and '-', at most 128, "
            f"beginning with a letter or digit, and none of {', '.join(_RESERVED)}"
        )


Code = Literal["mismatch", "evicted", "duplicate", "full"]


def refusal_to(message: messages.Message, code: Code, text: str) -> messages.Refusal:
    """Return the refusal that answers a message."""
    return messages.Refusal(
        run=message.run, worker=message.worker, boot=message.boot, code=code, text=text[:4096]
    )


class _NotAdmittedError(Exception):
    """A worker cannot join; ``refusal`` is what to answer."""

    def __init__(self, hello: messages.Hello, code: Code, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal_to(hello, code, text)
