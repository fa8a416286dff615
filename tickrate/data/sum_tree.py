"""A sum tree in numpy arrays: many weights changed, or many drawn in proportion to them, in O(log n).

Each node has `CHILDREN` children rather than two: a level costs a handful of numpy calls whatever it holds,
so few wide levels are faster than many narrow ones, and the inner nodes take a fifteenth of the leaves'
memory. A node is always summed afresh from its children and never corrected by differences: no rounding
errors pile up, and equal leaves make an equal tree whatever was done before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHILDREN = 16
"""Children of a node."""


class SumTree:
    """Non-negative weights by index, and their sums.

    Args:
        size: number of weights; all begin as 0.
    """

    def __init__(self, size: int) -> None:
        self._levels = [np.zeros((nodes, CHILDREN)) for nodes in _nodes(size)]

    @staticmethod
    def bytes_needed(size: int) -> int:
        """Return the memory that a tree of ``size`` weights takes."""
        return 8 * CHILDREN * sum(_nodes(size))

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._levels[-1].sum())

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights at ``indices``."""
        return self._levels[0].reshape(-1).take(indices)

    def set(self, indices: NDArray[np.int64], weights: NDArray[np.float64] | float) -> None:
        """Set weights, finite and not negative; of an index given more than once the last one counts."""
        if not len(indices):
            return
        self._levels[0].reshape(-1)[indices] = weights
        nodes = np.unique(indices // CHILDREN)
        for below, above in zip(self._levels[:-1], self._levels[1:], strict=True):
            above.reshape(-1)[nodes] = below.take(nodes, axis=0).sum(axis=1)
            nodes = nodes // CHILDREN
            nodes = nodes[np.append(True, nodes[1:] != nodes[:-1])]  # they are sorted

    def find(self, points: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the index in whose share of ``[0, total)`` each point lies, the weights side by side.

        An index of weight 0 is never found, whatever the rounding, as long as some weight is above 0.
        """
        rest = points
        nodes = np.zeros(len(points), np.int64)
        each = np.arange(len(points))
        for level in reversed(self._levels):
            ends = level.take(nodes, axis=0).cumsum(axis=1)
            # A node's sum and the running sum of its children may differ in the last bit.
            rest = np.minimum(rest, np.nextafter(ends[:, -1], 0.0))
            child = (ends <= rest[:, None]).sum(axis=1)
            rest = rest - np.where(child > 0, ends[each, child - 1], 0.0)
            nodes = nodes * CHILDREN + child
        return nodes


def _nodes(size: int) -> list[int]:
    """Return the nodes of each level, those above the leaves first, the root last."""
    counts = [-(-size // CHILDREN)]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] // CHILDREN))
    return counts
