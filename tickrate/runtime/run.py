"""All roles of a run on one machine: holds the hub, starts, watches and ends worker and trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tickrate import clock
from tickrate.errors import RoleFailed, WireError
from tickrate.runtime.courier import TRAINER
from tickrate.runtime.overview import Overview, WorkerView, read_overview
from tickrate.runtime.run_folder import RunFolder, write_atomically
from tickrate.runtime.supervision import Child
from tickrate.wire import messages
from tickrate.wire.address import listen
from tickrate.wire.carrier import ANY, make_key
from tickrate.wire.mailbox import Mailbox
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub

MAX_RESTARTS = 3
"""How often a role that was killed is started again before the run is given up."""
STOP_PATIENCE_S = 20.0
"""Seconds that a role gets to end by itself (the trainer writes a checkpoint meanwhile)."""
HUB_PATIENCE_S = 10.0

Order = Literal["pause", "resume", "stop_device", "shutdown"]


@dataclass
class RunState:
    """What a view shows of a run.

    Attributes:
        statuses: newest status of each role by its name (``trainer``, ``worker-0``); a role that died has
            none.
        overview: the trainer's newest word on all workers; None while there is no trainer.
        episodes: the last finished episodes, oldest first.
        finished_episodes: how many have finished, training and evaluation.
        training_episodes: how many of them were training episodes.
        elapsed_s: wall time since the command, in seconds.
        notes: what happened to the roles, newest last.
        paused: whether acting is paused.
    """

    statuses: dict[str, messages.Status] = field(default_factory=dict)
    overview: Overview | None = None
    episodes: deque[messages.EpisodeReport] = field(default_factory=lambda: deque(maxlen=500))
    finished_episodes: int = 0
    training_episodes: int = 0
    elapsed_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    paused: bool = False

    @property
    def workers(self) -> list[messages.Status]:
        """Newest statuses of the workers, by name."""
        return [s for _, s in sorted(self.statuses.items()) if s.role == "worker"]

    def delivery(self, worker: str) -> WorkerView | None:
        """Return what the trainer knows of a worker, or None."""
        known = [] if self.overview is None else self.overview.workers
        return next((view for view in known if view.name == worker), None)

    def metric(self, role: str, name: str) -> float | None:
        """Return a metric of a role's newest status, or None."""
        status = self.statuses.get(role)
        return None if status is None else status.metrics.get(name)

    def add_episode(self, report: messages.EpisodeReport) -> None:
        """Note a finished episode."""
        self.episodes.append(report)
        self.finished_episodes += 1
        self.training_episodes += not report.evaluation


class LocalRun:
    """Starts and supervises the roles of one run.

    A role that was killed (by a signal: out of memory, ``kill``, a crash of its interpreter) is started again
    and the run goes on. A role that ended with an error of its own is not: a restart does not mend it.

    Args:
        folder: the prepared run folder, with the resolved experiment in it.
        resume: whether the trainer continues from the newest checkpoint.
        trainer_threads: threads that the trainer's process may use.
        started: the time (of `clock.now`) that wall time counts from.
        time_limit_s: wall time after which the run is finished even if no trainer says so; None: no limit.
        workers: how many workers to start.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        resume: bool,
        trainer_threads: int,
        started: float | None = None,
        time_limit_s: float | None = None,
        workers: int = 1,
    ) -> None:
        self.state = RunState()
        self._folder = folder
        self._started = clock.now() if started is None else started
        self._time_limit_s = time_limit_s
        self._name = name = folder.wire_name
        self._boot = messages.new_boot()
        self._stopped = False
        self._hub = ZenohHub()
        try:
            self._carrier = ZenohCarrier(self._hub.endpoint, timeout_s=HUB_PATIENCE_S)
        except WireError:
            self._hub.close()
            raise
        self._statuses: Mailbox = listen(self._carrier, make_key(name, "status", ANY), capacity=1000)
        self._reports: Mailbox = listen(self._carrier, make_key(name, "report", ANY), capacity=1000)
        self._overviews: Mailbox = listen(
            self._carrier, make_key(name, "overview", TRAINER), capacity=1, newest_only=True
        )
        write_atomically(folder.hub, self._hub.endpoint.encode())  # so that others find it (tickrate status)
        common = ["--run-dir", str(folder.path), "--hub", self._hub.endpoint]
        started_at = ["--started", repr(self._started), *(["--resume"] if resume else [])]
        self._workers = [
            Child(
                "worker",
                [*common, "--index", str(index)],
                folder.log(f"worker-{index}"),
                1,
                f"worker-{index}",
            )
            for index in range(workers)
        ]
        self._trainer = Child("trainer", [*common, *started_at], folder.log("trainer"), trainer_threads)

    def start(self) -> None:
        """Start the roles. The worker comes first: a live system can be warmed up while the trainer loads."""
        for child in (*self._workers, self._trainer):
            child.start()

    def poll(self) -> RunState:
        """Take in what the roles said, look after the dead, and return the state.

        Raises:
            RoleFailed: if a role ended with an error, or was killed too often; it holds its last words.
        """
        self._listen()
        for child in (*self._workers, self._trainer):
            if not child.running and not self.finished:
                self._revive(child)
        return self.state

    @property
    def finished(self) -> bool:
        """Whether the run has reached its limit: the trainer has said so, or the time is over."""
        if self._time_limit_s is not None and self.state.elapsed_s >= self._time_limit_s:
            return True
        status = self.state.statuses.get("trainer")
        return status is not None and status.state == "finished"

    def order(self, order: Order) -> None:
        """Tell the worker to pause, to go on, or to stop the device at once."""
        self.state.paused = order in ("pause", "stop_device") or (self.state.paused and order != "resume")
        self.state.notes.append(f"order to the worker: {order}")
        message = messages.Command(
            run=self._name, worker="launcher", boot=self._boot, target="worker", action=order
        )
        self._carrier.publish(make_key(self._name, "command", "worker"), messages.encode(message))

    def stop(self, patience_s: float = STOP_PATIENCE_S) -> Sequence[str]:
        """End the run in order: device safe, last data delivered, everything saved.

        A second call does nothing. It takes at most a few times ``patience_s``.

        Args:
            patience_s: how long a role may take to end by itself before it is killed, in seconds.

        Returns:
            What went wrong, one sentence each.
        """
        problems: list[str] = []
        if self._stopped:
            return problems
        self._stopped = True
        for children in (self._workers, [self._trainer]):
            for child in children:
                child.close_input()
            for child in children:
                if not child.wait(patience_s):
                    problems.append(f"the {child.title} did not end within {patience_s:g} s and was killed")
                    child.end(min(2.0, patience_s))
                elif child.exit_code not in (0, None):
                    problems.append(
                        f"the {child.title} ended with code {child.exit_code}: {child.last_words(3)}"
                    )
        self._listen()
        self._carrier.close()
        self._hub.close()
        return problems

    def _listen(self) -> None:
        state = self.state
        state.elapsed_s = clock.now() - self._started
        for payload in self._statuses.drain(1000) + self._reports.drain(1000):
            try:
                message = messages.decode(payload)
            except WireError as error:
                state.notes.append(f"left out a message: {error}")
                continue
            if isinstance(message, messages.EpisodeReport):
                state.add_episode(message)
            elif isinstance(message, messages.Status) and self._speaks(message):
                state.statuses[message.worker] = message
        for payload in self._overviews.drain(1):
            try:
                state.overview = read_overview(payload)
            except WireError as error:
                state.notes.append(f"left out a message: {error}")

    def _speaks(self, status: messages.Status) -> bool:
        """Tell whether a status counts: the companion of a killed worker still says goodbye."""
        return self._stopped or status.state != "stopped"

    def _revive(self, child: Child) -> None:
        code = child.exit_code
        killed = code is None or code <= 0  # 0: somebody asked it to end, and it did
        if not killed or child.starts > MAX_RESTARTS:
            raise RoleFailed(
                f"the {child.title} ended with code {code}. The end of {child.log}:\n{child.last_words()}",
                code,
            )
        self.state.statuses.pop(child.title, None)
        if child is self._trainer:
            self.state.overview = None
        if child is not self._trainer and self.state.paused:
            return  # a paused run does not begin to act by itself; the next poll after "resume" starts it
        self.state.notes.append(f"the {child.title} was killed (code {code}); started again")
        resumable = child is self._trainer and self._folder.resumable
        if resumable and "--resume" not in child.arguments:
            child.arguments = [*child.arguments, "--resume"]
        child.start()
