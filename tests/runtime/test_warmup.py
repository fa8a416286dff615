"""Warm-up actions are held, come from the distributions that were asked for, and stay in the action space."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ConfigError
from tickrate.runtime.warmup import WarmupActor, WarmupConfig

SPACE = spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))


def draw(config, count, seed=0, space=SPACE):
    actor = WarmupActor(config, space, seed)
    state, actions = actor.initial_state(1), []
    for _ in range(count):
        action, state, extras = actor.act({}, state)
        assert extras == {}
        actions.append(action[0])
    return np.array(actions)


def runs(values):
    """Return the lengths of runs of equal values."""
    changes = np.flatnonzero(np.any(np.diff(values, axis=0) != 0, axis=1)) + 1
    return np.diff([0, *changes, len(values)])


def test_each_action_is_held_within_the_range():
    lengths = runs(draw(WarmupConfig(hold=(3, 6)), 2000))[:-1]
    assert set(lengths.tolist()) == {3, 4, 5, 6}


def test_without_holding_each_step_draws():
    assert set(runs(draw(WarmupConfig(), 200)).tolist()) == {1}


def test_uniform_fills_the_asked_range():
    actions = draw(WarmupConfig(low=(-0.5, 0.0), high=(0.5, 2.0)), 4000)
    np.testing.assert_allclose(actions.min(0), [-0.5, 0.0], atol=0.01)
    np.testing.assert_allclose(actions.max(0), [0.5, 2.0], atol=0.01)
    np.testing.assert_allclose(actions.mean(0), [0.0, 1.0], atol=0.05)


def test_normal_dimension_is_clipped_to_the_space():
    actions = draw(WarmupConfig(normal={0: (0.5, 1.0)}), 4000)
    assert np.mean(actions[:, 0] == 1.0) == pytest.approx(0.31, abs=0.03)  # P(N(0.5, 1) > 1)
    assert actions[:, 0].min() == -1.0
    assert np.median(actions[:, 0]) == pytest.approx(0.5, abs=0.06)


def test_the_same_seed_draws_the_same():
    config = WarmupConfig(hold=(1, 4))
    np.testing.assert_array_equal(draw(config, 50, seed=3), draw(config, 50, seed=3))
    assert not np.array_equal(draw(config, 50, seed=3), draw(config, 50, seed=4))


def test_shape_and_dtype_are_the_space_s():
    space = spaces.Box(-1, 1, (2, 2), np.float64)
    assert draw(WarmupConfig(), 3, space=space).shape == (3, 2, 2)
    assert draw(WarmupConfig(), 3, space=space).dtype == np.float64


def test_each_of_a_batch_draws_for_itself():
    actor = WarmupActor(WarmupConfig(hold=(2, 2)), SPACE, 0)
    actions, state, _ = actor.act({}, actor.initial_state(3))
    assert len(np.unique(actions[:, 0])) == 3
    again, _, _ = actor.act({}, state)
    np.testing.assert_array_equal(actions, again)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hold": (0, 2)}, r"hold is \(0, 2\)"),
        ({"hold": (3, 2)}, r"hold is \(3, 2\)"),
        ({"low": (float("nan"), 0.0)}, "finite"),
        ({"normal": {0: (0.0, -1.0)}}, "negative"),
        ({"low": (0.0,)}, "1 numbers for an action of 2"),
        ({"normal": {2: (0.0, 1.0)}}, r"dimensions \[2\]; the action has 0 to 1"),
        ({"low": (0.5, 0.0), "high": (0.0, 0.0)}, "lies above"),
    ],
)
def test_impossible_settings_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        WarmupActor(WarmupConfig(**config), SPACE, 0)


def test_there_are_no_weights_to_load():
    with pytest.raises(ConfigError, match="no weights"):
        WarmupActor(WarmupConfig(), SPACE, 0).load(b"")
