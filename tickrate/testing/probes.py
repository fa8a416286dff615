"""Probe environments: tiny tasks that each test one ability of a learner and whose right answers are known.

Run a learner on them from top to bottom; the first one that fails says what is broken:

| probe | fails when | right answer |
| --- | --- | --- |
| ``constant_reward`` | the value does not fit, or ``terminated`` bootstraps | V = 1 |
| ``observed_reward`` | the value does not see the observation | V(o) = o |
| ``discount`` | the discount or the bootstrap is wrong | V(start) = gamma, V(next) = 1 |
| ``time_limit`` | a truncation is taken for a termination | V = 1 / (1 - gamma) |
| ``chosen_action`` | the policy gradient has the wrong sign or the advantage is wrong | a = 0.5 |
| ``observed_action`` | the policy does not see the observation | a(o) = 0.5 o |
| ``hidden_memory`` | (cannot be solved: the last action is not observed) | return at most about half |
| ``action_buffer`` | the actions in flight do not reach the networks | a = -(last action) at the bounds |

Observations are float32 of shape (1,), or (2,) where the last action is shown; actions are float32 of shape
(1,) in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from tickrate.trees import Array


@dataclass(frozen=True)
class Moment:
    """What a probe's rule may look at when it rewards an action."""

    step: int
    """Number of the step within the episode, from 0."""
    observation: float
    """First number of the observation on which the action was chosen."""
    action: float
    """The action."""
    last_action: float
    """The action before it."""


@dataclass(frozen=True)
class Probe:
    """The rule of one probe environment."""

    horizon: int
    """Steps in an episode."""
    reward: Callable[[Moment], float]
    """The reward of a step."""
    value: Callable[[Array, float], float] | None
    """The value of an observation for a discount, under every policy; None if it depends on it."""
    best_action: Callable[[Array], float] | None = None
    """The best action on an observation; None where actions do not matter or it cannot be known."""
    truncates: bool = False
    """How episodes end: False terminated, True truncated."""
    observes: Literal["nothing", "step", "sign"] = "nothing"
    """What the observation is: always 0, the number of the step, or -1 or +1 drawn at each reset."""
    shows_last_action: bool = False
    """True: the observation ends with the last action."""


def _flip(moment: Moment) -> float:
    """Half the distance to the last action: 1 for a jump from one bound to the other."""
    return abs(moment.action - moment.last_action) / 2.0


PROBES: dict[str, Probe] = {
    "constant_reward": Probe(horizon=1, reward=lambda m: 1.0, value=lambda o, gamma: 1.0),
    "observed_reward": Probe(
        horizon=1,
        reward=lambda m: m.observation,
        value=lambda o, gamma: float(o[0]),
        observes="sign",
    ),
    "discount": Probe(
        horizon=2,
        reward=lambda m: float(m.step),
        value=lambda o, gamma: gamma if o[0] == 0.0 else 1.0,
        observes="step",
    ),
    "time_limit": Probe(
        horizon=5,
        reward=lambda m: 1.0,
        value=lambda o, gamma: 1.0 / (1.0 - gamma),
        truncates=True,
    ),
    "chosen_action": Probe(
        horizon=1,
        reward=lambda m: 1.0 - (m.action - 0.5) ** 2,
        value=None,
        best_action=lambda o: 0.5,
    ),
    "observed_action": Probe(
        horizon=1,
        reward=lambda m: 1.0 - (m.action - 0.5 * m.observation) ** 2,
        value=None,
        best_action=lambda o: 0.5 * float(o[0]),
        observes="sign",
    ),
    "hidden_memory": Probe(horizon=16, reward=_flip, value=None, truncates=True),
    "action_buffer": Probe(
        horizon=16,
        reward=_flip,
        value=None,
        best_action=lambda o: -1.0 if o[-1] > 0.0 else 1.0,
        truncates=True,
        shows_last_action=True,
    ),
}
"""The probes by name, from the easiest to the hardest."""


class ProbeEnv(gymnasium.Env[Array, Array]):
    """One probe as a Gymnasium environment.

    Args:
        probe: a name from `PROBES`, or a rule of your own.

    Attributes:
        probe: the rule.

    Raises:
        KeyError: if no probe has this name.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it as an instance attribute)

    def __init__(self, probe: str | Probe) -> None:
        if isinstance(probe, str) and probe not in PROBES:
            raise KeyError(f"no probe named {probe!r}: there are {', '.join(PROBES)}")
        self.probe = PROBES[probe] if isinstance(probe, str) else probe
        size = 2 if self.probe.shows_last_action else 1
        high = float(max(1, self.probe.horizon))
        self.observation_space = spaces.Box(-high, high, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._step = 0
        self._sign = 0.0
        self._last_action = 0.0
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode; the action before the first one is a random bound."""
        super().reset(seed=seed)
        self._step = 0
        self._sign = float(self.np_random.choice([-1.0, 1.0]))
        self._last_action = float(self.np_random.choice([-1.0, 1.0]))
        self._running = True
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Play one step.

        Raises:
            RuntimeError: if no episode is running.
        """
        if not self._running:
            raise RuntimeError("step() without a running episode: call reset() first")
        value = float(np.clip(np.asarray(action, np.float64).reshape(-1)[0], -1.0, 1.0))
        moment = Moment(self._step, float(self._observation()[0]), value, self._last_action)
        reward = float(self.probe.reward(moment))
        self._step += 1
        self._last_action = value
        ended = self._step >= self.probe.horizon
        self._running = not ended
        return (
            self._observation(),
            reward,
            ended and not self.probe.truncates,
            ended and self.probe.truncates,
            {},
        )

    def _observation(self) -> Array:
        probe = self.probe
        first = {"nothing": 0.0, "step": float(self._step), "sign": self._sign}[probe.observes]
        numbers = [first, self._last_action] if probe.shows_last_action else [first]
        return np.array(numbers, np.float32)
