"""Tracks: the numbers the demo demands, determinism, and where a point lies."""

import math

import numpy as np
import pytest

from tickrate.errors import ConfigError
from tickrate.games.circuit.track import TRACKS, Track, fourier_track, from_curve, make_track


def test_the_demo_track_is_as_hard_as_demanded() -> None:
    track = make_track("demo")
    assert track.length_m >= 400.0
    assert track.width_m <= 11.0
    assert track.smallest_radius_m <= 10.0


@pytest.mark.parametrize("name", [*TRACKS, "random:1", "random:5"])
def test_walls_lie_half_a_width_from_the_centre_and_never_cross_another_part(name: str) -> None:
    track = make_track(name)
    half = track.width_m / 2.0
    np.testing.assert_allclose(np.linalg.norm(track.left - track.centre, axis=1), half)
    np.testing.assert_allclose(np.linalg.norm(track.right - track.centre, axis=1), half)
    assert track.smallest_radius_m > half
    assert track.clearance_m() > track.width_m + 1.0
    # Left is left: the cross product of the direction and the way to the left wall is positive.
    offset = track.left - track.centre
    assert (track.tangent[:, 0] * offset[:, 1] - track.tangent[:, 1] * offset[:, 0] > 0.9 * half).all()


def test_the_oval_has_the_length_and_radius_of_its_formula() -> None:
    track = make_track("oval")
    assert track.length_m == pytest.approx(2 * 90 + 2 * math.pi * 22, rel=1e-3)
    assert track.smallest_radius_m == pytest.approx(22.0, rel=0.02)
    assert track.curvature.min() > -1e-6  # left turns only
    np.testing.assert_allclose(track.centre[0], [0.0, -22.0], atol=0.1)


def test_the_same_seed_gives_the_same_track_and_another_seed_another() -> None:
    arguments = {"length_m": 300.0, "width_m": 9.0, "smallest_radius_m": 9.0}
    one = fourier_track("a", seed=3, **arguments)
    same = fourier_track("b", seed=3, **arguments)
    other = fourier_track("c", seed=4, **arguments)
    np.testing.assert_array_equal(one.centre, same.centre)
    assert one.length_m == pytest.approx(300.0, abs=0.1)
    assert other.centre.shape != one.centre.shape or not np.allclose(other.centre, one.centre)


def test_the_first_corner_of_the_demo_is_gentle() -> None:
    track = make_track("demo")
    first_60_m = np.abs(track.curvature[: round(60 / track.spacing_m)])
    assert first_60_m.max() < 1.0 / 18.0


def test_locate_returns_the_place_that_a_point_was_made_from() -> None:
    track = make_track("demo")
    rng = np.random.default_rng(0)
    for index in rng.integers(0, len(track.centre), 50):
        lateral = rng.uniform(-4.0, 4.0)
        middle = track.centre[index] + 0.5 * track.spacing_m * track.tangent[index]
        tangent = track.tangent[index]
        x, y = middle + lateral * np.array([-tangent[1], tangent[0]])
        for hint in (index, index - 6, index + 6):
            place = track.locate(x, y, int(hint))
            assert place.lateral_m == pytest.approx(lateral, abs=0.02)
            assert place.along_m == pytest.approx((index + 0.5) * track.spacing_m, abs=0.5)


def test_locate_walks_over_the_start_line() -> None:
    track = make_track("demo")
    x, y = track.centre[-3]
    assert track.locate(x, y, 2).index in (len(track.centre) - 4, len(track.centre) - 3)


@pytest.mark.parametrize("name", ["dmeo", "random:", "random:-1", "random:x", "random:9999999999", ""])
def test_an_unknown_track_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no track"):
        make_track(name)


def test_the_error_suggests_the_nearest_track() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'demo'"):
        make_track("dmeo")


def test_a_corner_tighter_than_half_the_width_is_refused() -> None:
    angle = np.linspace(0.0, 2.0 * np.pi, 500, endpoint=False)
    circle = 5.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    with pytest.raises(ConfigError, match="too tight"):
        from_curve("small", circle, width_m=11.0)
    assert isinstance(from_curve("small", circle, width_m=4.0), Track)
