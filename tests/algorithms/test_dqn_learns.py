"""DQN finds the known answers of the probe environments, through the real record format and replay."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dqn_kit import preset
from probe_kit import random_play

from tickrate.algorithms.dqn import DQN
from tickrate.config.experiment import experiment_from_mapping
from tickrate.data.priorities import Proportional
from tickrate.policy import Policy
from tickrate.runtime.assembly import LearnerParts
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import open_environment
from tickrate.runtime.run_folder import RunFolder
from tickrate.runtime.serial import run_serial
from tickrate.testing.probes import PROBES, Probe, ProbeEnv
from tickrate.tracking import check_keys
from tickrate.tracking.jsonl import JsonlTracker
from tickrate.trees import leaf_spaces, leaves

LONG = pytest.mark.long
QUICK = {
    "network": {"hidden": [32, 32]},
    "batch_size": 64,
    "target_every": 10,
    "optimiser": {"learning_rate": 3e-3},
}
RECIPES = {
    "dqn": preset("dqn", **QUICK),
    "rainbow": preset("rainbow", **QUICK, value_low=-2.0, value_high=4.0, noisy_policies=False),
}


def categorical(name):
    """Return a probe whose actions are categories: where it asks only for values, they do not matter."""
    return replace(PROBES[name], actions="category")


def learn(config, env, updates, steps=500, **replay_options):
    replay = random_play(env, steps, seed=0, **replay_options)
    spaces = leaf_spaces(env.observation_space)
    dqn = DQN(config, spaces, env.action_space, seed=0, period_s=0.0, action_buffer_length=0)
    if config.normalise_observations:
        dqn.observe(replay.sample(1000).observation)
    for _ in range(updates):
        batch = replay.sample(config.batch_size, beta=0.5 if replay.prioritised else None)
        dqn.update(batch)
        if replay.prioritised:
            replay.update_priorities(batch.rows, dqn.priorities())
    return dqn, replay


def values(dqn, observations):
    """Return the values of all actions on observations, ``(rows, choices)``."""
    policy = Policy.from_bytes(dqn.policy_bytes(0), seed=0)
    observation = {"value": np.array(observations, np.float32)}
    return policy.outputs(observation, policy.initial_state(len(observation["value"])))[0]


def greedy(dqn, observation):
    policy = Policy.from_bytes(dqn.policy_bytes(0), seed=0)
    return policy.act(observation, policy.initial_state(16), deterministic=True)[0]


def greedy_return(dqn, env, seed=1):
    """Return the rewards of one episode without exploration."""
    policy = Policy.from_bytes(dqn.policy_bytes(0), seed=0)
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        batch = {path: leaf[None] for path, leaf in leaves(env.observation_space, observation).items()}
        action, _, _ = policy.act(batch, policy.initial_state(1), deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action[0])
        total, ended = total + reward, terminated or truncated
    return total


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("dqn", "constant_reward"),
        ("dqn", "observed_reward"),
        ("dqn", "discount"),
        ("rainbow", "discount"),
        pytest.param("rainbow", "constant_reward", marks=LONG),
        pytest.param("rainbow", "observed_reward", marks=LONG),
    ],
)
def test_values_are_those_of_the_probe(recipe, name):
    dqn, replay = learn(RECIPES[recipe], ProbeEnv(categorical(name)), 200, gamma=0.5)
    seen = replay.sample(16).observation["value"]
    expected = [[PROBES[name].value(o, 0.5)] * 3 for o in seen]
    np.testing.assert_allclose(values(dqn, seen), expected, atol=0.1)


@pytest.mark.parametrize(("recipe", "n_step"), [("dqn", 1), ("rainbow", 3)])
def test_a_time_limit_is_no_termination(recipe, n_step):
    # Reward 1 in each of 5 steps, gamma 0.9: Q is 10. Without bootstrapping at the limit it would be the mean
    # of 1, 1.9, 2.71, 3.44 and 4.1.
    config = replace(RECIPES[recipe], value_high=12.0, target_every=5)
    dqn, _ = learn(config, ProbeEnv(categorical("time_limit")), 250, gamma=0.9, n_step=n_step)
    np.testing.assert_allclose(values(dqn, [[0.0]]), 10.0, atol=0.5)


@pytest.mark.parametrize(("recipe", "updates"), [("dqn", 250), pytest.param("rainbow", 400, marks=LONG)])
def test_a_termination_does_not_bootstrap(recipe, updates):
    # Five steps, then the episode really ends: 1 at the last step, (1 - 0.9^5) / 0.1 = 4.1 at the first.
    env = ProbeEnv(Probe(5, lambda m: 1.0, None, observes="step", actions="category"))
    config = replace(RECIPES[recipe], value_high=6.0, normalise_observations=True)
    dqn, _ = learn(config, env, updates, gamma=0.9)
    expected = [[4.095] * 3, [1.0] * 3]
    np.testing.assert_allclose(values(dqn, [[0.0], [4.0]]), expected, atol=0.25)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("dqn", "chosen_category"),
        ("dqn", "observed_category"),
        ("dqn", "observed_categories"),
        ("rainbow", "observed_categories"),
        pytest.param("rainbow", "chosen_category", marks=LONG),
        pytest.param("rainbow", "observed_category", marks=LONG),
    ],
)
def test_choices_are_those_of_the_probe(recipe, name):
    dqn, replay = learn(RECIPES[recipe], ProbeEnv(name), 120, gamma=0.9)
    seen = replay.sample(16).observation
    expected = [PROBES[name].best_action(o) for o in seen["value"]]
    np.testing.assert_array_equal(greedy(dqn, seen), expected)


def test_values_of_choices_are_what_they_earn():
    dqn, _ = learn(RECIPES["dqn"], ProbeEnv("observed_category"), 250, gamma=0.9)
    # Of 1, 2 and 3 the first is right where the cue is -1, the last where it is 1.
    np.testing.assert_allclose(values(dqn, [[-1.0], [1.0]]), [[1, 0, 0], [0, 0, 1]], atol=0.1)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_the_buffer_of_categories_reaches_network_and_policy(recipe):
    env = ProbeEnv("category_buffer")
    dqn, _ = learn(RECIPES[recipe], env, 200, gamma=0.5)
    assert greedy_return(dqn, env) == env.probe.horizon


def test_priorities_and_importance_weights_leave_the_answer_right():
    env = ProbeEnv("observed_category")
    dqn, replay = learn(RECIPES["rainbow"], env, 120, gamma=0.9, sampling=Proportional(0.5))
    seen = replay.sample(16).observation
    np.testing.assert_array_equal(greedy(dqn, seen), [env.probe.best_action(o) for o in seen["value"]])


@pytest.mark.parametrize(("recipe", "updates"), [("dqn", 100), pytest.param("rainbow", 500, marks=LONG)])
def test_an_image_reaches_the_network(recipe, updates):
    env = ProbeEnv(
        Probe(1, lambda m: float(m.action == 2 + m.cue), None, observes="image", actions="category")
    )
    small = {
        "image_shift": 0,  # in a picture this small it would move the square into the other half
        "image_channels": (8, 16),
        "image_kernels": (4, 3),
        "image_strides": (2, 2),
        "image_features": 32,
    }
    config = replace(RECIPES[recipe], encoder=replace(RECIPES[recipe].encoder, **small))
    dqn, _ = learn(config, env, updates, steps=2000, gamma=0.9)
    assert sum(greedy_return(dqn, env, seed) for seed in range(100, 150)) >= 48


@LONG
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["dqn", "rainbow"])
def test_cart_pole_is_balanced_by_a_serial_run(name, tmp_path):
    steps = 12_000
    values_up_to = {"value_low": 0.0, "value_high": 100.0} if name == "rainbow" else {}
    experiment = experiment_from_mapping(
        {
            "environment": {"id": "CartPole-v1"},
            "algorithm": {"name": "dqn", "preset": name, "network": {"hidden": [64, 64]}, **values_up_to},
            "replay": {"gamma": 0.99, "capacity": 20_000},
            "trainer": {"total_steps": steps, "log_every_s": 1e6, "checkpoint_every_s": 1e6},
        }
    )
    environment = open_environment(experiment.environment)
    contract = EnvironmentContract.of(environment)
    parts = LearnerParts(
        algorithm="dqn",
        settings=experiment.algorithm.settings,
        replay=experiment.replay,
        trainer=experiment.trainer,
        evaluation_episodes=1,
        seed=0,
    )
    folder = RunFolder(tmp_path / "run")
    folder.prepare("replace")
    tracker = JsonlTracker(folder.metrics)
    learner = parts.build(contract, folder, tracker, resume=False)
    run_serial(environment, contract.schema(), learner, experiment.worker, seed=0)
    check_keys(learner.figures())
    tracker.close()
    environment.close()
    returns = [episode["return"] for episode in learner.episodes if not episode["evaluation"]]
    means = np.convolve(returns, np.full(20, 1 / 20), "valid")
    assert means.max() >= 150.0, f"best mean of 20 episodes within {steps} steps"
