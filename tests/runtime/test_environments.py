"""Environments open in canonical form, or are refused by name before anything is sent."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tickrate import RealTimeGymInterface
from tickrate.errors import ConfigError
from tickrate.runtime.environments import (
    EnvironmentConfig,
    LiveEnvironment,
    LockStepEnvironment,
    is_live,
    open_environment,
    realtime_config,
)
from tickrate.testing import FakeClock, FakeInterface, ProbeEnv


class Shaped(gymnasium.Env):
    """An environment of any spaces."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), np.float64(1.0), np.bool_(True), np.bool_(False), {}


class Keys(RealTimeGymInterface):
    """An interface whose commands are two arrays, which no row has room for."""

    closed = 0

    def get_observation_space(self):
        return spaces.Tuple((spaces.Box(0, 1, (1,), np.float32),))

    def get_action_space(self):
        return spaces.Dict({"keys": spaces.MultiBinary(4), "wheel": spaces.Box(-1, 1, (1,), np.float32)})

    def get_default_action(self):
        return {"keys": np.zeros(4, np.int8), "wheel": np.zeros(1, np.float32)}

    def close(self):
        type(self).closed += 1


def test_nested_observations_are_flattened_by_path():
    space = spaces.Dict(
        {
            "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,)), "speed": spaces.Box(-1, 1, (2,))}),
            "pair": spaces.Tuple((spaces.Box(0, 1, ()), spaces.Box(0, 1, (3,)))),
        }
    )
    env = LockStepEnvironment(Shaped(space), "nested")
    paths = ["arm/angle", "arm/speed", "pair/0", "pair/1"]
    assert list(env.leaf_spaces) == paths
    observation, _ = env.reset(seed=0)
    assert list(observation) == paths
    observation, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert list(observation) == paths
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert (env.period_s, env.action_buffer_length, env.timing()) == (0.0, 0, None)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Dict({"note": spaces.Text(5)}), None, "observation leaf 'note'.*no fixed shape"),
        (spaces.Sequence(spaces.Discrete(3)), None, "observation leaf 'value'.*no fixed shape"),
        (spaces.Box(0, 1, (2,)), spaces.Tuple((spaces.Discrete(3),)), "is Tuple.*no single array"),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 5, (1,), np.int64), "a Box of int64: use"),
        (spaces.Box(0, 1, (2,)), spaces.Box(-np.inf, np.inf, (1,)), "unbounded"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(observation, action, message):
    with pytest.raises(ConfigError, match=f"myenv: .*{message}"):
        LockStepEnvironment(Shaped(observation, action), "myenv")


def test_a_refused_environment_is_closed_again():
    config = EnvironmentConfig(id=f"{__name__}:Keys")
    before = Keys.closed
    with pytest.raises(ConfigError, match="Keys: the action space is Dict"):
        open_environment(config)
    assert Keys.closed == before + 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "circut"}, "neither a live one.*circuit.*Did you mean 'circuit'"),
        ({"id": "Pendulum-v7"}, "Pendulum-v7"),
        ({"id": "Pendulum-v1", "kwargs": {"gravity": 9.81}}, "kwargs.*gravity"),
        ({"id": "Pendulum-v1", "realtime": {"time_step_duration": 0.1}}, "lock-step"),
        ({"id": "real-time-gym-v1"}, "own clock"),
        ({"id": "no_such_module:X"}, "cannot import 'no_such_module'"),
        ({"id": "tickrate.testing:ProbeEnv"}, "not a class derived from RealTimeGymInterface"),
        ({"id": "tickrate.testing:FakeInterfaces"}, "Did you mean 'FakeInterface'"),
        (
            {"id": "tickrate.testing:FakeInterface", "realtime": {"time_step_duraton": 1}},
            "time_step_duration",
        ),
        (
            {"id": "tickrate.testing:FakeInterface", "realtime": {"time_step_duration": -1}},
            "time_step_duration",
        ),
        ({"id": "tickrate.testing:FakeInterface", "realtime": {"obs_format": "flat"}}, "obs_format"),
        ({"id": "circuit", "kwargs": {"trak": "demo"}}, "trak"),
    ],
)
def test_mistakes_are_named(config, message):
    with pytest.raises(ConfigError, match=message):
        open_environment(EnvironmentConfig(**config))


def test_a_live_environment_opens_in_dict_form_and_sends_nothing():
    config = EnvironmentConfig(
        id="tickrate.testing:FakeInterface",
        kwargs={"reward": 0.5},
        realtime={"time_step_duration": 0.02, "start_obs_capture": 0.02, "act_buf_len": 2},
    )
    clock = FakeClock()
    env = open_environment(config, clock)
    device = env.env.interface
    assert isinstance(env, LiveEnvironment)
    assert isinstance(device, FakeInterface)
    assert device.commands == device.reset_times == []
    assert list(env.leaf_spaces) == ["command", "actions"]
    assert (env.period_s, env.action_buffer_length) == (0.02, 2)
    env.reset(seed=3)
    observation, reward, *_ = env.step(np.array([0.5], np.float32))
    assert list(observation) == ["command", "actions"]
    assert reward == 0.5
    assert env.timing().steps == 1
    env.stop_device()
    assert device.values[-1].tolist() == [0.0]
    env.close()


@pytest.mark.parametrize(
    ("name", "live"),
    [("circuit", True), ("drone", True), ("my_game:MyInterface", True), ("Pendulum-v1", False)],
)
def test_live_or_not(name, live):
    assert is_live(EnvironmentConfig(id=name)) is live


def test_the_configuration_is_checked_without_making_the_interface():
    settings = realtime_config(
        EnvironmentConfig(id="tickrate.testing:FakeInterface", kwargs={"fail": RuntimeError("opened")})
    )
    assert settings["obs_format"] == "dict"


def test_probe_environments_have_one_leaf():
    env = LockStepEnvironment(ProbeEnv("discount"), "probe")
    assert list(env.leaf_spaces) == ["value"]
    env.close()
