"""Two scripted drivers, the demo's yardsticks: pure pursuit with a speed profile, and a gap follower."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tickrate.games.circuit.lidar import BEAM_ANGLES, BEAMS
from tickrate.games.circuit.physics import CarParameters
from tickrate.games.circuit.protocol import SensorFrame
from tickrate.games.circuit.task import encode_analog
from tickrate.games.circuit.track import Track

_AHEAD = slice(BEAMS // 2 - 1, BEAMS // 2 + 2)


class Driver(Protocol):
    """Drives from sensor frames; returns analog actions (steer, pedal), see `task.decode_analog`."""

    def begin(self) -> None:
        """Forget the last episode."""
        ...

    def act(self, frame: SensorFrame) -> NDArray[np.float32]:
        """Return the action (2,) for what the newest frame shows."""
        ...


class PurePursuit:
    """Follows the centre line towards a point ahead (Coulter 1992), no faster than its corners allow.

    It reads the car's pose, which a learner does not see. Speed: ``sqrt(a_lat * radius)`` in each corner, and
    before it what can still be braked down in time.

    Args:
        track: the track.
        a_lat: sideways acceleration it dares, m/s2; 7 is cautious, 9.1 uses 0.7 of the tyres' grip.
        a_brake: deceleration it plans with, m/s2.
        delay_s: how long an action takes to have effect; the pose is predicted that far ahead.
        car: the car it drives.
    """

    def __init__(
        self,
        track: Track,
        *,
        a_lat: float = 9.1,
        a_brake: float = 6.0,
        delay_s: float = 0.05,
        car: CarParameters | None = None,
    ) -> None:
        self.track = track
        self.a_lat = a_lat
        self.delay_s = delay_s
        self.car = car or CarParameters()
        self._index = 0
        self._profile = _speed_profile(track, a_lat, a_brake)

    def begin(self) -> None:
        """Start from the start line."""
        self._index = 0

    def act(self, frame: SensorFrame) -> NDArray[np.float32]:
        """Return the action (2,) for the pose and speed of the newest frame."""
        heading = frame.heading + frame.yaw_rate * self.delay_s
        x = frame.x + frame.speed * self.delay_s * math.cos(heading)
        y = frame.y + frame.speed * self.delay_s * math.sin(heading)
        place = self.track.locate(x, y, self._index)
        if abs(place.lateral_m) > self.track.width_m:
            place = self.track.locate(x, y, self.track.nearest_index(x, y))
        self._index = place.index
        count, spacing = len(self.track.centre), self.track.spacing_m
        reach = 4.0 + 0.3 * frame.speed
        target = self.track.centre[(place.index + round(reach / spacing)) % count]
        angle = math.remainder(math.atan2(target[1] - y, target[0] - x) - heading, 2.0 * math.pi)
        distance = max(1.0, math.hypot(target[0] - x, target[1] - y))
        wheel = math.atan(2.0 * (2.0 * self.car.axle_m) * math.sin(angle) / distance)
        limit = self._profile[(place.index + round(frame.speed * self.delay_s / spacing)) % count]
        return encode_analog(_steer(wheel, self.car), _pedal(float(limit), frame.speed))


class GapFollower:
    """Steers to the mean beam, weighted by the cube of its length; as fast as the room ahead allows.

    It sees what a learner sees: the beams and the speed.

    Args:
        slowest: speed in m/s it would drive with its nose at a wall.
        per_metre: further m/s for each metre of room ahead.
        gain: wheel angle per angle of the gap.
        car: the car it drives.
    """

    def __init__(
        self,
        *,
        slowest: float = 4.0,
        per_metre: float = 0.42,
        gain: float = 0.9,
        car: CarParameters | None = None,
    ) -> None:
        self.slowest = slowest
        self.per_metre = per_metre
        self.gain = gain
        self.car = car or CarParameters()

    def begin(self) -> None:
        """Nothing to forget."""

    def act(self, frame: SensorFrame) -> NDArray[np.float32]:
        """Return the action (2,) for the beams and the speed of the newest frame."""
        beams = frame.beams.astype(np.float64)
        weight = beams**3
        gap = float((weight * BEAM_ANGLES).sum() / weight.sum())
        ahead = float(beams[_AHEAD].mean())
        limit = self.slowest + self.per_metre * ahead
        return encode_analog(_steer(self.gain * gap, self.car), _pedal(limit, frame.speed))


def _speed_profile(track: Track, a_lat: float, a_brake: float) -> NDArray[np.float64]:
    """Return the greatest speed in m/s at each centre point, (N,), that still allows what follows."""
    # Curvature is smoothed over 3 m: the car is not shorter than that.
    width = max(1, round(3.0 / track.spacing_m))
    kernel = np.ones(width) / width
    curvature = np.convolve(np.concatenate([track.curvature] * 3), kernel, mode="same")[
        : 2 * len(track.centre)
    ]
    limit = np.sqrt(a_lat / np.maximum(np.abs(np.roll(curvature, -len(track.centre))), 1e-4))
    for i in range(len(limit) - 2, -1, -1):
        limit[i] = min(limit[i], math.sqrt(limit[i + 1] ** 2 + 2.0 * a_brake * track.spacing_m))
    return np.asarray(limit[: len(track.centre)])


def _steer(wheel: float, car: CarParameters) -> float:
    """Return the steering in [-1, 1], right positive, for a wheel angle in rad, left positive."""
    return min(max(-wheel / car.max_steer_rad, -1.0), 1.0)


def _pedal(limit: float, speed: float) -> float:
    """Return gas (positive) or brake (negative) in [-1, 1] that brings the speed towards its limit."""
    return min(max(0.5 * (limit - speed), -1.0), 1.0)
