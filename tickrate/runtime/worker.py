"""The control loop: acts on the device, records what happened, swaps in new weights between ticks, evaluates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tickrate import clock
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError, DeviceLost
from tickrate.policy import Actor, Policy
from tickrate.runtime.environments import Environment
from tickrate.runtime.recorder import Recorder, Row
from tickrate.runtime.warmup import WarmupActor, WarmupConfig
from tickrate.trees import Leaves

EPISODES_PER_BOOT = 1_000_000
"""Episode numbers of one boot of a worker; the next boot begins at the next multiple, so numbers never repeat."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Episodes with the deterministic policy on the same device, between training episodes, kept out of the data."""

    every_steps: int = 1000
    """Training steps between evaluations; 0 switches them off. Usual: 1 to 5 minutes of acting."""
    episodes: int = 1
    """Episodes with the same frozen weights; the worst of them is the score. After one that does not beat the best
    score so far, the rest is skipped."""

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        if self.every_steps < 0 or self.episodes < 1:
            raise ConfigError(f"evaluation: every_steps {self.every_steps} (>= 0) and episodes {self.episodes} (>= 1)")


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
    """Make the device safe and wait when the weights are older than this, in seconds; 0 is off: a lost trainer alone
    never stops acting."""


@dataclass(frozen=True)
class Orders:
    """What the person at the keyboard wants of the worker now."""

    paused: bool = False
    shutdown: bool = False


@dataclass(frozen=True)
class EpisodeSummary:
    """What one episode came to.

    Attributes:
        ended: "terminated", "truncated", or what cut it ("paused", "shutdown", a truncation reason of the device).
        training_steps: training steps that this boot of the worker had made by its end.
        metrics: every plain number that the environment put into the last ``info``.
    """

    episode: int
    evaluation: bool
    policy_version: int
    steps: int
    total_return: float
    duration_s: float
    ended: str
    training_steps: int
    metrics: dict[str, float]

    @property
    def score(self) -> float:
        """What evaluations compare: the environment's own ``info["score"]``, or else the return."""
        return self.metrics.get("score", self.total_return)


class Outlet(Protocol):
    """Where a control loop hands things over; nothing in it may block."""

    def put_row(self, row: Row) -> None:
        """Take a row (to be copied)."""
        ...

    def put_summary(self, summary: EpisodeSummary) -> None:
        """Take the summary of a finished episode."""
        ...

    def put_state(self, state: str) -> None:
        """Take a few words on what the worker is doing."""
        ...

    def newest_weights(self, known_version: int) -> tuple[int, bytes] | None:
        """Return (version, weights) if there are newer ones than ``known_version``."""
        ...

    def orders(self) -> Orders:
        """Return the current orders."""
        ...


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
        reset_seed, warmup_seed, self._policy_seed = np.random.SeedSequence([seed, worker, boot]).generate_state(3).tolist()
        self._reset_seed: int | None = reset_seed
        self._actor: Actor = WarmupActor(config.warmup, environment.action_space, warmup_seed)
        self._recorder = Recorder(schema, worker, boot * EPISODES_PER_BOOT, outlet.put_row)
        self._version = 0
        self._weights_at = clock.now()
        self._steps = 0
        self._max_steps = max_steps
        self._evaluated_at_step = 0
        self._best_score = -np.inf

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
                    self._outlet.put_state("warming up" if self._version == 0 else "driving and recording")
                    self._episode(evaluation=False)
        except DeviceLost:
            if not self._outlet.orders().shutdown:
                raise
        finally:
            self._env.stop_device()
            self._outlet.put_state("stopped, device safe")

    def play(self, episodes: int, *, deterministic: bool) -> Iterator[EpisodeSummary]:
        """Run a number of episodes with the newest policy; yield each summary. The device is safe afterwards.

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
        limit = self._config.max_policy_age_s
        return limit > 0 and self._version > 0 and clock.now() - self._weights_at > limit and not self._swap_weights()

    def _wait_for_weights(self) -> None:
        self._env.stop_device()
        self._outlet.put_state(f"weights older than {self._config.max_policy_age_s:g} s: device safe, waiting for new")
        while not self._swap_weights() and not self._outlet.orders().shutdown:
            clock.sleep(0.05)

    def _evaluation_due(self) -> bool:
        every = self._config.evaluation.every_steps
        return every > 0 and self._version > 0 and self._steps - self._evaluated_at_step >= every

    def _evaluate(self) -> None:
        self._swap_weights()
        self._evaluated_at_step = self._steps
        self._outlet.put_state("evaluating")
        scores: list[float] = []
        for _ in range(self._config.evaluation.episodes):
            summary = self._episode(evaluation=True)
            scores.append(summary.score)
            if summary.ended in ("paused", "shutdown") or summary.score <= self._best_score:
                return
        self._best_score = max(self._best_score, min(scores))

    def _episode(self, *, evaluation: bool) -> EpisodeSummary:
        observation, info = self._reset()
        recorder, started, total, steps = self._recorder, clock.now(), 0.0, 0
        recorder.begin(observation, evaluation=evaluation)
        state = self._actor.initial_state(1)
        ended = ""
        while not ended:
            orders = self._outlet.orders()
            if orders.shutdown or orders.paused or self._policy_too_old():
                # The world goes on without us: make the device safe first, then cut the episode where it stands.
                self._env.stop_device()
                recorder.cut()
                ended = "shutdown" if orders.shutdown else "paused"
                break
            version = self._version
            actions, state, extras = self._actor.act(_batch_of_one(observation), state, deterministic=evaluation)
            # In the slack before the tick: new weights act from the next observation on. An evaluation keeps its own.
            if not evaluation:
                actor = self._actor
                self._swap_weights()
                if self._actor is not actor:
                    state = self._actor.initial_state(1)
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
            if terminated or truncated:
                ended = str(info.get("truncation_reason", "truncated")) if truncated else "terminated"
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
        self._outlet.put_summary(summary)
        return summary

    def _swap_weights(self) -> bool:
        """Take newer weights if there are any; the first ones replace the warm-up. Return whether there were."""
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
                clock.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                self._reset_seed = None  # only the first reset is seeded: later ones go on from its random state
                return observation, info


def _batch_of_one(observation: Leaves) -> Leaves:
    return {path: np.asarray(value)[None] for path, value in observation.items()}


def plain_numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of an ``info`` that are single finite numbers, as floats."""
    numbers = {
        key: float(value)
        for key, value in info.items()
        if isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)
    }
    return {key: value for key, value in numbers.items() if np.isfinite(value)}
