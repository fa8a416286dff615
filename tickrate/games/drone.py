"""The remote-control drone as a complete task: fly to a random target over a link with random delays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate.realtime.dummy_drone import DummyRCDrone
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.trees import Array

TARGET_LIMIT = 0.5
"""Targets lie in [-0.5, 0.5]^2."""


class _StepClock:
    """The simulated clock of a drone in lock-step: it stands still between two steps.

    Every reading but the first, which is the drone's origin, lies a microsecond past the step's end: what is
    due at that very moment has happened by then, however the numbers are rounded.
    """

    def __init__(self, step_s: float) -> None:
        if not 0.0 < step_s < math.inf:
            raise ValueError(f"simulated_step_s={step_s}: give a positive number of seconds")
        self._step_s = step_s
        self._steps = 0
        self._time = 0.0

    def step(self) -> None:
        """Go on by one step."""
        self._steps += 1
        self.sleep_until(self._steps * self._step_s + 1e-6)

    def now(self) -> float:
        """Return the time in seconds; the drone's loop begins at 0."""
        return self._time

    def sleep_until(self, deadline: float) -> float:
        """Go on to ``deadline`` (s), if that is later; return the time."""
        self._time = max(self._time, deadline)
        return self._time


class DroneInterface(RealTimeGymInterface):
    """Fly `DummyRCDrone` to a target; the tutorial's task.

    Observation: a Tuple of four float32 Boxes of shape (1,), ``x``, ``y`` (the newest position that has come
    back, world units) and ``target_x``, ``target_y``. Action: a velocity, float32 of shape (2,), units/s.
    Reward: minus the distance to the target in units. The episode terminates when a position within
    ``target_radius`` of the target comes back. ``info["observation_time"]`` is when the drone measured that
    position, so the observation age that the environment reports includes the radio link.

    The drone starts flying at the first `reset` and is never set back: a reset only draws a new target.

    For lock-step (``real_time=False``) give ``simulated_step_s``: the drone then flies on a clock of its
    own, which advances by so much at each capture and stands still otherwise, and ``observation_time`` is
    left out. Without a radio link (``{"communication_delay_min": 0.0, "communication_delay_max": 0.0}``) a
    command then shows in the observation of the very step that sent it: what delay there is, is the one that
    is added.

    Args:
        target_radius: distance at which the target counts as reached, in units.
        drone_kwargs: arguments of `DummyRCDrone`, for instance ``{"communication_delay_max": 0.1}``.
        simulated_step_s: length of a step of the simulated clock in seconds; None: real time.
    """

    def __init__(
        self,
        target_radius: float = 0.01,
        drone_kwargs: dict[str, Any] | None = None,
        simulated_step_s: float | None = None,
    ) -> None:
        if not target_radius > 0.0:
            raise ValueError(f"target_radius={target_radius}: give a positive distance")
        self._target_radius = target_radius
        self._drone_kwargs = dict(drone_kwargs or {})
        self._clock: _StepClock | None = None
        if simulated_step_s is not None:
            self._clock = _StepClock(simulated_step_s)
            self._drone_kwargs["clock"] = self._clock
        self._drone: DummyRCDrone | None = None
        self._target = np.zeros(2, np.float32)
        self._rng = np.random.default_rng()

    @property
    def drone(self) -> DummyRCDrone:
        """The drone.

        Raises:
            RuntimeError: before the first `reset`, which starts it.
        """
        if self._drone is None:
            raise RuntimeError("the drone is started by the first reset(): reset the environment first")
        return self._drone

    @property
    def target(self) -> Array:
        """The target, float32 of shape (2,), world units."""
        return self._target.copy()

    def get_observation_space(self) -> spaces.Space[Any]:
        """Return the Tuple of ``x``, ``y``, ``target_x``, ``target_y``."""
        size = float(self._drone_kwargs.get("world_size", 1.0))
        position = spaces.Box(-size, size, (1,), np.float32)
        target = spaces.Box(-TARGET_LIMIT, TARGET_LIMIT, (1,), np.float32)
        return spaces.Tuple((position, position, target, target))

    def observation_names(self) -> list[str]:
        """Return the names of the four leaves."""
        return ["x", "y", "target_x", "target_y"]

    def get_action_space(self) -> spaces.Box:
        """Return the velocities, units/s."""
        speed = float(self._drone_kwargs.get("max_vel", 2.0))
        return spaces.Box(-speed, speed, (2,), np.float32)

    def get_default_action(self) -> Array:
        """Return the velocity zero: stay where you are."""
        return np.zeros(2, np.float32)

    def send_control(self, control: Any) -> None:
        """Send a velocity (vel_x, vel_y); ``None`` leaves the drone alone."""
        if control is not None:
            self.drone.send_control(float(control[0]), float(control[1]))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the drone if it is not flying yet and draw a target.

        Args:
            seed: seed of this target and the following ones.
            options: ``{"target": (x, y)}`` sets the target instead of drawing it.

        Raises:
            ValueError: if the target of ``options`` is no point of the square that targets lie in.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if self._drone is None:
            self._drone = DummyRCDrone(**self._drone_kwargs)
        target = (options or {}).get("target", self._rng.uniform(-TARGET_LIMIT, TARGET_LIMIT, 2))
        self._target = np.array(target, np.float32)
        if self._target.shape != (2,) or not (np.abs(self._target) <= TARGET_LIMIT).all():
            raise ValueError(f"target {target}: give (x, y), both between {-TARGET_LIMIT} and {TARGET_LIMIT}")
        return self._observation(np.array(self._drone.get_observation(), np.float32)), {}

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        """Return position and target, minus their distance, and whether the target is reached."""
        if self._clock is not None:
            self._clock.step()
        position = np.array(self.drone.get_observation(), np.float32)
        distance = float(np.hypot(*(position - self._target)))
        info = {} if self._clock is not None else {"observation_time": self.drone.observation_time}
        return self._observation(position), -distance, distance < self._target_radius, info

    def wait(self) -> None:
        """Hold the drone still."""
        if self._drone is not None:
            self._drone.send_control(0.0, 0.0)

    def render(self) -> str:
        """Return a picture in text: ``o`` the drone as it was seen last, ``x`` the target."""
        columns, rows = 41, 21
        size = self.drone.world_size
        picture = [[" "] * columns for _ in range(rows)]
        for (x, y), mark in ((self._target, "x"), (self.drone.get_observation(), "o")):
            column = round((x / size + 1.0) / 2.0 * (columns - 1))
            row = round((1.0 - y / size) / 2.0 * (rows - 1))
            picture[min(max(row, 0), rows - 1)][min(max(column, 0), columns - 1)] = mark
        edge = "+" + "-" * columns + "+"
        return "\n".join([edge, *("|" + "".join(line) + "|" for line in picture), edge])

    def _observation(self, position: Array) -> tuple[Array, Array, Array, Array]:
        return position[:1], position[1:], self._target[:1].copy(), self._target[1:].copy()


def drone_config(*, interface: Mapping[str, Any] | None = None, **overrides: Any) -> dict[str, Any]:
    """Return the configuration of `RealTimeEnv` for the drone: 20 Hz, four actions in the observation.

    The radio takes 20 to 50 ms each way, so that a command shows after up to three steps. The drone flies on
    through a reset, so the commands in flight stay in the action buffer.

    Args:
        interface: keyword arguments of `DroneInterface`.
        **overrides: configuration keys that replace the ones chosen here.
    """
    config: dict[str, Any] = {
        "interface": DroneInterface,
        "interface_kwargs": dict(interface or {}),
        "time_step_duration": 0.05,
        "start_obs_capture": 0.05,
        "time_step_timeout_factor": 10.0,
        "ep_max_length": 100,
        "act_buf_len": 4,
        "reset_act_buf": False,
        "obs_format": "dict",
    }
    return config | overrides
