"""The conventions that users of a real-time environment rely on, shown with the public fake device."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tickrate.errors import ObservationError
from tickrate.realtime import RealTimeEnv
from tickrate.testing import (
    End,
    FakeClock,
    FakeInterface,
    NotFinite,
    Raise,
    Return,
    Silent,
    Stale,
    Stall,
    check_environment,
)

PERIOD = 0.02


def make(fake_kwargs=None, **config):
    clock = FakeClock()
    fake = FakeInterface(clock=clock, **(fake_kwargs or {}))
    settings = {"interface": lambda: fake, "time_step_duration": PERIOD, "obs_format": "dict"}
    return RealTimeEnv(settings | config, clock=clock), fake, clock


def act(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def test_the_observation_of_step_k_shows_action_k_minus_1_and_the_reward_belongs_to_it():
    env, _, _ = make({"reward": lambda device: float(device.applied[0])})
    env.reset()
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (200, 1)).astype(np.float32)
    shown, rewards, newest = [], [], []
    for action in actions:
        observation, reward, *_ = env.step(action)
        shown.append(observation["command"][0])
        rewards.append(reward)
        newest.append(observation["actions"][-1, 0])
    assert shown[0] == 0.0  # the default action that reset() sent
    assert np.array_equal(shown[1:], actions[:-1, 0])
    assert np.array_equal(rewards, np.array(shown, np.float64))
    assert np.array_equal(newest, actions[:, 0])
    env.close()


def test_lock_step_and_real_time_agree_up_to_the_stated_shift_of_one():
    actions = np.random.default_rng(1).uniform(-1.0, 1.0, (50, 1)).astype(np.float32)

    def run(real_time):
        env, fake, _ = make(real_time=real_time)
        env.reset()
        seen = [env.step(action)[0]["command"][0] for action in actions]
        heard = [float(value[0]) for value in fake.values if value[0] != 0.0]
        env.close()
        return seen, heard

    lock_step, heard_in_lock_step = run(False)
    real_time, heard_in_real_time = run(True)
    assert lock_step == list(actions[:, 0])  # step k shows action k
    assert real_time[1:] == lock_step[:-1]  # step k shows action k - 1
    assert heard_in_lock_step == heard_in_real_time == [float(a) for a in actions[:, 0]]


def test_the_action_buffer_copies():
    env, _, _ = make(act_buf_len=3)
    env.reset()
    reused = np.zeros(1, np.float32)
    for value in (0.1, 0.2, 0.3):
        reused[0] = value
        observation, *_ = env.step(reused)
    assert observation["actions"][:, 0].tolist() == pytest.approx([0.1, 0.2, 0.3])
    observation["actions"][:] = 9.0
    observation["command"][:] = 9.0
    observation, *_ = env.step(act(0.4))
    assert observation["actions"][:, 0].tolist() == pytest.approx([0.2, 0.3, 0.4])
    env.close()


def test_a_frozen_sensor_grows_old_and_ends_the_episode_safely():
    env, fake, _ = make({"on_capture": {n: Stale() for n in range(4, 100)}}, max_observation_age_s=0.05)
    env.reset()
    ages, truncated = [], False
    while not truncated:
        *_, terminated, truncated, info = env.step(act(0.5))
        ages.append(info["timing"]["observation_age"])
        assert not terminated
    assert ages == pytest.approx([0.0, 0.0, 0.0, 0.02, 0.04, 0.06])
    assert "stale" in info["truncation_reason"]
    assert fake.values[-1] == 0.0
    env.close()


def test_a_silent_device_truncates_and_comes_back_at_reset():
    env, fake, _ = make({"on_capture": {3: Silent("plugin silent")}})
    env.reset()
    for _ in range(2):
        env.step(act(0.5))
    *_, terminated, truncated, info = env.step(act(0.5))
    assert (terminated, truncated) == (False, True)
    assert "plugin silent" in info["truncation_reason"]
    assert fake.values[-1] == 0.0
    env.reset()
    assert not any(env.step(act(0.5))[2:4])
    env.close()


def test_the_interface_can_truncate_and_terminate():
    env, _, _ = make({"on_capture": {1: End(truncated=True, reason="lap finished"), 2: End()}})
    env.reset()
    *_, terminated, truncated, info = env.step(act(0.1))
    assert (terminated, truncated, info["truncation_reason"]) == (False, True, "lap finished")
    env.reset()
    assert env.step(act(0.1))[2:4] == (True, False)
    env.close()


def test_an_exception_comes_out_as_it_is_with_the_device_safe():
    error = OSError("camera gone")
    env, fake, _ = make({"on_capture": {3: Raise(error)}})
    env.reset()
    env.step(act(0.7))
    env.step(act(0.7))
    with pytest.raises(OSError, match="camera gone") as caught:
        env.step(act(0.7))
    assert caught.value is error
    assert fake.values[-1] == 0.0
    env.close()


def test_a_stall_is_one_overrun_and_a_slow_reset_is_none():
    env, _, _ = make({"on_capture": {30: Stall(0.1)}, "reset_s": 0.3}, ep_max_length=10)
    late = []
    for _ in range(4):
        env.reset()
        for _ in range(10):
            timing = env.step(act(0.1))[4]["timing"]
            if timing["overrun"]:
                late.append(timing["lateness"])
    assert late == pytest.approx([0.1], abs=0.011)
    assert env.timing_summary().overruns == 1
    env.close()


@pytest.mark.parametrize(
    "observation", [[[1.0]], ([1.0],), (np.array([1.0]),), np.array([[1.0]], np.float32), [np.float64([1.0])]]
)
def test_lists_tuples_and_float64_are_cast(observation):
    space = spaces.Tuple((spaces.Box(-1.0, 1.0, (1,), np.float32),))
    env, _, _ = make({"observe": lambda device: observation, "observation_space": space}, obs_format="tuple")
    returned, _ = env.reset()
    for values in (returned, env.step(act(0.0))[0]):
        assert values[0].dtype == np.float32
        assert env.observation_space.contains(values)
    env.close()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Return((np.zeros(2, np.float32),)), r"obs\['command'\].*\(2,\).*\(1,\)"),
        (Return({"speed": 1.0}), "sequence|expected"),
        (NotFinite(), r"obs\['command'\]"),
    ],
)
def test_a_wrong_observation_is_one_error_that_names_the_leaf(behaviour, words):
    env, fake, _ = make({"on_capture": {2: behaviour}})
    env.reset()
    env.step(act(0.5))
    with pytest.raises(ObservationError, match=words):
        env.step(act(0.5))
    assert fake.values[-1] == 0.0
    env.close()


def test_making_an_environment_moves_nothing():
    fake = FakeInterface(clock=FakeClock())
    env = gymnasium.make("tickrate/RealTime-v0", config={"interface": lambda: fake})
    env.close()
    assert (fake.commands, fake.reset_times, fake.none_commands) == ([], [], 0)


def test_a_constructor_that_fails_is_raised_by_make():
    with pytest.raises(RuntimeError, match="no such device"):
        gymnasium.make(
            "tickrate/RealTime-v0",
            config={"interface": FakeInterface, "interface_kwargs": {"fail": RuntimeError("no such device")}},
        )


@pytest.mark.parametrize("obs_format", ["tuple", "dict", "flat"])
def test_gymnasiums_checker_passes_without_a_warning(obs_format):
    clock = FakeClock()
    config = {"interface": FakeInterface, "interface_kwargs": {"clock": clock}, "obs_format": obs_format}
    env = gymnasium.make("tickrate/RealTime-v0", config=config, clock=clock)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_the_environment_check_agrees():
    for obs_format in ("tuple", "dict", "flat"):
        env, _, _ = make(obs_format=obs_format, ep_max_length=7)
        assert check_environment(env) == []
        env.close()
