"""How a batch is drawn: which slots, which earlier frames, and how gathered rows become a batch's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.batch import Batch
from tickrate.data.nstep import NStepIndex
from tickrate.data.schema import RecordSchema, Rows
from tickrate.errors import ConfigError


def check_count(index: NStepIndex, count: int) -> None:
    """Refuse to draw nothing, or from nothing.

    Raises:
        ConfigError: if ``count`` is below 1 or there is nothing to sample yet.
    """
    if count < 1 or not index.count:
        raise ConfigError(
            f"cannot sample {count} of {index.count} transitions: ask for at least 1, "
            "once a step has been stored"
        )


def draw(index: NStepIndex, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw ``count`` slots, with replacement, each sampleable one with the same probability.

    Slots are drawn among all that are filled, and what cannot be sampled is drawn again. There must be one
    that can: see `check_count`.
    """
    filled = min(index.head, index.capacity)
    if index.count * 4 < filled:
        # Too many refusals: choose from a list, which costs a pass over the ring.
        choices = np.flatnonzero(index.sampleable[:filled])
        return choices[rng.integers(len(choices), size=count)]
    found: list[NDArray[np.int64]] = []
    missing = count
    while missing > 0:
        slots = rng.integers(filled, size=int(missing * 1.1 * filled / index.count) + 8)
        slots = slots[index.sampleable.take(slots)][:missing]
        found.append(slots)
        missing -= len(slots)
    return found[0] if len(found) == 1 else np.concatenate(found)


def earlier(index: NStepIndex, slots: NDArray[np.int64], stack: int) -> NDArray[np.int64]:
    """Return the slots of the last ``stack`` frames up to each slot, oldest first, ``(n, stack)``.

    Follows the episode backwards; at its first row (which is its own predecessor) that row repeats. With a
    stack of 1, the slots as they are, ``(n,)``.
    """
    if stack == 1:
        return slots
    history = np.empty((len(slots), stack), np.int64)
    history[:, -1] = slots
    for at in range(stack - 2, -1, -1):
        history[:, at] = index.previous.take(history[:, at + 1])
    return history


def assemble(
    schema: RecordSchema,
    rows: Rows,
    frames: Mapping[str, NDArray[Any]],
    entries: NDArray[np.void],
    numbers: NDArray[np.int64],
    weights: NDArray[np.float32] | None = None,
) -> Batch:
    """Split gathered rows, first the ``o_t``, then as many bootstrap rows, into a batch's arrays.

    Args:
        schema: what a row holds.
        rows: heads of the rows, ``(2 n,)``.
        frames: what is stored apart, by name in the row, ``(2 n, ...)``.
        entries: the index's entries of the ``o_t``, ``(n,)``.
        numbers: row numbers of the ``o_t``, ``(n,)``.
        weights: importance weights, ``(n,)``, if rows are not drawn alike.
    """
    count = len(numbers)
    observation, following, extras = {}, {}, {}
    for field in schema.observation:
        name = f"o/{field.name}"
        values = frames[name] if field.apart else np.ascontiguousarray(rows[name])
        observation[field.name], following[field.name] = values[:count], values[count:]

    def current(name: str) -> NDArray[Any]:
        return frames[name][:count] if name in frames else np.ascontiguousarray(rows[name][:count])

    for field in schema.extras:
        extras[field.name] = current(f"x/{field.name}")
    return Batch(
        observation=observation,
        action=current("action"),
        reward=entries["ret"].astype(np.float32),
        discount=np.ascontiguousarray(entries["discount"]),
        next_observation=following,
        rows=numbers,
        extras=extras,
        weights=weights,
    )
