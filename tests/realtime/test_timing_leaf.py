"""The leaf `timing`: hand-worked figures, and that it points at the newest command the observation shows."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ConfigError, DeviceLost
from tickrate.realtime import RealTimeEnv
from tickrate.realtime.delays import DelayedInterface, probe_delay
from tickrate.realtime.timing_leaf import TIMING_LIMIT
from tickrate.testing import End, FakeClock, FakeInterface, Raise, Stall

PERIOD = 0.1


def make(clock, fake, **config):
    config = {"obs_format": "dict", "timing_in_obs": True, "time_step_duration": PERIOD, **config}
    return RealTimeEnv({"interface": lambda: fake, **config}, clock=clock)


def command(number):
    return np.array([number], np.float32)


class Timeless(FakeInterface):
    """An interface that does not know when its sensor measured."""

    def get_obs_rew_terminated_info(self):
        observation, reward, terminated, _ = super().get_obs_rew_terminated_info()
        return observation, reward, terminated, {}


def test_it_stands_before_the_action_buffer_and_is_off_by_default():
    clock = FakeClock()
    env = make(clock, FakeInterface(clock=clock))
    assert list(env.leaf_spaces) == ["command", "timing", "actions"]
    assert env.leaf_spaces["timing"] == spaces.Box(0.0, 32.0, (3,), np.float32)
    off = make(clock, FakeInterface(clock=clock), timing_in_obs=False)
    assert list(off.leaf_spaces) == ["command", "actions"]


def test_a_punctual_step_measures_one_period_and_a_command_under_way():
    clock = FakeClock()
    env = make(clock, FakeInterface(clock=clock))
    observation, _ = env.reset()
    assert observation["timing"].dtype == np.float32
    np.testing.assert_allclose(observation["timing"], [0, 1, 1], atol=1e-6)
    for _ in range(3):
        observation, *_ = env.step(command(0.5))
        np.testing.assert_allclose(observation["timing"], [0, 1, 1], atol=1e-6)
        assert env.observation_space.contains(observation)


def test_age_and_length_are_measured_in_periods():
    clock = FakeClock()
    # The second capture takes 0.04 s: its step is 1.4 periods long, and the observation 0.4 periods old; the
    # next step, which ends on the grid again, is 0.6 periods long.
    fake = Timeless(clock=clock, on_capture={2: Stall(0.04)})
    env = make(clock, fake, time_step_timeout_factor=10.0)
    env.reset()
    timings = [env.step(command(0.0))[0]["timing"] for _ in range(4)]
    np.testing.assert_allclose(timings, [[0, 1, 1], [0.4, 1.4, 1], [0, 0.6, 1], [0, 1, 1]], atol=1e-5)


def test_an_early_capture_is_older_when_the_command_goes_out():
    clock = FakeClock()
    env = make(clock, Timeless(clock=clock), start_obs_capture=0.07, async_threading=False)
    env.reset()
    np.testing.assert_allclose(env.step(command(0.0))[0]["timing"], [0.3, 1, 1], atol=1e-5)


def test_without_a_sensor_s_time_the_delay_in_steps_is_added():
    clock = FakeClock()
    device = DelayedInterface(Timeless(clock=clock), action_delay=1, observation_delay=2)
    env = make(clock, device, start_obs_capture=0.07, async_threading=False)
    env.reset()
    timings = [env.step(command(0.0))[0]["timing"] for _ in range(5)]
    # The first observations are those of the reset, one, then two steps old, then always two. The command in
    # force at their capture is the newest at the reset (0), and a step later still that one, one older (1).
    expected = [[1.3, 1, 1], [2.3, 1, 1], [2.3, 1, 2], [2.3, 1, 2], [2.3, 1, 2]]
    np.testing.assert_allclose(timings, expected, atol=1e-5)


def test_the_age_is_that_of_the_sensor_where_the_interface_tells_it():
    clock = FakeClock()

    class Slow(FakeInterface):
        def get_obs_rew_terminated_info(self):
            observation, reward, terminated, info = super().get_obs_rew_terminated_info()
            return observation, reward, terminated, {**info, "observation_time": clock.now() - 0.25}

    env = make(clock, Slow(clock=clock))
    env.reset()
    np.testing.assert_allclose(env.step(command(0.0))[0]["timing"], [2.5, 1, 1], atol=1e-5)


@pytest.mark.parametrize(("time", "age"), [(math.nan, TIMING_LIMIT), (1e9, 0.0), (-1e9, TIMING_LIMIT)])
def test_a_sensor_s_time_that_cannot_be_stays_in_the_range(time, age):
    clock = FakeClock()

    class Confused(FakeInterface):
        def get_obs_rew_terminated_info(self):
            observation, reward, terminated, info = super().get_obs_rew_terminated_info()
            return observation, reward, terminated, {**info, "observation_time": time}

    env = make(clock, Confused(clock=clock))
    env.reset()
    np.testing.assert_allclose(env.step(command(0.0))[0]["timing"], [age, 1, 1], atol=1e-5)


def test_a_pause_has_no_length_and_what_is_too_long_is_clipped():
    clock = FakeClock()
    env = make(clock, Timeless(clock=clock, on_capture={3: Stall(100.0)}), interface_timeout_s=1000.0)
    env.reset()
    env.step(command(0.0))
    env.wait()
    clock.advance(50.0)
    np.testing.assert_allclose(env.step(command(0.0))[0]["timing"], [0, 1, 1], atol=1e-5)
    timing = env.step(command(0.0))[0]["timing"]
    np.testing.assert_allclose(timing, [TIMING_LIMIT, TIMING_LIMIT, 1], atol=1e-5)


def test_the_flat_form_holds_it_before_the_buffer():
    clock = FakeClock()
    env = make(clock, FakeInterface(clock=clock), obs_format="flat", act_buf_len=2)
    env.reset()
    observation, *_ = env.step(command(0.5))
    np.testing.assert_allclose(observation, [0.0, 0, 1, 1, 0.0, 0.5], atol=1e-6)


@pytest.mark.parametrize("form", ["dict", "flat"])
def test_a_delay_probe_does_not_look_at_it(form):
    clock = FakeClock()
    device = DelayedInterface(FakeInterface(clock=clock), action_delay=2)
    report = probe_delay(make(clock, device, obs_format=form, act_buf_len=4), repeats=3)
    assert report.steps == (3, 3, 3)
    assert report.leaves == ("command",)


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match=r'"timing".*tuple form'):
        make(FakeClock(), FakeInterface(), obs_format="tuple")
    named = FakeInterface(
        observe=lambda device: {"timing": device.applied},
        observation_space=spaces.Dict({"timing": spaces.Box(-1, 1, (1,), np.float32)}),
    )
    with pytest.raises(ConfigError, match=r"a leaf 'timing'.*kept for the timing"):
        make(FakeClock(), named)


def test_a_lost_device_repeats_the_last_timing():
    clock = FakeClock()
    env = make(clock, FakeInterface(clock=clock, on_capture={2: Raise(DeviceLost("gone"))}))
    env.reset()
    before = env.step(command(0.5))[0]
    after, _, _, truncated, _ = env.step(command(0.25))
    assert truncated
    np.testing.assert_array_equal(after["timing"], before["timing"])


DELAYS = [(0, 0), (1, 0), (0, 2), (3, 1), ((3, 5), 0), ((0, 3), (0, 4)), ((2, 6), (1, 3))]


@pytest.mark.parametrize("real_time", [True, False])
@pytest.mark.parametrize(("action", "observation"), DELAYS)
def test_it_points_at_the_command_that_the_observation_shows(real_time, action, observation):
    """The echo of `FakeInterface` is the command in force, so the pointer can be followed exactly."""
    clock = FakeClock()
    fake = FakeInterface(clock=clock, on_capture={24: End()})
    device = DelayedInterface(fake, action_delay=action, observation_delay=observation, seed=5)
    env = make(clock, device, real_time=real_time, act_buf_len=16, reset_act_buf=False)
    seen_delays, number, followed = set(), 0, 0
    for _ in range(2):
        current, _ = env.reset()
        for step in range(25):
            age, _, under_way = (float(n) for n in current["timing"])
            pointer = math.floor(age + 1e-6) + int(under_way)
            under_way_now = current["actions"][len(current["actions"]) - pointer :]
            assert current["command"] == 0.0 or current["command"] not in under_way_now
            if pointer < step + int(real_time):  # else it is a command from before the episode
                np.testing.assert_array_equal(current["actions"][-1 - pointer], current["command"])
                followed += 1
            seen_delays.add(pointer - int(real_time))
            number += 1
            current, _, terminated, _, _ = env.step(command(number / 100))
            if terminated:
                break
    longest = np.max(action) + np.max(observation)
    least = longest if isinstance(action, int) and isinstance(observation, int) else longest - 2
    assert least <= max(seen_delays) <= longest
    assert followed > 25
