"""The only way to the device: sends commands within a limit, and the safe action on every way out."""

from __future__ import annotations

import copy
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from tickrate.errors import ActionError, DeviceLost
from tickrate.realtime.stepper import Stepper

LOGGER = logging.getLogger("tickrate.realtime")

SAFE_LIMIT_S = 1.0
"""Limit for sending the safe action: on a way out nobody waits longer."""

_LIVE: weakref.WeakSet[Commander] = weakref.WeakSet()


class Commander:
    """Sends commands to one interface and remembers whether the device has to be made safe.

    Args:
        interface: the interface whose ``send_control`` is called.
        stepper: runs the calls.
        safe: the safe action, as the interface takes it before ``prepro``.
        safe_on: the ways out on which it is sent.
        prepro: applied to every action on its way, or None.
        limit_s: limit of one ordinary call, in seconds.

    Attributes:
        armed: whether the device was commanded since it was last made safe.
    """

    __slots__ = (
        "__weakref__",
        "_interface",
        "_limit_s",
        "_safe",
        "_safe_on",
        "_stepper",
        "armed",
        "prepro",
    )

    def __init__(
        self,
        interface: Any,
        stepper: Stepper,
        safe: Any,
        safe_on: tuple[str, ...],
        prepro: Callable[[Any], Any] | None,
        limit_s: float,
    ) -> None:
        self._interface = interface
        self._stepper = stepper
        self._safe = safe
        self._safe_on = frozenset(safe_on)
        self.prepro = prepro
        self._limit_s = limit_s
        self.armed = False
        _LIVE.add(self)

    def prepare(self, action: Any) -> Any:
        """Return what ``send_control`` is to be given for a checked action.

        Raises:
            ActionError: if ``act_prepro_func`` makes it non-finite.
        """
        if self.prepro is None:
            return action
        out = self.prepro(action)
        if isinstance(out, np.ndarray | float) and not np.isfinite(out).all():
            raise ActionError(f"act_prepro_func made {out} of the action {action}: nothing was sent")
        return out

    def send(self, action: Any) -> None:
        """Send a prepared action.

        Raises:
            InterfaceTimeout: if ``send_control`` hangs.
        """
        self.armed = True
        self._stepper.step_call("send_control()", self._interface.send_control, action)

    def leave(self, way: str) -> bool:
        """Make the device safe if it was commanded and ``way`` is in ``safe_on``; return whether it was."""
        return self.unsafe(way) and self.make_safe()

    def unsafe(self, way: str) -> bool:
        """Return whether the device was commanded and is to be made safe on this way out."""
        return self.armed and way in self._safe_on

    def make_safe(self) -> bool:
        """Send the safe action within `SAFE_LIMIT_S`; return whether that worked. Failures are logged."""
        try:
            action = self.prepare(copy.deepcopy(self._safe))
            limit = min(SAFE_LIMIT_S, self._limit_s)
            self._stepper.settle_capture(
                limit
            )  # an interface is not called twice at once, if that can be helped
            self._stepper.call("send_control(safe action)", limit, self._interface.send_control, action)
        except DeviceLost as error:
            LOGGER.info("the safe action was not sent, the device is gone: %s", error)
            return False
        except Exception:
            LOGGER.exception("the safe action could not be sent")
            return False
        self.armed = False
        return True

    def catch_sigterm(self) -> None:
        """Make SIGTERM send the safe action before it ends the process.

        Only if "signal" is in ``safe_on`` and nobody else handles SIGTERM, and only from the main thread.
        Ctrl-C needs no handler: it raises KeyboardInterrupt.
        """
        if "signal" not in self._safe_on or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> None:
    for commander in list(_LIVE):
        commander.leave("signal")
    if any(commander.unsafe("signal") for commander in list(_LIVE)):
        # The signal came in the middle of a call, and the interface cannot be called twice at once (a
        # buffered stream refuses that). Leave that call first: the ways out of it try again.
        raise SystemExit(128 + number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
