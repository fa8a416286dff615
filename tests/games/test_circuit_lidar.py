"""The LIDAR against distances from geometry and against a slow, plain ray caster."""

import math

import numpy as np
import pytest

from tickrate.games.circuit.lidar import BEAM_ANGLES, BEAMS, RANGE_M, Lidar, decode, encode
from tickrate.games.circuit.track import Track, make_track


def test_beams_span_the_front_half_circle_from_left_to_right() -> None:
    assert len(BEAM_ANGLES) == BEAMS == 19
    assert math.degrees(BEAM_ANGLES[0]) == pytest.approx(90.0)
    assert BEAM_ANGLES[9] == pytest.approx(0.0, abs=1e-12)
    assert math.degrees(BEAM_ANGLES[18]) == pytest.approx(-90.0)


def test_a_straight_corridor() -> None:
    # The oval's lower straight: walls at y = -28 and y = -16 around the centre y = -22, for x from -45 to 45.
    track = make_track("oval")
    beams = Lidar(track).scan(0.0, -21.0, 0.0)
    for beam, angle in enumerate(BEAM_ANGLES):
        gap = 5.0 if angle > 0 else 7.0
        expected = gap / abs(math.sin(angle)) if abs(angle) > math.radians(5.0) else None
        if expected is not None and expected * math.cos(angle) < 44.0:
            assert beams[beam] == pytest.approx(expected, rel=1e-3), math.degrees(angle)


def test_straight_ahead_into_the_bend_and_beyond_the_range() -> None:
    # Ahead lies the outer half circle, radius 28 around (45, 0): at y = -22 its x is 45 + sqrt(28^2 - 22^2).
    lidar = Lidar(make_track("oval"))
    wall_x = 45.0 + math.sqrt(28.0**2 - 22.0**2)
    assert lidar.scan(20.0, -22.0, 0.0)[9] == pytest.approx(wall_x - 20.0, abs=0.1)
    assert lidar.scan(0.0, -22.0, 0.0)[9] == RANGE_M


def _slow_scan(track: Track, x: float, y: float, yaw: float) -> np.ndarray:
    out = np.full(BEAMS, RANGE_M)
    for beam, angle in enumerate(BEAM_ANGLES + yaw):
        direction = np.array([math.cos(angle), math.sin(angle)])
        for wall in (track.left, track.right):
            start, edge = wall - (x, y), np.roll(wall, -1, axis=0) - wall
            cross = direction[0] * edge[:, 1] - direction[1] * edge[:, 0]
            with np.errstate(divide="ignore", invalid="ignore"):
                distance = (start[:, 0] * edge[:, 1] - start[:, 1] * edge[:, 0]) / cross
                part = (start[:, 0] * direction[1] - start[:, 1] * direction[0]) / cross
            hit = (distance >= 0.0) & (part >= 0.0) & (part < 1.0)
            out[beam] = min(out[beam], distance[hit].min(initial=RANGE_M))
    return out


@pytest.mark.parametrize("name", ["demo", "hills"])
def test_agrees_with_the_slow_ray_caster_everywhere(name: str) -> None:
    track, rng = make_track(name), np.random.default_rng(1)
    lidar = Lidar(track)
    for index in rng.integers(0, len(track.centre), 20):
        x, y = track.centre[index] + rng.uniform(-3.0, 3.0, 2)
        yaw = rng.uniform(-10.0, 10.0)
        np.testing.assert_allclose(lidar.scan(x, y, yaw), _slow_scan(track, x, y, yaw), atol=1e-6)


def test_a_scan_does_not_change_an_earlier_one() -> None:
    lidar = Lidar(make_track("demo"))
    x, y = make_track("demo").centre[0]
    first = lidar.scan(x, y, 0.0)
    kept = first.copy()
    lidar.scan(x, y, 1.0)
    np.testing.assert_array_equal(first, kept)


def test_coding() -> None:
    np.testing.assert_allclose(encode(np.array([0.0, 6.0, 60.0])), [1.0, 0.0, 12.0 / 66.0 - 1.0])
    np.testing.assert_allclose(decode(encode(np.array([0.0, 3.0, 60.0]))), [0.0, 3.0, 60.0], atol=1e-4)
