"""The trainer role: waits for a worker's contract, feeds the learner from the wire, hands policies out."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from tickrate import __version__, clock
from tickrate.data.schema import RecordSchema
from tickrate.errors import MessageError, RecordError, WireError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner import Learner
from tickrate.runtime.reports import summary_of
from tickrate.wire import messages
from tickrate.wire.arrays import unpack_rows
from tickrate.wire.carrier import ANY, Carrier, make_key
from tickrate.wire.credits import CreditGranter

_log = logging.getLogger(__name__)

NAME = "trainer"
WINDOW_ROWS = 4096
"""Rows that a worker may have under way; more than three minutes at 20 Hz."""
IDLE_WAIT_S = 0.02
STATUS_EVERY_S = 0.5
HELLO_EVERY_S = 1.0
REMIND_EVERY_S = 10.0
LAST_ROWS_S = 3.0
"""Seconds to wait at the end for what the workers have sent and what has not arrived yet."""


class Trainer:
    """Runs a learner on what the workers of a run send.

    Args:
        carrier: the way to the hub.
        run: name of the run.
        build: makes the learner once the environment's contract is known.
        finish: called with the learner at each checkpoint and at the end (pictures).
    """

    def __init__(
        self,
        carrier: Carrier,
        run: str,
        build: Callable[[EnvironmentContract], Learner],
        finish: Callable[[Learner], None],
    ) -> None:
        self._carrier, self._run, self._build, self._finish = carrier, run, build, finish
        self._boot = messages.new_boot()
        self._sequence = 0
        self._learner: Learner | None = None
        self._ends: dict[str, messages.Status] = {}
        self._reports_seen: dict[tuple[str, int], int] = {}
        self._schema: RecordSchema | None = None
        self._granters: dict[str, CreditGranter] = {}
        self._hellos = carrier.subscribe(make_key(run, "hello", ANY), capacity=100)
        self._rows = carrier.subscribe(make_key(run, "rows", ANY), capacity=10_000)
        self._reports = carrier.subscribe(make_key(run, "report", ANY), capacity=10_000)
        self._statuses = carrier.subscribe(make_key(run, "status", ANY), capacity=100, newest_only=True)
        self._newest: bytes | None = None
        self._next_status = self._next_log = self._next_checkpoint = self._next_hello = 0.0
        self._refused = 0
        carrier.announce(make_key(run, "present", NAME))  # last: whoever greets us now is heard

    def run(self, stop: threading.Event) -> None:
        """Learn until ``stop`` is set; then take in what is left, write a checkpoint and the pictures."""
        waiting_since = clock.now()
        self._next_log = clock.now() + REMIND_EVERY_S
        while not stop.is_set():
            if self._learner is None:
                self._wait_for_worker(waiting_since)
            else:
                self.step(self._learner)
        if self._learner is not None:
            self._receive_last(self._learner)
            self._status("saving", "writing the last checkpoint")
            self._learner.log()
            self._learner.save()
            self._finish(self._learner)
        self._status("stopped", "everything saved")

    def step(self, learner: Learner) -> None:
        """Take in what arrived, make one update if it is due, publish and save when it is time."""
        idle = not learner.limiter.may_update() or learner.finished
        self._receive(learner, wait_s=IDLE_WAIT_S if idle else 0.0)
        if not learner.finished:
            learner.update_if_due()
            if learner.publish_due():
                self._publish_weights(learner)
        now = clock.now()
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._report_progress(learner)
        if now >= self._next_log:
            self._next_log = now + learner.config.log_every_s
            learner.log()
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + learner.config.checkpoint_every_s
            if learner.limiter.updates > 0:
                learner.save()
                self._finish(learner)

    def _wait_for_worker(self, since: float) -> None:
        if clock.now() >= self._next_hello:  # a worker that spoke to an earlier trainer has to greet this one
            self._next_hello = clock.now() + HELLO_EVERY_S
            hello = messages.Hello(
                run=self._run, worker=NAME, boot=self._boot, role="trainer", version=__version__
            )
            self._carrier.publish(make_key(self._run, "hello", NAME), messages.encode(hello), wait=False)
        payload = self._hellos.get(0.2)
        message = None if payload is None else self._decode(payload)
        if isinstance(message, messages.Hello) and message.role == "worker":
            self._welcome(message)
            return
        waited = clock.now() - since
        if clock.now() >= self._next_status:
            self._next_status = clock.now() + STATUS_EVERY_S
            self._status("waiting", f"for the first worker, {waited:.0f} s so far")
        if clock.now() >= self._next_log:
            self._next_log = clock.now() + REMIND_EVERY_S
            _log.info("waiting for the first worker of run %r, %.0f s so far", self._run, waited)

    def _welcome(self, hello: messages.Hello) -> None:
        """Answer a worker: build the learner for the first one; later ones must bring the same schema."""
        try:
            schema = RecordSchema.from_json(hello.schema)
            contract = EnvironmentContract.from_dict(json.loads(hello.contract))
            if contract.schema().digest() != schema.digest():
                raise MessageError("its record schema does not follow from its contract")
        except (RecordError, MessageError, json.JSONDecodeError, RecursionError) as error:
            self._refuse(f"{hello.worker} (tickrate {hello.version}): {error}")
            return
        if self._learner is None:
            self._status("building", "networks and replay")
            self._learner, self._schema = self._build(contract), schema
            self._next_checkpoint = clock.now() + self._learner.config.checkpoint_every_s
            if self._learner.version > 0:  # a resumed run acts on with what it had learned
                self._publish_weights(self._learner)
        elif self._schema is not None and (difference := self._schema.difference(schema)):
            self._refuse(f"{hello.worker} records something else: {difference}")
            return
        granter = self._granters.setdefault(hello.worker, CreditGranter(WINDOW_ROWS))
        granter.on_hello(hello.boot, hello.sequence)
        self._grant(hello.worker, granter, repeat=True)
        if self._newest is not None:
            self._carrier.publish(make_key(self._run, "weights", NAME), self._newest, wait=True)

    def _receive_last(self, learner: Learner) -> None:
        """Take in what the workers had sent by their end; wait for it, but not for ever."""
        deadline = clock.now() + LAST_ROWS_S
        while not self._all_in() and clock.now() < deadline:
            self._receive(learner, wait_s=IDLE_WAIT_S)
        while len(self._rows) or len(self._reports):
            self._receive(learner, wait_s=0.0)

    def _all_in(self) -> bool:
        """Tell whether every worker has said how much it sent, and all of that is here."""
        for payload in self._statuses.drain(100):
            status = self._decode(payload)
            if isinstance(status, messages.Status) and status.role == "worker" and status.state == "stopped":
                self._ends[status.worker] = status
        for worker, granter in self._granters.items():
            end = self._ends.get(worker)
            if (
                end is None
                or end.boot != granter.boot
                or granter.expected < end.metrics.get("worker/rows_sent", 0.0)
            ):
                return False
            if self._reports_seen.get((worker, end.boot), 0) < end.metrics.get("worker/reports_sent", 0.0):
                return False
        return True

    def _receive(self, learner: Learner, wait_s: float) -> None:
        first = self._rows.get(wait_s) if wait_s > 0 else None
        for payload in ([] if first is None else [first]) + self._rows.drain(64):
            self._take_rows(learner, payload)
        for payload in self._hellos.drain(16):
            message = self._decode(payload)
            if isinstance(message, messages.Hello) and message.role == "worker":
                self._welcome(message)
        for payload in self._reports.drain(64):
            message = self._decode(payload)
            if isinstance(message, messages.EpisodeReport):
                self._reports_seen[message.worker, message.boot] = message.sequence
                learner.finish_episode(summary_of(message))

    def _take_rows(self, learner: Learner, payload: bytes) -> None:
        message = self._decode(payload)
        if (
            not isinstance(message, messages.RowBatch)
            or message.worker not in self._granters
            or self._schema is None
        ):
            return
        try:
            rows = unpack_rows(message, self._schema.row_dtype, self._schema.digest())
        except MessageError as error:
            self._refuse(str(error))
            return
        granter = self._granters[message.worker]
        skip = granter.on_rows(message.boot, message.sequence, message.count)
        if skip < len(rows):
            learner.ingest(rows[skip:])
        self._grant(message.worker, granter, repeat=message.count == 0)

    def _grant(self, worker: str, granter: CreditGranter, *, repeat: bool = False) -> None:
        granted = granter.next_grant(repeat=repeat)
        if granted is not None and granter.boot is not None:
            credit = messages.Credit(run=self._run, worker=worker, boot=granter.boot, granted=granted)
            self._carrier.publish(make_key(self._run, "credit", worker), messages.encode(credit))

    def _publish_weights(self, learner: Learner) -> None:
        version, weights = learner.publish()
        self._newest = messages.encode(
            messages.make_weights(
                weights, run=self._run, worker=NAME, boot=self._boot, version=version, created=clock.now()
            )
        )
        self._carrier.publish(make_key(self._run, "weights", NAME), self._newest, wait=True)

    def _report_progress(self, learner: Learner) -> None:
        limiter = learner.limiter
        if learner.finished:
            state, text = "finished", "the run has reached its limit"
        elif limiter.steps < limiter.start_steps:
            state, text = "collecting", f"{limiter.steps} of {limiter.start_steps} warm-up steps"
        else:
            state, text = "learning", f"{limiter.updates} updates, policy {learner.version}"
        metrics = learner.figures() | {
            "trainer/steps": float(limiter.steps),
            "trainer/policy_version": float(learner.version),
            "trainer/lost_rows": float(sum(g.lost for g in self._granters.values())),
            "trainer/refused_messages": float(self._refused),
        }
        if learner.best_version > 0:
            metrics |= {
                "eval/best_score": learner.best_score,
                "eval/best_version": float(learner.best_version),
            }
        self._status(state, text, metrics)

    def _status(self, state: str, text: str, metrics: dict[str, float] | None = None) -> None:
        self._sequence += 1
        status = messages.Status(
            run=self._run,
            worker=NAME,
            boot=self._boot,
            sequence=self._sequence,
            role="trainer",
            state=state,
            text=text,
            time=clock.wall_time(),
            metrics=metrics or {},
        )
        self._carrier.publish(make_key(self._run, "status", NAME), messages.encode(status), wait=False)

    def _refuse(self, why: str) -> None:
        self._refused += 1
        _log.warning("refused (tickrate %s here): %s", __version__, why)

    def _decode(self, payload: bytes) -> messages.AnyMessage | None:
        try:
            return messages.decode(payload)
        except WireError as error:
            self._refuse(str(error))
            return None
