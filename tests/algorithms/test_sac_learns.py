"""SAC finds the known answers of the probe environments, through the real record format and replay."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from probe_kit import play, random_play, spaces_of
from sac_kit import preset

from tickrate.algorithms.options import OptimiserConfig
from tickrate.algorithms.sac import SAC
from tickrate.nn.features import VECTOR
from tickrate.policy import Policy
from tickrate.testing.probes import PROBES, Probe, ProbeEnv

QUICK = {
    "actor": {"hidden": [32, 32]},
    "critic": {"hidden": [32, 32]},
    "batch_size": 64,
    "initial_temperature": 1e-3,
    "learn_temperature": False,
}


def rate(learning_rate):
    return {f"{part}_optimiser": {"learning_rate": learning_rate} for part in ("actor", "critic")}


def quick_norm(momentum):
    """Batch norm's statistics follow within a short test."""
    return {part: {"hidden": [32, 32], "batch_norm_momentum": momentum} for part in ("actor", "critic")}


LONG = pytest.mark.long
RECIPES = {
    "sac": preset("sac", **QUICK, **rate(3e-3), target_rate=0.05),
    "live": preset("live", **{**QUICK, **quick_norm(0.1)}, **rate(1e-3), policy_delay=1),
}


def learn(config, env, updates, steps=500, **replay_options):
    replay = random_play(env, steps, **replay_options)
    sac = SAC(
        config,
        spaces_of(env),
        env.action_space,
        seed=0,
        period_s=0.0,
        action_buffer_length=0,
    )
    if config.normalise_observations:
        sac.observe(replay.sample(1000).observation)
    for _ in range(updates):
        sac.update(replay.sample(config.batch_size))
    return sac, replay


def values(sac, observations):
    """Return the critics' mean value of random actions on each observation."""
    rows = torch.tensor(observations, dtype=torch.float32)
    actions = torch.rand((len(rows), 1), generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        networks = sac.networks
        features = networks.critic_features({VECTOR: rows})
        return networks.value_head.mean(networks.values(features, actions)).mean(0).numpy()


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("sac", "constant_reward"),
        ("sac", "observed_reward"),
        ("sac", "discount"),
        pytest.param("live", "observed_reward", marks=LONG),
        ("live", "discount"),
    ],
)
def test_values_are_those_of_the_probe(recipe, name):
    sac, replay = learn(RECIPES[recipe], ProbeEnv(name), 500, gamma=0.5)
    seen = replay.sample(16).observation["value"]
    expected = [PROBES[name].value(o, 0.5) for o in seen]
    np.testing.assert_allclose(values(sac, seen), expected, atol=0.2)


# Not chosen_action with batch norm: its observation never changes, so batch norm has no spread to divide by.
@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("sac", "chosen_action"),
        pytest.param("sac", "observed_action", marks=LONG),
        ("live", "observed_action"),
    ],
)
def test_actions_are_those_of_the_probe(recipe, name):
    sac, replay = learn(RECIPES[recipe], ProbeEnv(name), 800, gamma=0.9)
    policy = Policy.from_bytes(sac.policy_bytes(0), seed=0)
    seen = replay.sample(16).observation
    action, _, _ = policy.act(seen, policy.initial_state(16), deterministic=True)
    expected = [[PROBES[name].best_action(o)] for o in seen["value"]]
    np.testing.assert_allclose(action, expected, atol=0.2)


@pytest.mark.parametrize("recipe", ["live", pytest.param("sac", marks=LONG)])
def test_the_action_buffer_reaches_the_policy(recipe):
    sac, _ = learn(RECIPES[recipe], ProbeEnv("action_buffer"), 1000, gamma=0.5)
    assert play(ProbeEnv("action_buffer"), Policy.from_bytes(sac.policy_bytes(0)), episodes=1) > 0.85


@pytest.mark.parametrize(
    ("recipe", "n_step", "updates"),
    [
        ("sac", 3, 800),
        pytest.param("sac", 1, 2500, marks=LONG),
        pytest.param("live", 1, 2500, marks=LONG),
        pytest.param("live", 3, 2500, marks=LONG),
    ],
)
def test_a_time_limit_bootstraps_from_the_true_final_observation(recipe, n_step, updates):
    # Reward 1 in each step, limit 50, gamma 0.99: Q is 100 at every step. Without bootstrapping at the limit
    # it would be 39.5 at the first step and 1 at the last.
    env = ProbeEnv(Probe(horizon=50, reward=lambda m: 1.0, value=None, truncates=True, observes="step"))
    config = replace(
        RECIPES[recipe],
        target_rate=0.2,
        critic_optimiser=OptimiserConfig(learning_rate=1e-2),
        normalise_observations=True,
    )
    sac, _ = learn(config, env, updates, gamma=0.99, n_step=n_step)
    np.testing.assert_allclose(values(sac, [[0.0], [10.0], [25.0], [49.0]]), 100.0, rtol=0.25)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_termination_does_not_bootstrap(recipe):
    # Five steps, then the episode really ends: 1 at the last step, (1 - 0.9^5) / 0.1 = 4.1 at the first.
    env = ProbeEnv(Probe(horizon=5, reward=lambda m: 1.0, value=None, observes="step"))
    config = replace(RECIPES[recipe], normalise_observations=True)
    sac, _ = learn(config, env, 700, gamma=0.9)
    np.testing.assert_allclose(values(sac, [[0.0], [4.0]]), [4.095, 1.0], atol=0.4)
