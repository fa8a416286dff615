import itertools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tickrate.testing import PROBES, ProbeEnv

GAMMA = 0.9


def play(env: ProbeEnv, policy, seed: int = 0):
    """Return [(observation, action, reward, terminated, truncated, next observation)] of one episode."""
    observation, _ = env.reset(seed=seed)
    steps = []
    while True:
        action = policy(observation)
        if isinstance(env.action_space, spaces.Box):
            action = np.array([action], np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        steps.append((observation, action, reward, terminated, truncated, following))
        observation = following
        if terminated or truncated:
            return steps


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.filterwarnings("ignore:.*not within the observation space.*")
def test_each_probe_is_a_proper_environment(name):
    check_env(ProbeEnv(name), skip_render_check=True)


@pytest.mark.parametrize("name", [name for name, probe in PROBES.items() if probe.value is not None])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_stated_value_satisfies_the_bellman_equation(name, seed):
    env = ProbeEnv(name)
    value = env.probe.value
    assert value is not None
    for observation, _, reward, terminated, _, following in play(env, lambda o: 0.3, seed):
        bootstrap = 0.0 if terminated else GAMMA * value(following, GAMMA)  # a truncation bootstraps
        assert value(observation, GAMMA) == pytest.approx(reward + bootstrap)


def test_hand_worked_values():
    def value(name, observation):
        return PROBES[name].value(np.array([observation], np.float32), GAMMA)

    assert value("constant_reward", 0.0) == 1.0
    assert [value("observed_reward", -1.0), value("observed_reward", 1.0)] == [-1.0, 1.0]
    assert [value("discount", 0.0), value("discount", 1.0)] == [0.9, 1.0]
    assert value("time_limit", 0.0) == pytest.approx(10.0)


SOLVABLE = [name for name, probe in PROBES.items() if probe.best_action is not None]


@pytest.mark.parametrize("name", SOLVABLE)
@pytest.mark.parametrize("seed", range(6))
def test_the_best_action_earns_one_in_each_step(name, seed):
    env = ProbeEnv(name)
    best = env.probe.best_action
    first: list = []

    def policy(observation):
        first.append(observation)
        return best(first[0] if env.probe.remembers else observation)

    rewards = [step[2] for step in play(env, policy, seed)]
    assert rewards == pytest.approx([1.0] * env.probe.horizon)
    # No rule pays more than 1, so that nothing earns more.
    env.action_space.seed(seed)
    for _ in range(5):
        assert all(step[2] <= 1.0 for step in play(env, lambda o: sampled(env), seed))


def sampled(env):
    action = env.action_space.sample()
    return float(action[0]) if isinstance(env.action_space, spaces.Box) else action


@pytest.mark.parametrize("name", ["chosen_action", "observed_action"])
def test_the_best_action_earns_one_and_others_less(name):
    env = ProbeEnv(name)
    best = env.probe.best_action
    assert best is not None
    for seed in range(4):
        assert play(env, best, seed)[0][2] == pytest.approx(1.0)
        assert play(env, lambda o: best(o) - 0.2, seed)[0][2] < 0.97


def test_both_signs_are_observed():
    env = ProbeEnv("observed_action")
    assert {float(env.reset(seed=seed)[0][0]) for seed in range(20)} == {-1.0, 1.0}


def test_the_action_buffer_decides():
    shown, hidden = ProbeEnv("action_buffer"), ProbeEnv("hidden_memory")
    best = shown.probe.best_action
    assert best is not None
    assert sum(step[2] for step in play(shown, best)) == 16.0
    # Without the last action a constant earns nothing after its first step, and a coin half of the best.
    assert sum(step[2] for step in play(hidden, lambda o: 1.0)) in (0.0, 1.0)
    coin = np.random.default_rng(0)
    returns = [
        sum(s[2] for s in play(hidden, lambda o: coin.choice([-1.0, 1.0]), seed)) for seed in range(200)
    ]
    assert np.mean(returns) == pytest.approx(8.0, abs=0.5)
    observations = [step[5] for step in play(shown, best)]
    actions = [step[1] for step in play(shown, best)]
    assert [o[-1] for o in observations] == [a[0] for a in actions]


def mean_reward(name, policy, episodes=200):
    env = ProbeEnv(name)
    return np.mean([step[2] for seed in range(episodes) for step in play(env, policy, seed)])


def test_an_action_takes_effect_three_steps_later():
    env = ProbeEnv("actions_in_flight")
    observation, _ = env.reset(seed=1)
    position, in_flight = float(observation[0]), observation[2:].tolist()
    landing = position + sum(in_flight)
    assert landing in (-0.5, 0.5)
    target = float(observation[1])
    assert target in (-0.5, 0.5)
    observation, reward, *_ = env.step(np.array([0.25], np.float32))
    assert reward == pytest.approx(1.0 - abs(landing + 0.25 - target))
    assert observation[0] == position + in_flight[0]
    assert observation[2:].tolist() == [*in_flight[1:], 0.25]
    for _ in range(3):
        observation, *_ = env.step(np.zeros(1, np.float32))
    assert observation[0] == landing + 0.25


def test_without_the_actions_in_flight_no_line_is_any_good():
    # To do nothing keeps the landing at +0.5 or -0.5, so that every other target is missed by 1: 0.5 a step.
    assert mean_reward("hidden_in_flight", lambda o: 0.0) == pytest.approx(0.5, abs=0.03)
    # Whatever is done with position and target alone is little better, though the whole of it earns 1.
    grid = itertools.product(np.linspace(-1, 0.5, 7), np.linspace(-0.5, 1, 6))
    best = max(mean_reward("hidden_in_flight", lambda o, a=a, b=b: a * o[0] + b * o[1], 20) for a, b in grid)
    assert best < 0.65
    assert ProbeEnv("hidden_in_flight").observation_space.shape == (2,)


def test_only_the_buffer_of_categories_tells_which_one_follows():
    # A constant is right at most once, in the first step; what does not look earns a third.
    assert mean_reward("category_buffer", lambda o: 2) < 1 / 16
    chance = np.random.default_rng(0)
    assert mean_reward("category_buffer", lambda o: chance.integers(1, 4)) == pytest.approx(1 / 3, abs=0.03)


def test_each_part_of_a_pair_of_categories_earns_its_half():
    env = ProbeEnv("observed_categories")
    right = {-1.0: (0, 2), 1.0: (1, 0)}
    for seed in range(6):
        first = right[float(env.reset(seed=seed)[0][0])]
        assert env.step(np.array(first))[1] == 1.0
        env.reset(seed=seed)
        assert env.step(np.array((first[0], (first[1] + 1) % 3)))[1] == 0.5
        env.reset(seed=seed)
        assert env.step(np.array((1 - first[0], (first[1] + 1) % 3)))[1] == 0.0


def test_the_image_shows_the_answer_in_one_half():
    env = ProbeEnv("image")
    sides = set()
    for seed in range(12):
        image, _ = env.reset(seed=seed)
        bright = np.argwhere(image[0] == 255)
        assert len(bright) == 16
        right = bright[:, 1].min() >= 8
        assert right or bright[:, 1].max() < 8
        assert env.step(np.array([0.5 if right else -0.5], np.float32))[1] == 1.0
        sides.add(bool(right))
    assert sides == {True, False}


def test_the_cue_is_seen_once_and_counts_to_the_end():
    env = ProbeEnv("memory")
    cues = [[float(step[0][0]) for step in play(env, lambda o: 0.0, seed)] for seed in range(8)]
    assert {cue[0] for cue in cues} == {-1.0, 1.0}
    assert all(cue[1:] == [0.0, 0.0, 0.0] for cue in cues)
    # Without memory the best is 0 once the cue is gone, which earns 0.75.
    rewards = [step[2] for step in play(env, lambda o: 0.5 * float(o[0]))]
    assert rewards == pytest.approx([1.0, 0.75, 0.75, 0.75])


def test_ends_are_of_the_right_kind():
    for name, probe in PROBES.items():
        env = ProbeEnv(name)
        steps = play(env, lambda o, env=env: sampled(env))
        assert len(steps) == probe.horizon
        assert [s[3:5] for s in steps[:-1]] == [(False, False)] * (probe.horizon - 1)
        assert steps[-1][3:5] == (not probe.truncates, probe.truncates)


def test_misuse_is_refused():
    with pytest.raises(KeyError, match="constant_reward"):
        ProbeEnv("no_such_probe")
    env = ProbeEnv("constant_reward")
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(1, np.float32))
    env = ProbeEnv("chosen_category")
    env.reset()
    with pytest.raises(ValueError, match=r"0 is no element of Discrete"):
        env.step(0)
