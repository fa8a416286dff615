"""Ends calls into an interface that hang: one sleeping thread a process interrupts the main thread.

The main thread writes the deadline of its running call into a `CallGuard` (one attribute, no system call).
The watchdog sleeps until the earliest moment at which a call can be overdue; for one that is, it sends SIGURG
to the main thread. That interrupts a blocking system call, and the handler raises `InterfaceTimeout` there if
the call is still running. SIGURG is ignored by default; a handler installed before is called as well. Where
this cannot work (other threads, Windows) `possible` says no, and calls run on a thread that can be abandoned.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import Any

from tickrate.clock import now
from tickrate.errors import InterfaceTimeout

AGAIN_S = 0.5
"""A call that survives its interruption (it caught the exception) is interrupted again after this time."""


class CallGuard:
    """The running call of one environment, as the watchdog sees it.

    Attributes:
        deadline: when the running call is overdue (s, `tickrate.clock.now`); infinity outside of a call.
        what: name of the running call, for the message.
        limit_s: its limit, for the message.
    """

    __slots__ = ("__weakref__", "deadline", "limit_s", "what")

    def __init__(self) -> None:
        self.deadline = math.inf
        self.what = ""
        self.limit_s = 0.0


class Watchdog:
    """The process's watchdog; use the module's `WATCHDOG`."""

    def __init__(self) -> None:
        # A signal handler may enter any method below in the middle of another: the lock is reentrant, and the
        # wake-up is a bare lock (released to wake), because an Event is not safe to enter twice.
        self._lock = threading.RLock()
        self._guards: weakref.WeakKeyDictionary[CallGuard, float] = weakref.WeakKeyDictionary()
        self._wake = threading.Lock()
        self._thread: threading.Thread | None = None
        self._previous: Any = None
        self._installed = False

    @staticmethod
    def possible() -> bool:
        """Return whether a hanging call of the calling thread could be interrupted."""
        return (
            sys.platform != "win32"
            and hasattr(signal, "SIGURG")
            and threading.get_ident() == threading.main_thread().ident
        )

    def watch(self, guard: CallGuard, limit_s: float) -> None:
        """Watch ``guard``, whose calls usually have ``limit_s`` or more; call it from the main thread."""
        if not self._installed:
            self._previous = signal.signal(signal.SIGURG, self._interrupted)
            self._installed = True
        with self._lock:
            self._guards[guard] = min(limit_s, self._guards.get(guard, math.inf))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tickrate-watchdog", daemon=True)
                self._thread.start()
        self.hurry()

    def forget(self, guard: CallGuard) -> None:
        """Stop watching ``guard``; the thread ends when nothing is left to watch."""
        guard.deadline = math.inf
        with self._lock:
            self._guards.pop(guard, None)
        self.hurry()

    def hurry(self) -> None:
        """Tell the watchdog that a call with a limit shorter than the usual ones has begun."""
        try:
            self._wake.release()
        except RuntimeError:
            pass  # it is awake already

    def _run(self) -> None:
        while True:
            time_now = now()
            with self._lock:
                guards = list(self._guards.items())
                if not guards:
                    self._thread = None
                    return
            next_look = min(limit for _, limit in guards)
            for guard, _ in guards:
                left = guard.deadline - time_now
                if left <= 0.0:
                    _interrupt_main()
                    left = AGAIN_S
                next_look = min(next_look, left)
            del guards
            self._wake.acquire(timeout=next_look + 1e-3)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if callable(self._previous):
            self._previous(number, frame)
        time_now = now()
        for guard in list(self._guards):
            if guard.deadline < time_now:
                guard.deadline = time_now + AGAIN_S
                raise overdue(guard.what, guard.limit_s)


def overdue(what: str, limit_s: float) -> InterfaceTimeout:
    """Return the exception for a call that did not return in time."""
    return InterfaceTimeout(
        f"{what} did not return within {limit_s:g} s: the device or the game hangs, or the limit "
        "(interface_timeout_s, reset_timeout_s) is too short for it"
    )


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    if sys.platform != "win32" and main is not None:
        signal.pthread_kill(main, signal.SIGURG)


WATCHDOG = Watchdog()
