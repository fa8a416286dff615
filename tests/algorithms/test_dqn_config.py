"""DQN's options refuse what cannot work, and its presets are what was published."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from dqn_kit import batch_of, make, preset

from tickrate.algorithms.dqn_config import DQNConfig
from tickrate.algorithms.options import NetworkConfig, Schedule
from tickrate.config.experiment import dump_experiment, experiment_from_mapping
from tickrate.config.loading import parse_yaml
from tickrate.errors import ConfigError
from tickrate.tracking import METRICS


def test_published_recipes():
    plain = experiment_from_mapping({"algorithm": {"name": "dqn"}})
    assert plain.algorithm.settings.double
    assert not plain.algorithm.settings.duelling
    assert not plain.algorithm.settings.noisy
    assert plain.algorithm.settings.value_bins == 0
    assert plain.replay.n_step == 1
    rainbow = experiment_from_mapping({"algorithm": {"name": "dqn", "preset": "rainbow"}})
    settings, replay = rainbow.algorithm.settings, rainbow.replay
    assert settings.double
    assert settings.duelling
    assert settings.noisy
    assert settings.noisy_policies
    assert (settings.value_bins, settings.value_low, settings.value_high) == (51, -10.0, 10.0)
    assert settings.noise_scale == 0.5
    assert settings.epsilon(0) == settings.epsilon(10**6) == 0.0
    assert (replay.n_step, replay.sampling) == (3, "prioritised")
    assert (replay.priority_exponent, replay.importance_exponent) == (0.5, 0.4)


@pytest.mark.parametrize("name", ["dqn", "rainbow"])
def test_an_experiment_is_written_and_read_back(name):
    experiment = experiment_from_mapping({"algorithm": {"name": "dqn", "preset": name}})
    assert experiment_from_mapping(parse_yaml(dump_experiment(experiment), "here")) == experiment


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_every": 0}, "dqn.target_every is 0"),
        ({"target_rate": 0.0}, "dqn.target_rate is 0.0"),
        ({"batch_size": 0}, "dqn.batch_size is 0"),
        ({"noise_scale": 0.0}, "dqn.noise_scale is 0.0"),
        ({"gradient_limit": -1.0}, "dqn.gradient_limit is -1.0"),
        ({"value_bins": 1}, "dqn.value_bins is 1"),
        ({"value_low": 3.0, "value_high": 3.0}, "must be finite and ordered"),
        ({"value_bins": 51, "loss": "squared"}, "the cross-entropy"),
        ({"noisy_policies": True}, "there is no noise to draw"),
        ({"noisy": True, "network": NetworkConfig(kind="residual")}, "at length 1"),
        ({"network": NetworkConfig(norm="batch"), "batch_size": 1}, "dqn.batch_size is 1"),
        ({"epsilon": Schedule(1.5, 0.0, 10)}, "are probabilities"),
        ({"epsilon": Schedule(1.0, 0.1, 0)}, "it stays at start"),
        ({"groups": {"critic": ("a",)}}, "DQN reads 'actor'"),
    ],
)
def test_impossible_values_are_refused_by_name(changes, words):
    with pytest.raises(ConfigError) as error:
        DQNConfig(**changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "changes", [{"value_high": 3.0}, {"value_low": -3.0}, {"noise_scale": 0.1}], ids=lambda c: next(iter(c))
)
def test_an_option_that_does_nothing_is_an_error(changes):
    with pytest.raises(ConfigError, match=f"algorithm.{next(iter(changes))} is set, but dqn does not use it"):
        preset("dqn", **changes)


def test_the_page_names_every_option_and_metric():
    page = (Path(__file__).parents[2] / "docs" / "algorithms" / "dqn.md").read_text(encoding="utf-8")
    for option in fields(DQNConfig):
        assert re.search(rf"^\| [^|]*`{option.name}`", page, re.M), option.name
    for key in make(DQNConfig(batch_size=4)).update(batch_of(4)):
        assert f"| `learn/{key}` |" in page, key
        assert f"learn/{key}" in METRICS, key


def test_options_load_no_torch():
    code = "import sys, tickrate.algorithms.dqn_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
