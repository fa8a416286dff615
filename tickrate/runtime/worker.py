"""The control loop: acts on the device, records what happens, swaps weights between ticks, evaluates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tickrate import clock
from tickrate.data.checksums import has_checksum
from tickrate.data.schema import Flag, RecordSchema
from tickrate.errors import ConfigError, DeviceLost
from tickrate.runtime.environments import Environment
from tickrate.runtime.episode import EpisodeSummary, Outlet, end_of, plain_numbers
from tickrate.runtime.fallback import read_marks
from tickrate.runtime.recorder import Recorder
from tickrate.runtime.remote import InferenceLink
from tickrate.runtime.seat import Seat
from tickrate.runtime.supervision import wait_for
from tickrate.runtime.takeover import make_takeover
from tickrate.runtime.worker_config import EvaluationConfig, WorkerConfig
from tickrate.trees import Leaves

__all__ = ["EPISODES_PER_BOOT", "ControlLoop", "EvaluationConfig", "WorkerConfig"]

EPISODES_PER_BOOT = 1_000_000
"""Episode numbers of one boot of a worker; the next boot begins at the next multiple, so none ever
repeats."""


WAIT_REPORT_S = 10.0
"""How often a worker that waits says for what, in seconds."""


_COUNTED = (("takeover_steps", Flag.TAKEOVER), ("fallback_steps", Flag.FALLBACK))
"""Metrics of a summary that count flagged steps; they are left out where there were none."""


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
        start_steps: training steps that the trainer waits for before its first update; a synchronous worker
            warms up for so many steps more than a round has.
        link: the registers of remote inference, if this worker has a companion (a `SharedOutlet` is one).

    Raises:
        ConfigError: if the options cannot work with this environment, or name what does not exist.
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
        start_steps: int = 0,
        link: InferenceLink | None = None,
    ) -> None:
        if config.checksum != has_checksum(schema):
            raise ConfigError(
                f"worker.checksum is {config.checksum}, but the record schema was made for the opposite"
            )
        self._env = environment
        self._outlet = outlet
        self._config = config
        seeds = np.random.SeedSequence([seed, worker, boot]).generate_state(3).tolist()
        reset_seed, warmup_seed, policy_seed = seeds
        self._reset_seed: int | None = reset_seed
        self._seat = Seat(config, environment, outlet, (warmup_seed, policy_seed), link)
        self._takeover = make_takeover(
            config.takeover, environment.action_space, environment.period_s, config.takeover_max_step
        )
        flags = int(Flag.EXPERT) if config.purpose == "expert" else 0
        self._recorder = Recorder(schema, worker, boot * EPISODES_PER_BOOT, outlet.put_row, flags=flags)
        self._max_steps, self._start_steps = max_steps, start_steps
        self._evaluated_at_step = 0
        self._best_score = -np.inf
        self._promising = False

    @property
    def training_steps(self) -> int:
        """Training steps made so far."""
        return self._seat.steps

    @property
    def policy_version(self) -> int:
        """Version of the policy that acts; 0 is the warm-up."""
        return self._seat.version

    def run(self) -> None:
        """Act until the orders say shut down; the device is safe afterwards, whatever happened.

        Raises:
            DeviceLost: if the device stayed away longer than ``device_patience_s``.
        """
        try:
            while not self._done():
                if held := self._held():
                    self._wait_safe(held, self._holding_changed(held), poll_s=0.02)
                elif self._seat.lost:
                    self._wait_for_policy()
                elif self._config.purpose == "test":
                    self._test()
                elif self._synchronous_due():  # before an evaluation, which would look for newer weights
                    self._wait_for_update()
                elif self._evaluation_due():
                    self._evaluate()
                else:
                    self._train()
        except DeviceLost:
            if not self._outlet.orders().shutdown:
                raise
        finally:
            self._leave()
            self._outlet.put_state("stopped, device safe")

    def play(self, episodes: int, *, deterministic: bool) -> Iterator[EpisodeSummary]:
        """Run a number of episodes with the newest policy; yield each summary. The device is safe afterwards.

        Args:
            episodes: how many, or fewer if the orders say shut down.
            deterministic: without exploration.

        Raises:
            PolicyMismatch: before anything is driven, if the policy was made for another environment.
        """
        self._seat.swap()
        try:
            for _ in range(episodes):
                if self._outlet.orders().shutdown:
                    return
                yield self._episode(evaluation=deterministic)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._env.stop_device()
        self._seat.close()

    def _done(self) -> bool:
        enough = self._max_steps is not None and self._seat.steps >= self._max_steps
        return enough or self._outlet.orders().shutdown

    # --- waiting with the device safe ----------------------------------------------------------------------

    def _held(self) -> str:
        """Return why the device has to stand still by order, in words for the state; empty if it has not."""
        orders = self._outlet.orders()
        if orders.paused:
            return "paused, device safe"
        return f"held, device safe: {orders.hold}" if orders.hold else ""

    def _holding_changed(self, held: str) -> Callable[[], bool]:
        return lambda: self._held() != held

    def _wait_safe(self, what: str, done: Callable[[], bool], *, poll_s: float = 0.05) -> None:
        """Make the device safe and wait until ``done`` or shutdown; say every `WAIT_REPORT_S` for what."""
        self._env.stop_device()
        self._outlet.put_state(what)
        began = clock.now()
        report = began + WAIT_REPORT_S
        while not done() and not self._outlet.orders().shutdown:
            clock.sleep(poll_s)
            if (now := clock.now()) >= report:
                report = now + WAIT_REPORT_S
                self._outlet.put_state(f"{what} (for {now - began:.0f} s)")

    def _wait_for_policy(self) -> None:
        remote = self._seat.remote
        if remote is not None and remote.lost:
            what = "no policy answers: device safe, asking the remote side again"
            self._wait_safe(what, lambda: remote.probe() or bool(self._held()))
        else:
            limit = self._config.max_policy_age_s
            what = f"weights older than {limit:g} s: device safe, waiting for new ones"
            self._wait_safe(what, self._newer_or_held)

    def _synchronous_due(self) -> bool:
        most, seat = self._config.synchronous_steps, self._seat
        if seat.version == 0:  # the first weights come of a whole round of updates
            most += self._start_steps if most else 0
        return most > 0 and seat.steps_with_weights >= most

    def _wait_for_update(self) -> None:
        seat = self._seat
        what = f"synchronous: {seat.steps_with_weights} steps with policy {seat.version}"
        self._wait_safe(f"{what}, device safe, waiting for newer weights", self._newer_or_held)

    def _newer_or_held(self) -> bool:
        return self._seat.swap() or bool(self._held())

    # --- episodes of each purpose --------------------------------------------------------------------------

    def _test(self) -> None:
        """Evaluate one episode with the newest weights, and do nothing else."""
        self._seat.swap()
        if self._seat.empty:
            self._wait_safe("testing: device safe, waiting for the first weights", self._newer_or_held)
            return
        self._outlet.put_state(f"testing policy {self._seat.version}")
        self._episode(evaluation=True)

    def _train(self) -> None:
        if self._config.purpose == "expert":
            words = "driving as an expert and recording"
        elif self._seat.version == 0:
            words = "warming up: random actions until the first policy arrives"
        else:
            words = "driving and recording"
        self._outlet.put_state(words)
        summary = self._episode(evaluation=False)
        if not summary.cut and summary.score > self._best_score:
            self._promising = self._config.evaluation.after_best

    def _evaluation_due(self) -> bool:
        every, since = self._config.evaluation.every_steps, self._seat.steps - self._evaluated_at_step
        if every == 0 or self._seat.version == 0 or self._config.purpose != "train":
            return False
        return since >= every or (self._promising and since >= every / 4)

    def _evaluate(self) -> None:
        self._seat.swap()
        self._evaluated_at_step = self._seat.steps
        self._promising = False
        self._outlet.put_state(f"evaluating policy {self._seat.version}")
        scores: list[float] = []
        for _ in range(self._config.evaluation.episodes):
            summary = self._episode(evaluation=True)
            scores.append(summary.score)
            helped = "takeover_steps" in summary.metrics  # the score is not the policy's own
            if summary.cut or helped or summary.score <= self._best_score:
                return
        self._best_score = max(self._best_score, min(scores))

    def _episode(self, *, evaluation: bool) -> EpisodeSummary:
        observation, info = self._reset()
        recorder, started, total, steps = self._recorder, clock.now(), 0.0, 0
        seat, takeover = self._seat, self._takeover
        counts: dict[str, float] = {}
        recorder.begin(observation, evaluation=evaluation)
        state = seat.actor.initial_state(1)
        if takeover is not None:
            takeover.begin()
        ended = self._cut_reason()
        while not ended:
            # The action chosen now is due at the end of the running step: there is time to take newer weights
            # first. An evaluation keeps its own.
            if not evaluation:
                state = seat.keep_up(state)
            version, flags = seat.version, 0
            actions, state, extras = seat.actor.act(
                _batch_of_one(observation), state, deterministic=evaluation
            )
            if extras:
                version, flags, extras = read_marks(extras, version)
            action = actions[0]
            if takeover is not None:
                action, flags = takeover.choose(observation, action, flags)
            observation, reward, terminated, truncated, info = self._env.step(action)
            seat.steps += not evaluation
            applied = info.get("applied_action", action)
            if takeover is not None:
                takeover.applied(applied)
            if info.get("takeover"):  # an interface through which a person can override by itself
                flags |= Flag.TAKEOVER
            recorder.step(
                applied,
                reward,
                terminated,
                truncated,
                observation,
                timing=info.get("timing"),
                policy_version=version,
                extras=extras,
                flags=flags,
                final_flags=self._final_flags(),
            )
            if flags:
                for name, flag in _COUNTED:
                    if flags & flag:
                        counts[name] = counts.get(name, 0.0) + 1.0
            total += reward
            steps += 1
            ended = end_of(terminated, truncated, info)
            if not ended and (ended := self._cut_reason()):
                # The world goes on without us: the device is made safe first, then the episode is cut.
                self._env.stop_device()
                recorder.cut(self._final_flags())
        summary = EpisodeSummary(
            episode=recorder.episode,
            evaluation=evaluation,
            policy_version=seat.version,
            steps=steps,
            total_return=total,
            duration_s=clock.now() - started,
            ended=ended,
            training_steps=seat.steps,
            metrics=plain_numbers(info) | counts | seat.metrics(),
        )
        if steps > 0:  # an episode that was cut before its first step leaves nothing
            self._outlet.put_summary(summary)
        return summary

    def _final_flags(self) -> int:
        """Return the flags of the final row, should the episode end now: they tell the trainer of a wait."""
        return int(Flag.ROUND_END) if self._synchronous_due() else 0  # never in an evaluation

    def _cut_reason(self) -> str:
        """Return why the running episode has to be cut now, or an empty string."""
        orders = self._outlet.orders()
        if orders.shutdown:
            return "shutdown"
        if orders.paused:
            return "paused"
        if orders.hold:
            return "held"
        return "policy lost" if self._seat.lost else ""

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
