"""The control loop: acts on the device, records what happens, swaps weights between ticks, evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from tickrate import clock
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError, DeviceLost
from tickrate.policy import Actor, Policy, State
from tickrate.runtime.environments import Environment
from tickrate.runtime.episode import EpisodeSummary, Outlet, end_of, plain_numbers
from tickrate.runtime.outbox import OutboxConfig
from tickrate.runtime.recorder import Recorder
from tickrate.runtime.supervision import wait_for
from tickrate.runtime.warmup import WarmupActor, WarmupConfig
from tickrate.trees import Leaves
from tickrate.wire.arrays import Compression

EPISODES_PER_BOOT = 1_000_000
"""Episode numbers of one boot of a worker; the next boot begins at the next multiple, so none ever
repeats."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Deterministic episodes on the same device, between training episodes, kept out of the data."""

    every_steps: int = 1000
    """Training steps between evaluations; 0 switches them off. Usual: 1 to 5 minutes of acting."""
    episodes: int = 1
    """Episodes with the same frozen weights; the worst of them is the score. After one that does not beat the
    best score so far, the rest is skipped."""
    after_best: bool = True
    """Evaluate early, after a quarter of ``every_steps``, when a training episode beats the best evaluation:
    weights that do well even with exploration are worth keeping before they change again."""

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        if self.every_steps < 0 or self.episodes < 1:
            raise ConfigError(
                f"evaluation: every_steps {self.every_steps} (>= 0) and episodes {self.episodes} (>= 1)"
            )


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker acts."""

    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    """Actions until the first policy arrives."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When and how to evaluate."""
    device_patience_s: float = 60.0
    """How long to go on trying to reset a lost device before giving up, in seconds."""
    max_policy_age_s: float = 0.0
    """Make the device safe and wait when no weights have come for this long, in seconds; 0 is off: a lost
    trainer alone never stops acting."""

    outbox: OutboxConfig = field(default_factory=OutboxConfig)
    """Where rows are kept until the trainer has them."""
    compression: Compression = "auto"
    """``auto``: rows that shrink by a fifth or more travel compressed (zlib, lossless), except on loopback.
    ``always`` and ``never`` do not ask."""

    def __post_init__(self) -> None:
        """Refuse times that cannot be waited for."""
        if self.compression not in get_args(Compression):
            raise ConfigError(
                f"compression is {self.compression!r}; it must be one of {get_args(Compression)}"
            )
        if not 0.0 <= self.device_patience_s < np.inf:
            raise ConfigError(f"device_patience_s is {self.device_patience_s}: give seconds, 0 or more")
        if not 0.0 <= self.max_policy_age_s < np.inf:
            raise ConfigError(f"max_policy_age_s is {self.max_policy_age_s}: give seconds, or 0 for no limit")


class ControlLoop:
    """Runs episode after episode until it is ordered to shut down.

    Args:
        environment: what to drive.
        schema: record schema of the environment.
        outlet: where rows, summaries and weights cross to the other roles.
        config: how to act.
        worker: index of this worker; the stream number of its records.
        boot: how often this worker was started before.
        seed: seed of warm-up, exploration and the first reset.
        max_steps: stop after that many training steps (serial runs); None acts until ordered to stop.
    """

    def __init__(
        self,
        environment: Environment,
        schema: RecordSchema,
        outlet: Outlet,
        config: WorkerConfig,
        *,
        worker: int = 0,
        boot: int = 0,
        seed: int = 0,
        max_steps: int | None = None,
    ) -> None:
        self._env = environment
        self._outlet = outlet
        self._config = config
        seeds = np.random.SeedSequence([seed, worker, boot]).generate_state(3).tolist()
        reset_seed, warmup_seed, self._policy_seed = seeds
        self._reset_seed: int | None = reset_seed
        self._actor: Actor = WarmupActor(config.warmup, environment.action_space, warmup_seed)
        self._recorder = Recorder(schema, worker, boot * EPISODES_PER_BOOT, outlet.put_row)
        self._version = 0
        self._weights_at = clock.now()
        self._steps = 0
        self._max_steps = max_steps
        self._evaluated_at_step = 0
        self._best_score = -np.inf
        self._promising = False

    @property
    def training_steps(self) -> int:
        """Training steps made so far."""
        return self._steps

    @property
    def policy_version(self) -> int:
        """Version of the policy that acts; 0 is the warm-up."""
        return self._version

    def run(self) -> None:
        """Act until the orders say shut down; the device is safe afterwards, whatever happened.

        Raises:
            DeviceLost: if the device stayed away longer than ``device_patience_s``.
        """
        try:
            while not self._done():
                if self._outlet.orders().paused:
                    self._wait_paused()
                elif self._policy_too_old():
                    self._wait_for_weights()
                elif self._evaluation_due():
                    self._evaluate()
                else:
                    warm = "warming up: random actions until the first policy arrives"
                    self._outlet.put_state(warm if self._version == 0 else "driving and recording")
                    self._train()
        except DeviceLost:
            if not self._outlet.orders().shutdown:
                raise
        finally:
            self._env.stop_device()
            self._outlet.put_state("stopped, device safe")

    def play(self, episodes: int, *, deterministic: bool) -> Iterator[EpisodeSummary]:
        """Run a number of episodes with the newest policy; yield each summary. The device is safe afterwards.

        Args:
            episodes: how many, or fewer if the orders say shut down.
            deterministic: without exploration.

        Raises:
            PolicyMismatch: before anything is driven, if the policy was made for another environment.
        """
        self._swap_weights()
        try:
            for _ in range(episodes):
                if self._outlet.orders().shutdown:
                    return
                yield self._episode(evaluation=deterministic)
        finally:
            self._env.stop_device()

    def _done(self) -> bool:
        enough = self._max_steps is not None and self._steps >= self._max_steps
        return enough or self._outlet.orders().shutdown

    def _wait_paused(self) -> None:
        self._env.stop_device()
        self._outlet.put_state("paused, device safe")
        while (orders := self._outlet.orders()).paused and not orders.shutdown:
            clock.sleep(0.02)

    def _policy_too_old(self) -> bool:
        """Tell whether nothing newer has come for too long; looks only, an evaluation keeps its weights."""
        limit = self._config.max_policy_age_s
        if limit == 0 or self._version == 0 or clock.now() - self._weights_at <= limit:
            return False
        return self._outlet.newest_weights(self._version) is None

    def _wait_for_weights(self) -> None:
        self._env.stop_device()
        limit = self._config.max_policy_age_s
        self._outlet.put_state(f"weights older than {limit:g} s: device safe, waiting for new ones")
        while not self._swap_weights() and not self._outlet.orders().shutdown:
            clock.sleep(0.05)

    def _train(self) -> None:
        summary = self._episode(evaluation=False)
        if not summary.cut and summary.score > self._best_score:
            self._promising = self._config.evaluation.after_best

    def _evaluation_due(self) -> bool:
        every, since = self._config.evaluation.every_steps, self._steps - self._evaluated_at_step
        if every == 0 or self._version == 0:
            return False
        return since >= every or (self._promising and since >= every / 4)

    def _evaluate(self) -> None:
        self._swap_weights()
        self._evaluated_at_step = self._steps
        self._promising = False
        self._outlet.put_state(f"evaluating policy {self._version}")
        scores: list[float] = []
        for _ in range(self._config.evaluation.episodes):
            summary = self._episode(evaluation=True)
            scores.append(summary.score)
            if summary.cut or summary.score <= self._best_score:
                return
        self._best_score = max(self._best_score, min(scores))

    def _episode(self, *, evaluation: bool) -> EpisodeSummary:
        observation, info = self._reset()
        recorder, started, total, steps = self._recorder, clock.now(), 0.0, 0
        recorder.begin(observation, evaluation=evaluation)
        state = self._actor.initial_state(1)
        ended = self._cut_reason()
        while not ended:
            version = self._version
            actions, state, extras = self._actor.act(
                _batch_of_one(observation), state, deterministic=evaluation
            )
            # In the slack before the tick: new weights act from the next observation on; an evaluation
            # keeps its own.
            if not evaluation:
                state = self._keep_up(state)
            action = actions[0]
            observation, reward, terminated, truncated, info = self._env.step(action)
            recorder.step(
                info.get("applied_action", action),
                reward,
                terminated,
                truncated,
                observation,
                timing=info.get("timing"),
                policy_version=version,
                extras={name: value[0] for name, value in extras.items()},
            )
            total += reward
            steps += 1
            self._steps += not evaluation
            ended = end_of(terminated, truncated, info)
            if not ended and (ended := self._cut_reason()):
                # The world goes on without us: the device is made safe first, then the episode is cut.
                self._env.stop_device()
                recorder.cut()
        summary = EpisodeSummary(
            episode=recorder.episode,
            evaluation=evaluation,
            policy_version=self._version,
            steps=steps,
            total_return=total,
            duration_s=clock.now() - started,
            ended=ended,
            training_steps=self._steps,
            metrics=plain_numbers(info),
        )
        if steps > 0:  # an episode that was cut before its first step leaves nothing
            self._outlet.put_summary(summary)
        return summary

    def _cut_reason(self) -> str:
        """Return why the running episode has to be cut now, or an empty string."""
        orders = self._outlet.orders()
        if orders.shutdown:
            return "shutdown"
        if orders.paused:
            return "paused"
        return "policy lost" if self._policy_too_old() else ""

    def _keep_up(self, state: State) -> State:
        """Take newer weights; return the state to go on with, a fresh one if another actor acts now."""
        actor = self._actor
        self._swap_weights()
        return state if self._actor is actor else self._actor.initial_state(1)

    def _swap_weights(self) -> bool:
        """Take newer weights, if there are any; return whether. The first ones replace the warm-up."""
        newer = self._outlet.newest_weights(self._version)
        if newer is None:
            return False
        version, weights = newer
        if self._version == 0:
            env = self._env
            policy = Policy.from_bytes(weights, seed=self._policy_seed)
            policy.check(
                env.leaf_spaces,
                env.action_space,
                period_s=env.period_s,
                action_buffer_length=env.action_buffer_length,
            )
            self._actor = policy
        else:
            self._actor.load(weights)
        self._version = version
        self._weights_at = clock.now()
        return True

    def _reset(self) -> tuple[Leaves, dict[str, Any]]:
        """Reset the device, trying again with growing pauses while it is lost."""
        deadline = clock.now() + self._config.device_patience_s
        pause = 0.25
        while True:
            try:
                observation, info = self._env.reset(seed=self._reset_seed)
            except DeviceLost as error:
                if self._outlet.orders().shutdown or clock.now() + pause > deadline:
                    raise
                self._outlet.put_state(f"device lost, trying again: {error}")
                wait_for(lambda: self._outlet.orders().shutdown, pause)
                pause = min(2 * pause, 5.0)
            else:
                self._reset_seed = (
                    None  # only the first reset is seeded: later ones go on from its random state
                )
                return observation, info


def _batch_of_one(observation: Leaves) -> Leaves:
    return {path: np.asarray(value)[None] for path, value in observation.items()}
