"""Where time-steps start, and when in them to look: the elastic grid, as pure arithmetic on given numbers.

The planned start of a step is ``origin + index * period`` with an integer index, so the errors of
sleeping never add up. What happens after a step that ends late by L periods, with time-out factor T:

=====  ====  =======================================================  ==============================
T      L     ``skip``                                                 ``catch_up``
=====  ====  =======================================================  ==============================
1      0.3   next start as planned, 0.7 left                          the same
1      1.2   time-out: the grid restarts now                          the same
10     1.2   one period dropped, phase kept, 0.8 left                 planned starts, steps of about
                                                                      0 until caught up
10     3.7   three dropped; 0.3 left is under half a period, so wait  the same burst
             for the next point
=====  ====  =======================================================  ==============================
"""

from __future__ import annotations

import math

LATE_POLICIES = ("skip", "catch_up")

MINIMUM_LEFT = 0.5
"""A shortened step keeps at least this share of a period; with less left, the next grid point is awaited."""


class TimeGrid:
    """The grid of one environment: the running step and where the next one is planned.

    All times are seconds on the caller's clock. Use: `restart` once; then for each step `settle` (as often as
    there is news about lateness) and `advance` when the next step really begins.

    Attributes:
        period: length of a step, in seconds.
        timeout: lateness from which the grid is given up, in seconds.
        start: planned start of the running step.
        end: planned end of the running step.
        due: planned start of the next step; `end` unless periods were dropped.
        skipped: periods dropped whole since the running step began.
        timed_out: whether the grid will restart when the next step begins.
        capture_offset: when observations are captured, in seconds after the start of their step.
        early: whether that is before the end of the step.
    """

    __slots__ = (
        "_catch_up",
        "_index",
        "_origin",
        "_timeout_factor",
        "capture_offset",
        "due",
        "early",
        "end",
        "period",
        "skipped",
        "start",
        "timed_out",
        "timeout",
    )

    def __init__(
        self,
        period: float,
        timeout_factor: float = 1.0,
        late_policy: str = "skip",
        capture_offset: float | None = None,
    ) -> None:
        if not (period > 0 and math.isfinite(period)):
            raise ValueError(f"period is {period}: it must be a positive number of seconds")
        if not timeout_factor > 0:
            raise ValueError(f"timeout_factor is {timeout_factor}: it must be positive (in periods)")
        if late_policy not in LATE_POLICIES:
            raise ValueError(f"late_policy is {late_policy!r}: choose one of {LATE_POLICIES}")
        self._catch_up = late_policy == "catch_up"
        self._timeout_factor = timeout_factor
        self.period = period
        self.timeout = period * timeout_factor
        self.capture_at(period if capture_offset is None else capture_offset)
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Begin a step at ``now`` and put the grid's origin there."""
        self._origin = now
        self._index = 1
        self.start = now
        self.end = self.due = now + self.period
        self.skipped = 0
        self.timed_out = False

    def settle(self, now: float) -> bool:
        """Take note that it is ``now`` and the next step has not begun; say whether to wait until `due`.

        Drops missed periods by moving `due`, or notes a time-out. Nothing is dropped for less than a period.
        """
        late = now - self.due
        if late < 0.0:
            return False
        if late >= self.timeout:
            self.timed_out = True
            return False
        if self._catch_up or late < self.period:
            return False
        missed = int(late / self.period)
        left = missed + 1 - late / self.period
        wait = left < MINIMUM_LEFT
        self.skipped += missed
        self._index += missed + (1 if wait else 0)
        self.due = self._origin + self._index * self.period
        return wait

    def advance(self, now: float) -> None:
        """Begin the next step: at `due`, or at ``now`` with a new origin after a time-out."""
        if self.timed_out:
            self.restart(now)
            return
        self._index += 1
        self.start = self.due
        self.end = self.due = self._origin + self._index * self.period
        self.skipped = 0

    def change(self, period: float, timeout_factor: float | None = None) -> None:
        """Use another period from the next step on; the running step keeps its planned end.

        A capture at the end of the step stays there; an earlier one moves only if the step becomes too short.
        """
        factor = self._timeout_factor if timeout_factor is None else timeout_factor
        if not (period > 0 and math.isfinite(period)):
            raise ValueError(f"period is {period}: it must be a positive number of seconds")
        if not factor > 0:
            raise ValueError(f"timeout_factor is {factor}: it must be positive (in periods)")
        self._timeout_factor = factor
        offset = min(self.capture_offset, period) if self.early else period
        self.period = period
        self.capture_at(offset)
        self.timeout = period * factor
        self._origin = self.due
        self._index = 0

    def capture_at(self, offset: float) -> None:
        """Capture observations ``offset`` seconds after the start of their step, from the next step on."""
        self.capture_offset = offset
        self.early = offset < self.period
