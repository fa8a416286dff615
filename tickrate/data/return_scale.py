"""Scales rewards so that returns fit into a fixed range, by statistics of all that came, each row once."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tickrate.data.batch import AnyBatch
from tickrate.data.schema import Flag, Rows
from tickrate.errors import ConfigError


class ReturnScale:
    """Divides rewards by a number that grows with the returns seen (FlashSAC, arXiv 2604.04539).

    Of each stream the discounted sum of the rewards so far in the episode is followed,
    ``g = gamma * g + r``; rewards are divided by the larger of the sums' standard deviation and their largest
    size over ``limit``. So returns have about unit spread, and none lies beyond the limit.

    Args:
        gamma: discount per step.
        limit: largest size of a scaled return.
    """

    def __init__(self, gamma: float, limit: float) -> None:
        self._gamma, self._limit = gamma, limit
        self._sums: dict[int, float] = {}
        self._count, self._mean, self._squares, self._largest = 0, 0.0, 0.0, 0.0

    def observe(self, rows: Rows) -> None:
        """Count the rewards of new training rows, each stream's in order, FINAL rows left out."""
        ends = (rows["flags"] & (Flag.TERMINATED | Flag.TRUNCATED)) != 0
        for stream, reward, step, end in zip(
            rows["stream"].tolist(),
            rows["reward"].tolist(),
            rows["step"].tolist(),
            ends.tolist(),
            strict=True,
        ):
            before = 0.0 if step == 0 else self._sums.get(stream, 0.0)
            total = self._gamma * before + reward
            self._sums[stream] = 0.0 if end else total
            self._count += 1
            delta = total - self._mean
            self._mean += delta / self._count
            self._squares += delta * (total - self._mean)
            self._largest = max(self._largest, abs(total))

    @property
    def divisor(self) -> float:
        """What rewards are divided by; 1 before anything was seen."""
        if self._count == 0:
            return 1.0
        spread = math.sqrt(self._squares / self._count + 1e-8)
        return max(spread, self._largest / self._limit)

    def __call__(self, batch: AnyBatch) -> AnyBatch:
        """Return the batch with its returns divided."""
        return dataclasses.replace(batch, reward=batch.reward * np.float32(1.0 / self.divisor))

    def state(self) -> dict[str, Any]:
        """Return everything that the next call depends on (JSON)."""
        return {
            "sums": [[stream, total] for stream, total in self._sums.items()],
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
            "largest": self._largest,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned.

        Raises:
            ConfigError: if it is not that.
        """
        try:
            sums = {int(stream): float(total) for stream, total in state["sums"]}
            count = int(state["count"])
            mean, squares, largest = (float(state[name]) for name in ("mean", "squares", "largest"))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the state of the return scale cannot be read: {error!r}") from error
        self._sums, self._count = sums, count
        self._mean, self._squares, self._largest = mean, squares, largest
