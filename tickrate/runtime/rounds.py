"""Rounds of a synchronous run: when one is complete, and which updates belong to it.

A synchronous worker marks the row after which it waits (`Flag.ROUND_END`). The trainer makes no update before
that row is there, then the updates that are due by it, saves, and only then hands the new weights out. So
which rows an update can draw never depends on timing, and whatever a worker acts with can be restored: a
trainer that was killed at any point makes the same updates again.

With several synchronous workers the first mark completes the round: the weights release every worker that
waits. Nobody waits for ever, but how the workers' rows interleave is chance, and such a run does not repeat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.schema import Flag
from tickrate.runtime.limiter import UpdateLimiter

NO_BACKLOG = 1 << 60
"""Steps of updates that a synchronous run may owe: the worker waits for all of them, none is forgiven."""
LOST_END_S = 10.0
"""Once rows were lost, a round that gets no more rows for so long, in seconds, is taken for complete."""


class Rounds:
    """Where the present round stands.

    Args:
        steps: ``worker.synchronous_steps``; 0: updates are made as rows come, marks only tell who waits.

    Attributes:
        target: updates made since the start of the run at which the round is over; None while the row that
            completes it has not come.
        began_at_step: training steps at the end of the round before, as far as this process knows.
    """

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.target: int | None = None
        self.began_at_step = 0
        self._lost_before = 0

    @property
    def synchronous(self) -> bool:
        """Whether updates wait for a round to be complete."""
        return self.steps > 0

    def note(self, rows: NDArray[Any], limiter: UpdateLimiter) -> None:
        """Look through counted rows for the one that completes the round."""
        if self.target is None and np.any(rows["flags"] & Flag.ROUND_END):
            self.complete(limiter)

    def complete(self, limiter: UpdateLimiter) -> None:
        """Take the round for complete: what is due now is what it owes."""
        self.target = limiter.updates + max(0, int(limiter.debt))

    def finish(self, limiter: UpdateLimiter) -> None:
        """Begin the next round: new weights are about to go out."""
        self.target, self.began_at_step = None, limiter.steps

    def end_lost(self, lost: int, quiet_s: float) -> bool:
        """Tell whether the row that completes the round is probably among those that were lost.

        Args:
            lost: rows that were lost before they could be stored, by any worker, so far.
            quiet_s: seconds since the last row was stored.
        """
        if self.target is not None or lost == self._lost_before or quiet_s < LOST_END_S:
            return False
        self._lost_before = lost
        return True

    def words(self, limiter: UpdateLimiter) -> str:
        """Return how the round stands, in words; empty in a run without rounds."""
        if not self.synchronous:
            return ""
        if self.target is not None:
            return f"; {max(0, self.target - limiter.updates)} updates left of the round"
        came = limiter.steps - self.began_at_step
        if came <= limiter.start_steps + 10 * self.steps:
            return f"; {came} steps of the round"
        return (
            f"; {came} steps and no end of the round: is worker.synchronous_steps set where the workers run?"
        )
