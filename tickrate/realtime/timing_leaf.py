"""The leaf ``timing``: how old the observation is and how long the last step took, for the policy to read.

The leaf is float32 of shape (3,), every number clipped to 0 to `TIMING_LIMIT`:

0. the observation's age when the next command goes out, in periods: its measured age in real time, the steps
   by which it was delayed in lock-step;
1. the measured length of the last step, in periods: 1 in lock-step, at a reset and after a pause;
2. how many commands younger than the one in force at the observation's capture the action buffer held then:
   the delay of the command in steps as the interface reports it (``info["action_delay"]``, else 0), and in
   real time one more, because the buffer ends with a command that has only just been sent.

So ``actions[-1 - d]`` with ``d = floor(timing[0]) + timing[2]`` is the newest command that can have
influenced the observation; the ``d`` younger ones are still on their way. In real time, where the age is
measured, a capture that is a little late makes the floor one short. It is
what a correction for delays needs (arXiv 2010.02966; there the age is omega and the delay of the command
alpha).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.realtime.timegrid import TimeGrid

TIMING = "timing"
"""Path of the leaf in the canonical observation: after the interface's own leaves, before the action
buffer."""

TIMING_LIMIT = 32.0
"""Largest number in the leaf; what is above, as after a stall, is clipped to it."""


def timing_space() -> spaces.Box:
    """Return the space of the leaf."""
    return spaces.Box(0.0, TIMING_LIMIT, (3,), np.float32)


class TimingLeaf:
    """Makes the leaf of each observation of one environment.

    Args:
        grid: the environment's grid, which knows the period.
        real_time: whether the world goes on meanwhile.
    """

    __slots__ = ("_began", "_grid", "_real_time")

    def __init__(self, grid: TimeGrid, real_time: bool) -> None:
        self._grid = grid
        self._real_time = real_time
        self._began: float | None = None
        """Start of the running step (s); None if its length will say nothing."""

    def begin(self, began: float, captured: float, info: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the leaf of a reset's observation.

        Args:
            began: when the first step starts, in seconds on the environment's clock.
            captured: when the reset returned, in seconds.
            info: the interface's own.
        """
        self._began = None
        leaf = self.measure(began, captured, info)
        self._began = began
        return leaf

    def pause(self) -> None:
        """The running step has been paused: its length says nothing."""
        self._began = None

    def measure(self, ready: float, captured: float, info: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the leaf of the observation captured at ``captured``, as the next step starts at ``ready``.

        Args:
            ready: seconds on the environment's clock.
            captured: seconds on the environment's clock.
            info: the interface's own.
        """
        period, delay = self._grid.period, float(info.get("observation_delay", 0))
        length, under_way = 1.0, float(info.get("action_delay", 0))
        if self._real_time:
            if "observation_time" in info:  # the time of the observation returned, however it was delayed
                delay = (ready - float(info["observation_time"])) / period
            else:
                delay += (ready - captured) / period
            length = 1.0 if self._began is None else (ready - self._began) / period
            under_way += 1.0
            self._began = ready
        leaf = np.array((delay, length, under_way), np.float32)
        np.fmin(leaf, np.float32(TIMING_LIMIT), out=leaf)  # a sensor's time of NaN is as old as can be
        np.fmax(leaf, np.float32(0.0), out=leaf)
        return leaf
