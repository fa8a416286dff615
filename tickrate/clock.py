"""Clocks: the only file that calls ``time``. Monotonic now, absolute sleep, wall time for logs.

``perf_counter`` is one clock for all processes of a machine (CLOCK_MONOTONIC on Linux, QPC on Windows,
mach_absolute_time on macOS), so times taken in the worker, the game and the trainer can be compared.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Protocol

_PR_SET_TIMERSLACK = 29
_MCL_CURRENT_AND_FUTURE = 3

now: Callable[[], float] = time.perf_counter
"""The machine's monotonic time in seconds, the same clock in every process."""


class Clock(Protocol):
    """What the real-time parts ask of a clock; `tickrate.testing.FakeClock` is another implementation."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        ...

    def sleep_until(self, deadline: float) -> float:
        """Sleep until ``deadline`` (s on this clock), not at all if it has passed; return the time after."""
        ...


def wall_time() -> float:
    """Return seconds since the epoch, for log lines and file names only; it may jump."""
    return time.time()


def cpu_time() -> float:
    """Return the CPU seconds (user and system) that this process has used."""
    return time.process_time()


def sleep(seconds: float) -> None:
    """Sleep for a while, for loops off the control path."""
    time.sleep(max(0.0, seconds))


class CheapClock:
    """Sleeps with the operating system's timer, at almost no CPU cost.

    On Linux each thread that sleeps through it first lowers its timer slack from 50 us to 1 ns, which alone
    takes about 50 us off the lateness of every wake. Where the system's timer is coarse, a single sleep may
    end late by its granularity; the deadline is absolute, so that never adds up.
    """

    def __init__(self) -> None:
        self._lowered: set[int] = set()

    now = staticmethod(time.perf_counter)

    def sleep_until(self, deadline: float) -> float:
        """Sleep until ``deadline``, not at all if it has passed; return the time after."""
        if get_ident() not in self._lowered:
            _lower_once(self._lowered)
        time_now = now()
        while time_now < deadline:
            time.sleep(deadline - time_now)
            time_now = now()
        return time_now


class PreciseClock:
    """Sleeps until shortly before the deadline and spins the rest, for a bounded share of a core.

    The margin follows the wake lateness of this machine: it grows by one step for a wake later than the
    margin and shrinks by a small part of a step for any other, which settles at the quantile
    ``1 / (1 + SHRINK)`` of the lateness, and it stays between `MARGIN_MIN` and `MARGIN_MAX`, which bounds the
    CPU time of a tick.

    Attributes:
        margin: how long before the deadline the sleep ends, in seconds.
    """

    MARGIN_MIN = 30e-6
    MARGIN_MAX = 200e-6
    GROW = 4e-6
    SHRINK = 0.3

    def __init__(self) -> None:
        self.margin = 80e-6
        self._lowered: set[int] = set()

    now = staticmethod(time.perf_counter)

    def sleep_until(self, deadline: float) -> float:
        """Sleep, then spin, until ``deadline``; return the time after."""
        if get_ident() not in self._lowered:
            _lower_once(self._lowered)
        time_now = now()
        margin = self.margin
        target = deadline - margin
        if time_now < target:
            time.sleep(target - time_now)
            time_now = now()
            if time_now - target > margin:
                self.margin = min(margin + self.GROW, self.MARGIN_MAX)
            else:
                self.margin = max(margin - self.GROW * self.SHRINK, self.MARGIN_MIN)
        while time_now < deadline:
            time_now = now()
        return time_now


def _lower_once(lowered: set[int]) -> None:
    """Lower the calling thread's slack and remember that.

    A thread may get the number of one that has ended; as a new thread takes over the slack of the one that
    starts it, which usually sleeps through the clock as well, that is hardly ever a loss.
    """
    lower_timer_slack()
    lowered.add(get_ident())


def make_clock(mode: str) -> CheapClock | PreciseClock:
    """Return a clock for a waiting mode: ``cheap`` only sleeps, ``precise`` spins the last part.

    Raises:
        ValueError: for any other mode.
    """
    if mode == "cheap":
        return CheapClock()
    if mode == "precise":
        return PreciseClock()
    raise ValueError(f"clock mode {mode!r} is unknown: choose 'cheap' or 'precise'")


@dataclass(frozen=True)
class Grant:
    """The operating system's answer to a wish."""

    granted: bool
    """Whether the wish was fulfilled."""
    reason: str
    """What was done, or why it was refused and what would allow it."""


def lower_timer_slack() -> Grant:
    """Lower the calling thread's timer slack to 1 ns, where the system has such a thing (Linux)."""
    if not sys.platform.startswith("linux"):
        return Grant(False, f"timer slack is a Linux setting, this is {sys.platform}")
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError) as error:
        return Grant(False, f"prctl is not available: {error}")
    if prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0) != 0:
        return Grant(False, f"prctl(PR_SET_TIMERSLACK) was refused: {os.strerror(ctypes.get_errno())}")
    return Grant(True, "timer slack of this thread is 1 ns")


def request_realtime_scheduling(priority: int) -> Grant:
    """Put the calling thread under SCHED_FIFO with ``priority`` (1 to 99), where that is allowed."""
    if sys.platform == "win32" or not hasattr(os, "sched_setscheduler"):
        return Grant(False, f"SCHED_FIFO does not exist on {sys.platform}")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        return Grant(
            False,
            f"SCHED_FIFO {priority} was refused ({error.strerror}): run as root, give CAP_SYS_NICE, "
            "or raise 'rtprio' for this user in /etc/security/limits.conf",
        )
    return Grant(True, f"SCHED_FIFO with priority {priority}")


def request_locked_memory() -> Grant:
    """Keep all memory of this process in RAM (mlockall), where that is allowed."""
    if sys.platform == "win32":
        return Grant(False, "mlockall does not exist on win32")
    try:
        mlockall = ctypes.CDLL(None, use_errno=True).mlockall
    except (OSError, AttributeError) as error:
        return Grant(False, f"mlockall is not available: {error}")
    if mlockall(_MCL_CURRENT_AND_FUTURE) != 0:
        return Grant(
            False,
            f"mlockall was refused ({os.strerror(ctypes.get_errno())}): raise 'memlock' for this user in "
            "/etc/security/limits.conf",
        )
    return Grant(True, "all memory of this process is locked")
