"""Configuration: defaults, spelling, impossible values."""

import dataclasses
import math

import numpy as np
import pytest

import tickrate
from tickrate import realtime
from tickrate.errors import ConfigError
from tickrate.realtime import RealTimeConfig, RealTimeEnv
from tickrate.realtime import config as config_module
from tickrate.testing import FakeClock, FakeInterface

RTGYM_DEFAULTS = {
    "interface_args": (),
    "interface_kwargs": {},
    "time_step_duration": 0.05,
    "start_obs_capture": 0.05,
    "time_step_timeout_factor": 1.0,
    "ep_max_length": np.inf,
    "act_in_obs": True,
    "act_buf_len": 1,
    "reset_act_buf": True,
    "benchmark": False,
    "benchmark_polyak": 0.1,
    "benchmark_type": "polyak",
    "wait_on_done": False,
    "last_act_on_reset": False,
}


def test_the_default_dictionary_holds_the_known_defaults_and_every_field():
    defaults = realtime.DEFAULT_CONFIG_DICT
    assert {key: defaults[key] for key in RTGYM_DEFAULTS} == RTGYM_DEFAULTS
    assert set(defaults) == {field.name for field in dataclasses.fields(RealTimeConfig)}


@pytest.mark.parametrize("module", [tickrate, realtime, config_module])
def test_each_access_to_the_defaults_gives_a_fresh_copy(module):
    edited = module.DEFAULT_CONFIG_DICT
    edited["time_step_duration"] = 1.0
    edited["interface_kwargs"]["port"] = 9000
    assert module.DEFAULT_CONFIG_DICT["time_step_duration"] == 0.05
    assert module.DEFAULT_CONFIG_DICT["interface_kwargs"] == {}


def test_two_environments_made_from_one_edited_dictionary_keep_their_own_settings():
    config = realtime.DEFAULT_CONFIG_DICT
    config |= {"interface": FakeInterface, "time_step_duration": 0.02, "start_obs_capture": 0.02}
    first = RealTimeEnv(config, clock=FakeClock())
    config |= {"time_step_duration": 0.05, "start_obs_capture": 0.05}
    second = RealTimeEnv(config, clock=FakeClock())
    assert (first.time_step_duration, second.time_step_duration) == (0.02, 0.05)


def test_an_omitted_key_means_its_documented_default():
    minimal = RealTimeConfig.from_mapping({"interface": FakeInterface})
    assert minimal == RealTimeConfig(interface=FakeInterface)
    assert RealTimeConfig(time_step_duration=0.02).capture_offset == 0.02


def test_a_minimal_configuration_steps_at_its_period():
    clock = FakeClock()
    env = RealTimeEnv({"interface": FakeInterface, "time_step_duration": 0.02}, clock=clock)
    env.reset()
    begin = clock.now()
    env.step(np.zeros(1, np.float32))
    env.step(np.zeros(1, np.float32))
    assert clock.now() - begin == pytest.approx(0.04)


def test_the_dictionary_form_and_the_dataclass_are_the_same_thing():
    config = RealTimeConfig(interface=FakeInterface, act_buf_len=4)
    assert RealTimeConfig.from_mapping(config.to_dict()) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.act_buf_len = 2


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(RealTimeConfig)])
def test_a_misspelt_key_is_an_error_that_names_the_nearest(key):
    typo = key[:-2] + key[-1]
    with pytest.raises(ConfigError, match=f"{typo!r}.*{key!r}.*interface_kwargs"):
        RealTimeConfig.from_mapping({typo: 1})


def test_a_foreign_key_points_to_interface_kwargs():
    with pytest.raises(ConfigError, match=r"'gamepad'.*'interface_kwargs'"):
        RealTimeConfig.from_mapping({"gamepad": True})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_step_duration", 0.0),
        ("time_step_duration", -0.1),
        ("time_step_duration", math.inf),
        ("time_step_duration", math.nan),
        ("time_step_duration", "fast"),
        ("start_obs_capture", 0.06),
        ("start_obs_capture", -0.01),
        ("time_step_timeout_factor", 0.0),
        ("act_buf_len", -1),
        ("act_buf_len", 1.5),
        ("ep_max_length", 0),
        ("ep_max_length", 2.5),
        ("benchmark_polyak", 0.0),
        ("benchmark_type", "histogram"),
        ("obs_format", "list"),
        ("late_policy", "skipp"),
        ("clock_mode", "exact"),
        ("real_time", "no"),
        ("safe_on", ("terminate",)),
        ("nan_action", "ignore"),
        ("max_observation_age_s", 0.0),
        ("interface_timeout_s", math.inf),
        ("realtime_priority", 100),
        ("interface", FakeInterface()),
    ],
)
def test_an_impossible_value_is_an_error_that_names_its_key(key, value):
    with pytest.raises(ConfigError, match=key):
        RealTimeConfig.from_mapping({key: value})


def test_every_field_is_documented():
    source = config_module.__loader__.get_source(config_module.__name__)
    for field in dataclasses.fields(RealTimeConfig):
        after = source.split(f"\n    {field.name}: ", 1)[1].split("\n", 1)[1].lstrip()
        assert after.startswith('"""'), f"{field.name} has no docstring under it"
