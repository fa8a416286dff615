"""Clocks: the only file that calls ``time``. Monotonic now, absolute sleep, wall time for logs.

``perf_counter`` is one clock for all processes of a machine (CLOCK_MONOTONIC on Linux, QPC on Windows,
mach_absolute_time on macOS), so times taken in the worker, the game and the trainer can be compared.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the real-time parts ask of a clock; `tickrate.testing.FakeClock` is another implementation."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        ...

    def sleep_until(self, deadline: float) -> float:
        """Sleep until ``deadline`` (seconds on this clock), not at all if it has passed; return the time after."""
        ...


def now() -> float:
    """Return the machine's monotonic time in seconds, the same clock in every process."""
    return time.perf_counter()


def wall_time() -> float:
    """Return seconds since the epoch, for log lines and file names only; it may jump."""
    return time.time()


def cpu_time() -> float:
    """Return the CPU seconds (user and system) that this process has used."""
    return time.process_time()


def sleep(seconds: float) -> None:
    """Sleep for a while, for loops off the control path."""
    time.sleep(max(0.0, seconds))
