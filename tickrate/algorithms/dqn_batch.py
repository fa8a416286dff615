"""From a replay's batch to DQN's tensors: the group packed, actions counted, what cannot be refused."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from tickrate.algorithms.dqn_functions import Transition
from tickrate.algorithms.group_inputs import GroupInputs
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError
from tickrate.trees import categories

_log = logging.getLogger(__name__)

MAX_CHOICES = 1 << 16
"""Most choices of all parts of an action together."""


class TransitionLoader:
    """Turns batches into `Transition`s on a device.

    Args:
        group: what the network reads.
        action_space: Discrete or MultiDiscrete.
        device: where the tensors go.

    Raises:
        ConfigError: for an action space that DQN cannot act in.
    """

    def __init__(self, group: GroupInputs, action_space: spaces.Space[Any], device: torch.device) -> None:
        ends = categories(action_space)
        if ends is None or not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
            raise ConfigError(
                f"the action space is {action_space}: DQN chooses in a Discrete or MultiDiscrete; choose "
                "another algorithm, sac for a Box"
            )
        low, high = (end.ravel() for end in ends)
        self.choices: tuple[int, ...] = tuple((high - low + 1).tolist())
        """Number of choices of each part."""
        if sum(self.choices) > MAX_CHOICES:
            raise ConfigError(
                f"the action space is {action_space}: it has {sum(self.choices)} choices in all, at most "
                f"{MAX_CHOICES} have an output each"
            )
        self._group, self._device, self._low, self._high = group, device, low, high
        self._starts = np.cumsum(self.choices) - self.choices
        self.skipped = 0
        """Batches refused because they held values that are not finite, or choices that do not exist."""

    def load(self, batch: Batch) -> Transition | None:
        """Return the batch on the device, or None, counted and told once, if a value in it cannot be."""
        chosen = batch.action.reshape(len(batch.reward), -1).astype(np.int64)
        inputs = self._group.arrays(batch.observations)
        numbers = {
            "reward": np.asarray(batch.reward, np.float32),
            "discount": np.asarray(batch.discount, np.float32),
        }
        bad = [name for name, value in (inputs | numbers).items() if not _finite(value)]
        if ((chosen < self._low) | (chosen > self._high)).any():
            bad.append("action")
        if bad:
            self._skip(bad)
            return None
        weights = batch.weights
        return Transition(
            inputs={name: self.tensor(value) for name, value in inputs.items()},
            action=self.tensor(chosen - self._low + self._starts),
            reward=self.tensor(numbers["reward"]),
            discount=self.tensor(numbers["discount"]),
            weights=None if weights is None else self.tensor(weights),
        )

    def tensor(self, value: NDArray[Any]) -> Tensor:
        """Return an array on the device."""
        return torch.from_numpy(np.ascontiguousarray(value)).to(self._device, non_blocking=True)

    def _skip(self, bad: list[str]) -> None:
        self.skipped += 1
        if self.skipped == 1:
            _log.warning(
                "update skipped: values that are not finite, or categories that do not exist, in %s; further "
                "ones are only counted, as skipped_updates. Look at the rows the environment recorded.",
                bad,
            )


def _finite(value: NDArray[Any]) -> bool:
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())
