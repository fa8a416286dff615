"""Gymnasium's side: ids, make, wrappers, seeds, and what importing the package does."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import tickrate
from tickrate import realtime
from tickrate.realtime import ENVIRONMENT_IDS, RealTimeEnv, RealTimeGymInterface
from tickrate.testing import FakeClock, FakeInterface


def run(program):
    return subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60, text=True)


@pytest.mark.parametrize("env_id", [*ENVIRONMENT_IDS, "tickrate.realtime:real-time-gym-v1"])
def test_make_gives_the_one_environment_and_steps_without_a_warning(env_id):
    env = gymnasium.make(env_id, config={"interface": FakeInterface, "ep_max_length": 3}, clock=FakeClock())
    assert isinstance(env.unwrapped, RealTimeEnv)
    for _ in range(2):
        env.reset()
        truncated = False
        while not truncated:
            *_, truncated, _ = env.step(env.action_space.sample())
    env.close()


def test_float64_and_lists_from_an_interface_cause_no_checker_warning():
    class Casual(FakeInterface):
        def get_obs_rew_terminated_info(self):
            return [[0.5]], np.float32(1.0), np.bool_(False), {}

        def reset(self, seed=None, options=None):
            return np.array([[0.5]]), {}

    env = gymnasium.make("tickrate/RealTime-v0", config={"interface": Casual}, clock=FakeClock())
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    observation, reward, terminated, *_ = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert (type(reward), type(terminated)) == (float, bool)
    env.close()


def test_the_seed_and_options_reach_the_interface(bench):
    b = bench()
    b.env.reset(seed=7)
    first = b.env.np_random.random()
    b.env.reset(seed=7, options={"track": 2})
    assert b.device.seeds == [7, 7]
    assert b.env.np_random.random() == first


def test_an_id_taken_by_somebody_else_is_left_alone():
    run(
        "import gymnasium\n"
        "gymnasium.register('real-time-gym-v1', entry_point='somewhere:Else')\n"
        "import tickrate.realtime\n"
        "assert gymnasium.spec('real-time-gym-v1').entry_point == 'somewhere:Else'\n"
        "assert gymnasium.spec('real-time-gym-ts-v1').entry_point.startswith('tickrate')\n"
    )


def test_importing_starts_no_thread_takes_no_signal_and_loads_no_torch():
    run(
        "import os, signal, sys, threading\n"
        "before = dict(os.environ), signal.getsignal(signal.SIGTERM)\n"
        "import tickrate, tickrate.realtime\n"
        "assert threading.active_count() == 1\n"
        "assert (dict(os.environ), signal.getsignal(signal.SIGTERM)) == before\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_the_names_people_import():
    from tickrate import DEFAULT_CONFIG_DICT, DummyRCDrone

    assert tickrate.RealTimeGymInterface is realtime.RealTimeGymInterface is RealTimeGymInterface
    assert realtime.DummyRCDrone is DummyRCDrone
    assert DEFAULT_CONFIG_DICT["interface"] is RealTimeGymInterface
    with pytest.raises(AttributeError, match="DEFAULT_CONFIG"):
        _ = tickrate.DEFAULT_CONFIG


def test_the_thread_of_a_closed_environment_ends(bench):
    import threading

    before = threading.active_count()
    for _ in range(5):
        b = bench(clock=None, time_step_duration=0.01, start_obs_capture=0.005)
        b.env.reset()
        b.env.step(np.zeros(1, np.float32))
        b.env.close()
    assert threading.active_count() <= before + 1  # the watchdog may be about to end


@pytest.mark.filterwarnings("ignore:.*has an unconventional shape")  # the buffer is (length, *action)
@pytest.mark.parametrize("form", ["dict", "flat"])
def test_stable_baselines3s_checker_passes(form):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    config = {"interface": FakeInterface, "obs_format": form}
    checker.check_env(RealTimeEnv(config, clock=FakeClock()))
