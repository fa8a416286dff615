"""Tracks: closed centre lines with a width, made from a seed or by hand, and where a car is on them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import ConfigError, suggest

Float = NDArray[np.float64]

SPACING_M = 0.5
"""Distance between two points of the centre line, in metres (nearly: a lap is a whole number of them)."""
_DENSE = 8192
"""Samples of the curve before it is resampled evenly."""
_HARMONICS = 6
"""Highest harmonic of the random Fourier radius."""


@dataclass(frozen=True)
class Position:
    """Where a point is on the track."""

    index: int
    """Segment of the centre line, 0 .. count-1."""
    along_m: float
    """Distance along the centre line from the start line, 0 .. length."""
    lateral_m: float
    """Signed distance from the centre line, left of the driving direction positive."""


@dataclass(frozen=True, eq=False)
class Track:
    """A closed track. Points are in metres, x to the right, y up, driven in the order of the points.

    All arrays have one row a centre point (N of them, `spacing_m` apart); point 0 lies on the start line.
    """

    name: str
    width_m: float
    length_m: float
    spacing_m: float
    centre: Float
    """(N, 2) centre line."""
    tangent: Float
    """(N, 2) unit direction of the segment from point i to point i+1."""
    curvature: Float
    """(N,) signed curvature in 1/m, left turns positive."""
    left: Float
    """(N, 2) left wall, a closed polyline."""
    right: Float
    """(N, 2) right wall, a closed polyline."""

    @property
    def start_heading(self) -> float:
        """Direction of the track at the start line, radians from the x axis."""
        return math.atan2(self.tangent[0, 1], self.tangent[0, 0])

    @property
    def smallest_radius_m(self) -> float:
        """Radius of the tightest corner of the centre line, in metres."""
        return float(1.0 / np.abs(self.curvature).max())

    @functools.cached_property
    def _rows(self) -> list[tuple[float, float, float, float]]:
        # Plain Python floats: the physics asks a few hundred times a second, and numpy scalars are slow one
        # by one.
        return [
            (float(p[0]), float(p[1]), float(t[0]), float(t[1]))
            for p, t in zip(self.centre, self.tangent, strict=True)
        ]

    def locate(self, x: float, y: float, hint: int) -> Position:
        """Return where the point (x, y) is, searching from segment ``hint`` along the centre line.

        The walk never jumps to a part of the track that only happens to lie close, so the hint must be the
        place where the point was a moment ago (`nearest_index` finds a first one).
        """
        rows, ds, count = self._rows, self.spacing_m, len(self.centre)
        index, moved = hint % count, 0
        for _ in range(count):
            px, py, tx, ty = rows[index]
            along = (x - px) * tx + (y - py) * ty
            if along > ds and moved >= 0:
                index, moved = (index + 1) % count, 1
            elif along < 0.0 and moved <= 0:
                index, moved = (index - 1) % count, -1
            else:
                break
        lateral = tx * (y - py) - ty * (x - px)
        return Position(index, index * ds + min(max(along, 0.0), ds), lateral)

    def nearest_index(self, x: float, y: float) -> int:
        """Return the index of the centre point nearest to (x, y), searched on the whole track."""
        return int(np.argmin(((self.centre - (x, y)) ** 2).sum(axis=1)))

    def heading_at(self, index: int) -> float:
        """Return the direction of segment ``index`` in radians from the x axis."""
        _, _, tx, ty = self._rows[index]
        return math.atan2(ty, tx)

    def clearance_m(self) -> float:
        """Return the smallest distance between parts of the centre line that are not neighbours on it.

        Parts count as neighbours when they are less than 2 widths apart along the line. The walls of
        different parts do not touch as long as this is more than the width.
        """
        count = len(self.centre)
        gap = np.linalg.norm(self.centre[:, None, :] - self.centre[None, :, :], axis=2)
        steps = np.abs(np.arange(count)[:, None] - np.arange(count)[None, :])
        steps = np.minimum(steps, count - steps)
        return float(gap[steps * self.spacing_m >= 2.0 * self.width_m].min())


def from_curve(name: str, points: Float, width_m: float, *, start_m: float = 0.0) -> Track:
    """Make a track from a dense closed curve.

    Args:
        name: name of the track.
        points: (M, 2) points in metres, M large, in driving order, the last not repeating the first.
        width_m: distance between the walls.
        start_m: where the start line lies, in metres along the given curve.

    Raises:
        ConfigError: if a corner is tighter than half the width: the inner wall would fold over.
    """
    closed = np.vstack([points, points[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    count = max(16, round(along[-1] / SPACING_M))
    wanted = (np.arange(count) * (along[-1] / count) + start_m) % along[-1]
    centre = np.stack([np.interp(wanted, along, closed[:, axis]) for axis in (0, 1)], axis=1)
    step = np.roll(centre, -1, axis=0) - centre
    lengths = np.linalg.norm(step, axis=1)
    tangent = step / lengths[:, None]
    angle = np.arctan2(tangent[:, 1], tangent[:, 0])
    turn = (angle - np.roll(angle, 1) + np.pi) % (2.0 * np.pi) - np.pi
    curvature = turn / lengths.mean()
    if np.abs(curvature).max() * width_m / 2.0 >= 1.0:
        radius = 1.0 / np.abs(curvature).max()
        raise ConfigError(
            f"track {name!r}: a corner of radius {radius:.2f} m is too tight for a width of {width_m} m"
        )
    middle = angle - turn / 2.0
    normal = np.stack([-np.sin(middle), np.cos(middle)], axis=1) * (width_m / 2.0)
    return Track(
        name=name,
        width_m=width_m,
        length_m=float(lengths.sum()),
        spacing_m=float(lengths.mean()),
        centre=centre,
        tangent=tangent,
        curvature=curvature,
        left=centre + normal,
        right=centre - normal,
    )


def _fourier_curve(amplitudes: Float, phases: Float, strength: float, length_m: float) -> Float:
    theta = np.linspace(0.0, 2.0 * np.pi, _DENSE, endpoint=False)
    orders = np.arange(2, 2 + len(amplitudes))
    radius = np.exp(
        strength * (amplitudes[:, None] * np.cos(orders[:, None] * theta + phases[:, None])).sum(axis=0)
    )
    points = np.stack([radius * np.cos(theta), radius * np.sin(theta)], axis=1)
    perimeter = np.linalg.norm(np.diff(np.vstack([points, points[:1]]), axis=0), axis=1).sum()
    return np.asarray(points * (length_m / perimeter))


def _tightest_radius_m(points: Float) -> float:
    first = (np.roll(points, -1, axis=0) - np.roll(points, 1, axis=0)) / 2.0
    second = np.roll(points, -1, axis=0) - 2.0 * points + np.roll(points, 1, axis=0)
    cross = np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0])
    return float(1.0 / (cross / np.linalg.norm(first, axis=1) ** 3).max())


def fourier_track(
    name: str, *, seed: int, length_m: float, width_m: float, smallest_radius_m: float, start_m: float = 0.0
) -> Track:
    """Make a random closed track: a circle whose log-radius is a random Fourier series of the angle.

    The strength of the series is found by bisection, so that the tightest corner has exactly the radius asked
    for. The same arguments give the same track everywhere.

    Args:
        name: name of the track.
        seed: seed of the random series.
        length_m: length of the centre line.
        width_m: distance between the walls.
        smallest_radius_m: radius of the tightest corner of the centre line; more than half the width.
        start_m: where the start line lies, in metres along the curve.
    """
    rng = np.random.default_rng(seed)
    amplitudes = rng.uniform(0.4, 1.0, _HARMONICS - 1) / np.arange(2, _HARMONICS + 1) ** 0.75
    phases = rng.uniform(0.0, 2.0 * np.pi, _HARMONICS - 1)
    low, high = 0.0, 2.0
    for _ in range(50):
        strength = (low + high) / 2.0
        tight = _tightest_radius_m(_fourier_curve(amplitudes, phases, strength, length_m)) < smallest_radius_m
        low, high = (low, strength) if tight else (strength, high)
    return from_curve(name, _fourier_curve(amplitudes, phases, low, length_m), width_m, start_m=start_m)


def oval_track(name: str, *, straight_m: float, radius_m: float, width_m: float) -> Track:
    """Make an oval of two straights and two half circles, driven counter-clockwise."""
    half, arc = straight_m / 2.0, np.pi * radius_m
    s = np.linspace(0.0, 2.0 * (straight_m + arc), _DENSE, endpoint=False)
    second_half = s >= straight_m + arc
    t = np.where(second_half, s - straight_m - arc, s)
    bend = np.maximum(t - straight_m, 0.0) / radius_m
    x = np.where(t < straight_m, t - half, half + radius_m * np.sin(bend))
    y = np.where(t < straight_m, -radius_m, -radius_m * np.cos(bend))
    sign = np.where(second_half, -1.0, 1.0)
    return from_curve(name, np.stack([sign * x, sign * y], axis=1), width_m, start_m=half)


_BUILDERS = {
    # A gentle bend comes first: with a hairpin after a long straight, braking for it would decide the first
    # lap.
    "demo": lambda: fourier_track(
        "demo", seed=3, length_m=404.0, width_m=11.0, smallest_radius_m=9.8, start_m=292.0
    ),
    "oval": lambda: oval_track("oval", straight_m=90.0, radius_m=22.0, width_m=12.0),
    "hills": lambda: fourier_track(
        "hills", seed=11, length_m=620.0, width_m=11.0, smallest_radius_m=12.0, start_m=0.0
    ),
}

TRACKS = tuple(_BUILDERS)
"""Names of the built-in tracks; `make_track` also takes ``random:SEED``."""


@functools.lru_cache(maxsize=32)
def make_track(name: str) -> Track:
    """Return the track of this name: one of `TRACKS`, or ``random:SEED`` (as the demo's, another seed).

    Raises:
        ConfigError: if there is no such track.
    """
    if name in _BUILDERS:
        return _BUILDERS[name]()
    kind, _, seed = name.partition(":")
    if kind == "random" and seed.isascii() and seed.isdigit() and len(seed) <= 9:
        return fourier_track(name, seed=int(seed), length_m=404.0, width_m=11.0, smallest_radius_m=9.8)
    raise ConfigError(
        f"there is no track {name!r}; choose {', '.join(TRACKS)} or random:SEED.{suggest(name, TRACKS)}"
    )
