"""Runs the calls into an interface, in the caller's thread or on a persistent one, always with a limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tickrate.clock import Clock, now
from tickrate.errors import InterfaceTimeout
from tickrate.realtime.watchdog import WATCHDOG, CallGuard, overdue

LOGGER = logging.getLogger("tickrate.realtime")


class CallThread:
    """One daemon thread that runs one job at a time and hands back its result or its exception.

    A thread whose job does not end is abandoned: it ends by itself when its call returns, and what the call
    brought is dropped.

    Attributes:
        busy: whether a job was submitted and not yet waited for to its end.
    """

    def __init__(self, name: str = "tickrate-device") -> None:
        # Bare locks, released to signal: unlike a Semaphore they are safe in a signal handler, and cheaper.
        self._start = threading.Lock()
        self._done = threading.Lock()
        self._start.acquire()
        self._done.acquire()
        self._job: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = False
        self.busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> None:
        """Start a job; the one before must have been waited for and taken."""
        self.busy = True
        self._job = job
        self._start.release()

    def wait(self, limit_s: float) -> bool:
        """Wait for the job for at most ``limit_s`` seconds; return whether it has ended."""
        if not self._done.acquire(timeout=max(0.0, limit_s)):
            return False
        self.busy = False
        return True

    def take(self) -> Any:
        """Return the ended job's result, or raise its exception."""
        result, error = self._result, self._error
        self._result = self._error = None
        if error is not None:
            raise error
        return result

    def end(self, limit_s: float = 0.0) -> None:
        """Let the thread end after its job; wait for that for at most ``limit_s`` seconds."""
        self._ended = True
        try:
            self._start.release()
        except RuntimeError:
            pass  # it was told already
        if limit_s > 0:
            self._thread.join(limit_s)

    def _run(self) -> None:
        while True:
            self._start.acquire()
            job, self._job = self._job, None
            if self._ended or job is None:
                return
            try:
                self._result = job()
            except BaseException as error:  # noqa: BLE001 (it is raised again in the caller's thread)
                self._error = error
            del job
            self._done.release()


class Stepper:
    """Calls an interface's methods, each within a limit, and captures on time.

    Args:
        clock: the clock of the environment, for waiting.
        call_mode: "auto" or "thread", see `RealTimeConfig.call_mode`.
        limit_s: limit of a call within a step, in seconds.
        shortest_limit_s: the shortest limit of a call that is usual, in seconds.

    Attributes:
        guard: what the watchdog sees of the running call.
        limit_s: limit of a call within a step, in seconds.
        watched_thread: the thread in which the watchdog can interrupt calls, once there was one; else 0.
        capture_start: when the newest capture on the thread began, in seconds.
        capture_end: when it ended.
        capturing: whether a capture was begun and not finished.
    """

    __slots__ = (
        "_always_thread",
        "_capture_at",
        "_clock",
        "_collected",
        "_owner",
        "_shortest",
        "_thread",
        "capture_end",
        "capture_start",
        "capturing",
        "guard",
        "limit_s",
        "watched_thread",
    )

    def __init__(self, clock: Clock, call_mode: str, limit_s: float, shortest_limit_s: float) -> None:
        self._clock = clock
        self._always_thread = call_mode == "thread"
        self.limit_s = limit_s
        self._shortest = min(limit_s, shortest_limit_s)
        self._thread: CallThread | None = None
        self.guard = CallGuard()
        self.guard.limit_s = limit_s
        self.watched_thread = 0
        self._capture_at = 0.0
        self._owner = 0
        self._collected = False
        self.capturing = False
        self.capture_start = 0.0
        self.capture_end = 0.0

    def inline(self) -> bool:
        """Return whether a call made now would run in the calling thread."""
        if self._always_thread:
            return False
        if self.watched_thread or not WATCHDOG.possible():
            return get_ident() == self.watched_thread
        WATCHDOG.watch(self.guard, self._shortest)
        self.watched_thread = get_ident()
        return True

    def call(self, what: str, limit_s: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return ``function(*args, **kwargs)``, or raise what it raises.

        Raises:
            InterfaceTimeout: if it does not return within ``limit_s`` seconds.
        """
        if not self.inline():
            return self._call_on_thread(what, limit_s, lambda: function(*args, **kwargs))
        guard = self.guard
        before = (guard.deadline, guard.what, guard.limit_s)
        guard.what, guard.limit_s = what, limit_s
        guard.deadline = now() + limit_s
        if limit_s < self._shortest:
            WATCHDOG.hurry()
        try:
            return function(*args, **kwargs)
        finally:
            guard.deadline, guard.what, guard.limit_s = before

    def step_call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """Do what `call` does, with the limit of a step's calls."""
        return self.call(what, self.limit_s, function, *args)

    def arm(self, what: str, sleep_s: float) -> bool:
        """Prepare for calls in this thread after a sleep; return whether they may run here.

        If so, call the interface directly, say in ``guard.what`` which method comes next, and set
        ``guard.deadline`` to infinity at the end: between the end of a sleep and a command every microsecond
        counts, and now there is time. If not, use `step_call`.

        Args:
            what: the first call.
            sleep_s: length of the sleep before it, in seconds.
        """
        if get_ident() != self.watched_thread and not self.inline():
            return False
        guard = self.guard
        guard.what = what
        guard.deadline = now() + self.limit_s + (sleep_s if sleep_s > 0.0 else 0.0)
        return True

    def begin_capture(self, at: float, capture: Callable[[], Any]) -> None:
        """Let the persistent thread wait until ``at`` and capture, while the caller does other things."""

        def job() -> Any:
            self.capture_start = self._clock.sleep_until(at)
            try:
                return capture()
            finally:
                self.capture_end = self._clock.now()

        self._capture_at = at
        self._owner = get_ident()
        self.capturing = True
        self._collected = False
        self._the_thread().submit(job)

    def finish_capture(self, what: str) -> Any:
        """Return the result of the capture that was begun, or raise its exception.

        Raises:
            InterfaceTimeout: if it does not end within the limit, from the moment at which it was to begin.
        """
        self._collect_capture(what)
        self.capturing = False
        return self._the_thread().take()

    def settle_capture(self, limit_s: float) -> None:
        """Give a capture that was begun ``limit_s`` seconds to end, and keep what it brings."""
        if not self.capturing or self._collected or get_ident() != self._owner:
            return
        self._collected = self._the_thread().wait(max(0.0, self._capture_at - self._clock.now()) + limit_s)

    def drop_capture(self) -> None:
        """Wait for a capture that was begun and drop what it brings; its episode is over.

        Raises:
            InterfaceTimeout: if it does not end.
        """
        if not self.capturing:
            return
        try:
            self.finish_capture("get_obs_rew_terminated_info()")
        except InterfaceTimeout:
            raise
        except Exception as error:  # noqa: BLE001 (its episode is over)
            LOGGER.debug("an observation nobody waited for failed: %r", error)

    def close(self, limit_s: float = 1.0) -> None:
        """End the thread (waiting ``limit_s`` seconds for it) and the watch over this environment."""
        WATCHDOG.forget(self.guard)
        self.watched_thread = 0
        self.capturing = False
        if self._thread is not None:
            self._thread.end(limit_s)
            self._thread = None

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.end()

    def _the_thread(self) -> CallThread:
        if self._thread is None:
            self._thread = CallThread()
        return self._thread

    def _collect_capture(self, what: str) -> None:
        if not self._collected:
            left = max(0.0, self._capture_at - self._clock.now())
            self._wait(what, left + self.limit_s)
            self._collected = True

    def _call_on_thread(self, what: str, limit_s: float, job: Callable[[], Any]) -> Any:
        if not (self.capturing or self._the_thread().busy):
            self._the_thread().submit(job)
            self._wait(what, limit_s)
            return self._the_thread().take()
        # The thread is taken: by a capture, which is left to end, its result kept; or by anything, when a
        # signal handler or another thread of the program calls. This call goes to a thread of its own.
        if self.capturing and get_ident() == self._owner:
            self._collect_capture("get_obs_rew_terminated_info()")
        other = CallThread()
        try:
            other.submit(job)
            if not other.wait(limit_s):
                raise overdue(what, limit_s)
            return other.take()
        finally:
            other.end()

    def _wait(self, what: str, limit_s: float) -> None:
        """Wait for the thread's job; abandon the thread when that fails in any way."""
        thread = self._the_thread()
        ended = False
        try:
            ended = thread.wait(limit_s)
        finally:
            if not ended:
                thread.end()
                self._thread = None
                self.capturing = False
        if not ended:
            raise overdue(what, limit_s)
