"""An actor that does nothing: the device's default action, until a person takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import ConfigError


class RestingActor:
    """An `Actor` that always gives the same action; it has no weights and ignores the observation.

    Args:
        action: the action, ``(*action,)``.
    """

    def __init__(self, action: NDArray[Any]) -> None:
        self._action = action

    def initial_state(self, batch: int) -> dict[str, NDArray[Any]]:
        """There is no state."""
        return {}

    def act(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Mapping[str, NDArray[Any]],
        *,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return the action once for each observation, ``(B, *action)``, no state, and no extras."""
        batch = len(next(iter(observation.values())))
        return np.repeat(self._action[None], batch, axis=0), {}, {}

    def load(self, weights: bytes) -> None:
        """There are no weights to load; `ConfigError` always."""
        raise ConfigError("an actor that rests takes no weights")
