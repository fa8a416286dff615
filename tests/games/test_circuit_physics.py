"""The car against figures worked out by hand."""

import math

import pytest

from tickrate.errors import ConfigError
from tickrate.games.circuit.physics import (
    CarParameters,
    CarState,
    Command,
    advance,
    engine_rpm,
    push_back,
    shift,
)

CAR = CarParameters()
DT = 0.005


def run(state: CarState, command: Command, seconds: float) -> CarState:
    for _ in range(round(seconds / DT)):
        state = advance(state, command, DT, CAR)
    return state


def test_braking_distance() -> None:
    # v dv/dx = -(a + c v^2)  gives  x = ln(1 + c v0^2 / a) / (2 c), with a = brake + rolling.
    a, c, v0 = CAR.brake + CAR.rolling, CAR.drag, 20.0
    expected = math.log(1.0 + c * v0 * v0 / a) / (2.0 * c)
    state = run(CarState(0.0, 0.0, 0.0, forward=v0), Command(brake=1.0), 3.0)
    assert state.forward == 0.0
    assert state.x == pytest.approx(expected, rel=0.01)
    assert state.y == 0.0


def test_top_speed_is_where_drag_eats_the_engine() -> None:
    state = run(CarState(0.0, 0.0, 0.0), Command(gas=1.0), 30.0)
    assert state.forward == pytest.approx(math.sqrt((CAR.engine - CAR.rolling) / CAR.drag), rel=0.01)
    assert 29.0 < state.forward < 31.0


def test_first_second_from_standing() -> None:
    # v' = a - c v^2 from rest: v = w tanh(a t / w) with a = engine - rolling and w = sqrt(a / c).
    a = CAR.engine - CAR.rolling
    w = math.sqrt(a / CAR.drag)
    state = run(CarState(0.0, 0.0, 0.0), Command(gas=1.0), 1.0)
    assert state.forward == pytest.approx(w * math.tanh(a / w), rel=0.005)


def test_a_slow_car_drives_the_circle_of_its_geometry() -> None:
    # Kinematic bicycle: yaw rate = v tan(wheel) / wheelbase.
    state = run(CarState(0.0, 0.0, 0.0, forward=1.0), Command(steer=-0.5, gas=0.031), 2.0)
    wheel = 0.5 * CAR.max_steer_rad
    assert state.wheel == pytest.approx(wheel)
    assert state.yaw_rate == pytest.approx(state.forward * math.tan(wheel) / (2 * CAR.axle_m), rel=0.02)


def test_steering_right_turns_right() -> None:
    state = run(CarState(0.0, 0.0, 0.0, forward=10.0), Command(steer=0.3, gas=0.3), 0.5)
    assert state.yaw < 0.0
    assert state.y < 0.0


def _greatest_forces(gas: float) -> tuple[float, float]:
    """Greatest sideways and total acceleration from the tyres (m/s2) over all steering angles from 15 m/s."""
    sideways, total = 0.0, 0.0
    for percent in range(5, 101, 5):
        state = CarState(0.0, 0.0, 0.0, forward=15.0)
        for _ in range(150):
            new = advance(state, Command(steer=-percent / 100, gas=gas), DT, CAR)
            # The velocity in the turning frame: v_x' = a_x + v_y r and v_y' = a_y - v_x r.
            side = (new.sideways - state.sideways) / DT + state.forward * state.yaw_rate
            ahead = (new.forward - state.forward) / DT - state.sideways * state.yaw_rate
            ahead += CAR.drag * state.forward**2 + CAR.rolling
            sideways, total = max(sideways, side), max(total, math.hypot(side, ahead))
            state = new
    return sideways, total


def test_cornering_reaches_the_grip_and_no_more() -> None:
    sideways, total = _greatest_forces(0.0)
    assert 0.95 * CAR.grip < sideways
    assert total < 1.001 * CAR.grip


def test_full_throttle_leaves_the_rest_of_the_friction_circle() -> None:
    left = math.sqrt(CAR.grip**2 - CAR.engine**2)  # 10.25 m/s2
    turned_engine = CAR.engine / 2.0 * math.sin(CAR.max_steer_rad)  # the front wheels pull to the side
    sideways, total = _greatest_forces(1.0)
    assert 0.95 * left < sideways < left + turned_engine + 0.01
    assert total < 1.001 * CAR.grip


def test_full_lock_at_speed_understeers_instead_of_spinning() -> None:
    state = run(CarState(0.0, 0.0, 0.0, forward=25.0), Command(steer=1.0), 1.5)
    slip = math.atan2(state.sideways, state.forward)
    assert abs(slip) < math.radians(35.0)


@pytest.mark.parametrize(
    "command", [Command(), Command(1.0, 0.0, 1.0), Command(-1.0, 1.0, 1.0), Command(1.0)]
)
def test_a_standing_car_stays_finite_and_does_not_move_without_gas(command: Command) -> None:
    state = run(CarState(0.0, 0.0, 0.3), command, 1.0)
    assert all(map(math.isfinite, state))
    assert state.forward >= 0.0
    if command.gas == 0.0:
        assert (state.x, state.y, state.yaw) == (0.0, 0.0, 0.3)


def test_a_wild_state_stays_finite() -> None:
    state = CarState(0.0, 0.0, 0.0, forward=0.5, sideways=15.0, yaw_rate=8.0)
    state = run(state, Command(steer=1.0, gas=1.0), 2.0)
    assert all(map(math.isfinite, state))
    assert state.speed < 20.0


def test_a_wall_takes_the_speed_into_it_and_some_of_the_rest() -> None:
    # A wall along x on the left; the car drives into it at 30 degrees with 10 m/s.
    angle = math.radians(30.0)
    state = push_back(CarState(0.0, 5.0, angle, forward=10.0), 0.0, 0.2, 0.0, 1.0, DT, True)
    assert state.y == pytest.approx(4.8)
    world_x = state.forward * math.cos(state.yaw) - state.sideways * math.sin(state.yaw)
    world_y = state.forward * math.sin(state.yaw) + state.sideways * math.cos(state.yaw)
    assert world_x == pytest.approx(0.6 * 10.0 * math.cos(angle))
    assert world_y == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < angle - state.yaw <= 2.0 * DT + 1e-12


def test_a_car_that_leaves_the_wall_keeps_its_speed_away_from_it() -> None:
    state = push_back(CarState(0.0, 5.0, -0.2, forward=10.0), 1.2, 0.0, 0.0, 1.0, DT, False)
    world_y = state.forward * math.sin(state.yaw) + state.sideways * math.cos(state.yaw)
    assert world_y == pytest.approx(10.0 * math.sin(-0.2))


def test_gears_shift_with_hysteresis_and_the_engine_stays_in_its_range() -> None:
    assert shift(1, 0.0) == 1
    assert shift(1, 6.5) == 1
    assert shift(1, 7.5) == 2
    assert shift(2, 6.5) == 2
    assert shift(2, 5.9) == 1
    assert shift(1, 30.0) == 5
    assert shift(5, 0.0) == 1
    assert engine_rpm(1, 0.0) == 1000.0
    assert engine_rpm(5, 100.0) == 10_000.0


@pytest.mark.parametrize("bad", [{"brake": 13.0}, {"engine": 20.0}, {"brake": 0.0}, {"grip": float("nan")}])
def test_impossible_cars_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        CarParameters(**bad)
