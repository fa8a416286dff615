"""All roles of a run on one machine: hub in this process, worker and trainer in their own, watched and ended in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tickrate import clock
from tickrate.errors import TickrateError
from tickrate.runtime.run_folder import RunFolder
from tickrate.runtime.supervision import Child
from tickrate.wire import messages
from tickrate.wire.carrier import ANY, make_key
from tickrate.wire.mailbox import Mailbox
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub

MAX_RESTARTS = 3
"""How often a role that dies is started again before the run is given up."""
STOP_PATIENCE_S = 20.0
"""Seconds that a role gets to end by itself (the trainer writes a checkpoint meanwhile)."""

Order = Literal["pause", "resume", "stop_device", "shutdown"]


@dataclass
class RunState:
    """What a view shows of a run.

    Attributes:
        statuses: newest status of each role, by its name.
        episodes: the last finished episodes, oldest first.
        elapsed_s: wall time since the command, in seconds.
        notes: what happened to the roles, newest last.
        paused: whether acting is paused.
    """

    statuses: dict[str, messages.Status] = field(default_factory=dict)
    episodes: deque[messages.EpisodeReport] = field(default_factory=lambda: deque(maxlen=500))
    elapsed_s: float = 0.0
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=50))
    paused: bool = False

    def metric(self, role: str, name: str) -> float | None:
        """Return a metric of a role's newest status, or None."""
        status = self.statuses.get(role)
        return None if status is None else status.metrics.get(name)


class LocalRun:
    """Starts and supervises the roles of one run.

    Args:
        folder: the prepared run folder, with the resolved experiment in it.
        resume: whether the trainer continues from the newest checkpoint.
        trainer_threads: threads that the trainer's process may use.
        started: the time (of `clock.now`) that wall time counts from.
    """

    def __init__(
        self, folder: RunFolder, *, resume: bool, trainer_threads: int, started: float | None = None
    ) -> None:
        self.state = RunState()
        self._folder = folder
        self._started = clock.now() if started is None else started
        self._name = name = folder.wire_name
        self._boot = messages.new_boot()
        self._hub = ZenohHub()
        common = ["--run-dir", str(folder.path), "--hub", self._hub.endpoint]
        again = ["--resume"] if resume else []
        self._trainer = Child(
            "trainer",
            [*common, "--started", repr(self._started), *again],
            folder.log("trainer"),
            trainer_threads,
        )
        self._worker = Child("worker", [*common, "--index", "0"], folder.log("worker-0"), threads=1)
        self._carrier = ZenohCarrier(self._hub.endpoint, timeout_s=10.0)
        self._statuses: Mailbox = self._carrier.subscribe(make_key(name, "status", ANY), capacity=1000)
        self._reports: Mailbox = self._carrier.subscribe(make_key(name, "report", ANY), capacity=1000)

    def start(self) -> None:
        """Start the roles. The worker comes first: a live system can be warmed up while the trainer loads."""
        for child in (self._worker, self._trainer):
            child.start()

    def poll(self) -> RunState:
        """Take in what the roles said, look after the dead, and return the state.

        Raises:
            TickrateError: if a role died too often; the message holds its last words.
        """
        state = self.state
        state.elapsed_s = clock.now() - self._started
        for payload in self._statuses.drain(1000):
            status = messages.decode(payload)
            if isinstance(status, messages.Status):
                state.statuses[status.role] = status
        for payload in self._reports.drain(1000):
            report = messages.decode(payload)
            if isinstance(report, messages.EpisodeReport):
                state.episodes.append(report)
        for child in (self._worker, self._trainer):
            if not child.running and not self.finished:
                self._revive(child)
        return state

    @property
    def finished(self) -> bool:
        """Whether the trainer has said that the run reached its limit."""
        status = self.state.statuses.get("trainer")
        return status is not None and status.state == "finished"

    def order(self, order: Order) -> None:
        """Tell the worker to pause, to go on, or to stop the device at once."""
        self.state.paused = order in ("pause", "stop_device") or (self.state.paused and order != "resume")
        message = messages.Command(run=self._name, worker="launcher", boot=self._boot, target="worker", action=order)
        self._carrier.publish(make_key(self._name, "command", "worker"), messages.encode(message))

    def stop(self) -> Sequence[str]:
        """End the run in order: device safe, last data delivered, everything saved. Return what went wrong, if anything.

        Safe to call more than once; takes at most a few times `STOP_PATIENCE_S`.
        """
        problems = []
        for child in (self._worker, self._trainer):
            child.close_input()
            if not child.wait(STOP_PATIENCE_S):
                problems.append(f"the {child.role} did not end within {STOP_PATIENCE_S:g} s and was killed")
                child.end(2.0)
            elif child.exit_code not in (0, None):
                problems.append(f"the {child.role} ended with code {child.exit_code}: {child.last_words(3)}")
        self._carrier.close()
        self._hub.close()
        return problems

    def _revive(self, child: Child) -> None:
        code, words = child.exit_code, child.last_words()
        never_worked = child.role not in self.state.statuses
        if child.starts > MAX_RESTARTS or never_worked or code == 2:  # 2: a mistake that no restart mends
            raise TickrateError(f"the {child.role} ended with code {code}. The end of {child.log}:\n{words}")
        self.state.notes.append(f"the {child.role} died (code {code}); started again")
        if child is self._trainer and self._folder.latest_checkpoint() and "--resume" not in child.arguments:
            child.arguments = [*child.arguments, "--resume"]
        child.start()
