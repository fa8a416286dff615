"""The learning half of a run without its sockets: takes rows, makes updates, hands out policies, keeps the books."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate import clock
from tickrate.algorithms.protocol import Algorithm
from tickrate.data.augment import Mirror
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError
from tickrate.runtime.limiter import UpdateLimiter
from tickrate.runtime.run_folder import RunFolder, load_state, save_state, write_atomically
from tickrate.runtime.worker import EpisodeSummary
from tickrate.tracking.tracker import Tracker

KEPT_POLICIES = 512
"""Published policies kept in memory, so that the one that did best in an evaluation can still be saved."""
RECENT_STEPS = 2000
"""Steps over which the live timing figures are taken (100 s at 20 Hz)."""


@dataclass(frozen=True)
class TrainerConfig:
    """How the trainer spends its time."""

    total_steps: int | None = None
    """Training steps after which the run ends; None: no limit."""
    time_limit_s: float | None = None
    """Seconds of wall time, from the command on (also one that resumes), after which it ends; None: no limit."""
    start_steps: int = 500
    """Training steps before the first update (the warm-up). Usual: 500 to 10 000."""
    updates_per_step: float = 1.0
    """Updates per training step (UTD ratio); the limiter keeps it exactly. Usual: 1 to 4, 20 for REDQ-like methods."""
    publish_every: int = 10
    """Updates between two published policies. Usual: a few a second."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints."""
    log_every_s: float = 5.0
    """Seconds between two rows of metrics."""
    threads: int = 1
    """Threads of the learner's process. More only where cores are free: on a shared core they slow it down."""
    niceness: int = 5
    """How far the learner gives way to the control loop (0-19; POSIX only)."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if self.updates_per_step <= 0:
            raise ConfigError(f"trainer.updates_per_step is {self.updates_per_step:g}; it must be positive")
        if self.start_steps < 1 or self.publish_every < 1 or self.threads < 1:
            raise ConfigError("trainer: start_steps, publish_every and threads must be at least 1")


@dataclass(frozen=True)
class ReplayConfig:
    """What keeps the transitions."""

    capacity: int = 1_000_000
    """Most observations kept; the oldest go first. Memory that it needs is checked before the run."""
    gamma: float = 0.995
    """Discount per time-step, in (0, 1). 0.99 looks 5 s ahead at 20 Hz, 0.995 looks 10 s."""
    n_step: int = 3
    """Rewards summed before bootstrapping. Usual: 1 to 5."""
    mirror: bool = True
    """Show half of each batch mirrored left to right, where the interface declares how (doubles what a steering
    device teaches per step); without effect elsewhere."""


class Learner:
    """Feeds an algorithm from a replay at the wanted rate, and keeps everything that a resume needs.

    Args:
        algorithm: what learns.
        replay: what keeps the transitions.
        config: rates and limits.
        folder: where checkpoints, policies and the episode log go.
        tracker: where metrics go.
        batch_size: transitions a batch.
        period_s: time-step of the environment in seconds, 0 in lock-step; for the pictures.
        evaluation_episodes: episodes that make one evaluation; the worst of them is a policy's score.
        mirror: left-right symmetry to augment batches with, or None.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        replay: Replay,
        config: TrainerConfig,
        folder: RunFolder,
        tracker: Tracker,
        *,
        batch_size: int,
        period_s: float = 0.0,
        evaluation_episodes: int = 1,
        mirror: Mirror | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.replay = replay
        self.config = config
        self.folder = folder
        self._tracker = tracker
        self._mirror = mirror
        self._batch_size = batch_size
        self.period_s = period_s
        self._paths = [(field.name, f"o/{field.name}") for field in replay.schema.observation]
        self._evaluation_episodes = evaluation_episodes
        self.limiter = UpdateLimiter(config.updates_per_step, config.start_steps)
        self.version = 0
        self.best_score = -np.inf
        self.best_version = 0
        self._policies: OrderedDict[int, tuple[bytes, float]] = OrderedDict()
        self._scores: dict[int, list[float]] = {}
        self._metrics: Mapping[str, Any] = {}
        self._lateness: deque[float] = deque(maxlen=RECENT_STEPS)
        self._starts: deque[tuple[int, int, float]] = deque(maxlen=RECENT_STEPS)
        self._all_lateness: list[NDArray[np.float32]] = []
        self._overruns = 0
        self._lag = (0, 0.0)
        self._rate = _Rate()
        self.wall_offset_s = 0.0
        self._started = clock.now()
        self.episodes: list[dict[str, Any]] = []

    @property
    def wall_s(self) -> float:
        """Seconds of wall time since the run was first started, earlier boots included."""
        return self.wall_offset_s + clock.now() - self._started

    def began_at(self, start: float) -> None:
        """Count wall time from ``start`` (a time of `clock.now`), the moment the command was given."""
        self._started = start

    # --- data in ---------------------------------------------------------------------------------------------

    def ingest(self, rows: NDArray[Any]) -> None:
        """Add rows to the replay, count the training steps among them, and note their timing."""
        self.replay.add(rows)
        acted = rows[(rows["flags"] & Flag.FINAL) == 0]
        training = acted[(acted["flags"] & Flag.EVALUATION) == 0]
        self.limiter.add_steps(len(training))
        if len(training):
            self.algorithm.observe({path: training[column] for path, column in self._paths})
        timed = acted[acted["start"] > 0]
        if len(timed):
            self._lateness.extend(timed["lateness"].tolist())
            self._starts.extend(zip(timed["episode"].tolist(), timed["step"].tolist(), timed["start"].tolist(), strict=True))
            self._all_lateness.append(timed["lateness"].copy())
            self._overruns += int(np.count_nonzero(timed["flags"] & Flag.LATE))
        if len(training) and training["policy_version"][-1] > 0:
            used = int(training["policy_version"][-1])
            born = self._policies.get(used, (b"", np.nan))[1]
            self._lag = (self.version - used, float(training["start"][-1] - born) if training["start"][-1] else 0.0)

    def finish_episode(self, summary: EpisodeSummary) -> None:
        """Log a finished episode, and keep the policy that did best in an evaluation."""
        entry = {
            "episode": summary.episode,
            "evaluation": summary.evaluation,
            "policy_version": summary.policy_version,
            "steps": summary.steps,
            "return": summary.total_return,
            "score": summary.score,
            "ended": summary.ended,
            "lap_time_s": summary.metrics.get("lap_time_s"),
            "clean": bool(summary.metrics.get("lap_clean", 1.0)),
            "duration_s": summary.duration_s,
            "total_steps": self.limiter.steps,
            "wall_s": self.wall_s,
            "finished": clock.wall_time(),
            "metrics": summary.metrics,
        }
        self.episodes.append(entry)
        with self.folder.episodes.open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        prefix = "eval" if summary.evaluation else "train"
        values = {f"{prefix}/return": summary.total_return, f"{prefix}/length_steps": float(summary.steps)}
        if "lap_time_s" in summary.metrics:
            values[f"{prefix}/lap_time_s"] = summary.metrics["lap_time_s"]
        if summary.evaluation:
            values["eval/score"] = summary.score
            self._judge(summary)
        self._tracker.scalars(self.limiter.steps, values)

    def _judge(self, summary: EpisodeSummary) -> None:
        if summary.ended in ("paused", "shutdown"):
            self._scores.pop(summary.policy_version, None)
            return
        scores = self._scores.setdefault(summary.policy_version, [])
        scores.append(summary.score)
        if len(scores) < self._evaluation_episodes or min(scores) <= self.best_score:
            return
        kept = self._policies.get(summary.policy_version)
        if kept is not None:
            write_atomically(self.folder.best_policy, kept[0])
            self.best_score, self.best_version = min(scores), summary.policy_version

    # --- learning --------------------------------------------------------------------------------------------

    def update_if_due(self) -> bool:
        """Make one update if the limiter allows one and there is data; return whether it did."""
        if not self.limiter.may_update() or len(self.replay) == 0:
            return False
        batch = self.replay.sample(self._batch_size)
        if self._mirror is not None:
            batch = self._mirror(batch)
        self._metrics = self.algorithm.update(batch)
        self.limiter.count_update()
        self._rate.count()
        return True

    def publish_due(self) -> bool:
        """Tell whether enough updates were made for a new policy to be handed out."""
        return self.limiter.updates >= (self.version + 1) * self.config.publish_every

    def publish(self) -> tuple[int, bytes]:
        """Return (version, policy) of the weights as they are now; versions grow by one."""
        self.version = max(self.version + 1, self.limiter.updates // self.config.publish_every)
        weights = self.algorithm.policy_bytes(self.version)
        self._policies[self.version] = (weights, clock.now())
        while len(self._policies) > KEPT_POLICIES:
            self._policies.popitem(last=False)
        return self.version, weights

    @property
    def finished(self) -> bool:
        """Whether the limit of steps or of time is reached."""
        total, limit = self.config.total_steps, self.config.time_limit_s
        elapsed = clock.now() - self._started
        return (total is not None and self.limiter.steps >= total) or (limit is not None and elapsed >= limit)

    # --- books -----------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Return the present metrics, by the names of ``docs/metrics.md``. Reads the device, so call it seldom."""
        values = {f"learn/{name}": float(value) for name, value in self._metrics.items()}
        values |= {
            "learn/updates": float(self.limiter.updates),
            "learn/updates_per_s": self._rate.per_second(),
            "learn/updates_per_step": self.limiter.ratio,
            "learn/policy_lag_versions": float(self._lag[0]),
            "learn/policy_lag_s": float(np.nan_to_num(self._lag[1])),
            "replay/transitions": float(len(self.replay)),
        }
        if self._lateness:
            late_ms = 1000 * np.asarray(self._lateness)
            values |= {
                "timing/lateness_p50_ms": float(np.percentile(late_ms, 50)),
                "timing/lateness_p99_ms": float(np.percentile(late_ms, 99)),
                "timing/lateness_max_ms": float(late_ms.max()),
                "timing/overruns": float(self._overruns),
                "timing/achieved_hz": self._achieved_hz(),
            }
        return values

    def log(self) -> dict[str, float]:
        """Write the present metrics to the tracker and return them."""
        values = self.figures()
        self._tracker.scalars(self.limiter.steps, values)
        return values

    def lateness(self) -> NDArray[np.float32]:
        """Return the lateness of every live step of this boot, in seconds."""
        return np.concatenate(self._all_lateness) if self._all_lateness else np.zeros(0, dtype=np.float32)

    def _achieved_hz(self) -> float:
        gaps = [
            b[2] - a[2]
            for a, b in zip(self._starts, list(self._starts)[1:], strict=False)
            if a[0] == b[0] and b[1] == a[1] + 1
        ]
        total = sum(gaps)
        return len(gaps) / total if total > 0 else 0.0

    def save(self) -> Path:
        """Write a checkpoint: all of it, or (after a crash) none; return its folder."""
        step = self.limiter.steps
        temporary = self.folder.begin_checkpoint(step)
        self.replay.save(temporary)
        counters = {
            "steps": self.limiter.steps,
            "updates": self.limiter.updates,
            "forgiven": self.limiter.forgiven,
            "version": self.version,
            "best_score": None if np.isinf(self.best_score) else self.best_score,
            "best_version": self.best_version,
            "wall_s": self.wall_s,
            "overruns": self._overruns,
        }
        save_state(temporary, self.algorithm.state(), counters)
        folder = self.folder.finish_checkpoint(temporary, step)
        write_atomically(self.folder.latest_policy, self.algorithm.policy_bytes(self.version))
        return folder

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint: replay, networks, optimisers, counters and random states.

        Raises:
            RunFolderError, RecordError, ConfigError: if any part is missing, damaged or of another shape; nothing is
                used then.
        """
        state, counters = load_state(checkpoint)
        self.replay.restore(checkpoint)
        self.algorithm.restore(state)
        self.limiter.steps = int(counters["steps"])
        self.limiter.updates = int(counters["updates"])
        self.limiter.forgiven = float(counters["forgiven"])
        self.version = int(counters["version"])
        self.best_score = -np.inf if counters["best_score"] is None else float(counters["best_score"])
        self.best_version = int(counters["best_version"])
        self.wall_offset_s = float(counters["wall_s"])
        self._overruns = int(counters["overruns"])
        if self.folder.episodes.exists():
            lines = self.folder.episodes.read_text(encoding="utf-8").splitlines()
            self.episodes = [json.loads(line) for line in lines]


class _Rate:
    """Events per second over the last few seconds."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._times: deque[float] = deque()
        self._window_s = window_s

    def count(self) -> None:
        self._times.append(clock.now())
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return len(self._times) / self._window_s

    def _forget(self) -> None:
        horizon = clock.now() - self._window_s
        while self._times and self._times[0] < horizon:
            self._times.popleft()
