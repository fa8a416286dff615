"""From a replay's batch to SAC's tensors: groups flattened, actions scaled, non-finite values refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.algorithms.sac_functions import Transition
from tickrate.algorithms.sac_networks import VECTOR
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError

_log = logging.getLogger(__name__)


class TransitionLoader:
    """Turns batches into `Transition`s on a device.

    Args:
        actor: the actor's observation group.
        critic: the critics' observation group.
        action_space: a bounded box.
        device: where the tensors go.
    """

    def __init__(
        self, actor: GroupPacker, critic: GroupPacker, action_space: spaces.Box, device: torch.device
    ) -> None:
        self.actor, self.critic, self.device = actor, critic, device
        low = action_space.low.reshape(-1).astype(np.float64)
        high = action_space.high.reshape(-1).astype(np.float64)
        self.action_size = len(low)
        self.log_scale = float(np.log((high - low) / 2).sum())
        """Sum over the action of ``log((high - low) / 2)``: nats between scaled and environment units."""
        self.skipped = 0
        """Batches refused because they held values that are not finite."""
        self._centre = ((low + high) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)

    def load(self, batch: Batch) -> Transition | None:
        """Return the batch on the device, or None, counted and told once, if a value in it is not finite."""
        action = (batch.action.reshape(len(batch.reward), -1) - self._centre) / self._half
        arrays = {
            "action": action.astype(np.float32, copy=False),
            "reward": np.asarray(batch.reward, np.float32),
            "discount": np.asarray(batch.discount, np.float32),
            "actor group": self._both(self.actor, batch),
        }
        if self.critic.paths != self.actor.paths:
            arrays["critic group"] = self._both(self.critic, batch)
        bad = [name for name, value in arrays.items() if not np.isfinite(value).all()]
        if bad:
            self._skip(bad, batch)
            return None
        tensors = {name: self._tensor(value) for name, value in arrays.items()}
        weights = batch.weights
        return Transition(
            actor={VECTOR: tensors["actor group"]},
            critic={VECTOR: tensors.get("critic group", tensors["actor group"])},
            action=tensors["action"],
            reward=tensors["reward"],
            discount=tensors["discount"],
            weights=None if weights is None else self._tensor(weights),
        )

    def rows(self, group: GroupPacker, observation: Mapping[str, NDArray[Any]]) -> Tensor:
        """Return a group's leaves as ``(rows, size)`` on the device, without rows that are not finite."""
        values = np.empty((len(observation[group.paths[0]]), group.size), np.float32)
        group.pack(observation, values)
        return self._tensor(values[np.isfinite(values).all(1)])

    def _both(self, group: GroupPacker, batch: Batch) -> NDArray[np.float32]:
        """Return observations, then next observations, in one array: the joint batch costs no copy later."""
        size = len(batch.reward)
        values = np.empty((2 * size, group.size), np.float32)
        group.pack(batch.observation, values[:size])
        group.pack(batch.next_observation, values[size:])
        return values

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(value)).to(self.device, non_blocking=True)

    def _skip(self, bad: list[str], batch: Batch) -> None:
        self.skipped += 1
        leaves = [path for path, value in batch.observation.items() if not np.isfinite(value).all()]
        leaves += [
            f"next {path}" for path, value in batch.next_observation.items() if not np.isfinite(value).all()
        ]
        if self.skipped == 1:
            _log.warning(
                "update skipped: values that are not finite in %s (leaves %s); further ones are only "
                "counted, as skipped_updates. Look at the rows the environment recorded.",
                bad,
                leaves,
            )


def bounded_box(space: spaces.Space[Any]) -> spaces.Box:
    """Return the action space if SAC can act in it.

    Raises:
        ConfigError: if it is no Box of floats, or a bound is infinite; names the index.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"the action space is {space}: SAC acts in a Box of floats; choose another algorithm"
        )
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    wrong = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & (low < high)))
    if len(wrong):
        i = int(wrong[0])
        raise ConfigError(
            f"the action's bounds at index {i} are [{low[i]}, {high[i]}]: SAC needs finite bounds, "
            "low below high; wrap the environment, for example with gymnasium.wrappers.RescaleAction"
        )
    return space
