"""The worker's half of the protocol: delivers an outbox to whatever trainer serves the run, and hears it."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from tickrate import __version__, clock
from tickrate.errors import Refused, VersionMismatch, WireError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.outbox import Outbox
from tickrate.runtime.report_queue import ReportQueue
from tickrate.wire import messages
from tickrate.wire.address import listen
from tickrate.wire.arrays import Compression, pack_rows
from tickrate.wire.carrier import Carrier, make_key
from tickrate.wire.clock_offset import ClockOffset
from tickrate.wire.delivery import Sender

_log = logging.getLogger(__name__)

TRAINER = "trainer"
PING_EVERY_S = 0.5
BATCH_BYTES = 1 << 20
"""Rows of one message take about so much at most."""
BATCH_ROWS = 1024
BATCHES_A_STEP = 8
"""Messages sent before the other duties are looked after again."""
SILENCE_S = 5.0
"""A trainer that has not answered for so long is not counted on: what it says next is not taken for
granted."""
REFUSAL_PATIENCE_S = 12.0
"""Seconds to try again while another process of this name seems to be there: a stalled one is evicted by
then."""
GREET_EVERY_S = 1.0

Purpose = Literal["train", "expert", "test", "drain"]


def here() -> str:
    """Return what identifies this process to a person."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@dataclass(frozen=True)
class Heard:
    """What came in at one step.

    Attributes:
        weights: the newest policy, if there is a new one.
        commands: what a person asks for, oldest first.
        answers: replies to inference requests, oldest first.
    """

    weights: messages.Weights | None
    commands: list[messages.Command]
    answers: list[messages.InferReply]


class Courier:
    """Greets the trainer, delivers rows and reports, keeps the time, and hands over what comes the other way.

    Args:
        carrier: the way to the hub; it may be closed off for any time.
        outbox: the rows.
        contract: what the worker acts in.
        run: name of the run.
        name: name of the worker.
        purpose: what the worker is there for.
        compression: see `arrays.pack_rows`.
        now: the machine's monotonic time in seconds.
    """

    def __init__(
        self,
        carrier: Carrier,
        outbox: Outbox,
        contract: EnvironmentContract,
        run: str,
        name: str,
        *,
        purpose: Purpose = "train",
        compression: Compression = "never",
        now: Callable[[], float] | None = None,
    ) -> None:
        self._carrier, self._outbox, self._run, self.name = carrier, outbox, run, name
        self._now: Callable[[], float] = now or (lambda: clock.now())
        self.boot = messages.new_boot()
        self._purpose, self._compression = purpose, compression
        schema = outbox.schema
        self._digest, self._schema_json = schema.digest(), schema.to_json()
        self._contract_json = json.dumps(contract.to_dict())
        row_bytes = schema.row_dtype.itemsize
        self._batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
        self.sender = Sender(outbox.oldest)
        self.offset = ClockOffset()
        self._reports = ReportQueue()
        self._sent_to = 0
        self.set_aside = 0
        self._left_out = 0
        self._foreign = ""
        self._trainer_boot: int | None = None
        self.welcomed = False
        self._began_at = self._now()
        self.acknowledged_at = self._heard_at = -float("inf")
        self._refused_since: float | None = None
        self._next_greeting = self._next_ping = 0.0
        self._hellos = listen(carrier, make_key(run, "hello", TRAINER), capacity=10)
        self._weights = listen(carrier, make_key(run, "weights", TRAINER), capacity=1, newest_only=True)
        self._acks = listen(carrier, make_key(run, "ack", name), capacity=1000)
        self._refusals = listen(carrier, make_key(run, "refusal", name), capacity=10)
        self._commands = listen(carrier, make_key(run, "command", "*"), capacity=100)
        self._answers = listen(carrier, make_key(run, "answer", name), capacity=10)
        self._trainers = carrier.watch(make_key(run, "present", TRAINER))
        carrier.announce(make_key(run, "present", name))  # last: whoever looks for us now is heard

    # --- one step --------------------------------------------------------------------------------------

    def step(self) -> Heard:
        """Do once whatever is due.

        Raises:
            Refused: if the trainer takes nothing from this worker.
            VersionMismatch: if it speaks another version of the protocol, and no other has been heard.
        """
        now = self._now()
        self._follow_trainer(now)
        self._take_acks(now)
        self._take_refusals(now)
        if not self.welcomed and now >= self._next_greeting:
            self._next_greeting = now + GREET_EVERY_S
            self._greet()
        if now >= self._next_ping:
            self._next_ping = now + PING_EVERY_S
            self._ping(now)
        if self.welcomed:
            self._deliver(now)
        return self._hear()

    @property
    def delivered(self) -> bool:
        """Whether everything is acknowledged."""
        return self._outbox.pending == 0 and len(self._reports) == 0

    @property
    def acknowledgement_age_s(self) -> float:
        """Seconds since the last acknowledgement of new rows, 0 while nothing waits for one."""
        if self._outbox.pending == 0:
            return 0.0
        return self._now() - max(self.acknowledged_at, self._began_at)

    @property
    def busy(self) -> bool:
        """Whether there are rows that may be sent at once."""
        return self.welcomed and self.sender.may_send(self._outbox.head, 1) > 0

    def condition(self) -> str:
        """Return how the delivery stands, in words."""
        if not self._carrier.connected:
            return "no hub"
        if self._trainer_boot is None and not self._trainers.present:
            return "hub reached, no trainer yet"
        if not self.welcomed:
            return self._foreign or "waiting for the trainer's welcome"
        silent = self._now() - self._heard_at
        return f"trainer silent for {silent:.0f} s" if silent > SILENCE_S else "connected"

    # --- the trainer -----------------------------------------------------------------------------------

    def _follow_trainer(self, now: float) -> None:
        """Notice another trainer: it knows nothing of the grants of the one before."""
        for payload in self._hellos.drain(10):
            message = self._decode(payload, greeting=True)
            if isinstance(message, messages.Hello) and message.role == "trainer":
                if message.boot != self._trainer_boot:
                    self._trainer_boot = message.boot
                    self._start_over()
                    self._next_greeting = now
                elif not self.welcomed:
                    self._next_greeting = min(self._next_greeting, now)
        if self.welcomed and now - self._heard_at > SILENCE_S:
            self._start_over()

    def _start_over(self) -> None:
        """Send nothing more until the trainer has welcomed us (again)."""
        self.welcomed = False
        self.sender.forget_grant()
        self._reports.rewind()

    def _greet(self) -> None:
        outbox = self._outbox
        self._publish(
            "hello",
            messages.Hello(
                run=self._run,
                worker=self.name,
                boot=self.boot,
                role="worker",
                version=__version__,
                host=here(),
                purpose=self._purpose,
                schema=self._schema_json,
                contract=self._contract_json,
                outbox=outbox.identity,
                oldest=outbox.oldest,
                head=outbox.head,
                reports=self._reports.acknowledged,
                life=outbox.life,
            ),
        )

    def _ping(self, now: float) -> None:
        outbox, offset = self._outbox, self.offset
        ping = messages.Ping(
            run=self._run,
            worker=self.name,
            boot=self.boot,
            outbox=outbox.identity,
            oldest=outbox.oldest,
            head=outbox.head,
            sent=self.sender.next,
            sent_at=now,
            clock_offset_s=offset.seconds,
            rtt_s=offset.rtt_s,
        )
        self._publish("ping", ping)

    # --- acknowledgements ------------------------------------------------------------------------------

    def _take_acks(self, now: float) -> None:
        for payload in self._acks.drain(1000):
            message = self._decode(payload)
            if isinstance(message, messages.Ack) and message.boot == self.boot:
                self._take_ack(message, now)

    def _take_ack(self, ack: messages.Ack, now: float) -> None:
        outbox = self._outbox
        if ack.outbox != outbox.identity:
            return  # an answer to the outbox before this one
        if not outbox.belongs_to(ack.life):
            self._begin_anew("these rows belong to an earlier run of this name")
            return
        if ack.acknowledged > max(outbox.opened_at, outbox.oldest, self._sent_to):
            self._set_back()
            return
        self._heard_at, self._refused_since, self._foreign = now, None, ""
        if ack.echo > 0:
            self.offset.add(ack.echo, ack.received_at, ack.answered_at, now)
        if not self.welcomed:
            self.welcomed = True
            self.sender.begin(max(ack.acknowledged, outbox.oldest))
        self.sender.on_ack(ack.acknowledged, ack.granted, resend=ack.resend, now=now)
        if ack.acknowledged > outbox.oldest or outbox.pending == 0:
            self.acknowledged_at = now
        outbox.acknowledge(ack.acknowledged)
        if ack.resend:
            self._reports.rewind()
        self._reports.on_ack(ack.reports, now)

    def _begin_anew(self, why: str) -> None:
        _log.warning("%s: %d rows were undelivered", why, self._outbox.pending)
        self.set_aside += self._outbox.pending
        self._outbox.begin_anew(why)
        self._go_on_anew()

    def _set_back(self) -> None:
        """The trainer has rows that we had not sent when the disk was last read: it was set back since."""
        _log.warning("this outbox was set back: the trainer has newer rows of it")
        self._outbox.renumber("this outbox was set back")
        self._go_on_anew()

    def _go_on_anew(self) -> None:
        while self._outbox.notes:
            _log.warning("%s", self._outbox.notes.pop(0))
        self._sent_to = 0
        self.sender.begin(0)
        self._start_over()
        self._next_greeting = 0.0

    def _take_refusals(self, now: float) -> None:
        """Give up on a refusal; only a name that another process seems to hold is tried again for a while."""
        for payload in self._refusals.drain(10):
            message = self._decode(payload)
            if not isinstance(message, messages.Refusal) or message.boot != self.boot:
                continue
            if message.code == "duplicate":
                self._refused_since = now if self._refused_since is None else self._refused_since
                if now - self._refused_since < REFUSAL_PATIENCE_S:
                    continue
            raise Refused(message.text)

    # --- rows and reports ------------------------------------------------------------------------------

    def _deliver(self, now: float) -> None:
        outbox, sender = self._outbox, self.sender
        sender.skip_to(outbox.oldest)
        if sender.overdue(now):
            sender.rewind(now)
            self._reports.rewind()
        for _ in range(BATCHES_A_STEP):
            count = sender.may_send(outbox.head, self._batch_rows)
            if count == 0:
                break
            rows = outbox.read(sender.next, count)
            if len(rows) < count:
                sender.skip_to(outbox.oldest)  # the outbox overran while we looked
                continue
            batch = pack_rows(
                rows,
                run=self._run,
                worker=self.name,
                boot=self.boot,
                outbox=outbox.identity,
                sequence=sender.next,
                oldest=outbox.oldest,
                schema_digest=self._digest,
                compress=self._compression,
            )
            self._publish("rows", batch, wait=True)
            sender.sent(count, now)
            self._sent_to = max(self._sent_to, sender.next)
        for report in self._reports.due(now):
            self._publish("report", report, wait=True)

    def report(self, report: messages.EpisodeReport) -> None:
        """Deliver an episode's report; it is numbered here."""
        self._reports.add(msgspec.structs.replace(report, boot=self.boot))

    @property
    def reports_made(self) -> int:
        """Episode reports that were given to this companion so far."""
        return self._reports.made

    # --- the other way ---------------------------------------------------------------------------------

    def _hear(self) -> Heard:
        weights: messages.Weights | None = None
        commands: list[messages.Command] = []
        answers: list[messages.InferReply] = []
        for box in (self._weights, self._commands, self._answers):
            for payload in box.drain(100):
                message = self._decode(payload)
                if isinstance(message, messages.Weights):
                    weights = message
                elif isinstance(message, messages.Command):
                    commands.append(message)
                elif isinstance(message, messages.InferReply) and message.boot == self.boot:
                    answers.append(message)
        mine = [c for c in commands if c.target in ("all", "worker", self.name)]
        return Heard(weights, mine, answers)

    def ask(self, number: int, observation: bytes) -> None:
        """Send a request for actions; an answer comes back in `Heard`."""
        request = messages.InferRequest(
            run=self._run, worker=self.name, boot=self.boot, sequence=number, observation=observation
        )
        self._publish("infer", request)

    def say(self, state: str, text: str, metrics: dict[str, float], *, wait: bool = False) -> None:
        """Publish what the worker is doing."""
        status = messages.Status(
            run=self._run,
            worker=self.name,
            boot=self.boot,
            role="worker",
            state=state,
            text=text[:4096],
            time=clock.wall_time(),
            metrics=metrics,
        )
        self._publish("status", status, wait=wait)

    def _publish(self, kind: str, message: messages.AnyMessage, *, wait: bool = False) -> None:
        try:
            payload = messages.encode(message)
            self._carrier.publish(make_key(self._run, kind, self.name), payload, wait=wait)
        except WireError as error:
            _log.warning("%s: %s", kind, error)

    def _decode(self, payload: bytes, *, greeting: bool = False) -> messages.AnyMessage | None:
        """Return a message, None if it is none; another version in a first greeting is raised."""
        try:
            return messages.decode(payload)
        except WireError as error:
            if greeting and isinstance(error, VersionMismatch):
                if self._heard_at == -float("inf"):
                    raise
                self._foreign = f"a trainer of another release is there: {error}"
            self._left_out += 1
            if self._left_out <= 100 or self._left_out % 1000 == 0:
                _log.warning("left out a message (%d so far): %s", self._left_out, error)
            return None
