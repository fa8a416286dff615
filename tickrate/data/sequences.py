"""How sequences are read: along an episode from a row on, whatever rows of other streams lie between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.batch import SequenceBatch
from tickrate.data.nstep import NStepIndex
from tickrate.data.schema import Flag, RecordSchema, Rows


def walk(index: NStepIndex, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the slots of ``length`` steps and the observation after them, ``(B, length + 1)``.

    A row without a successor (an episode's final one, the newest of its stream, one before a gap) repeats.

    Args:
        index: the index over the rows.
        starts: slots of the first rows, ``(B,)``.
        length: steps of a sequence, at least 1.
    """
    slots = np.empty((len(starts), length + 1), np.int64)
    slots[:, 0] = starts
    for at in range(length):
        slots[:, at + 1] = index.following(slots[:, at])
    return slots


def assemble_sequences(
    schema: RecordSchema,
    rows: Rows,
    frames: Mapping[str, NDArray[Any]],
    numbers: NDArray[np.int64],
    gamma: float,
    weights: NDArray[np.float32] | None = None,
) -> SequenceBatch:
    """Split gathered rows into a sequence batch's arrays.

    Args:
        schema: what a row holds.
        rows: heads of the rows along each sequence, ``(B, T + 1)``.
        frames: what is stored apart, by name in the row, ``(B, T + 1, ...)``.
        numbers: row numbers, ``(B, T + 1)``; where one repeats, there is no step.
        gamma: discount per step.
        weights: importance weights, ``(B,)``, if first rows are not drawn alike.
    """
    mask = numbers[:, 1:] != numbers[:, :-1]

    def before(name: str) -> NDArray[Any]:
        """Return what stands beside the observation before each step, zero where there is no step."""
        values = frames[name][:, :-1] if name in frames else rows[name][:, :-1]
        real = mask.reshape(*mask.shape, *[1] * (values.ndim - 2))
        return np.where(real, values, np.zeros((), values.dtype))

    goes_on = mask & ((rows["flags"][:, :-1] & Flag.TERMINATED) == 0)
    return SequenceBatch(
        observation={
            field.name: frames[name] if field.apart else np.ascontiguousarray(rows[name])
            for field in schema.observation
            for name in (f"o/{field.name}",)
        },
        action=before("action"),
        reward=before("reward"),
        discount=np.where(goes_on, np.float32(gamma), np.float32(0.0)),
        mask=mask,
        first=rows["step"][:, 0] == 0,
        ended=(rows["flags"][:, -1] & Flag.FINAL) != 0,
        rows=np.ascontiguousarray(numbers[:, :-1]),
        extras={field.name: before(f"x/{field.name}") for field in schema.extras},
        weights=weights,
    )
