"""All roles in one process and one thread: for simulators, for tests, and for debugging step by step."""

from __future__ import annotations

from collections.abc import Callable

from tickrate import clock
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError
from tickrate.runtime.environments import Environment
from tickrate.runtime.episode import EpisodeSummary, Orders
from tickrate.runtime.learner import Learner
from tickrate.runtime.learner_config import TrainerConfig
from tickrate.runtime.recorder import Row
from tickrate.runtime.worker import ControlLoop, WorkerConfig


class SerialOutlet:
    """An `Outlet` that hands everything straight to the learner, which updates between two steps.

    Args:
        learner: what learns.
        watch: called with each finished episode, and about twice a second with what the worker is doing and
            None; it may return True to end the run.
    """

    def __init__(self, learner: Learner, watch: Callable[[str, EpisodeSummary | None], bool]) -> None:
        self._learner = learner
        self._watch = watch
        self._weights: tuple[int, bytes] | None = None
        self._state = "starting"
        self._stop = False
        self._next_watch = self._next_log = clock.now()
        self._next_checkpoint = clock.now() + learner.config.checkpoint_every_s
        if learner.version > 0:  # a resumed run acts on with what it had learned
            self._weights = learner.publish()

    def put_row(self, row: Row) -> None:
        """Store a row, then make every update that is due."""
        learner = self._learner
        learner.intake.add(row.reshape(1).copy())
        while learner.update_if_due():
            if learner.publish_due():
                self._weights = learner.publish()
        now = clock.now()
        if now >= self._next_watch:
            self._next_watch = now + 0.5
            self._stop = self._watch(self._state, None) or self._stop
        if now >= self._next_log:
            self._next_log = now + learner.config.log_every_s
            learner.log()
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + learner.config.checkpoint_every_s
            learner.save()

    def put_summary(self, summary: EpisodeSummary) -> None:
        """Log a finished episode."""
        self._learner.finish_episode(summary)
        self._stop = self._watch(self._state, summary) or self._stop

    def put_state(self, state: str) -> None:
        """Keep what the worker is doing, for the view."""
        self._state = state

    def newest_weights(self, known_version: int) -> tuple[int, bytes] | None:
        """Return the newest policy if it is newer than ``known_version``."""
        return self._weights if self._weights is not None and self._weights[0] > known_version else None

    def orders(self) -> Orders:
        """Shut down when the run is finished or the watcher asked for it."""
        return Orders(shutdown=self._stop or self._learner.finished)


def check_limits(config: TrainerConfig) -> None:
    """Refuse a serial run that would never end.

    Raises:
        ConfigError: if neither steps nor time are limited.
    """
    if config.total_steps is None and config.time_limit_s is None:
        raise ConfigError(
            "a run in one process needs an end: give --steps (trainer.total_steps) or --minutes"
        )


def run_serial(
    environment: Environment,
    schema: RecordSchema,
    learner: Learner,
    config: WorkerConfig,
    *,
    seed: int,
    boot: int = 0,
    watch: Callable[[str, EpisodeSummary | None], bool] = lambda state, summary: False,
) -> None:
    """Train until the learner's limit of steps or time; a checkpoint is written at the end, also on Ctrl-C.

    Args:
        environment: what to drive.
        schema: its record schema.
        learner: what learns.
        config: how to act.
        seed: seed of warm-up, exploration and the first reset.
        boot: how often this run was started before.
        watch: see `SerialOutlet`.

    Raises:
        ConfigError: if there is no limit at all, or the worker's options are for separate roles.
        DeviceLost: if the device stays away; the checkpoint is written all the same.
    """
    check_limits(learner.config)
    if config.purpose == "test" or config.synchronous_steps:
        raise ConfigError(
            f"worker.purpose {config.purpose!r} with worker.synchronous_steps {config.synchronous_steps}: in "
            "one process one worker trains and every update is made between two steps; leave them out"
        )
    outlet = SerialOutlet(learner, watch)
    loop = ControlLoop(environment, schema, outlet, config, boot=boot, seed=seed)
    try:
        loop.run()
    finally:
        learner.log()
        learner.save()
