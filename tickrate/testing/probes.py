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
| ``actions_in_flight`` | not all are read: effects come three steps later | a = target - landing |
| ``hidden_in_flight`` | (cannot be solved: they are not observed) | about 0.6 a step |
| ``chosen_category`` | categories are chosen wrongly, or ``start`` is forgotten | a = 3, of 1, 2 and 3 |
| ``observed_category`` | the policy of categories does not see the observation | a(-1) = 1, a(1) = 3 |
| ``category_buffer`` | a buffer of categories does not reach the networks | the next one: 1, 2, 3, 1 |
| ``observed_categories`` | the parts of a MultiDiscrete are mixed up | a(-1) = 0, 2; a(1) = 1, 0 |
| ``image`` | the image does not reach the networks | a = 0.5, square right; -0.5, left |
| ``memory`` | the policy has no memory: the cue is seen once | a = 0.5 cue, at every step |

Observations are float32 of shape (1,), or (2,) where the last action is shown. ``category_buffer`` observes a
Dict of ``value`` and ``actions`` (the last category, shape (1,)), ``image`` a uint8 image (1, 16, 16) with a
bright square in one half, and the two of flight the position, the target and, if shown, the three actions in
flight, oldest first. Actions are float32 of shape (1,) in [-1, 1], or categories: Discrete of 1, 2 and 3, or
MultiDiscrete of 2 and 3 categories. Where there is a best action it earns 1 in each step.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tickrate.testing.probe_rules import PROBES, Moment, Probe
from tickrate.trees import Array

__all__ = ["PROBES", "Moment", "Probe", "ProbeEnv"]

IN_FLIGHT = 3
"""Steps from an action to its effect in the probes of flight."""

SIDE = 16
"""Side of the image, in pixels."""


class ProbeEnv(gymnasium.Env[Any, Any]):
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
        self.action_space = _action_space(self.probe.actions)
        self.observation_space = _observation_space(self.probe)
        self._step = 0
        self._cue = 0.0
        self._last_action: Any = 0.0
        self._image: Array = np.zeros((1, SIDE, SIDE), np.uint8)
        self._position = self._target = 0.0
        self._in_flight = [0.0] * IN_FLIGHT
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the actions before the first one are drawn at random."""
        super().reset(seed=seed)
        draw = self.np_random
        self._step = 0
        self._cue = float(draw.choice([-1.0, 1.0]))
        boxed = self.probe.actions == "box"
        self._last_action = float(draw.choice([-1.0, 1.0])) if boxed else int(draw.integers(1, 4))
        if self.probe.observes == "image":
            self._image = _draw_image(self._cue, draw)
        if self.probe.observes == "flight":
            self._in_flight = draw.choice([-0.5, 0.5], IN_FLIGHT).tolist()
            # They lead to one of the two targets, so that an action within the bounds leads to the other.
            self._position = float(draw.choice([-0.5, 0.5])) - sum(self._in_flight)
            self._target = float(draw.choice([-0.5, 0.5]))
        self._running = True
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one step.

        Raises:
            RuntimeError: if no episode is running.
            ValueError: for a category that does not exist.
        """
        if not self._running:
            raise RuntimeError("step() without a running episode: call reset() first")
        value = self._value_of(action)
        moment = Moment(self._step, self._first(), value, self._last_action, self._cue, self._fly(value))
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

    def _value_of(self, action: Any) -> Any:
        """Return a number within the bounds, a category, or a tuple of categories."""
        if self.probe.actions == "box":
            return float(np.clip(np.asarray(action, np.float64).reshape(-1)[0], -1.0, 1.0))
        chosen = np.asarray(action)
        if not self.action_space.contains(chosen):
            raise ValueError(f"{action!r} is no element of {self.action_space}")
        return int(chosen) if self.probe.actions == "category" else tuple(chosen.tolist())

    def _fly(self, value: Any) -> float:
        """Send an action on its way; return by how much it will miss the target, and draw the next target."""
        if self.probe.observes != "flight":
            return 0.0
        miss = abs(self._position + sum(self._in_flight) + value - self._target)
        self._position += self._in_flight.pop(0)
        self._in_flight.append(value)
        self._target = float(self.np_random.choice([-0.5, 0.5]))
        return float(miss)

    def _first(self) -> float:
        seen_once = self._cue if self._step == 0 else 0.0
        return {
            "nothing": 0.0,
            "step": float(self._step),
            "sign": self._cue,
            "cue": seen_once,
            "image": self._cue,
            "flight": self._position,
        }[self.probe.observes]

    def _observation(self) -> Any:
        probe = self.probe
        if probe.observes == "image":
            return self._image.copy()
        numbers = [self._first()]
        if probe.observes == "flight":
            numbers += [self._target, *(self._in_flight if probe.shows_last_action else ())]
        elif probe.shows_last_action and probe.actions != "box":
            return {"value": np.array(numbers, np.float32), "actions": np.array([self._last_action])}
        elif probe.shows_last_action:
            numbers.append(self._last_action)
        return np.array(numbers, np.float32)


def _action_space(kind: str) -> spaces.Space[Any]:
    if kind == "box":
        return spaces.Box(-1.0, 1.0, (1,), np.float32)
    return spaces.Discrete(3, start=1) if kind == "category" else spaces.MultiDiscrete([2, 3])


def _observation_space(probe: Probe) -> spaces.Space[Any]:
    if probe.observes == "image":
        return spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)
    high = float(max(1, probe.horizon))
    if probe.observes == "flight":
        size = 2 + IN_FLIGHT * probe.shows_last_action
        return spaces.Box(-high - 2.0, high + 2.0, (size,), np.float32)
    if probe.shows_last_action and probe.actions != "box":
        shown = spaces.MultiDiscrete([3], start=[1])
        return spaces.Dict({"value": spaces.Box(-high, high, (1,), np.float32), "actions": shown})
    return spaces.Box(-high, high, (1 + probe.shows_last_action,), np.float32)


def _draw_image(cue: float, draw: np.random.Generator) -> Array:
    """Return noise (1, side, side), uint8, with a bright square in its right half for +1, its left for -1."""
    image = draw.integers(0, 64, (1, SIDE, SIDE)).astype(np.uint8)
    row = int(draw.integers(0, SIDE - 4, endpoint=True))
    column = int(draw.integers(0, SIDE // 2 - 4, endpoint=True)) + (SIDE // 2 if cue > 0.0 else 0)
    image[0, row : row + 4, column : column + 4] = 255
    return image
