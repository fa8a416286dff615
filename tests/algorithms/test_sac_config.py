"""The options refuse what cannot work and name what was meant."""

import subprocess
import sys

import pytest

from tickrate.algorithms.sac_config import SACConfig
from tickrate.errors import ConfigError


def test_the_live_recipe_is_what_was_measured():
    recipe = SACConfig.crossq()
    assert (recipe.hidden, recipe.batch_size, recipe.learning_rate) == ((128, 128), 128, 1e-3)
    assert (recipe.adam_beta1, recipe.adam_beta2, recipe.policy_delay) == (0.5, 0.999, 3)
    assert (recipe.initial_temperature, recipe.target_entropy_per_dim) == (0.01, -1.0)
    assert (recipe.log_std_offset, recipe.log_std_min, recipe.log_std_max) == (-0.5, -5.0, 1.0)
    assert (recipe.actor_last_gain, recipe.noise_correlation) == (0.1, 0.8)
    assert recipe.batch_norm
    assert not recipe.target_network


def test_presets_take_changes():
    assert SACConfig.plain(learning_rate=1e-4).learning_rate == 1e-4
    assert SACConfig.crossq(hidden=(64,)).hidden == (64,)


def test_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'learning_rat'.*'learning_rate'"):
        SACConfig.plain(learning_rat=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": 0.0}, "sac.learning_rate is 0.0"),
        ({"learning_rate": float("nan")}, "sac.learning_rate is nan"),
        ({"critics": 0}, "sac.critics is 0"),
        ({"hidden": ()}, "sac.hidden"),
        ({"adam_beta1": 1.0}, "sac.adam_beta1"),
        ({"noise_correlation": 1.0}, "sac.noise_correlation"),
        ({"target_rate": 0.0}, "sac.target_rate"),
        ({"log_std_min": 3.0}, "sac.log_std_min"),
        ({"target_network": False}, "sac.batch_norm = True"),
        ({"batch_norm": True, "batch_size": 1}, "sac.batch_size is 1"),
        ({"groups": {"critics": ("a",)}}, "Did you mean 'critic'"),
    ],
)
def test_impossible_values_are_refused_by_name(changes, words):
    with pytest.raises(ConfigError) as error:
        SACConfig.plain(**changes)
    assert words in str(error.value)


def test_configuration_and_protocol_load_no_torch():
    code = (
        "import sys, tickrate.algorithms.sac_config, tickrate.algorithms.protocol, tickrate.policy;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
