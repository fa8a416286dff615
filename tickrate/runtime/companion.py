"""The companion of a worker: owns the network, so that the control process never waits for it.

It empties the shared rings into numbered batches as far as the trainer's credit goes, and brings weights and
orders the other way. While no trainer is there, rows wait here; a trainer that comes up is greeted, and
nothing is sent to it before it has granted credit. It ends when its control process has ended and everything
that could be sent is sent.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from typing import Any

from numpy.typing import NDArray

from tickrate import __version__, clock
from tickrate.errors import WireError
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.reports import report_of
from tickrate.wire import messages
from tickrate.wire.arrays import pack_rows
from tickrate.wire.carrier import Carrier, make_key
from tickrate.wire.credits import CreditSender, RowQueue

_log = logging.getLogger(__name__)

POLL_S = 0.01
BATCH_ROWS = 256
"""Most rows of one message (fewer of them if they are large)."""
BUFFERED_ROWS = 200_000
"""Rows kept while there is no credit (2.8 hours at 20 Hz); beyond it the oldest are dropped and counted."""
BUFFERED_BYTES = 1 << 30
"""Memory that these rows may take; large rows are kept in smaller number."""
BUFFERED_REPORTS = 10_000
"""Episodes kept while no trainer is there; beyond it the oldest are dropped."""
STATUS_EVERY_S = 0.5
HELLO_EVERY_S = 1.0
SILENCE_S = 3.0
"""A control loop that has not ticked for so long is reported."""
DRAIN_PATIENCE_S = 5.0
"""Seconds to go on delivering after the control process has ended."""


class Companion:
    """Carries one worker's data to the trainer and the trainer's weights back.

    Args:
        outlet: the memory shared with the control process.
        carrier: the way to the hub.
        run: name of the run.
        worker: index of the worker.
        buffered_rows: most rows kept while there is no credit.
    """

    def __init__(
        self,
        outlet: SharedOutlet,
        carrier: Carrier,
        run: str,
        worker: int = 0,
        *,
        buffered_rows: int = BUFFERED_ROWS,
    ) -> None:
        self._outlet, self._carrier, self._run = outlet, carrier, run
        # Rows are numbered anew by each companion, so each is a boot of its own to the trainer.
        self._name, self._boot = f"worker-{worker}", messages.new_boot()
        schema = outlet.schema
        self._digest = schema.digest()
        self._schema_json, self._contract_json = schema.to_json(), json.dumps(outlet.contract.to_dict())
        row_bytes = schema.row_dtype.itemsize
        self._batch_rows = max(1, min(BATCH_ROWS, messages.MAX_ROW_BYTES // row_bytes))
        self._queue = RowQueue(schema.row_dtype, max(1, min(buffered_rows, BUFFERED_BYTES // row_bytes)))
        self._credit = CreditSender()
        self._reports = 0
        self._summaries: deque[EpisodeSummary] = deque(maxlen=BUFFERED_REPORTS)
        self._trainer = carrier.watch(make_key(run, "present", "trainer"))
        self._trainer_there = False
        self._trainer_boot: int | None = None
        self._hellos = carrier.subscribe(make_key(run, "hello", "trainer"), capacity=10)
        self._weights = carrier.subscribe(make_key(run, "weights", "trainer"), capacity=1, newest_only=True)
        self._credits = carrier.subscribe(make_key(run, "credit", self._name), capacity=1000)
        self._commands = carrier.subscribe(make_key(run, "command", "*"), capacity=1000)
        self._next_status = self._next_hello = 0.0

    def run(self, control_ended: threading.Event) -> None:
        """Carry until the control process has ended and all is delivered (or nobody takes it any more)."""
        deadline = float("inf")
        while True:
            ended = control_ended.is_set()  # asked before the step, so that the step sees its very last words
            moved = self.step()
            if ended:
                deadline = min(deadline, clock.now() + DRAIN_PATIENCE_S)
                left = len(self._queue) + self._outlet.rows.pending() + len(self._summaries)
                delivered = not moved and left == 0
                if delivered or clock.now() > deadline:
                    break
            if not moved:
                clock.sleep(POLL_S)
        if len(self._queue):
            _log.warning(
                "%d rows could not be delivered before the end: the trainer took no more", len(self._queue)
            )
        self._say("stopped", self._outlet.state_text(), wait=True)

    def step(self) -> bool:
        """Move once whatever there is to move; return whether rows were sent."""
        outlet, now = self._outlet, clock.now()
        self._follow_trainer()
        self._receive()
        self._queue.put(outlet.rows.pop(self._batch_rows))
        sent = self._send_rows()
        self._send_reports()
        if now >= self._next_hello and self._credit.available == 0:
            self._greet()
            self._next_hello = now + HELLO_EVERY_S
        if now >= self._next_status:
            self._say(*self._condition(now))
            self._next_status = now + STATUS_EVERY_S
        return sent

    def _follow_trainer(self) -> None:
        """Notice a trainer that went or came: a new one knows nothing of the credit of the old one."""
        there, boot = bool(self._trainer.present), self._trainer_boot
        for payload in self._hellos.drain(10):
            message = self._decode(payload)
            if isinstance(message, messages.Hello) and message.role == "trainer":
                boot = message.boot
        if there != self._trainer_there or boot != self._trainer_boot:
            self._trainer_there, self._trainer_boot = there, boot
            self._credits.drain(1000)
            self._credit.granted = 0
            self._next_hello = 0.0

    def _greet(self) -> None:
        """Say who we are and where we stand; without credit nothing else tells the trainer that we wait."""
        hello = messages.Hello(
            run=self._run,
            worker=self._name,
            boot=self._boot,
            sequence=self._credit.next_sequence,
            role="worker",
            version=__version__,
            schema=self._schema_json,
            contract=self._contract_json,
        )
        self._publish("hello", messages.encode(hello))
        if self._credit.granted > 0:  # rows that were lost on the way give their credit back
            self._publish_rows(self._queue.take(0))

    def _condition(self, now: float) -> tuple[str, str]:
        """Return state and words for the status."""
        block, text = self._outlet.block, self._outlet.state_text()
        beat = float(block.get("control_beat"))
        if beat > 0 and now - beat > SILENCE_S:
            text = f"{text} (no tick for {now - beat:.0f} s)"
        return ("paused" if block.get("paused") else "acting"), text

    def _receive(self) -> None:
        for payload in self._credits.drain(1000):
            message = self._decode(payload)
            if isinstance(message, messages.Credit) and message.boot == self._boot:
                self._credit.on_credit(message.granted)
        for payload in self._commands.drain(1000):
            message = self._decode(payload)
            if isinstance(message, messages.Command) and message.target in ("*", "worker", self._name):
                self._obey(message.action)
        for payload in self._weights.drain(1):
            message = self._decode(payload)
            if isinstance(message, messages.Weights) and message.version > self._outlet.weights.version():
                self._outlet.weights.write(message.version, message.payload)

    def _obey(self, action: str) -> None:
        block = self._outlet.block
        if action == "shutdown":
            block.set("shutdown", 1)
        else:
            block.set("paused", int(action != "resume"))

    def _send_rows(self) -> bool:
        count = self._credit.may_send(min(len(self._queue), self._batch_rows))
        if count > 0:
            self._publish_rows(self._queue.take(count))
        return count > 0

    def _publish_rows(self, rows: NDArray[Any]) -> None:
        batch = pack_rows(
            rows,
            run=self._run,
            worker=self._name,
            boot=self._boot,
            sequence=self._credit.sent(len(rows)),
            schema_digest=self._digest,
            dropped=self._dropped,
        )
        self._publish("rows", messages.encode(batch), wait=True)

    @property
    def _dropped(self) -> int:
        return self._queue.dropped + self._outlet.rows.dropped

    def _send_reports(self) -> None:
        """Report finished episodes; like rows, they wait for a trainer that takes them."""
        self._summaries.extend(self._outlet.take_summaries())
        while self._summaries and self._credit.granted > 0:
            self._report(self._summaries.popleft())

    def _report(self, summary: EpisodeSummary) -> None:
        self._reports += 1
        report = report_of(summary, run=self._run, worker=self._name, boot=self._boot, sequence=self._reports)
        self._publish("report", messages.encode(report), wait=True)

    def _say(self, state: str, text: str, *, wait: bool = False) -> None:
        metrics = {
            "worker/outbox_rows": float(len(self._queue) + self._outlet.rows.pending()),
            "worker/dropped_rows": float(self._dropped),
            "worker/rows_sent": float(self._credit.next_sequence),
            "worker/reports_sent": float(self._reports),
            "worker/policy_version": float(self._outlet.weights.version()),
        }
        status = messages.Status(
            run=self._run,
            worker=self._name,
            boot=self._boot,
            role="worker",
            state=state,
            text=text,
            time=clock.wall_time(),
            metrics=metrics,
        )
        self._publish("status", messages.encode(status), wait=wait)

    def _publish(self, kind: str, payload: bytes, *, wait: bool = False) -> None:
        try:
            self._carrier.publish(make_key(self._run, kind, self._name), payload, wait=wait)
        except WireError as error:
            _log.warning("%s: %s", kind, error)

    @staticmethod
    def _decode(payload: bytes) -> messages.AnyMessage | None:
        try:
            return messages.decode(payload)
        except WireError as error:
            _log.warning("left out a message: %s", error)
            return None
