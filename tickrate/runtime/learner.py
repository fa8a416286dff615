"""The learning half of a run, without sockets: updates as rows come, policies, the books, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tickrate import clock
from tickrate.algorithms.protocol import Algorithm, Guarded, TellsEffects
from tickrate.data.augment import Mirror
from tickrate.data.mixture import Mixture
from tickrate.data.replay import Replay
from tickrate.data.return_scale import ReturnScale
from tickrate.errors import RunFolderError
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.episode_log import EpisodeLog
from tickrate.runtime.feed import Feed
from tickrate.runtime.figures import Rate
from tickrate.runtime.learner_config import TrainerConfig
from tickrate.runtime.learner_counters import LearnerCounters
from tickrate.runtime.limiter import UpdateLimiter
from tickrate.runtime.published import Published
from tickrate.runtime.rounds import NO_BACKLOG, Rounds
from tickrate.runtime.row_intake import RowIntake
from tickrate.runtime.run_folder import RunFolder, load_state, save_state, write_atomically
from tickrate.tracking.tracker import Tracker

_log = logging.getLogger(__name__)


class Learner:
    """Feeds an algorithm from a replay at the wanted rate, and keeps everything that a resume needs.

    Args:
        algorithm: what learns.
        replay: what keeps the transitions.
        config: rates and limits.
        folder: where checkpoints, policies and the episode log go.
        tracker: where metrics go.
        batch_size: transitions (or sequences) a batch.
        period_s: time-step of the environment in seconds, 0 in lock-step; for the pictures.
        evaluation_episodes: episodes that make one evaluation; the worst of them is a policy's score.
        mirror: left-right symmetry to augment batches with, or None.
        return_scale: scales rewards as they are sampled, or None.
        synchronous_steps: steps of a worker's rounds; above 0 rows are taken in one by one, so that nothing
            depends on how they came together.
        demonstrations: draws batches from ``replay`` and from demonstrations; None: from ``replay`` alone.
        importance_exponent: see `Feed`; of use with priorities only.

    Attributes:
        intake: takes in rows, and counts them.
        published: the policies handed out, and the best of them.
        offline_updates: updates made so far that no step of the run was due for.

    Raises:
        ConfigError: if the replay samples by priority and the algorithm gives none.
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
        return_scale: ReturnScale | None = None,
        synchronous_steps: int = 0,
        demonstrations: Mixture | None = None,
        importance_exponent: float = 0.4,
    ) -> None:
        self.algorithm = algorithm
        self.replay = replay
        self.config = config
        self.folder = folder
        self._tracker = tracker
        self._source = replay if demonstrations is None else demonstrations
        self._demonstrations = None if demonstrations is None else demonstrations.demonstrations
        self._return_scale = return_scale
        self._feed = Feed(
            algorithm,
            self._source,
            batch_size,
            mirror,
            importance_exponent=importance_exponent,
            return_scale=return_scale,
        )
        self.period_s = period_s
        self.limiter = UpdateLimiter(config.updates_per_step, config.start_steps)
        self.rounds = Rounds(synchronous_steps)
        if self.rounds.synchronous:
            self.limiter.backlog_steps = NO_BACKLOG
        self.offline_updates = 0
        self.published = Published(folder, evaluation_episodes)
        self.intake = RowIntake(algorithm, replay, self.limiter, self.rounds, self.published, return_scale)
        self._metrics: Mapping[str, Any] = {}
        self._rate = Rate()
        self._published_at = 0
        self._wall_offset_s = 0.0
        self._started = clock.now()
        self._log_of_episodes = EpisodeLog(folder.episodes)

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """The finished episodes as the log has them, oldest first."""
        return self._log_of_episodes.entries

    @property
    def wall_s(self) -> float:
        """Seconds of wall time that the run has taken, earlier commands included."""
        return self._wall_offset_s + clock.now() - self._started

    @property
    def version(self) -> int:
        """Version of the newest policy, 0 before the first."""
        return self.published.version

    @property
    def updates(self) -> int:
        """Updates made so far, with an environment or without."""
        return self.limiter.updates + self.offline_updates

    @property
    def age(self) -> int:
        """Training steps and offline updates so far: the axis of the metrics; it only ever grows."""
        return self.limiter.steps + self.offline_updates

    @property
    def updates_per_s(self) -> float:
        """Updates per second of wall time, recently."""
        return self._rate.per_second()

    def began_at(self, start: float) -> None:
        """Count wall time, and ``time_limit_s``, from ``start`` (of `clock.now`): when the command was given.

        To be called before `restore`, which adds what earlier commands took.
        """
        self._started = start

    # --- demonstrations and episodes -----------------------------------------------------------------------

    def observe_demonstrations(self) -> None:
        """Count the demonstrations into the input statistics, once in a run: a resumed one has done so."""
        if self._demonstrations is not None:
            self.intake.observe_stored(self._demonstrations)

    def finish_episode(
        self, summary: EpisodeSummary, *, worker: str = "", key: tuple[int, int] | None = None
    ) -> None:
        """Log a finished episode, and keep the policy that did best in an evaluation.

        Args:
            summary: how it went.
            worker: whose it was.
            key: boot and number of its report; a report that is in the log already is left out.

        Raises:
            OSError: if the log cannot be written (a full disk); it is as it was then.
        """
        if self._log_of_episodes.knows(worker, key):
            return
        self._log_of_episodes.add(
            summary, worker=worker, key=key, total_steps=self.limiter.steps, wall_s=self.wall_s
        )
        prefix = "eval" if summary.evaluation else "train"
        values = {f"{prefix}/return": summary.total_return, f"{prefix}/length_steps": float(summary.steps)}
        if "lap_time_s" in summary.metrics:
            values[f"{prefix}/lap_time_s"] = summary.metrics["lap_time_s"]
        if summary.evaluation:
            values["eval/score"] = summary.score
            self.published.judge(summary)
        self._tracker.scalars(self.age, values)

    # --- learning ------------------------------------------------------------------------------------------

    def update_if_due(self) -> bool:
        """Make one update if the limiter allows one and there is data; return whether it did."""
        if not self.limiter.may_update() or len(self.replay) == 0:
            return False
        total = self.config.total_steps
        self._update(0.0 if total is None else self.limiter.steps / total)
        self.limiter.count_update()
        return True

    @property
    def may_go_on(self) -> bool:
        """Whether there is something to do without waiting for rows: an update, or the end of a round."""
        return self.rounds.target is not None if self.rounds.synchronous else self.limiter.may_update()

    def update_offline(self) -> None:
        """Make one update from the demonstrations, whatever the run has recorded itself."""
        total = self.config.offline_updates
        self._update(0.0 if total is None else self.offline_updates / total)
        self.offline_updates += 1

    def _update(self, progress: float) -> None:
        self._metrics = self._feed.update(min(1.0, progress))
        self._rate.count()

    def publish_due(self) -> bool:
        """Tell whether enough updates were made for a new policy to be handed out."""
        return self.updates - self._published_at >= self.config.publish_every

    def publish(self) -> tuple[int, bytes]:
        """Return (version, policy) of the weights as they are now; versions grow by one."""
        self._published_at = self.updates
        self.rounds.finish(self.limiter)
        return self.published.add(self.algorithm.policy_bytes)

    @property
    def finished(self) -> bool:
        """Whether the limit of steps is reached and the updates due by then are made, or the time is over.

        Offline, whether the updates are made.
        """
        total, limit, offline = self.config.total_steps, self.config.time_limit_s, self.config.offline_updates
        elapsed = clock.now() - self._started
        if offline is not None and self.offline_updates >= offline:
            return True
        enough = total is not None and self.limiter.steps >= total and not self.limiter.owes(total)
        if self.rounds.synchronous and self.rounds.target is None:
            enough = False  # a run ends with a whole round
        return enough or (limit is not None and elapsed >= limit)

    # --- books ---------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Return the present metrics, by the names of ``docs/metrics.md``; call it seldom, it waits."""
        values = {f"learn/{name}": float(value) for name, value in self._metrics.items()}
        values |= {
            "learn/updates": float(self.updates),
            "learn/updates_per_s": self.updates_per_s,
            "learn/updates_per_step": self.limiter.ratio,
            "learn/policy_lag_versions": float(self.intake.lag[0]),
            "learn/policy_lag_s": float(np.nan_to_num(self.intake.lag[1])),
            "replay/transitions": float(len(self.replay)),
        }
        return values | self.intake.timing.figures()

    def log(self) -> dict[str, float]:
        """Write the present metrics to the tracker and return them; say what the algorithm has to tell."""
        values = self.figures()
        if isinstance(self.algorithm, Guarded):
            for sentence in self.algorithm.faults():
                _log.warning("%s", sentence)
        if isinstance(self.algorithm, TellsEffects):
            for sentence in self.algorithm.effects():
                _log.info("%s", sentence)
        self._tracker.scalars(self.age, values)
        return values

    # --- checkpoints ---------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint: all of it, or (after a crash) none; return its folder."""
        temporary = self.folder.begin_checkpoint(self.age)
        self._source.save(temporary)
        save_state(temporary, self.algorithm.state(), self._counters().to_json())
        if self.rounds.synchronous:
            self.published.save_handed_out(temporary)
        folder = self.folder.finish_checkpoint(temporary, self.age)
        write_atomically(self.folder.latest_policy, self.algorithm.policy_bytes(self.version))
        return folder

    def _counters(self) -> LearnerCounters:
        return LearnerCounters(
            steps=self.limiter.steps,
            updates=self.limiter.updates,
            offline_updates=self.offline_updates,
            forgiven=self.limiter.forgiven,
            published_at=self._published_at,
            version=self.version,
            best_score=self.published.best_score,
            best_version=self.published.best_version,
            wall_s=self.wall_s,
            wall_offset_s=self._wall_offset_s,
            started=self._started,
            overruns=self.intake.timing.overruns,
            rows=self.replay.rows_added,
            return_scale=None if self._return_scale is None else self._return_scale.state(),
            round_target=self.rounds.target,
        )

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint: replay, networks, optimisers, counters and random states.

        Raises:
            RunFolderError, RecordError: if any part is missing, damaged or of another shape. Throw this
                learner away then: some of its parts may have been restored.
        """
        state, saved = load_state(checkpoint)
        counters = LearnerCounters.from_json(saved, checkpoint)
        if (counters.return_scale is None) != (self._return_scale is None):
            raise RunFolderError(f"checkpoint {checkpoint}: replay.return_limit was switched on or off since")
        self._source.restore(checkpoint)
        self.algorithm.restore(state)
        self._restore_counters(counters)
        self.published.restore(
            checkpoint,
            version=counters.version,
            best_score=counters.best_score,
            best_version=counters.best_version,
        )
        self._log_of_episodes.read()
        self.intake.recount(counters.rows)

    def _restore_counters(self, counters: LearnerCounters) -> None:
        if self._return_scale is not None and counters.return_scale is not None:
            self._return_scale.restore(counters.return_scale)
        self.limiter.steps, self.limiter.updates = counters.steps, counters.updates
        self.limiter.forgiven = counters.forgiven
        self.offline_updates = counters.offline_updates
        self._published_at = counters.published_at
        self.rounds.target, self.rounds.began_at_step = counters.round_target, counters.steps
        self.intake.timing.overruns = counters.overruns
        # A trainer that died and was started again within one command has not taken the time twice.
        same_command = counters.started == self._started
        self._wall_offset_s = counters.wall_offset_s if same_command else counters.wall_s

    def recover(self) -> None:
        """Continue from the journal alone: the trainer died before its first checkpoint."""
        self._log_of_episodes.read()
        self.intake.recount(0)
