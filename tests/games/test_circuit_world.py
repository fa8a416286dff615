"""The world: laps, lap times, contacts, respawn."""

import pytest

from tickrate.games.circuit.drivers import PurePursuit
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.simulation import simulate_lap
from tickrate.games.circuit.task import decode_analog
from tickrate.games.circuit.track import make_track
from tickrate.games.circuit.world import FRAME_S, PHYSICS_S, World


def test_physics_runs_at_100_hz_or_more() -> None:
    assert PHYSICS_S <= 0.01
    assert pytest.approx(0.01) == FRAME_S


def test_the_lap_clock_starts_when_the_car_moves() -> None:
    world = World(make_track("oval"))
    for _ in range(100):
        world.advance_frame()
    assert world.lap_time == 0.0
    world.command = Command(gas=1.0)
    for _ in range(100):
        world.advance_frame()
    assert world.lap_time == pytest.approx(1.0, abs=0.02)


def test_two_laps_are_timed_and_the_flying_one_is_faster() -> None:
    track = make_track("oval")
    world, driver, times = World(track), PurePursuit(track), []
    while world.laps < 2 and world.game_time < 100.0:
        world.command = decode_analog(driver.act(world.frame(0.0)))
        before = world.laps
        world.advance_frame()
        if world.laps > before:
            times.append(world.last_lap_time)
            assert world.last_lap_clean
    assert world.progress == pytest.approx(2 * track.length_m, abs=0.5)
    assert sum(times) == pytest.approx(world.game_time, abs=0.1)
    assert times[1] < times[0] - 1.0


def test_a_wall_is_a_contact_counted_once_and_the_lap_is_not_clean() -> None:
    world = World(make_track("oval"))
    world.command = Command(steer=0.3, gas=1.0)
    for _ in range(250):
        world.advance_frame()
    assert world.contacts == 1
    assert world.touching
    half = world.track.width_m / 2.0
    assert abs(world.lateral) < half  # the wall holds
    speed = world.state.speed
    world.command = Command(steer=-0.2, gas=0.3)
    for _ in range(150):
        world.advance_frame()
    assert not world.touching
    assert speed > 0.0


def test_a_nose_in_the_wall_gets_free_again_without_a_reverse_gear() -> None:
    world = World(make_track("oval"))
    world.state = world.state._replace(yaw=world.state.yaw + 1.5)
    world.command = Command(gas=0.5)
    for _ in range(500):
        world.advance_frame()
    assert world.contacts >= 1
    assert world.progress > 2.0


def test_reversing_over_the_start_line_is_no_lap() -> None:
    # Turned round, the car drives backwards over the line and forwards again: no lap.
    world = World(make_track("oval"))
    world.state = world.state._replace(yaw=world.state.yaw + 3.141592653589793)
    world.command = Command(gas=0.5)
    for _ in range(200):
        world.advance_frame()
    assert world.progress < -5.0
    world.state = world.state._replace(yaw=world.state.yaw + 3.141592653589793)
    for _ in range(400):
        world.advance_frame()
    assert world.progress > 0.0
    assert world.laps == 0


def test_respawn_stands_at_the_line_and_holds_no_command() -> None:
    world = World(make_track("demo"))
    world.command = Command(gas=1.0)
    for _ in range(100):
        world.advance_frame()
    contacts, spawns = world.contacts, world.spawns
    world.respawn()
    world.advance_frame()
    frame = world.frame(0.0)
    assert (frame.x, frame.y) == tuple(world.track.centre[0])
    assert frame.speed == frame.progress == frame.lap_time == frame.gas == 0.0
    assert frame.spawns == spawns + 1
    assert frame.contacts == contacts


def test_finished_is_told_by_telemetry_after_a_lap() -> None:
    track = make_track("oval")
    world, driver = World(track), PurePursuit(track)
    while world.laps < 1:
        world.command = decode_analog(driver.act(world.frame(0.0)))
        for _ in range(5):
            world.advance_frame()
    assert world.telemetry()[32:36] == b"\x00\x00\x80\x3f"  # 1.0
    assert world.last_lap_time == pytest.approx(simulate_lap(PurePursuit(track), track).time_s, rel=0.02)
