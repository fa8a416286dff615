import math
import random
import threading

import numpy as np
import pytest

from tickrate.realtime.dummy_drone import DummyRCDrone
from tickrate.testing import FakeClock


def drone_on(clock, **kwargs):
    defaults = {"communication_delay_min": 0.02, "communication_delay_max": 0.02, "seed": 0}
    return DummyRCDrone(clock=clock, **(defaults | kwargs))


def test_a_fixed_delay_worked_by_hand():
    # Period 10 ms, 20 ms each way. The command of t = 5 ms arrives at 25 ms and is first flown at the tick of
    # 30 ms, whose position (still 0) is sent first; the tick of 40 ms sends 0.01, which arrives at 60 ms.
    clock = FakeClock()
    drone = drone_on(clock)
    clock.advance(0.005)
    drone.send_control(1.0, -0.5)
    clock.sleep_until(0.0599)
    assert drone.get_observation() == (0.0, 0.0)
    clock.sleep_until(0.0601)
    assert drone.get_observation() == pytest.approx((0.01, -0.005))
    assert drone.observation_time == pytest.approx(0.04)
    clock.sleep_until(0.1601)
    assert drone.get_observation() == pytest.approx((0.11, -0.055))


def test_speed_is_limited_and_the_direction_kept():
    clock = FakeClock()
    drone = drone_on(clock, world_size=100.0)
    drone.send_control(30.0, 40.0)
    clock.sleep_until(1.0)
    before = drone.get_observation()
    clock.sleep_until(2.0)
    after = drone.get_observation()
    assert math.dist(before, after) == pytest.approx(2.0)
    assert (after[0] - before[0]) / (after[1] - before[1]) == pytest.approx(0.75)


def test_it_stops_at_the_edge_of_the_world():
    clock = FakeClock()
    drone = drone_on(clock)
    drone.send_control(2.0, -1.0)
    clock.sleep_until(5.0)
    assert drone.get_observation() == (1.0, -1.0)


def test_the_newest_message_wins_on_both_ways():
    clock = FakeClock()
    drone = DummyRCDrone(clock=clock, communication_delay_min=0.0, communication_delay_max=0.5, seed=3)
    rng = random.Random(0)
    for i in range(200):
        drone.send_control(0.0, 1e-3 * i)  # each command is larger than all before
        clock.advance(rng.uniform(0.0, 0.02))
    times, heights = [], []
    for _ in range(300):
        clock.advance(0.003)
        heights.append(drone.get_observation()[1])
        times.append(drone.observation_time)
    assert times == sorted(times)
    assert heights == sorted(heights)
    assert len(set(times)) > 10
    assert 0.0 <= clock.now() - times[-1] <= 0.51


def test_the_answers_do_not_depend_on_how_often_it_is_asked():
    def fly(questions: int):
        clock = FakeClock()
        drone = DummyRCDrone(clock=clock, seed=5)
        for i in range(10):
            drone.send_control(math.sin(i), math.cos(i))
            for _ in range(questions):
                clock.advance(0.05 / questions)
                drone.get_observation()
        clock.sleep_until(0.55)
        return (*drone.get_observation(), drone.observation_time)

    assert fly(1) == pytest.approx(fly(50))


def test_seeds_repeat():
    def fly(seed):
        clock = FakeClock()
        drone = DummyRCDrone(clock=clock, seed=seed)
        drone.send_control(1.0, 0.0)
        out = []
        for _ in range(50):
            clock.advance(0.007)
            out.append(drone.get_observation()[0])
        return out

    assert fly(1) == fly(1)
    assert fly(1) != fly(2)


def test_a_long_silence_is_bridged():
    clock = FakeClock()
    drone = drone_on(clock, world_size=1e9)
    drone.send_control(1.0, 0.0)
    clock.sleep_until(24 * 3600.0)
    x, _ = drone.get_observation()
    # First flown at the tick of 20 ms; the newest position to have arrived was sent 20 ms before the end.
    assert x == pytest.approx(24 * 3600.0 - 0.04, abs=0.011)
    assert drone._positions._sent < 100  # not 8.6 million ticks one by one
    assert drone.observation_time == pytest.approx(24 * 3600.0 - 0.02, abs=0.011)


def test_bridging_changes_nothing(monkeypatch):
    def fly():
        clock = FakeClock()
        drone = drone_on(clock, world_size=1e3, communication_delay_min=0.05, communication_delay_max=0.05)
        out = []
        for velocity in (1.0, -0.3, 0.7):
            drone.send_control(velocity, 0.0)
            clock.advance(30.0)  # 3000 ticks
            drone.send_control(velocity, 0.1)
            clock.advance(0.02)
            out.append((*drone.get_observation(), drone.observation_time))
        return np.array(out)

    bridged = fly()
    monkeypatch.setattr("tickrate.realtime.dummy_drone._CATCH_UP_TICKS", 10**9)
    assert fly() == pytest.approx(bridged)


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="delays"):
        DummyRCDrone(communication_delay_min=0.1, communication_delay_max=0.05)
    for name in ("max_vel", "world_size", "control_sleep"):
        with pytest.raises(ValueError, match=name):
            DummyRCDrone(**{name: 0.0})
    with pytest.raises(ValueError, match="finite"):
        DummyRCDrone().send_control(float("nan"), 0.0)


def test_it_flies_on_the_real_clock_without_threads():
    threads = threading.active_count()
    drone = DummyRCDrone(1.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.001)
    drone.send_control(vel_x=2.0, vel_y=0.0)
    done = threading.Event()
    for _ in range(1000):
        if drone.get_observation()[0] == 1.0:
            break
        done.wait(0.005)
    assert drone.get_observation() == (1.0, 0.0)
    assert threading.active_count() == threads
