"""The companion of a worker: owns the network, so that the control process never waits for it.

It empties the shared rings into numbered batches as far as the trainer's credit goes, and brings weights and
orders the other way. It ends when its control process has ended and everything that could be sent is sent.
"""

from __future__ import annotations

import json
import logging
import threading

from tickrate import __version__, clock
from tickrate.errors import WireError
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.worker import EpisodeSummary
from tickrate.wire import messages
from tickrate.wire.arrays import pack_rows
from tickrate.wire.carrier import Carrier, make_key
from tickrate.wire.credits import CreditSender, RowQueue

_log = logging.getLogger(__name__)

POLL_S = 0.01
BATCH_ROWS = 256
BUFFERED_ROWS = 200_000
"""Rows kept while there is no credit (2.8 hours at 20 Hz); beyond it the oldest are dropped and counted."""
STATUS_EVERY_S = 0.5
HELLO_EVERY_S = 1.0
DRAIN_PATIENCE_S = 5.0
"""Seconds to go on delivering after the control process has ended."""


class Companion:
    """Carries one worker's data to the trainer and the trainer's weights back.

    Args:
        outlet: the memory shared with the control process.
        carrier: the way to the hub.
        run: name of the run.
        worker: index of the worker.
        boot: number of this start of the worker, rising.
    """

    def __init__(self, outlet: SharedOutlet, carrier: Carrier, run: str, worker: int, boot: int) -> None:
        self._outlet, self._carrier, self._run = outlet, carrier, run
        self._name, self._boot = f"worker-{worker}", boot
        schema = outlet.schema
        self._digest = schema.digest()
        self._hello = messages.encode(
            messages.Hello(
                run=run,
                worker=self._name,
                boot=boot,
                role="worker",
                version=__version__,
                schema=schema.to_json(),
                contract=json.dumps(outlet.contract.to_dict()),
            )
        )
        self._queue = RowQueue(schema.row_dtype, BUFFERED_ROWS)
        self._credit = CreditSender()
        self._sequence = 0
        self._weights = carrier.subscribe(make_key(run, "weights", "trainer"), capacity=1, newest_only=True)
        self._credits = carrier.subscribe(make_key(run, "credit", self._name), capacity=1000)
        self._commands = carrier.subscribe(make_key(run, "command", "*"), capacity=1000)
        self._next_status = self._next_hello = 0.0
        self._rows_sent = 0

    def run(self, control_ended: threading.Event) -> None:
        """Carry until the control process has ended and all is delivered (or nobody takes it any more)."""
        deadline = float("inf")
        while True:
            moved = self.step()
            if control_ended.is_set():
                deadline = min(deadline, clock.now() + DRAIN_PATIENCE_S)
                delivered = not moved and len(self._queue) == 0 and self._outlet.rows.pending() == 0
                if delivered or clock.now() > deadline:
                    break
            if not moved:
                clock.sleep(POLL_S)
        if len(self._queue):
            _log.warning("%d rows could not be delivered before the end: no credit from the trainer", len(self._queue))
        self._status("stopped", self._outlet.state_text())

    def step(self) -> bool:
        """Move once whatever there is to move; return whether rows were sent."""
        outlet, now = self._outlet, clock.now()
        outlet.block.set("companion_beat", now)
        self._receive()
        self._queue.put(outlet.rows.pop(BATCH_ROWS))
        sent = self._send_rows()
        for summary in outlet.take_summaries():
            self._report(summary)
        if now >= self._next_hello and (self._credit.granted == 0 or self._credit.available == 0):
            self._publish("hello", self._hello)
            self._next_hello = now + HELLO_EVERY_S
        if now >= self._next_status:
            self._status("acting", outlet.state_text())
            self._next_status = now + STATUS_EVERY_S
        return sent

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
        count = self._credit.may_send(min(len(self._queue), BATCH_ROWS))
        if count == 0:
            return False
        rows = self._queue.take(count)
        batch = pack_rows(
            rows,
            run=self._run,
            worker=self._name,
            boot=self._boot,
            sequence=self._credit.sent(count),
            schema_digest=self._digest,
            dropped=self._dropped,
        )
        self._publish("rows", messages.encode(batch), wait=True)
        self._rows_sent += count
        return True

    @property
    def _dropped(self) -> int:
        return self._queue.dropped + self._outlet.rows.dropped

    def _report(self, summary: EpisodeSummary) -> None:
        self._sequence += 1
        report = messages.EpisodeReport(
            run=self._run,
            worker=self._name,
            boot=self._boot,
            sequence=self._sequence,
            episode=summary.episode,
            evaluation=summary.evaluation,
            policy_version=summary.policy_version,
            steps=summary.steps,
            return_=summary.total_return,
            duration_s=summary.duration_s,
            ended=summary.ended,
            lap_time_s=summary.metrics.get("lap_time_s"),
            clean=bool(summary.metrics.get("lap_clean", 1.0)),
            total_steps=summary.training_steps,
            finished=clock.wall_time(),
            metrics=summary.metrics,
        )
        self._publish("report", messages.encode(report), wait=True)

    def _status(self, state: str, text: str) -> None:
        metrics = {
            "worker/outbox_rows": float(len(self._queue) + self._outlet.rows.pending()),
            "worker/dropped_rows": float(self._dropped),
            "worker/rows_sent": float(self._rows_sent),
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
        self._publish("status", messages.encode(status))

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
