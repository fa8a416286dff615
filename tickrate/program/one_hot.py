"""Categories as one-hot columns in numpy, and the refusal of what is none of a leaf's categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import PolicyMismatch
from tickrate.program.compiled import Compiled
from tickrate.program.spec import ReadOneHot


def columns(lowest: Sequence[int], counts: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the part that each column belongs to, and the category it stands for, int64 ``(columns,)``."""
    parts = np.repeat(np.arange(len(counts)), counts)
    categories = np.concatenate([np.arange(low, low + n) for low, n in zip(lowest, counts, strict=True)])
    return parts, categories


def check_categories(op: ReadOneHot, leaf: NDArray[Any]) -> None:
    """Check that a leaf of any number type, ``(batch, *leaf)``, holds its categories and nothing else.

    Raises:
        PolicyMismatch: naming leaf and value.
    """
    values = leaf.reshape(len(leaf), -1).astype(np.float64)
    low = np.array(op.lowest, np.float64)
    high = low + (np.array(op.counts, np.float64) - 1.0)
    good = (values >= low) & (values <= high) & (values == np.floor(values))  # never of NaN
    if not good.all():
        row, part = np.unravel_index(int(good.argmin()), good.shape)
        raise PolicyMismatch(
            f"leaf {op.leaf!r} holds {values[row, part]:.17g} in part {part}: the policy knows the "
            f"categories {low[part]:.0f} to {high[part]:.0f} there"
        )


def read_one_hot(made: Compiled, op: ReadOneHot) -> None:
    """Compare every column's category with its part; a part that is like none of its categories is refused.

    Parts are float64, so that neither a fraction nor NaN becomes a category by rounding.
    """
    shape = made.shapes.leaves[op.leaf]
    part_of_column, category = columns(op.lowest, op.counts)
    parts = np.empty((made.batch, len(op.counts)), np.float64)
    spread, wanted = np.empty((made.batch, len(category)), np.float64), category.astype(np.float64)
    out = made.new(op)
    made.copy_leaf(op.leaf, parts.reshape(made.batch, *shape))

    def step() -> None:
        np.take(parts, part_of_column, axis=1, out=spread, mode="clip")  # the mode that needs no buffer
        np.equal(spread, wanted, out=out)
        if np.count_nonzero(out) != parts.size:
            check_categories(op, parts)

    made.steps.append(step)
