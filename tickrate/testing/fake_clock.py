"""A clock that jumps instead of sleeping, so that timing is tested exactly and in no time."""

from __future__ import annotations

import math
from collections.abc import Callable


class FakeClock:
    """A monotonic clock moved only by `sleep_until` and `advance`; a `tickrate.clock.Clock`.

    Times are seconds. Use one per test and give the same one to the environment and to the device.
    It is not locked: use it from one thread at a time.

    Args:
        start: the time at the beginning, in seconds.
        oversleep: how late each sleep wakes, in seconds (a real sleep is late by 10 to 100 us on Linux, by
            up to 16 ms on an old Windows): a number, or a function called once a sleep. Only real sleeps are
            late: a deadline that has passed costs nothing.

    Attributes:
        sleeps: the deadlines that were really slept for, in order, in seconds.
    """

    def __init__(self, start: float = 0.0, *, oversleep: float | Callable[[], float] = 0.0) -> None:
        self._now = float(start)
        self._oversleep = oversleep
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now

    def sleep_until(self, deadline: float) -> float:
        """Jump to ``deadline`` plus the oversleep, unless it has passed; return the time after (s)."""
        if deadline > self._now:
            self.sleeps.append(deadline)
            late = self._oversleep() if callable(self._oversleep) else self._oversleep
            self._now = deadline + late
        return self._now

    def advance(self, seconds: float) -> float:
        """Let ``seconds`` pass, as work or a stall would; return the time after.

        Raises:
            ValueError: if ``seconds`` is negative or not finite: a monotonic clock never goes back.
        """
        if not (seconds >= 0.0 and math.isfinite(seconds)):
            raise ValueError(f"advance({seconds}): a clock moves forward by a finite number of seconds")
        self._now += seconds
        return self._now
