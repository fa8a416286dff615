"""The cheap look at a value: a copy if it needs no correction, None for every other value."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.realtime.bounds import taker

UNIFORM = spaces.Box(-1.0, 1.0, (2,), np.float32)
EACH = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))


@pytest.mark.parametrize(
    ("box", "good"),
    [
        (UNIFORM, np.array([-1.0, 1.0], np.float32)),
        (EACH, np.array([1.0, 5.0], np.float32)),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([-1e300, 1e300])),
        (spaces.Box(0, 255, (2, 2), np.uint8), np.array([[0, 255], [1, 2]], np.uint8)),
    ],
)
def test_a_good_value_comes_back_as_a_copy(box, good):
    taken = taker(box)(good)
    assert taken is not good
    assert not np.shares_memory(taken, good)
    assert taken.dtype == good.dtype
    assert taken.tolist() == good.tolist()


@pytest.mark.parametrize("box", [UNIFORM, EACH])
@pytest.mark.parametrize(
    "value",
    [
        np.array([0.0, 1.0]),  # another dtype
        np.array([0, 1]),
        np.array([0.0], np.float32),
        np.array([0.0, 0.0, 0.0], np.float32),
        np.array([[0.0], [0.0]], np.float32),  # as many rows, but no vector
        np.array(0.0, np.float32),
        np.array([np.nan, 0.0], np.float32),
        np.array([0.0, np.inf], np.float32),
        np.array([1.5, 0.0], np.float32),
        np.array([0.0, -1.5], np.float32),
        [0.0, 0.0],
        None,
    ],
)
def test_any_other_value_is_left_to_the_checks(box, value):
    assert taker(box)(value) is None


def test_each_element_has_its_own_bounds():
    assert taker(EACH)(np.array([0.0, -0.5], np.float32)) is None
    assert taker(UNIFORM)(np.array([0.0, -0.5], np.float32)) is not None
