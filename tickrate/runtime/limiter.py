"""How many updates the learner may make for the data it has: the update-to-data ratio, kept exactly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UpdateLimiter:
    """Allows ``updates_per_step`` updates for each training step after the first ``start_steps``.

    Updates that were not made in time are made up for later, at most ``backlog_steps`` steps' worth, so that
    a learner that was stopped for a while does not run hot on old data for minutes.

    Attributes:
        updates_per_step: wanted ratio of updates to environment steps (the UTD ratio), > 0.
        start_steps: training steps to wait for before the first update.
        backlog_steps: the largest debt, in environment steps, that is kept.
        steps: training steps seen so far.
        updates: updates made so far.
        forgiven: updates that the backlog limit has cancelled.
    """

    updates_per_step: float
    start_steps: int
    backlog_steps: int = 2000
    steps: int = 0
    updates: int = 0
    forgiven: float = 0.0

    def add_steps(self, count: int) -> None:
        """Count ``count`` new training steps and forget debt beyond the backlog."""
        self.steps += count
        excess = self.debt - self.backlog_steps * self.updates_per_step
        if excess > 0:
            self.forgiven += excess

    @property
    def debt(self) -> float:
        """Updates that are due now (may be a fraction, or negative)."""
        due = max(0, self.steps - self.start_steps) * self.updates_per_step
        return due - self.updates - self.forgiven

    def owes(self, steps: int) -> bool:
        """Tell whether an update is due for the first ``steps`` steps: rows may outrun the updates."""
        due = max(0, min(steps, self.steps) - self.start_steps) * self.updates_per_step
        return due - self.updates - self.forgiven >= 1.0

    def may_update(self) -> bool:
        """Tell whether one whole update is due."""
        return self.debt >= 1.0

    def count_update(self) -> None:
        """Count one update that was made."""
        self.updates += 1

    @property
    def ratio(self) -> float:
        """Updates made per training step since the start, the effective UTD ratio; 0 before it."""
        used = self.steps - self.start_steps
        return self.updates / used if used > 0 else 0.0
