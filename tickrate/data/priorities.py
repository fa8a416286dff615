"""Prioritised sampling: rows are drawn in proportion to a power of what the algorithm says they are worth.

Schaul et al. 2016 (arXiv 1511.05952), the proportional variant: row ``i`` with the priority ``p_i`` (usually
the absolute temporal-difference error) is drawn with the probability

    P(i) = (p_i + e)^a / sum over k of (p_k + e)^a,

and its loss is weighted by ``w_i = (N P(i))^-b``, divided by the largest weight of the batch, so that
weights only ever scale updates down. The sum tree holds ``(p + e)^a`` of each row that can be sampled, and 0
for every other, so that a row which is final, overwritten, or waits for its successor is never drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tickrate.data.sum_tree import SumTree
from tickrate.errors import ConfigError

SMALLEST_PRIORITY = 1e-6
"""``e`` of the formula: what is added to each priority, so that no row is lost for good."""
LARGEST_PRIORITY = 1e9
"""What a larger priority counts as: one value gone astray must not outweigh all others for ever."""


@dataclass(frozen=True)
class Proportional:
    """How `Replay` is to sample in proportion to priorities."""

    exponent: float = 0.6
    """Exponent ``a`` of the priorities, in (0, 1]: near 0 all rows are drawn alike. Usual: 0.4 to 0.7."""

    def __post_init__(self) -> None:
        """Refuse what cannot be an exponent."""
        if not 0.0 < self.exponent <= 1.0:
            raise ConfigError(
                f"the exponent of the priorities is {self.exponent}; it must be above 0 and at most 1"
            )


class Priorities:
    """The priorities of the rows in a ring, by slot; the caller holds the lock.

    Args:
        capacity: slots of the ring.
        exponent: the exponent ``a``.
        largest: the largest priority so far.

    Attributes:
        largest: the largest priority so far: what a new row begins with.
    """

    def __init__(self, capacity: int, exponent: float, largest: float = 1.0) -> None:
        if not 1.0 <= largest <= LARGEST_PRIORITY:
            raise ValueError(f"the largest priority is {largest}")
        self.largest = largest
        self._exponent = exponent
        self._tree = SumTree(capacity)

    def admit(self, slots: NDArray[np.int64]) -> None:
        """Give the largest priority so far to rows that can be sampled from now on."""
        self._tree.set(slots, float(self._scaled(self.largest)))

    def withdraw(self, slots: NDArray[np.int64]) -> None:
        """Never draw these rows again."""
        self._tree.set(slots, 0.0)

    def update(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set priorities, ``(n,)`` each; see `Replay.update_priorities`.

        Raises:
            ConfigError: if one is negative.
        """
        if (priorities < 0).any():
            raise ConfigError(f"a priority is {priorities.min()}: give the error's absolute value, 0 or more")
        known = np.isfinite(priorities) & self._sampleable(slots)
        if known.any():
            given = np.minimum(priorities[known], LARGEST_PRIORITY)
            self.largest = max(self.largest, float(given.max()))
            self._tree.set(slots[known], self._scaled(given))

    def draw(
        self, count: int, beta: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw ``count`` slots in proportion to their weights, and say by what to weight their losses.

        The range of the sum is cut into ``count`` equal parts, one slot is drawn from each, and they come in
        random order: the frequencies are those of independent draws, with less scatter.

        Args:
            count: at least 1; some row can be sampled.
            beta: exponent ``b`` of the importance weights, in [0, 1]: 1 corrects the bias in full.
            rng: where chance comes from.

        Returns:
            Slots ``(count,)`` and importance weights ``(count,)``, the largest of them 1.
        """
        parts = rng.permutation(count) + rng.random(count)
        slots = self._tree.find(parts * (self._tree.total / count))
        weights = self._tree.get(slots)
        return slots, ((weights.min() / weights) ** beta).astype(np.float32)

    def weights(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the sum tree holds for these slots: all that has to be saved, beside ``largest``."""
        return self._tree.get(slots)

    def put_back(self, slots: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Put back saved weights of rows that could be sampled then and still can; the others stay.

        Raises:
            ValueError: if they are no weights.
        """
        if not (np.isfinite(weights).all() and (weights >= 0.0).all()):
            raise ValueError("a saved priority is not finite, or negative")
        known = (weights > 0.0) & self._sampleable(slots)
        self._tree.set(slots[known], weights[known])

    def _sampleable(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._tree.get(slots) > 0.0

    def _scaled(self, priorities: ArrayLike) -> NDArray[np.float64]:
        scaled: NDArray[np.float64] = (np.asarray(priorities) + SMALLEST_PRIORITY) ** self._exponent
        return scaled
