"""The companion of a worker: owns disk and network, so that the control process never waits for either.

One thread commits rows from the shared memory to the outbox; another delivers the outbox, and brings weights
and orders the other way. Neither waits for the other: a stalled link does not hold up a commit. It ends when
its control process has ended and all is delivered, or is safe on the disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tickrate import clock
from tickrate.errors import RecordError, Refused, WireError
from tickrate.runtime.courier import Courier, Heard
from tickrate.runtime.outbox import Outbox
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.reports import report_of
from tickrate.wire import messages

_log = logging.getLogger(__name__)

POLL_S = 0.005
COMMIT_EVERY_S = 0.02
"""Pause between two looks at the shared memory: how long a row is at risk, beyond the tick that made it."""
COMMIT_ROWS = 1024
COMMIT_PATIENCE_S = 10.0
"""Longest time that one commit may take at the end, in seconds."""
STATUS_EVERY_S = 0.5
SILENCE_S = 3.0
"""A control loop that has not ticked for so long is reported."""
DRAIN_PATIENCE_S = 5.0
"""Seconds to go on delivering after the control process has ended; what is left stays in the outbox."""


class Companion:
    """Carries one worker's data to the trainer and the trainer's weights back.

    Args:
        outlet: the memory shared with the control process.
        outbox: where rows wait until they are acknowledged.
        courier: delivers the outbox.
        run: name of the run.
        keep_weights: called with each new policy and the run's life, to have it at the next start.
        diagnose: says why the hub is not reached.
        poll_s: pause between two looks when there is nothing to send; short for remote inference.
    """

    def __init__(
        self,
        outlet: SharedOutlet,
        outbox: Outbox,
        courier: Courier,
        run: str,
        keep_weights: Callable[[messages.Weights, int], None] = lambda weights, life: None,
        diagnose: Callable[[], str] = lambda: "",
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._outlet, self._outbox, self._courier, self._run = outlet, outbox, courier, run
        self._keep_weights, self._diagnose, self._poll_s = keep_weights, diagnose, poll_s
        self.takes_weights = True
        """False where the worker acts with weights of its own, or elsewhere: none are kept for it then."""
        self._next_status = 0.0
        self._asked = outlet.inference.version()
        self._failure: Exception | None = None
        for note in outbox.notes:
            _log.warning("%s", note)

    def run(self, control_ended: threading.Event) -> None:
        """Carry until the control process has ended and all is delivered (or nobody takes it any more).

        If it was killed and started again, the new one's companion waits for the outbox: it gets it as soon
        as the last rows are committed, and delivers the rest.

        Args:
            control_ended: set when the control process has gone, for whatever reason.

        Raises:
            WireError: if hub or trainer refuse this worker (`Refused`, `VersionMismatch`, `JoinRefused`).
                The rows are safe.
            Exception: whatever kept rows from being committed.
        """
        stop = threading.Event()
        committer = threading.Thread(
            target=self._commit_until, args=(stop,), name="tickrate-commit", daemon=True
        )
        committer.start()
        refusal: Exception | None = None
        deadline = float("inf")
        try:
            while True:
                ended = control_ended.is_set()  # asked before the step, so that the step sees its last words
                try:
                    self.step()
                except WireError as error:
                    refusal = error
                    self._outlet.block.set("shutdown", 1)
                    break
                if self._failure is not None:
                    raise self._failure
                if ended:
                    if not stop.is_set():
                        stop.set()  # nothing fills the memory any more: from here on this thread commits
                        _end(committer)
                    self._commit_all()
                    deadline = min(deadline, clock.now() + DRAIN_PATIENCE_S)
                    if self._courier.delivered or self._outbox.wanted or clock.now() > deadline:
                        break
                if not self._courier.busy:
                    clock.sleep(self._poll_s)
            if refusal is not None:
                control_ended.wait(DRAIN_PATIENCE_S)  # its last rows belong into the outbox
        finally:
            stop.set()
            _end(committer)
        self._commit_all()
        if self._outbox.pending:
            _log.warning(
                "%d rows are not delivered yet: they stay in the outbox, for the next start or --drain",
                self._outbox.pending,
            )
        self._say("stopped", self._outlet.state_text(), wait=True)
        if refusal is not None:
            raise refusal

    # --- rows ------------------------------------------------------------------------------------------

    def _commit_until(self, stop: threading.Event) -> None:
        while not stop.wait(COMMIT_EVERY_S):
            try:
                self._commit_all()
            except Exception as error:  # noqa: BLE001 (raised again in the companion's own thread)
                self._failure = error
                return

    def _commit_all(self) -> None:
        while self.commit() == COMMIT_ROWS:
            pass

    def commit(self) -> int:
        """Move rows from the shared memory to the outbox; return how many.

        They leave the shared memory only when they are in the outbox: killed in between, the next companion
        finds them in both and takes them once.
        """
        rows = self._outlet.rows.peek(COMMIT_ROWS)
        if len(rows):
            self._outbox.append(rows)
            self._outlet.rows.free(len(rows))
        self._outlet.block.set("hold", int(self._outbox.full))  # here, where no network is waited for
        return len(rows)

    # --- the network -----------------------------------------------------------------------------------

    def step(self) -> None:
        """Do once what is due on the network's side.

        Raises:
            Refused, VersionMismatch: if the trainer takes nothing from this worker.
        """
        outlet = self._outlet
        for summary in outlet.take_summaries():
            self._courier.report(
                report_of(
                    summary, run=self._run, worker=self._courier.name, boot=self._courier.boot, sequence=0
                )
            )
        asked = outlet.inference.version()
        if asked > self._asked and (request := outlet.inference.read()) is not None:
            self._asked = asked
            self._courier.ask(*request)
        self._obey(self._courier.step())
        now = clock.now()
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._say(*self._condition(now))
            outlet.put_link(self._diagnose() or self._courier.condition())

    def _obey(self, heard: Heard) -> None:
        outlet, block = self._outlet, self._outlet.block
        for command in heard.commands:
            if command.action == "shutdown":
                block.set("shutdown", 1)
            else:
                block.set("paused", int(command.action != "resume"))
        weights = heard.weights
        if self.takes_weights and weights is not None and weights.version > outlet.weights.version():
            outlet.weights.write(weights.version, weights.payload)
            self._keep_weights(weights, self._outbox.life)
        for answer in heard.answers[-1:]:
            outlet.answer.write(outlet.answer.version() + 1, answer.actions)
        # A life in the outbox: a trainer of this run has welcomed the worker at an earlier start.
        block.set("welcomed", int(self._courier.welcomed or self._outbox.life != 0))

    def _condition(self, now: float) -> tuple[str, str]:
        """Return state and words for the status."""
        block, text = self._outlet.block, self._outlet.state_text()
        beat = float(block.get("control_beat"))
        if beat > 0 and now - beat > SILENCE_S:
            text = f"{text} (no tick for {now - beat:.0f} s)"
        return ("paused" if block.get("paused") else "acting"), text

    def _say(self, state: str, text: str, *, wait: bool = False) -> None:
        outbox, courier, outlet = self._outbox, self._courier, self._outlet
        metrics = {
            "worker/outbox_rows": float(outbox.pending + outlet.rows.pending()),
            "worker/outbox_bytes": float(outbox.pending_bytes),
            "worker/dropped_rows": float(outbox.dropped + outlet.rows.dropped),
            "worker/acknowledgement_age_s": courier.acknowledgement_age_s,
            "worker/rows_sent": float(courier.sender.next),
            "worker/rows_resent": float(courier.sender.resent),
            "worker/reports_sent": float(courier.reports_made),
            "worker/policy_version": float(outlet.weights.version()),
        }
        courier.say(state, text, metrics, wait=wait)


def _end(committer: threading.Thread) -> None:
    """Wait for the commit under way; a disk that has stopped answering is not waited for.

    Raises:
        RecordError: if it takes too long.
    """
    committer.join(COMMIT_PATIENCE_S)
    if committer.is_alive():
        raise RecordError(
            f"the disk of the outbox has taken no rows for {COMMIT_PATIENCE_S:g} s: they stay in the shared "
            "memory, and the next start commits them. Mend the disk, or set worker.outbox.storage to memory"
        )


def drain(outbox: Outbox, courier: Courier, stop: threading.Event, say: Callable[[str], None]) -> bool:
    """Deliver what an outbox holds, without acting; return whether all of it was acknowledged.

    Args:
        outbox: the rows.
        courier: delivers them.
        stop: ends the attempt.
        say: called about once a second with how it stands.

    Raises:
        Refused, VersionMismatch: if the trainer takes nothing from us, or the rows are of another run.
    """
    next_word = 0.0
    while not stop.is_set() and not courier.delivered:
        courier.step()
        if courier.set_aside:
            raise Refused(
                f"{courier.set_aside} rows cannot be delivered: they belong to an earlier run of this name. "
                "They were set aside in the worker's folder, as a file outbox-*.kept"
            )
        if clock.now() >= next_word:
            next_word = clock.now() + 1.0
            say(f"{outbox.pending} rows to deliver, {courier.condition()}")
            courier.say(
                "draining", f"{outbox.pending} rows to deliver", {"worker/outbox_rows": outbox.pending}
            )
        if not courier.busy:
            clock.sleep(POLL_S)
    sent = {"worker/rows_sent": float(courier.sender.next), "worker/outbox_rows": float(outbox.pending)}
    courier.say("stopped", "drained" if courier.delivered else "stopped", sent, wait=True)
    return courier.delivered
