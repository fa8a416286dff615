"""Feeds an algorithm: batches or sequences, of the run alone or with demonstrations, by priority or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat

import numpy as np
from numpy.typing import NDArray

from tickrate.algorithms.protocol import Algorithm, Prioritises, ReadsSequences
from tickrate.data.augment import Mirror
from tickrate.data.batch import AnyBatch
from tickrate.data.mixture import Mixture
from tickrate.data.replay import Replay
from tickrate.data.return_scale import ReturnScale
from tickrate.errors import ConfigError


class Feed:
    """Makes one update after another from a source of batches.

    Args:
        algorithm: what learns.
        source: where batches come from.
        batch_size: transitions (or sequences) a batch.
        mirror: left-right symmetry to augment batches with, or None.
        importance_exponent: exponent of the importance weights at the run's beginning, where the source has
            priorities; it grows in a straight line to 1 at its end.
        return_scale: scales rewards, or None.

    Raises:
        ConfigError: if the source samples by priority and the algorithm gives none, or a batch is too small
            to be mixed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        source: Replay | Mixture,
        batch_size: int,
        mirror: Mirror | None,
        importance_exponent: float,
        return_scale: ReturnScale | None = None,
    ) -> None:
        self._algorithm, self._source = algorithm, source
        self._batch_size, self._mirror = batch_size, mirror
        self._importance_exponent, self._return_scale = importance_exponent, return_scale
        self._length = algorithm.sequence_length if isinstance(algorithm, ReadsSequences) else 0
        self._judge: Prioritises | None = None
        if isinstance(source, Mixture):
            source.demonstrated(batch_size)
        if source.prioritised:
            if not isinstance(algorithm, Prioritises):
                raise ConfigError(
                    f"replay.sampling is 'prioritised', but {type(algorithm).__name__} has no method "
                    "priorities() and gives none: sample uniformly, or choose another algorithm"
                )
            self._judge = algorithm

    def update(self, progress: float) -> Mapping[str, SupportsFloat]:
        """Draw a batch, make one update, and store the priorities that came of it; return the metrics.

        Args:
            progress: how much of the run is over, 0 to 1.
        """
        beta = None
        if self._judge is not None:
            beta = self._importance_exponent + (1.0 - self._importance_exponent) * progress
        if self._length:
            sequences = self._source.sample_sequences(self._batch_size, self._length, beta=beta)
            return self._learn(sequences, sequences.rows[:, 0])
        batch = self._source.sample(self._batch_size, beta=beta)
        return self._learn(batch, batch.rows)

    def _learn(self, batch: AnyBatch, rows: NDArray[np.int64]) -> Mapping[str, SupportsFloat]:
        if self._mirror is not None:
            batch = self._mirror(batch)
        if self._return_scale is not None:
            batch = self._return_scale(batch)
        metrics = self._algorithm.update(batch)
        if self._judge is not None:
            self._source.update_priorities(rows, self._judge.priorities())
        return metrics
