import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tickrate.testing import PROBES, ProbeEnv

GAMMA = 0.9


def play(env: ProbeEnv, policy, seed: int = 0):
    """Return [(observation, action, reward, terminated, truncated, next observation)] of one episode."""
    observation, _ = env.reset(seed=seed)
    steps = []
    while True:
        action = np.array([policy(observation)], np.float32)
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


def test_ends_are_of_the_right_kind():
    for name, probe in PROBES.items():
        steps = play(ProbeEnv(name), lambda o: 0.0)
        assert len(steps) == probe.horizon
        assert [s[3:5] for s in steps[:-1]] == [(False, False)] * (probe.horizon - 1)
        assert steps[-1][3:5] == (not probe.truncates, probe.truncates)


def test_misuse_is_refused():
    with pytest.raises(KeyError, match="constant_reward"):
        ProbeEnv("no_such_probe")
    env = ProbeEnv("constant_reward")
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(1, np.float32))
