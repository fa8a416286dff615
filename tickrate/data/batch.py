"""What an algorithm learns from: a batch of transitions as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.trees import Leaves


@dataclass(frozen=True)
class Batch:
    """Transitions over one or several steps; numpy, batch first, contiguous, and the caller's own copy."""

    observation: Leaves
    """Observation ``o_t`` by path, ``(B, *leaf)`` in native dtypes, stacks included."""
    action: NDArray[Any]
    """Action really applied on ``o_t``, ``(B, *action)``, environment units."""
    reward: NDArray[np.float32]
    """The m-step return ``r_{t+1} + gamma r_{t+2} + ... + gamma^(m-1) r_{t+m}``, ``(B,)``; m is at most n."""
    discount: NDArray[np.float32]
    """Weight of the value at ``next_observation``: ``gamma^m``, 0 where the episode terminated, ``(B,)``."""
    next_observation: Leaves
    """Observation ``o_{t+m}``; where the episode was truncated, its true final observation."""
    rows: NDArray[np.int64]
    """Row number of ``o_t``, ``(B,)``: counted from the first row ever stored, never used twice."""
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    """What the actor gave beside the action, by name, ``(B, *shape)``."""

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.rows)
