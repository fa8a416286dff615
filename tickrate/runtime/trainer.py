"""The trainer role: feeds the learner with what is received, hands policies out, saves, reports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tickrate import clock
from tickrate.errors import RunFolderError, WireError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.courier import TRAINER
from tickrate.runtime.learner import Learner
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.overview import overview
from tickrate.runtime.peers import STALLED_AFTER_S
from tickrate.runtime.reception import Reception
from tickrate.wire import messages
from tickrate.wire.carrier import Carrier, make_key

_log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.02
STATUS_EVERY_S = 0.5
REMIND_EVERY_S = 10.0
LAST_ROWS_S = 3.0
"""Seconds to wait at the end for what the workers have sent and what has not arrived yet."""
RETRY_SAVE_S = 30.0
"""Seconds until a checkpoint that could not be written is tried again."""


class Trainer:
    """Runs a learner on what the workers of a run send.

    Args:
        carrier: the way to the hub; it may be closed off for any time.
        run: name of the run.
        ledger: the streams of the run.
        build: makes the learner once the environment's contract is known.
        finish: called with the learner at each checkpoint and at the end (pictures).
        lag_alarm_s: policy lag of a worker that raises the alarm, in seconds.
        diagnose: says why the hub is not reached; raises if it never will be.
        contract: what the workers of a resumed run act in; that of a new one is its first worker's.
    """

    def __init__(
        self,
        carrier: Carrier,
        run: str,
        ledger: Ledger,
        build: Callable[[EnvironmentContract], Learner],
        finish: Callable[[Learner], None],
        *,
        lag_alarm_s: float = 30.0,
        diagnose: Callable[[], str] = lambda: "",
        contract: EnvironmentContract | None = None,
    ) -> None:
        self._carrier, self._run, self._build, self._finish = carrier, run, build, finish
        self._lag_alarm_s = lag_alarm_s
        self._diagnose = diagnose
        self._boot = messages.new_boot()
        self._sequence = 0
        self._newest: bytes | None = None
        self._unsaved: tuple[int, bytes] | None = None  # a round's policy, handed out once it is saved
        self._trouble = ""
        self._next_publication = 0.0
        self._next_status = self._next_log = self._next_checkpoint = self._next_pictures = 0.0
        self._next_word = clock.now() + REMIND_EVERY_S
        self.reception = Reception(carrier, run, self._boot, ledger, self._open, self._send_newest)
        self.reception.peers.contract = contract

    @property
    def learner(self) -> Learner | None:
        """What learns; None before the first worker."""
        return self.reception.learner

    def run(self, stop: threading.Event, *, end_when_finished: bool = False) -> None:
        """Learn until ``stop`` is set; then take in what is left, write a checkpoint and the pictures.

        Args:
            stop: ends the run in order.
            end_when_finished: end also when the run's limit is reached, as nobody is there to stop it.

        Raises:
            Refused: if another trainer serves this run.
            RunFolderError: if the last checkpoint cannot be written.
        """
        waiting_since = clock.now()
        self._next_log = clock.now() + REMIND_EVERY_S
        while not stop.is_set():
            if self.learner is None:
                self._wait_for_worker(waiting_since)
            elif end_when_finished and self.learner.finished:
                break
            else:
                self.step(self.learner)
        if self.learner is not None:
            self._receive_last()
            self._status("saving", "writing the last checkpoint")
            self._save_last(self.learner)
        self._status("stopped", "everything saved")

    def step(self, learner: Learner) -> None:
        """Take in what arrived, make one update if it is due, publish and save when it is time."""
        busy = learner.may_go_on and self._unsaved is None and not learner.finished
        self.reception.receive(0.0 if busy else IDLE_WAIT_S)
        if not learner.finished:
            if learner.rounds.synchronous:
                self._learn_in_rounds(learner)
            else:
                self._learn_as_rows_come(learner)
        now = clock.now()
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._report_progress(learner)
        if now >= self._next_log:
            self._next_log = now + learner.config.log_every_s
            self._log(learner)
        if now >= self._next_word:
            self._next_word = now + REMIND_EVERY_S
            self._say_how_it_stands(learner, now)
            if learner.rounds.synchronous and self.reception.peers.behind(learner.version):
                self._send_newest()  # it was lost on the way, and nothing newer comes while they wait for it
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + learner.config.checkpoint_every_s
            if learner.limiter.updates > 0 or self._unsaved is not None:
                self._save(learner, now)

    def _learn_as_rows_come(self, learner: Learner) -> None:
        """Make an update if one is due; publish every so often, and at once when a worker waits for it."""
        learner.update_if_due()
        due = learner.publish_due() and clock.now() >= self._next_publication
        waited_for = learner.rounds.target is not None and not learner.limiter.may_update()
        if (due or waited_for) and self.reception.settled:
            self._send_weights(learner, learner.publish())

    def _learn_in_rounds(self, learner: Learner) -> None:
        """Make an update of a complete round; after the last one save, and hand out what was saved.

        In this order, so that no worker ever acts with weights that a kill can undo.
        """
        rounds, limiter = learner.rounds, learner.limiter
        if self._unsaved is not None:
            return
        if rounds.end_lost(self.reception.lost_rows, self.reception.quiet_s):
            _log.warning("rows were lost, and none come any more: the round is taken for complete")
            rounds.complete(limiter)
        if rounds.target is None or not self.reception.settled:
            return
        if limiter.updates >= rounds.target or not learner.update_if_due():
            self._unsaved = learner.publish()
            self._next_checkpoint = clock.now()

    def _say_how_it_stands(self, learner: Learner, now: float) -> None:
        """Log one line for who reads along in a terminal: who is there, what comes, what is learned."""
        peers = self.reception.peers.all()
        silent = [peer for peer in peers if now - peer.heard_at > STALLED_AFTER_S]
        _log.info(
            "%d steps, %d updates, policy %d%s; %d of %d workers, %.1f rows/s%s%s",
            learner.limiter.steps,
            learner.limiter.updates,
            learner.version,
            learner.rounds.words(learner.limiter),
            len(peers) - len(silent),
            len(peers),
            sum(peer.rate.per_second() for peer in peers),
            "".join(f"; {peer.name} silent for {now - peer.heard_at:.0f} s" for peer in silent),
            "" if self._carrier.connected else f"; no hub: {self._diagnose() or 'dialling'}",
        )

    def _wait_for_worker(self, since: float) -> None:
        self.reception.receive(IDLE_WAIT_S)
        why = self._diagnose()
        now = clock.now()
        waited = now - since
        if now >= self._next_status:
            self._next_status = now + STATUS_EVERY_S
            self._status("waiting", f"for the first worker, {waited:.0f} s so far")
        if now >= self._next_log:
            self._next_log = now + REMIND_EVERY_S
            hub = "the hub is reached" if self._carrier.connected else f"no hub: {why or 'dialling'}"
            _log.info("waiting for the first worker of run %r, %.0f s so far; %s", self._run, waited, hub)

    def _open(self, contract: EnvironmentContract) -> Learner:
        self._status("building", "networks and replay")
        learner = self._build(contract)
        self._next_checkpoint = clock.now() + learner.config.checkpoint_every_s
        self._next_log = clock.now() + learner.config.log_every_s
        # A resumed run acts on with what it had learned. One that had saved nothing yet has only its rows:
        # the workers go on with the policy that they have. In rounds the same policy goes out again.
        policy = learner.published.handed_out
        if policy is None and learner.version > 0 and learner.updates > 0:
            policy = learner.publish()
        if policy is not None:
            self._send_weights(learner, policy)
        return learner

    def _receive_last(self) -> None:
        """Take in what the workers had sent by their end; wait for it, but not for ever."""
        deadline = clock.now() + LAST_ROWS_S
        while not self.reception.all_in() and clock.now() < deadline:
            self.reception.receive(IDLE_WAIT_S)
        while self.reception.waiting and clock.now() < deadline + LAST_ROWS_S:
            self.reception.receive(0.0)

    def _save_last(self, learner: Learner) -> None:
        try:
            learner.save()
            learner.log()
            self._finish(learner)
        except OSError as error:
            self._status("stopped", f"the last checkpoint could not be written: {error}")
            raise RunFolderError(
                f"the last checkpoint could not be written ({error}). What the workers delivered is safe "
                f"in {learner.folder.journal}: make room, then go on with --resume"
            ) from error

    def _log(self, learner: Learner) -> None:
        try:
            learner.log()
        except OSError as error:
            self._trouble = f"no metrics could be written ({error})"
            _log.error("%s", self._trouble)

    def _save(self, learner: Learner, now: float) -> None:
        """Write a checkpoint; a full disk is reported and tried again, and does not end the run."""
        try:
            learner.save()
            if self._unsaved is not None:
                self._send_weights(learner, self._unsaved)
                self._unsaved = None
            if now >= self._next_pictures:  # not at every round
                self._next_pictures = now + learner.config.checkpoint_every_s
                self._finish(learner)
            self._trouble = ""
        except OSError as error:
            self._trouble = f"no checkpoint could be written ({error}); trying again"
            self._next_checkpoint = clock.now() + RETRY_SAVE_S
            _log.error("%s", self._trouble)

    # --- what goes out ---------------------------------------------------------------------------------

    def _send_weights(self, learner: Learner, policy: tuple[int, bytes]) -> None:
        version, weights = policy
        self._next_publication = clock.now() + learner.config.publish_every_s
        self._newest = messages.encode(
            messages.make_weights(
                weights, run=self._run, worker=TRAINER, boot=self._boot, version=version, created=clock.now()
            )
        )
        self._send_newest()

    def _send_newest(self) -> None:
        if self._newest is not None:
            self._publish("weights", self._newest, wait=True)

    def _report_progress(self, learner: Learner) -> None:
        limiter = learner.limiter
        if self._trouble:
            state, text = "in trouble", self._trouble
        elif learner.finished:
            state, text = "finished", "the run has reached its limit"
        elif limiter.steps < limiter.start_steps:
            state, text = "collecting", f"{limiter.steps} of {limiter.start_steps} warm-up steps"
        else:
            state, text = "learning", f"{limiter.updates} updates, policy {learner.version}"
        peers = self.reception.peers.all()
        metrics = learner.figures() | {
            "trainer/steps": float(limiter.steps),
            "trainer/policy_version": float(learner.version),
            "trainer/lost_rows": float(sum(peer.receiver.lost for peer in peers)),
            "trainer/repeated_rows": float(
                sum(peer.receiver.repeated for peer in peers) + learner.replay.duplicate_rows
            ),
            "trainer/spoilt_rows": float(self.reception.spoilt_rows),
            "trainer/refused_messages": float(self.reception.refused),
            "trainer/workers": float(len(peers)),
        }
        if learner.published.best_version > 0:
            metrics |= {
                "eval/best_score": learner.published.best_score,
                "eval/best_version": float(learner.published.best_version),
            }
        self._status(state, text, metrics)

    def _status(self, state: str, text: str, metrics: dict[str, float] | None = None) -> None:
        """Say what the trainer is doing: as a message to the roles, and as JSON for everybody else."""
        self._sequence += 1
        status = messages.Status(
            run=self._run,
            worker=TRAINER,
            boot=self._boot,
            sequence=self._sequence,
            role="trainer",
            state=state,
            text=text,
            time=clock.wall_time(),
            metrics=metrics or {},
        )
        self._publish("status", messages.encode(status))
        body = overview(
            self._run,
            self.reception.peers.all(),
            metrics or {},
            state=state,
            text=text,
            newest_version=0 if self.learner is None else self.learner.version,
            lag_alarm_s=self._lag_alarm_s,
            now=clock.now(),
        )
        self._publish("overview", body)

    def _publish(self, kind: str, payload: bytes, *, wait: bool = False) -> None:
        try:
            self._carrier.publish(make_key(self._run, kind, TRAINER), payload, wait=wait)
        except WireError as error:
            _log.warning("%s: %s", kind, error)
