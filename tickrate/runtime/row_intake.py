"""How rows get into a run's replay: stored, counted once, their observations and times taken note of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.algorithms.protocol import Algorithm
from tickrate.data.replay import Replay
from tickrate.data.return_scale import ReturnScale
from tickrate.data.schema import Flag
from tickrate.runtime.figures import StepTiming
from tickrate.runtime.limiter import UpdateLimiter
from tickrate.runtime.published import Published
from tickrate.runtime.rounds import Rounds

BLOCK_ROWS = 1024
"""Rows that are read at once where many are gone through."""


class RowIntake:
    """Adds rows to a replay, and tells all that has to know what came.

    Args:
        algorithm: gets the observations of training steps, for its input statistics.
        replay: what keeps the rows.
        limiter: counts the training steps.
        rounds: looks for the row that ends a round. In a synchronous run rows are taken in one by one, so
            that nothing depends on how they came together.
        published: tells how old a policy is, and hears of the versions that act.
        return_scale: gets the rewards of training steps, or None.

    Attributes:
        timing: times of the live steps of this boot.
        lag: of the newest training step's policy: versions it was behind, and its age in seconds.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        replay: Replay,
        limiter: UpdateLimiter,
        rounds: Rounds,
        published: Published,
        return_scale: ReturnScale | None,
    ) -> None:
        self.timing = StepTiming()
        self.lag = (0, 0.0)
        self._algorithm = algorithm
        self._replay = replay
        self._limiter = limiter
        self._rounds = rounds
        self._published = published
        self._return_scale = return_scale
        self._paths = [(field.name, f"o/{field.name}") for field in replay.schema.observation]

    def add(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Add rows to the replay, count the training steps among them, and note their timing.

        Returns:
            Which rows are new, ``(n,)``; the others were there already and are not counted again.
        """
        if self._rounds.synchronous and len(rows) > 1:
            # Sums round by their grouping, and the journal's ring gives up whole commits.
            return np.concatenate([self.add(rows[i : i + 1]) for i in range(len(rows))])
        new = self._replay.add(rows)
        self._count(_those(rows, new))
        return new

    def recount(self, number: int) -> None:
        """Count the rows that the journal got from row ``number`` on, as if they had just come.

        They came after the checkpoint that the run goes on from.
        """
        size = 1 if self._rounds.synchronous else BLOCK_ROWS
        for rows in _stored(self._replay, max(number, self._replay.oldest_row), size):
            self._count(rows)

    def observe_stored(self, replay: Replay) -> None:
        """Count rows that another replay holds into the input statistics, and nowhere else."""
        for rows in _stored(replay, replay.oldest_row, BLOCK_ROWS):
            if len(acted := _acted(rows)):
                self._observe(acted)

    def note_policy(self, row: Any, clock_offset_s: float | None = 0.0) -> tuple[int, float | None]:
        """Note for the metrics which policy chose an action and how old it was then, and return both.

        Args:
            row: the action's row.
            clock_offset_s: this machine's monotonic clock minus the worker's, in seconds; None while unknown.

        Returns:
            The policy's version, and its age in seconds (None if unknown).
        """
        used, start = int(row["policy_version"]), float(row["start"])
        published_at = self._published.published_at(used)
        age = None
        if published_at is not None and start > 0 and clock_offset_s is not None:
            age = start + clock_offset_s - published_at
        if used > 0 and not row["flags"] & Flag.EVALUATION:
            self.lag = (self._published.version - used, age or 0.0)
        return used, age

    def _count(self, rows: NDArray[Any]) -> None:
        """Count rows that are in the replay."""
        acted = _acted(rows)
        training = _those(acted, (acted["flags"] & Flag.EVALUATION) == 0)
        self._limiter.add_steps(len(training))
        if len(acted):
            self._published.seen(int(acted["policy_version"].max()))
        if len(training):
            self._observe(training)
            self.note_policy(training[-1])
        self.timing.add(acted)
        self._rounds.note(rows, self._limiter)

    def _observe(self, rows: NDArray[Any]) -> None:
        self._algorithm.observe({path: rows[column] for path, column in self._paths})
        if self._return_scale is not None:
            self._return_scale.observe(rows)


def _stored(replay: Replay, begin: int, size: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of a replay from number ``begin`` on, ``size`` at a time."""
    for first in range(begin, replay.rows_added, size):
        yield replay.read(np.arange(first, min(first + size, replay.rows_added)))


def _acted(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows that have an action: all but final ones."""
    return _those(rows, (rows["flags"] & Flag.FINAL) == 0)


def _those(rows: NDArray[Any], which: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the chosen rows; all of them are not copied."""
    return rows if which.all() else rows[which]
