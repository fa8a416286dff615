"""The options refuse what cannot work and name what was meant."""

import math
import subprocess
import sys

import pytest
from sac_kit import preset

from tickrate.algorithms.options import NetworkConfig, OptimiserConfig, Schedule
from tickrate.algorithms.sac_config import SACConfig
from tickrate.config.experiment import experiment_from_mapping
from tickrate.errors import ConfigError


def test_published_recipes():
    redq, droq, crossq = preset("redq"), preset("droq"), preset("crossq")
    assert (redq.critics, redq.target_critics, redq.actor_value, redq.policy_delay) == (10, 2, "mean", 20)
    assert (droq.critics, droq.critic.dropout, droq.critic.norm, droq.policy_delay) == (2, 0.01, "layer", 20)
    assert (crossq.target_network, crossq.joint_batch, crossq.policy_delay) == (False, True, 3)
    assert crossq.critic_optimiser == OptimiserConfig(learning_rate=1e-3, betas=(0.5, 0.999))
    flash = preset("flashsac")
    assert (flash.value_bins, flash.value_limit, flash.target_rate, flash.batch_size) == (101, 5.0, 0.01, 512)
    assert (len(flash.critic.hidden), flash.critic.hidden[0], flash.actor.hidden[0]) == (2, 256, 128)
    # The target is the entropy of a Gaussian whose standard deviation is 0.15.
    assert flash.target_entropy_per_dim == pytest.approx(
        0.5 * math.log(2 * math.pi * math.e * 0.15**2), abs=1e-3
    )


@pytest.mark.parametrize(
    ("name", "updates_per_step"), [("sac", 1), ("redq", 20), ("droq", 20), ("flashsac", 1)]
)
def test_a_preset_sets_the_updates_per_step_too(name, updates_per_step):
    experiment = experiment_from_mapping({"algorithm": {"preset": name}})
    assert experiment.trainer.updates_per_step == updates_per_step
    assert experiment.replay.return_limit == (5.0 if name == "flashsac" else 0.0)
    own = experiment_from_mapping({"algorithm": {"preset": name}, "trainer": {"updates_per_step": 3}})
    assert own.trainer.updates_per_step == 3


def test_presets_take_changes_key_by_key():
    changed = preset("crossq", critic={"hidden": [64]})
    assert changed.critic == NetworkConfig(hidden=(64,), norm="batch")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"critics": 0}, "sac.critics is 0"),
        ({"target_critics": 3}, "sac.target_critics is 3, but there are 2"),
        ({"noise_correlation": 1.0}, "sac.noise_correlation"),
        ({"target_rate": 0.0}, "sac.target_rate"),
        ({"log_std_min": 3.0}, "sac.log_std_min"),
        ({"target_network": False}, "need batch norm"),
        ({"joint_batch": True}, "sac.joint_batch is on"),
        ({"value_bins": 1}, "sac.value_bins is 1"),
        ({"critic": NetworkConfig(norm="batch"), "batch_size": 1}, "sac.batch_size is 1"),
        ({"groups": {"critics": ("a",)}}, "Did you mean 'critic'"),
        ({"final_temperature": 0.1}, "a learned one has none"),
        ({"final_temperature": 0.1, "learn_temperature": False}, "schedule_updates is 0"),
        ({"schedule_updates": 10}, "schedule_updates is 10"),
        ({"noise_correlation": 0.5, "noise_hold": 4}, "choose one"),
        ({"memory_units": 8}, "sac.memory is 'none'"),
        ({"memory": "gru", "burn_in": 16}, "nothing is left to learn from"),
        ({"memory": "gru", "delay_correction": 3}, "cannot be used together"),
        ({"delay_correction": 1}, "2 steps or more"),
        ({"target_entropy_per_dim": math.nan}, "target_entropy_per_dim is nan"),
        ({"log_std_offset": math.inf}, "log_std_offset is inf"),
        ({"target_entropy_share": 1.5}, "target_entropy_share is 1.5"),
        ({"actor_last_gain": 0.0}, "actor_last_gain is 0.0"),
        ({"actor_last_gain": 0.5, "actor": NetworkConfig(kind="residual")}, "has no such layer"),
        ({"shared_encoder": True, "groups": {"actor": ("a",)}}, "must read the same leaves"),
    ],
)
def test_impossible_values_are_refused_by_name(changes, words):
    with pytest.raises(ConfigError) as error:
        SACConfig(**changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": ()}, "hidden is []"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"norm": "batch", "batch_norm_momentum": 0.0}, "batch_norm_momentum is 0.0"),
        ({"norm": "batch", "batch_norm_epsilon": 0.0}, "batch_norm_epsilon is 0.0"),
        ({"norm": "layer", "batch_norm_momentum": 0.1}, "no batch norm"),
        ({"batch_norm_epsilon": 1e-3}, "no batch norm"),
        ({"kind": "residual", "hidden": (8, 16)}, "one width"),
        ({"kind": "residual", "norm": "batch"}, "has its own norms"),
        ({"kind": "residual", "unit_weights": True}, "has its own norms"),
        ({"expansion": 2}, "kind is 'mlp'"),
        ({"unit_weights": True}, "needs norm 'batch'"),
    ],
)
def test_impossible_networks_are_refused_by_name(changes, words):
    with pytest.raises(ConfigError) as error:
        NetworkConfig(**changes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"betas": (1.0, 0.9)}, "betas: 1.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"final_share": 0.5}, "give both or none"),
        ({"kind": "sgd", "betas": (0.5, 0.999)}, "has momentum instead"),
        ({"momentum": 0.9}, "has betas instead"),
    ],
)
def test_impossible_optimisers_are_refused_by_name(changes, words):
    with pytest.raises(ConfigError) as error:
        OptimiserConfig(**changes)
    assert words in str(error.value)


def test_a_learning_rate_falls_in_half_a_cosine_and_stays():
    options = OptimiserConfig(learning_rate=0.1, final_share=0.5, decay_updates=100)
    # Half way down a half cosine from 1 to 0.5 is 0.75.
    assert [options.rate(n) for n in (0, 50, 100, 1000)] == pytest.approx([0.1, 0.075, 0.05, 0.05])
    assert OptimiserConfig(learning_rate=0.1).rate(10**9) == 0.1


def test_a_schedule_moves_in_a_straight_line_and_stays():
    schedule = Schedule(1.0, 0.2, 8)
    assert [schedule(n) for n in (0, 4, 8, 100)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_configuration_and_protocol_load_no_torch():
    code = (
        "import sys, tickrate.algorithms.sac_config, tickrate.algorithms.protocol, tickrate.policy;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
