"""The action guard alone, leaf by leaf."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ActionError, ConfigError
from tickrate.realtime.action_guard import ActionGuard

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)


def f32(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("size", [2, 40])  # both the small and the large way of comparing
@pytest.mark.parametrize(
    ("value", "told", "changed"),
    [(0.5, 0.5, False), (1.0, 1.0, False), (1.5, 1.0, True), (-7.0, -1.0, True), (np.nan, 0.25, True)],
)
def test_a_box_action_is_clipped_or_held(size, value, told, changed):
    guard = ActionGuard(spaces.Box(-1.0, 1.0, (size,), np.float32))
    action = np.full(size, 0.5, np.float32)
    action[-1] = value
    last = np.full(size, 0.25, np.float32)
    (out,), was_changed = guard(action, [last])
    assert was_changed is changed
    assert out[-1] == np.float32(told)
    assert out.dtype == np.float32
    assert not np.shares_memory(out, action)
    assert not np.shares_memory(out, last)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_action_is_held_even_in_an_unbounded_space(value):
    guard = ActionGuard(spaces.Box(-np.inf, np.inf, (1,), np.float64))
    (out,), changed = guard(np.array([value]), [np.array([3.0])])
    assert (out[0], changed) == (3.0, True)
    assert guard.held == 1


def test_lists_and_other_float_types_are_cast():
    guard = ActionGuard(UNIT)
    (out,), changed = guard([0.1, np.float64(0.2)], [f32(0, 0)])
    assert out.dtype == np.float32
    assert not changed
    (out,), changed = guard(np.array([1e300, 0.0]), [f32(0.5, 0.5)])
    assert changed
    assert out.tolist() == [0.5, 0.5]  # it overflows to infinity, which is held


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (f32(0.1), r"action: shape \(1,\), expected \(2,\)"),
        (f32(0.1, 0.2, 0.3), "shape"),
        ("left", "action: 'left'"),
        ([0.1, [0.2]], "action"),
        (np.zeros(2, complex), "complex128 does not cast"),
        ({"steer": 1}, "action"),
    ],
)
def test_a_wrong_box_action_is_refused(action, message):
    with pytest.raises(ActionError, match=message):
        ActionGuard(UNIT)(action, [f32(0, 0)])


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(3), 2, 3),
        (spaces.Discrete(3, start=5), 5, 2),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [2, 0]),
        (spaces.MultiBinary(2), [0, 1], [0, 2]),
    ],
)
def test_a_category_that_does_not_exist_is_refused_and_nan_is_held(space, good, bad):
    guard = ActionGuard(space)
    (out,), changed = guard(good, [None])
    assert not changed
    assert space.contains(out)
    with pytest.raises(ActionError, match="no category"):
        guard(bad, [out])
    with pytest.raises(ActionError, match="whole numbers"):
        guard(np.full(np.shape(good), 0.5), [out])
    (held,), changed = guard(np.full(np.shape(good), np.nan), [out])
    assert changed
    assert np.array_equal(held, out)


def test_zero_dimensional_discrete_actions_are_accepted():
    (out,), _ = ActionGuard(spaces.Discrete(4))(np.array(3), [None])
    assert out == 3
    (out,), _ = ActionGuard(spaces.Discrete(4))(np.array([3]), [None])
    assert out == 3


def test_a_nested_action_names_its_leaf():
    space = spaces.Dict({"steer": spaces.Box(-1, 1, (1,)), "gear": spaces.Discrete(3)})
    guard = ActionGuard(space)
    default = guard.strict({"steer": f32(0), "gear": 0}, "default action")
    leaves, changed = guard({"steer": f32(3.0), "gear": 2}, default)
    assert changed
    assert guard.build(leaves) == {"gear": 2, "steer": f32(1.0)}
    with pytest.raises(ActionError, match=r"action\['gear'\]"):
        guard({"steer": f32(0), "gear": 3}, default)
    with pytest.raises(ActionError, match="missing keys"):
        guard({"steer": f32(0)}, default)


def test_the_rate_limit_bounds_the_change_per_step():
    guard = ActionGuard(UNIT, rate_limit=[0.1, 1.0])
    (out,), changed = guard(f32(0.5, 0.5), [f32(0.0, 0.0)])
    assert changed
    assert out == pytest.approx([0.1, 0.5])
    (out,), changed = guard(f32(0.2, 0.5), [out])
    assert not changed
    assert guard.rate_limited == 1


@pytest.mark.parametrize(("space", "limit"), [(UNIT, 0.0), (UNIT, [0.1, -1]), (spaces.Discrete(2), 1.0)])
def test_an_impossible_rate_limit_is_refused(space, limit):
    with pytest.raises(ConfigError, match="rate_limit"):
        ActionGuard(space, rate_limit=limit)
