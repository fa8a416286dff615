"""The scripted drivers lap cleanly, as fast as they should, in simulation."""

import numpy as np
import pytest

from tickrate.games.circuit.drivers import GapFollower, PurePursuit
from tickrate.games.circuit.physics import CarParameters
from tickrate.games.circuit.simulation import simulate_lap
from tickrate.games.circuit.track import make_track


@pytest.mark.parametrize("name", ["demo", "oval", "hills", "random:5", "random:15"])
@pytest.mark.parametrize("driver", ["cautious", "pursuit", "gap"])
def test_both_drivers_lap_cleanly(name: str, driver: str) -> None:
    track = make_track(name)
    made = {
        "cautious": lambda: PurePursuit(track, a_lat=7.0),
        "pursuit": lambda: PurePursuit(track),
        "gap": GapFollower,
    }[driver]()
    lap = simulate_lap(made, track)
    assert lap.contacts == 0
    assert np.isfinite(lap.time_s)
    assert len(lap.xy) == len(lap.speed)


def test_pure_pursuit_uses_seven_tenths_of_the_grip() -> None:
    track = make_track("demo")
    driver = PurePursuit(track)
    assert driver.a_lat >= 0.7 * CarParameters().grip
    lap = simulate_lap(driver, track)
    heading = np.unwrap(np.arctan2(*np.diff(lap.xy[10:], axis=0).T[::-1]))
    sideways = np.abs(np.diff(heading)) / 0.01 * lap.speed[12:]
    # Driven, not only planned: over a fifth of a second the corners reach it.
    assert np.convolve(sideways, np.ones(20) / 20, mode="valid").max() > 0.7 * CarParameters().grip


def test_daring_more_is_faster_and_the_gap_follower_is_the_stronger_script() -> None:
    track = make_track("demo")
    cautious = simulate_lap(PurePursuit(track, a_lat=7.0), track).time_s
    pursuit = simulate_lap(PurePursuit(track), track).time_s
    gap = simulate_lap(GapFollower(), track).time_s
    assert gap < pursuit < cautious
    assert 25.0 < gap < 28.0
    assert 26.0 < pursuit < 30.0


def test_the_grip_bounds_what_can_be_dared() -> None:
    track = make_track("demo")
    assert simulate_lap(PurePursuit(track, a_lat=60.0, a_brake=30.0), track).contacts == 1


@pytest.mark.parametrize("delay_steps", [0, 1])
def test_the_drivers_stand_a_shorter_delay(delay_steps: int) -> None:
    track = make_track("demo")
    assert simulate_lap(PurePursuit(track), track, delay_steps=delay_steps).contacts == 0
    assert simulate_lap(GapFollower(), track, delay_steps=delay_steps).contacts == 0
