"""Actions before there is a policy: random commands, each held for some steps so that the device moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.errors import ConfigError
from tickrate.trees import Leaves, categories


@dataclass(frozen=True)
class WarmupConfig:
    """How to act until the first policy arrives."""

    low: tuple[float, ...] = ()
    """Lower end of the uniform distribution of each action dimension; empty: the action space's own. Like the
    next two it is for Box actions: categories are drawn uniformly, there is nothing between two of them."""
    high: tuple[float, ...] = ()
    """Upper end of the uniform distribution of each action dimension; empty: the action space's own."""
    normal: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Dimensions drawn from a normal distribution instead: index -> (mean, standard deviation), clipped."""
    hold: tuple[int, int] = (1, 1)
    """Each action is held for a random number of steps, from least to most; 3 to 11 moves a car."""

    def __post_init__(self) -> None:
        """Refuse a holding range that is empty or not positive."""
        if not 1 <= self.hold[0] <= self.hold[1]:
            raise ConfigError(f"hold is {self.hold}: give [least, most] steps with 1 <= least <= most")
        numbers = [*self.low, *self.high, *(n for pair in self.normal.values() for n in pair)]
        if not all(math.isfinite(n) for n in numbers):
            raise ConfigError(f"low {self.low}, high {self.high}, normal {self.normal}: give finite numbers")
        if any(deviation < 0 for _, deviation in self.normal.values()):
            raise ConfigError(f"normal is {self.normal}: a standard deviation cannot be negative")


class WarmupActor:
    """An `Actor` that draws held random actions; it has no weights and ignores the observation.

    Args:
        config: distributions and holding time.
        action_space: a Box with finite bounds, Discrete, MultiDiscrete or MultiBinary.
        seed: seed of the draws.

    Raises:
        ConfigError: if a distribution does not fit the action space.
    """

    def __init__(self, config: WarmupConfig, action_space: spaces.Space[Any], seed: int) -> None:
        self._config = config
        self._space = action_space
        self._shape = action_space.shape or ()
        self._rng = np.random.default_rng(seed)
        bounds = categories(action_space)
        self._categories = bounds is not None
        if bounds is not None:
            _refuse_distributions(config, action_space)
            self._low, self._high = bounds[0].ravel(), bounds[1].ravel()
        else:
            assert isinstance(action_space, spaces.Box)
            self._low, self._high = _ranges(config, action_space)

    def initial_state(self, batch: int) -> dict[str, NDArray[Any]]:
        """Return the state of ``batch`` actors that hold nothing yet."""
        return {
            "action": np.zeros((batch, self._low.size), dtype=self._low.dtype),
            "left": np.zeros(batch, dtype=np.int64),
        }

    def act(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Mapping[str, NDArray[Any]],
        *,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], dict[str, NDArray[Any]], Leaves]:
        """Return actions (B, *action shape) in the environment's units, the new state, and no extras."""
        action, left = state["action"].copy(), state["left"].copy()
        for i in np.flatnonzero(left == 0):
            action[i] = self._draw()
            left[i] = self._rng.integers(self._config.hold[0], self._config.hold[1] + 1)
        shaped = action.reshape(-1, *self._shape).astype(self._space.dtype)
        return shaped, {"action": action, "left": left - 1}, {}

    def load(self, weights: bytes) -> None:
        """There are no weights to load; `ConfigError` always."""
        raise ConfigError("the warm-up actor takes no weights")

    def _draw(self) -> NDArray[Any]:
        if self._categories:
            return self._rng.integers(self._low, self._high, endpoint=True)
        assert isinstance(self._space, spaces.Box)
        action = self._rng.uniform(self._low, self._high)
        for index, (mean, deviation) in self._config.normal.items():
            action[index] = self._rng.normal(mean, deviation)
        clipped: NDArray[np.float64] = np.clip(action, self._space.low.ravel(), self._space.high.ravel())
        return clipped


def _refuse_distributions(config: WarmupConfig, action_space: spaces.Space[Any]) -> None:
    given = [name for name in ("low", "high", "normal") if getattr(config, name)]
    if given:
        raise ConfigError(
            f"warmup.{given[0]} is set, but the actions are {action_space}: categories are drawn uniformly, "
            "there is no range of them; only warmup.hold is for them"
        )


def _ranges(
    config: WarmupConfig, action_space: spaces.Box
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the uniform distributions, (dimensions,) each."""
    size = int(np.prod(action_space.shape))
    low = np.asarray(config.low or action_space.low.ravel(), dtype=np.float64)
    high = np.asarray(config.high or action_space.high.ravel(), dtype=np.float64)
    for name, bound in (("low", low), ("high", high)):
        if bound.shape != (size,):
            raise ConfigError(f"warmup.{name} has {bound.size} numbers for an action of {size} dimensions")
    if wrong := [i for i in config.normal if not 0 <= i < size]:
        raise ConfigError(f"warmup.normal names the dimensions {wrong}; the action has 0 to {size - 1}")
    if np.any(low > high):
        raise ConfigError(f"warmup.low {low.tolist()} lies above warmup.high {high.tolist()}")
    return low, high
