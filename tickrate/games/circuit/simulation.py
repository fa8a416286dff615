"""The same game without process, sockets and clock: lock-step, fast, with the live car's step of delay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.games.circuit.drivers import Driver
from tickrate.games.circuit.physics import CarParameters
from tickrate.games.circuit.protocol import SensorFrame
from tickrate.games.circuit.task import STEP_S, CircuitTask, DemonstrationLine, decode_analog
from tickrate.games.circuit.track import Track, make_track
from tickrate.games.circuit.world import FRAME_S, World

_FRAMES = round(STEP_S / FRAME_S)


class CircuitSimulation(gymnasium.Env[Any, Any]):
    """The circuit as an ordinary environment that waits for its action; for tests and experiments.

    An action drives the car one step later than it is given, as on the live system. The observation is the
    canonical form of the live environment: ``speed``, ``lidar``, and the last actions as ``actions``.

    Args:
        track: name of the track.
        action_buffer_length: number of past actions in the observation, oldest first.
        max_steps: truncates the episode after this many steps.
        delay_steps: steps between an action and its effect.
        **task: arguments of `task.CircuitTask`.
    """

    def __init__(
        self,
        track: str = "demo",
        *,
        action_buffer_length: int = 2,
        max_steps: int = 1000,
        delay_steps: int = 1,
        **task: Any,
    ) -> None:
        self.world = World(make_track(track))
        self.task = CircuitTask(self.world.track, **task)
        self.max_steps = max_steps
        self.delay_steps = delay_steps
        self.action_buffer_length = action_buffer_length
        action = self.task.action_space()
        shape = (action_buffer_length, *action.shape)
        past = (
            spaces.Box(-1.0, 1.0, shape, np.float32)
            if isinstance(action, spaces.Box)
            else spaces.MultiBinary(shape)
        )
        self.action_space = action
        self.observation_space = spaces.Dict({**self.task.observation_spaces(), "actions": past})
        self._past: list[NDArray[Any]] = []

    @property
    def frame(self) -> SensorFrame:
        """What the sensors show now, for the scripted drivers."""
        return self.world.frame(self.world.game_time)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Put the car on the start line, standing."""
        super().reset(seed=seed)
        self.world = World(self.world.track)
        count = max(self.action_buffer_length, self.delay_steps + 1)
        self._past = [self.task.default_action() for _ in range(count)]
        return self._with_actions(self.task.begin(self.frame)), {}

    def step(self, action: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """Drive one time-step under the action that was given ``delay_steps`` steps ago."""
        self._past = [*self._past[1:], np.array(action)]
        self.world.command = self.task.command(self._past[-1 - self.delay_steps])
        for _ in range(_FRAMES):
            self.world.advance_frame()
        observation, reward, terminated, info = self.task.advance(self.frame)
        truncated = info.pop("truncated", False) or (not terminated and self.task.steps >= self.max_steps)
        return self._with_actions(observation), reward, terminated, truncated, info

    def _with_actions(self, observation: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {**observation, "actions": np.stack(self._past[-self.action_buffer_length :])}


class Lap(NamedTuple):
    """How one lap went."""

    time_s: float
    """Lap time in seconds of game time, infinite if the lap was not completed."""
    contacts: int
    """Wall contacts."""
    xy: NDArray[np.float64]
    """(frames, 2) driven line in metres."""
    speed: NDArray[np.float64]
    """(frames,) speed in m/s."""


def simulate_lap(
    driver: Driver,
    track: Track,
    *,
    laps: int = 1,
    delay_steps: int = 1,
    limit_s: float = 120.0,
    car: CarParameters | None = None,
) -> Lap:
    """Let a scripted driver drive from standing, acting at 20 Hz with a delay; returns its last lap.

    Stops after ``laps`` laps, at the first contact, or after ``limit_s`` seconds of game time.
    """
    world = World(track, car)
    driver.begin()
    queue = [np.array([0.0, -0.5], dtype=np.float32)] * delay_steps
    path = [(world.state.x, world.state.y, 0.0)]
    while world.laps < laps and world.contacts == 0 and world.game_time < limit_s:
        queue.append(driver.act(world.frame(world.game_time)))
        world.command = decode_analog(queue.pop(0))
        before = world.laps
        for _ in range(_FRAMES):
            world.advance_frame()
            if world.laps == before:
                path.append((world.state.x, world.state.y, world.state.speed))
        if before != world.laps < laps:
            path.clear()
    line = np.array(path)
    time_s = world.last_lap_time if world.laps >= laps else float("inf")
    return Lap(time_s, world.contacts, line[:, :2], line[:, 2])


def record_line(driver: Driver, track: Track, *, spacing_m: float = 0.5) -> DemonstrationLine:
    """Record a demonstration line: a clean lap of a driver, resampled evenly from the start line to itself.

    Raises:
        RuntimeError: if the driver does not complete a clean lap.
    """
    lap = simulate_lap(driver, track)
    if lap.contacts or not np.isfinite(lap.time_s):
        raise RuntimeError(
            f"the driver made no clean lap on {track.name!r} ({lap.contacts} contacts): nothing to record"
        )
    closed = np.vstack([lap.xy, lap.xy[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    wanted = np.linspace(0.0, along[-1], max(16, round(along[-1] / spacing_m)), endpoint=False)
    return DemonstrationLine(np.stack([np.interp(wanted, along, closed[:, axis]) for axis in (0, 1)], axis=1))


def save_line(line: DemonstrationLine, track: Track, folder: Path) -> Path:
    """Write a line to ``folder/<track>.json``, rounded to a millimetre, and return the file's path."""
    path = folder / f"{track.name}.json"
    points = [[round(float(x), 3), round(float(y), 3)] for x, y in line.points]
    path.write_text(
        json.dumps({"track_length_m": round(track.length_m, 3), "points": points}) + "\n", "utf-8"
    )
    return path
