"""What an algorithm learns from: batches of transitions, or of sequences of them, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    weights: NDArray[np.float32] | None = None
    """Importance weight of each transition's loss, ``(B,)``, in (0, 1]; None where all were drawn alike."""

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.rows)

    @property
    def observations(self) -> tuple[Leaves, ...]:
        """Every map of observations in the batch."""
        return self.observation, self.next_observation


@dataclass(frozen=True)
class SequenceBatch:
    """Steps that follow one another in their episode; numpy, batch first, contiguous, the caller's own copy.

    A sequence of ``T`` steps ends early where its episode does, or where its next row is not there: from then
    on ``mask`` is False, the last observation repeats, and action, reward, discount and extras are zero.
    The first step is always real.
    """

    observation: Leaves
    """Observations ``o_t`` to ``o_{t+T}`` by path, ``(B, T + 1, *leaf)``; after an episode's last step the
    true final one."""
    action: NDArray[Any]
    """Actions really applied, ``(B, T, *action)``, environment units."""
    reward: NDArray[np.float32]
    """Reward of each single step, ``(B, T)``."""
    discount: NDArray[np.float32]
    """Weight of the value at the step's next observation, ``(B, T)``: gamma, 0 where the episode terminated.
    An episode that was truncated keeps gamma."""
    mask: NDArray[np.bool_]
    """Which steps are real, ``(B, T)``."""
    first: NDArray[np.bool_]
    """Which sequences begin with the first step of their episode, ``(B,)``: there is no state from before."""
    ended: NDArray[np.bool_]
    """Which sequences reach the last step of their episode, ``(B,)``. One that is shorter and has not ended
    waits for rows that are still to come."""
    rows: NDArray[np.int64]
    """Row number of the observation before each step, ``(B, T)``, the repeated last one's where masked."""
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    """What the actor gave beside the action, by name, ``(B, T, *shape)``."""
    weights: NDArray[np.float32] | None = None
    """Importance weight of each sequence's loss, ``(B,)``, in (0, 1]; None where all were drawn alike."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.rows)

    @property
    def observations(self) -> tuple[Leaves, ...]:
        """Every map of observations in the batch."""
        return (self.observation,)


AnyBatch = TypeVar("AnyBatch", Batch, SequenceBatch)
