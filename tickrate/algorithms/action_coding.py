"""Actions as networks see them: continuous ones scaled to [-1, 1], choices as one-hot vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from tickrate.algorithms.sac_config import SACConfig
from tickrate.artefact.contract import Exploration, HeadName
from tickrate.errors import ConfigError
from tickrate.nn.export import ProgramWriter
from tickrate.nn.policy_heads import CategoricalHead, GaussianHead, PolicyHead
from tickrate.trees import categories


class BoxCoding:
    """A bounded box of floats.

    Args:
        space: the action space.
        log_std: offset, low and high clamp of the network's log_std.

    Attributes:
        head: the policy's head.
        head_name: the same in a contract.
        size: numbers in an action.
        log_scale: sum over the action of ``log((high - low) / 2)``: nats between scaled and environment
            units.

    Raises:
        ConfigError: if a bound is infinite; names the index.
    """

    head_name: HeadName = "squashed_gaussian"

    def __init__(self, space: spaces.Box, log_std: tuple[float, float, float]) -> None:
        low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
        wrong = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & (low < high)))
        if len(wrong):
            i = int(wrong[0])
            raise ConfigError(
                f"the action's bounds at index {i} are [{low[i]}, {high[i]}]: SAC needs finite bounds, "
                "low below high; wrap the environment, for example with gymnasium.wrappers.RescaleAction"
            )
        self.size = len(low)
        self.log_scale = float(np.log((high - low) / 2).sum())
        self._centre = ((low + high) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)
        self._log_std_offset = log_std[0]
        self.head: PolicyHead = GaussianHead(self.size, self.log_scale, log_std)

    def encode(self, action: NDArray[Any]) -> NDArray[np.float32]:
        """Return actions ``(rows, *action)`` as ``(rows, size)``."""
        scaled = (action.reshape(len(action), -1) - self._centre) / self._half
        return scaled.astype(np.float32, copy=False)

    def write(self, writer: ProgramWriter, x: str) -> str:
        """Write down what stands between the network's outputs and the head: log_std's offset."""
        offset = torch.cat([torch.zeros(self.size), torch.full((self.size,), self._log_std_offset)])
        return writer.scale(x, torch.ones(2 * self.size), offset)

    def exploration(self, config: SACConfig) -> Exploration:
        """Return how the policy explores."""
        return Exploration(
            config.noise_correlation,
            config.log_std_min,
            config.log_std_max,
            noise_hold=config.noise_hold,
        )

    def buffered(self, action: Tensor) -> Tensor:
        """Return scaled actions ``(rows, size)`` as they stand in an action buffer: in environment units."""
        centre, half = (torch.from_numpy(value).to(action) for value in (self._centre, self._half))
        return torch.addcmul(centre, half, action)

    def target_entropy(self, per_dim: float, share: float) -> float:
        """Return the target entropy in environment units, nats, for one of scaled actions, a component."""
        return per_dim * self.size + self.log_scale


class ChoiceCoding:
    """One or several choices among categories.

    Args:
        space: Discrete, or MultiDiscrete.

    Attributes:
        head: the policy's head.
        head_name: the same in a contract.
        size: numbers of a one-hot action.
    """

    head_name: HeadName = "categorical"

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        bounds = categories(space)
        assert bounds is not None  # both kinds have categories
        low, high = (np.asarray(bound).ravel() for bound in bounds)
        counts = high - low + 1
        self._low, self._sizes, self._starts = low, counts, np.cumsum(counts) - counts
        self.size = int(counts.sum())
        self._largest = float(np.log(counts).sum())
        self.head: PolicyHead = CategoricalHead(tuple(counts.tolist()))

    def encode(self, action: NDArray[Any]) -> NDArray[np.float32]:
        """Return choices ``(rows, *action)`` as ``(rows, size)``; NaN where there is no such choice."""
        offset = action.reshape(len(action), -1).astype(np.int64) - self._low
        known = (offset >= 0) & (offset < self._sizes)
        encoded = np.zeros((len(action), self.size), np.float32)
        np.put_along_axis(encoded, np.where(known, offset, 0) + self._starts, 1.0, axis=1)
        encoded[~known.all(1)] = np.nan
        return encoded

    def write(self, writer: ProgramWriter, x: str) -> str:
        """Write down what stands between the network's outputs and the head: nothing."""
        return x

    def exploration(self, config: SACConfig) -> Exploration:
        """Return how the policy explores: by its own probabilities alone."""
        return Exploration()

    def buffered(self, action: Tensor) -> Tensor:
        """Return choices as they stand in an action buffer: one-hot as well."""
        return action

    def target_entropy(self, per_dim: float, share: float) -> float:
        """Return the target entropy in nats, for a share of the largest possible."""
        return share * self._largest


ActionCoding = BoxCoding | ChoiceCoding


def action_coding(space: spaces.Space[Any], log_std: tuple[float, float, float]) -> ActionCoding:
    """Return how actions of a space are seen.

    Raises:
        ConfigError: if it is no Box of floats, Discrete or MultiDiscrete, or a bound is infinite.
    """
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return ChoiceCoding(space)
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"the action space is {space}: SAC acts in a Box of floats, Discrete or MultiDiscrete; "
            "choose another algorithm"
        )
    if not math.prod(space.shape):
        raise ConfigError(f"the action space is {space}: it has no numbers")
    return BoxCoding(space, log_std)
