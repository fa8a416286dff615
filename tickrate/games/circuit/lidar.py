"""The LIDAR: 19 beams over the front half circle, cast against the walls in a few numpy operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.games.circuit.track import Track

Float = NDArray[np.float64]

BEAMS = 19
RANGE_M = 60.0
BEAM_ANGLES = np.linspace(math.pi / 2.0, -math.pi / 2.0, BEAMS)
"""Angle of each beam from the car's heading in radians: from left over straight ahead to right."""


class Lidar:
    """Casts beams against the two walls of a track.

    A beam crosses a wall between two neighbouring points that lie on different sides of it, so one matrix
    product and one comparison find all crossings, and distances are worked out for those few only.
    """

    def __init__(self, track: Track) -> None:
        # One array for both closed walls; the segments that would join the two are masked out.
        self._points = np.vstack([track.left, track.left[:1], track.right, track.right[:1]])
        self._is_segment = np.ones(len(self._points) - 1, dtype=bool)
        self._is_segment[len(track.left)] = False
        # Kept between scans: a fresh block of this size comes from the kernel page by page each time.
        self._side = np.empty((BEAMS, len(self._points)))

    def scan(self, x: float, y: float, yaw: float) -> Float:
        """Return the distances in metres along the beams, (19,), `RANGE_M` where nothing is hit."""
        relative = self._points - (x, y)
        angles = BEAM_ANGLES + yaw
        cos, sin = np.cos(angles), np.sin(angles)
        side = np.matmul(np.stack([-sin, cos], axis=1), relative.T, out=self._side)
        is_left = side >= 0.0
        beam, segment = np.nonzero((is_left[:, 1:] != is_left[:, :-1]) & self._is_segment)
        before, after = side[beam, segment], side[beam, segment + 1]
        fraction = before / (before - after)
        hit = relative[segment] + fraction[:, None] * (relative[segment + 1] - relative[segment])
        distance = hit[:, 0] * cos[beam] + hit[:, 1] * sin[beam]
        out = np.full(BEAMS, RANGE_M)
        ahead = distance >= 0.0
        np.minimum.at(out, beam[ahead], distance[ahead])
        return out


def encode(distance_m: NDArray[Any]) -> NDArray[np.float32]:
    """Return distances coded as 12 / (6 + d) - 1: 1 at the wall, -0.82 at 60 m, finest near walls."""
    return (12.0 / (6.0 + distance_m) - 1.0).astype(np.float32)


def decode(code: NDArray[np.float32]) -> Float:
    """Return the distances in metres of coded beams (the inverse of `encode`)."""
    return 12.0 / (code.astype(np.float64) + 1.0) - 6.0
