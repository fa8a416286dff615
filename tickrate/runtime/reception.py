"""The trainer's half of the protocol: admits workers, journals their rows, acknowledges what is safe."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from tickrate import clock
from tickrate.data.schema import taken
from tickrate.errors import MessageError, WireError
from tickrate.runtime.arrivals import Arrivals
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.incumbency import Incumbency
from tickrate.runtime.learner import Learner
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.peers import Peer, Peers, refusal_to
from tickrate.runtime.reports import summary_of
from tickrate.wire import messages
from tickrate.wire.address import listen
from tickrate.wire.arrays import unpack_rows
from tickrate.wire.carrier import ANY, Carrier, make_key

_log = logging.getLogger(__name__)

ROWS_WAITING = 4096
"""Row batches that may wait to be read; what does not fit is sent again."""
ROWS_WAITING_BYTES = 512 << 20
ROWS_A_STEP = 1024
"""Row batches that are taken in before the learner has its turn again."""
ACK_EVERY_S = 0.1
"""Acknowledgements to one worker are at least so far apart, unless its grant runs low."""


class Reception:
    """Takes in what workers send.

    Args:
        carrier: the way to the hub.
        run: name of the run.
        boot: this trainer's boot.
        ledger: the streams of the run.
        open_learner: makes the learner once the first worker's contract is known.
        welcome: called after a worker was admitted (it gets the newest weights).
    """

    def __init__(
        self,
        carrier: Carrier,
        run: str,
        boot: int,
        ledger: Ledger,
        open_learner: Callable[[EnvironmentContract], Learner],
        welcome: Callable[[], None],
    ) -> None:
        self._carrier, self._run, self._ledger = carrier, run, ledger
        self._open_learner, self._welcome = open_learner, welcome
        self._incumbency = Incumbency(carrier, run, boot, ledger.life)
        self.peers = Peers(ledger)
        self.learner: Learner | None = None
        self._refusals = 0
        self._arrivals: Arrivals | None = None
        self._row_dtype: np.dtype[Any] = np.dtype("u1")
        self._digest = ""
        self._acked_at: dict[str, float] = {}
        self._now = 0.0
        self._hellos = listen(carrier, make_key(run, "hello", ANY), capacity=1000)
        self._rows = listen(
            carrier, make_key(run, "rows", ANY), capacity=ROWS_WAITING, max_bytes=ROWS_WAITING_BYTES
        )
        self._pings = listen(carrier, make_key(run, "ping", ANY), capacity=10_000)
        self._reports = listen(carrier, make_key(run, "report", ANY), capacity=10_000)
        self._statuses = listen(carrier, make_key(run, "status", ANY), capacity=1000, newest_only=True)
        self._incumbency.announce()

    def receive(self, wait_s: float) -> None:
        """Take in what has arrived; with nothing there, wait up to ``wait_s`` seconds for rows.

        Raises:
            Refused: if another trainer serves this run.
        """
        self._incumbency.look()
        self._now = clock.now()  # one time for all: what waited while we were busy was not silent
        if not self._incumbency.settled:
            clock.sleep(wait_s)
            return
        first = self._rows.get(wait_s) if wait_s > 0 else None
        for payload in ([] if first is None else [first]) + self._rows.drain(ROWS_A_STEP):
            self._take_rows(payload)
        if self._arrivals is not None:
            self._arrivals.store()
        for payload in self._pings.drain(1000):
            self._take_ping(payload)
        hellos: dict[tuple[str, int], messages.Hello] = {}
        for payload in self._hellos.drain(100):
            hello = self._decode(payload)
            if isinstance(hello, messages.Hello):
                hellos[hello.worker, hello.boot] = hello  # of several in a row the newest says it all
        for hello in hellos.values():
            self._take_hello(hello)
        for payload in self._reports.drain(100):
            self._take_report(payload)
        for payload in self._statuses.drain(1000):
            self._take_status(payload)
        self._acknowledge_all()

    @property
    def settled(self) -> bool:
        """Whether this trainer serves the run, as far as it knows."""
        return self._incumbency.settled

    @property
    def refused(self) -> int:
        """Messages that were left out: damaged, foreign, or in another's name."""
        boxes = (self._hellos, self._rows, self._pings, self._reports, self._statuses)
        return self._refusals + sum(box.refused for box in boxes)

    @property
    def spoilt_rows(self) -> int:
        """Rows that were left out because they hold numbers that are not finite."""
        return 0 if self._arrivals is None else self._arrivals.spoilt_rows

    @property
    def lost_rows(self) -> int:
        """Rows that will never be stored, as far as is known: dropped on their way, or left out as spoilt."""
        dropped = 0.0
        for peer in self.peers.all():
            said = 0.0 if peer.status is None else peer.status.metrics.get("worker/dropped_rows", 0.0)
            dropped += max(said, float(peer.receiver.lost))
        return int(dropped) + self.spoilt_rows

    @property
    def quiet_s(self) -> float:
        """Seconds since the last row was stored; infinite before the first."""
        return clock.now() - max((peer.stored_at for peer in self.peers.all()), default=-np.inf)

    @property
    def waiting(self) -> bool:
        """Whether something has arrived that was not taken in yet."""
        return bool(len(self._rows) or len(self._reports))

    def all_in(self) -> bool:
        """Tell whether every worker has said goodbye and everything it had sent is here."""
        for peer in self.peers.all():
            status = peer.status
            if status is None or status.state != "stopped":
                return False
            if peer.receiver.expected < status.metrics.get("worker/rows_sent", 0.0):
                return False
            if peer.reports < status.metrics.get("worker/reports_sent", 0.0):
                return False
        return True

    # --- workers ---------------------------------------------------------------------------------------

    def _take_hello(self, hello: messages.Hello) -> None:
        if hello.role == "trainer":
            self._incumbency.meet(hello)
        elif hello.role == "worker" and (reason := self.peers.evicted(hello)) is not None:
            self._answer(refusal_to(hello, "evicted", reason))
        elif hello.role == "worker":
            self._admit(hello)

    def _admit(self, hello: messages.Hello) -> None:
        peer = self.peers.admit(hello, self._now)
        if isinstance(peer, messages.Refusal):
            self._refuse(peer.text)
            self._answer(peer)
            return
        if self.learner is None:
            self.learner = self._open_learner(EnvironmentContract.from_dict(messages.json_of(hello.contract)))
            schema = self.learner.replay.schema
            self._row_dtype, self._digest = schema.row_dtype, schema.digest()
            self._arrivals = Arrivals(self.learner, self._ledger, self._refuse)
        _log.info("%s has joined (%s, %s)", hello.worker, hello.purpose, hello.host)
        self._acknowledge(peer)
        self._welcome()

    def _peer_of(self, message: messages.Message) -> Peer | None:
        """Return the sender if it is admitted; tell an evicted one so, and ask an unknown one to greet us."""
        peer = self.peers.of(message)
        if peer is not None:
            peer.heard_at = self._now
        elif (reason := self.peers.evicted(message)) is not None:
            self._answer(refusal_to(message, "evicted", reason))
        else:
            self._incumbency.say_hello()
        return peer

    def _take_ping(self, payload: bytes) -> None:
        ping = self._decode(payload)
        if not isinstance(ping, messages.Ping):
            return
        peer = self._peer_of(ping)
        if peer is None or ping.outbox != peer.hello.outbox:
            return
        peer.ping, peer.ping_at, peer.echoed = ping, clock.now(), False
        peer.receiver.on_dropped(ping.oldest)
        self._ledger.advance(peer.stream, peer.receiver.expected)
        # A ping may overtake rows that were sent before it. Those of the ping before it have had their time.
        lost = peer.receiver.missing(peer.sent_before) and not len(self._rows)
        peer.resend = peer.resend or lost
        peer.sent_before = 0 if lost else ping.sent
        peer.to_acknowledge = True

    def _take_status(self, payload: bytes) -> None:
        status = self._decode(payload)
        if isinstance(status, messages.Status) and (peer := self.peers.of(status)) is not None:
            peer.status = status

    def _take_report(self, payload: bytes) -> None:
        report = self._decode(payload)
        if not isinstance(report, messages.EpisodeReport) or self.learner is None:
            return
        peer = self._peer_of(report)
        if peer is None or report.sequence != peer.reports + 1:
            return  # it is here already, or it came before another one that is missing and comes again
        try:
            self.learner.finish_episode(
                summary_of(report), worker=report.worker, key=(report.boot, report.sequence)
            )
        except OSError as error:  # a full disk: it is not acknowledged, and comes again
            self._refuse(f"an episode of {peer.name} could not be logged: {error}")
            return
        peer.reports = report.sequence
        peer.to_acknowledge = True
        peer.episodes += 1
        peer.last_return = report.return_

    # --- rows ------------------------------------------------------------------------------------------

    def _take_rows(self, payload: bytes) -> None:
        batch = self._decode(payload)
        if not isinstance(batch, messages.RowBatch):
            return
        peer = self._peer_of(batch)
        if peer is None or self._arrivals is None or batch.outbox != peer.hello.outbox:
            return
        try:
            rows = unpack_rows(batch, self._row_dtype, self._digest)
        except MessageError as error:
            self._refuse(str(error))
            return
        begin, end = peer.receiver.on_rows(batch.sequence, len(rows), batch.oldest)
        peer.to_acknowledge = True
        if batch.sequence > peer.receiver.expected != peer.asked_for:
            peer.asked_for, peer.resend = peer.receiver.expected, True  # once; then pings tell
        if end > begin:
            self._arrivals.add(peer, taken(rows, slice(begin, end)))
            peer.receiver.stored(batch.sequence + end)  # no word of it goes out before it is
        self._arrivals.touch(peer)

    # --- answers ---------------------------------------------------------------------------------------

    def _acknowledge_all(self) -> None:
        now = clock.now()
        for peer in self.peers.all():
            if peer.to_acknowledge and (
                now - self._acked_at.get(peer.name, 0.0) >= ACK_EVERY_S or peer.used_half_of_its_grant
            ):
                self._acknowledge(peer)

    def _acknowledge(self, peer: Peer) -> None:
        now, receiver, ping = clock.now(), peer.receiver, peer.ping
        echo = ping if ping is not None and not peer.echoed else None
        ack = messages.Ack(
            run=self._run,
            worker=peer.name,
            boot=peer.hello.boot,
            outbox=peer.hello.outbox,
            acknowledged=receiver.expected,
            granted=receiver.granted,
            resend=peer.resend,
            reports=peer.reports,
            life=self._ledger.life,
            echo=echo.sent_at if echo is not None else 0.0,
            received_at=peer.ping_at if echo is not None else 0.0,
            answered_at=now,
        )
        self._publish("ack", peer.name, ack)
        self._acked_at[peer.name] = now
        peer.granted = receiver.granted
        peer.echoed, peer.resend, peer.to_acknowledge = True, False, False

    def _answer(self, refusal: messages.Refusal) -> None:
        self._publish("refusal", refusal.worker, refusal)

    def _publish(self, kind: str, name: str, message: messages.AnyMessage) -> None:
        try:
            self._carrier.publish(make_key(self._run, kind, name), messages.encode(message), wait=True)
        except WireError as error:
            _log.warning("%s to %s: %s", kind, name, error)

    def _refuse(self, why: str) -> None:
        self._refusals += 1
        if self._refusals <= 100 or self._refusals % 1000 == 0:
            _log.warning("refused (%d so far): %s", self._refusals, why)

    def _decode(self, payload: bytes) -> messages.AnyMessage | None:
        try:
            return messages.decode(payload)
        except WireError as error:
            self._refuse(str(error))
            self._incumbency.say_hello()  # whoever speaks another version learns ours from it
            return None
