"""What is to be learned, live and simulated alike: commands, observations, rewards, ends."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.errors import ConfigError
from tickrate.games.circuit.lidar import BEAMS, encode
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.protocol import SensorFrame
from tickrate.games.circuit.track import Track
from tickrate.realtime.observations import History

Float = NDArray[np.float64]

STEP_S = 0.05
"""Length of a time-step in seconds of game time (20 Hz)."""
NEUTRAL_PEDAL = -0.5
"""Pedal that neither drives nor brakes: three quarters of the range are gas, so that chance drives on."""
SPEED_SCALE = 30.0
REWARD_PER_M = 0.1
SCORE_SPEED = 100.0
"""``info["score"]`` is the share of the lap driven, and 1 + mean speed / (100 m/s) for a clean lap."""
CONTROLS = ("analog", "keys")
KEY_LEFT, KEY_RIGHT, KEY_GAS, KEY_BRAKE = range(4)


def decode_analog(action: NDArray[Any]) -> Command:
    """Return the command of an action (2,) in [-1, 1]: steer, pedal (above -0.5 gas, below it brake)."""
    steer, pedal = float(action[0]), float(action[1])
    gas = max(0.0, (pedal - NEUTRAL_PEDAL) / (1.0 - NEUTRAL_PEDAL))
    brake = max(0.0, (NEUTRAL_PEDAL - pedal) / (1.0 + NEUTRAL_PEDAL))
    return Command(min(max(steer, -1.0), 1.0), min(gas, 1.0), min(brake, 1.0))


def encode_analog(steer: float, acceleration: float) -> NDArray[np.float32]:
    """Return the action (2,) for steer and acceleration (positive: gas, negative: brake), both in [-1, 1]."""
    pedal = NEUTRAL_PEDAL + acceleration * (
        1.0 - NEUTRAL_PEDAL if acceleration > 0.0 else 1.0 + NEUTRAL_PEDAL
    )
    return np.clip(np.array([steer, pedal], dtype=np.float32), -1.0, 1.0)


def decode_keys(action: NDArray[Any]) -> Command:
    """Return the command of four keys (4,): left, right, gas, brake; 1 is pressed. Opposite keys cancel."""
    pressed = [float(value > 0) for value in action]
    return Command(pressed[KEY_RIGHT] - pressed[KEY_LEFT], pressed[KEY_GAS], pressed[KEY_BRAKE])


class DemonstrationLine:
    """A recorded drive around the track, as a closed line; progress is measured along it.

    Args:
        points: (M, 2) positions in metres of one lap from the start line, in driving order.
    """

    def __init__(self, points: Float) -> None:
        self.points = points
        step = np.roll(points, -1, axis=0) - points
        self._lengths = np.linalg.norm(step, axis=1)
        self._tangents = step / self._lengths[:, None]
        self._starts = np.concatenate([[0.0], np.cumsum(self._lengths)[:-1]])
        self.length_m = float(self._lengths.sum())

    def advance(
        self, x: float, y: float, best_m: float, *, behind_m: float = 5.0, ahead_m: float = 40.0
    ) -> float:
        """Return the place of (x, y) along the line, in metres since the start over all laps.

        Only the part of the line from ``behind_m`` behind to ``ahead_m`` ahead of ``best_m`` is looked at, so
        that a part of the track that lies near by chance is never taken for progress.
        """
        count, spacing = len(self.points), self.length_m / len(self.points)
        base = math.floor(best_m / self.length_m)
        first = int(np.searchsorted(self._starts, best_m - base * self.length_m, side="right")) - 1
        window = np.arange(first - math.ceil(behind_m / spacing), first + math.ceil(ahead_m / spacing) + 1)
        turn, index = np.divmod(window, count)
        offset = self.points[index] - (x, y)
        along = np.clip(-(offset * self._tangents[index]).sum(axis=1), 0.0, self._lengths[index])
        nearest = np.argmin(((offset + along[:, None] * self._tangents[index]) ** 2).sum(axis=1))
        return float((base + turn[nearest]) * self.length_m + self._starts[index[nearest]] + along[nearest])


def load_line(track: Track) -> DemonstrationLine:
    """Return the recorded line of a built-in track, or the centre line of a random one.

    Raises:
        ConfigError: if the stored line was recorded on another version of the track.
    """
    if ":" in track.name:
        return DemonstrationLine(track.centre)
    file = resources.files("tickrate.games.circuit").joinpath("lines", f"{track.name}.json")
    stored = json.loads(file.read_text("utf-8"))
    if abs(stored["track_length_m"] - track.length_m) > 0.01:
        raise ConfigError(
            f"the line of track {track.name!r} was recorded on a length of {stored['track_length_m']} m, "
            f"the track has {track.length_m:.3f} m: record it again with simulation.record_line"
        )
    return DemonstrationLine(np.array(stored["points"], dtype=np.float64))


class CircuitTask:
    """Follows one episode: observation, reward, and how it ends.

    Reward: 0.1 per metre of new progress along the demonstration line, nothing else.
    Ends: a wall contact (terminated, unless ``walls="slide"``), no new best position for 10 steps or, in the
    first 20 steps, 30 (terminated), and ``laps`` completed laps (truncated: the lap's end is no state to
    fear).

    Args:
        track: the track.
        line: where progress is measured.
        controls: ``"analog"`` (steer, pedal) or ``"keys"`` (left, right, gas, brake).
        history: number of LIDAR scans in the observation, oldest first.
        laps: laps of an episode; 0 for no limit.
        walls: ``"end"`` or ``"slide"`` (contacts are counted and slow the car, the episode goes on).
    """

    def __init__(
        self,
        track: Track,
        *,
        line: DemonstrationLine | None = None,
        controls: str = "analog",
        history: int = 4,
        laps: int = 1,
        walls: str = "end",
    ) -> None:
        if controls not in CONTROLS:
            raise ConfigError(f"controls is {controls!r}; it must be one of {CONTROLS}")
        if walls not in ("end", "slide"):
            raise ConfigError(f"walls is {walls!r}; it must be 'end' or 'slide'")
        if history < 1 or laps < 0:
            raise ConfigError(f"history is {history} (at least 1) and laps is {laps} (at least 0)")
        self.track = track
        self.line = line if line is not None else load_line(track)
        self.controls = controls
        self.history = history
        self.laps = laps
        self.walls = walls
        self.steps = 0
        self._scans = History(history, spaces.Box(-1.0, 1.0, (BEAMS,), np.float32))
        self._best_m = 0.0
        self._since_best = 0
        self._contacts = 0
        self._laps_seen = 0

    def observation_spaces(self) -> dict[str, spaces.Box]:
        """Return the leaf spaces: ``speed`` (1,) in 30 m/s, ``lidar`` (history, 19) coded 12/(6+d)-1."""
        return {
            "speed": spaces.Box(0.0, 2.0, (1,), np.float32),
            "lidar": spaces.Box(-1.0, 1.0, (self.history, BEAMS), np.float32),
        }

    def action_space(self) -> spaces.Box | spaces.MultiBinary:
        """Return Box(2) for analog controls, MultiBinary(4) for keys."""
        return spaces.Box(-1.0, 1.0, (2,), np.float32) if self.controls == "analog" else spaces.MultiBinary(4)

    def default_action(self) -> NDArray[Any]:
        """Return the action that does nothing: wheels straight, neither gas nor brake."""
        if self.controls == "analog":
            return np.array([0.0, NEUTRAL_PEDAL], dtype=np.float32)
        return np.zeros(4, dtype=np.int8)

    def safe_action(self) -> NDArray[Any]:
        """Return the action that stops the car: wheels straight, full brake."""
        if self.controls == "analog":
            return np.array([0.0, -1.0], dtype=np.float32)
        return np.array([0, 0, 0, 1], dtype=np.int8)

    def command(self, action: NDArray[Any]) -> Command:
        """Return the game's command for an action."""
        return decode_analog(action) if self.controls == "analog" else decode_keys(action)

    def begin(self, frame: SensorFrame) -> dict[str, NDArray[np.float32]]:
        """Start an episode at this frame (the car on the start line) and return its first observation."""
        self.steps = 0
        self._best_m = 0.0
        self._since_best = 0
        self._contacts = frame.contacts
        self._laps_seen = frame.laps
        return self._observe(frame, self._scans.reset(encode(frame.beams)))

    def advance(
        self, frame: SensorFrame
    ) -> tuple[dict[str, NDArray[np.float32]], float, bool, dict[str, Any]]:
        """Return observation, reward, terminated and info of the step that this frame ends."""
        self.steps += 1
        place = self.line.advance(frame.x, frame.y, self._best_m)
        gain = max(0.0, place - self._best_m)
        self._since_best = 0 if gain > 0.0 else self._since_best + 1
        self._best_m += gain
        contacts = frame.contacts - self._contacts
        hit = contacts > 0 and self.walls == "end"
        stalled = self._since_best >= (30 if self.steps <= 20 else 10)
        info: dict[str, Any] = {
            "contacts": contacts,
            "progress_m": frame.progress,
            "laps": frame.laps,
            "score": min(self._best_m / self.line.length_m, 1.0),
            "observation_time": frame.sent,
        }
        if hit or stalled:
            info["end"] = "wall" if hit else "stall"
        if frame.laps > self._laps_seen:
            self._laps_seen = frame.laps
            info |= {"lap_time_s": frame.last_lap_time, "lap_clean": bool(frame.last_lap_clean)}
            if frame.last_lap_clean:
                info["score"] = 1.0 + self.line.length_m / frame.last_lap_time / SCORE_SPEED
            if self.laps and frame.laps >= self.laps and not (hit or stalled):
                info |= {"truncated": True, "truncation_reason": "lap finished", "end": "lap"}
        observation = self._observe(frame, self._scans.push(encode(frame.beams)))
        return observation, REWARD_PER_M * gain, hit or stalled, info

    @staticmethod
    def _observe(frame: SensorFrame, scans: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        speed = np.array([min(frame.speed / SPEED_SCALE, 2.0)], dtype=np.float32)
        return {"speed": speed, "lidar": scans}

    def mirror(self) -> Mapping[str, Any]:
        """Return the left-right symmetry of the task.

        Its form: ``{"observation": {path: (permutation, signs)}, "action": signs}``.

        A permutation reorders the last axis of a leaf (None: no reordering), signs multiply it. Seen in a
        mirror, the beams come in reverse order and steering changes its sign. Keys have no such form and
        raise.

        Raises:
            ConfigError: for on/off controls.
        """
        if self.controls != "analog":
            raise ConfigError("mirroring is defined for analog controls only")
        signs = np.array([-1.0, 1.0], dtype=np.float32)
        return {
            "observation": {
                "lidar": (np.arange(BEAMS)[::-1].copy(), np.ones(BEAMS, dtype=np.float32)),
            },
            "action": signs,
        }
