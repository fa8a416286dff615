"""The observation guard alone, leaf by leaf."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ObservationError
from tickrate.realtime.observation_guard import ObservationGuard

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)


def f32(*values):
    return np.array(values, np.float32)


def test_values_are_cast_by_the_declared_rule():
    guard = ObservationGuard(
        spaces.Tuple((UNIT, spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-1, 1, (1,))))
    )
    leaves = guard([np.array([0.5, 1]), [3, 4], 0.25])
    assert [leaf.dtype for leaf in leaves] == [np.float32, np.uint8, np.float32]
    assert leaves[2].shape == (1,)
    assert guard.corrections.clipped == {}


def test_a_float_for_a_whole_number_is_an_error():
    with pytest.raises(ObservationError, match=r"obs: dtype float64, expected uint8"):
        ObservationGuard(spaces.Box(0, 255, (2,), np.uint8))([0.5, 1.0])


def test_whole_numbers_beyond_the_dtype_do_not_wrap():
    guard = ObservationGuard(spaces.Box(0, 255, (2,), np.uint8))
    (leaf,) = guard(np.array([300, -1]))
    assert leaf.tolist() == [255, 0]
    assert guard.corrections.clipped == {"value": 1}


@pytest.mark.parametrize("size", [2, 40])
def test_out_of_bounds_is_clipped_and_counted_raised_or_passed(size):
    space = spaces.Dict({"speed": spaces.Box(0.0, 1.0, (size,))})
    value = np.full(size, 0.5, np.float32)
    value[0] = 2.0
    clip = ObservationGuard(space)
    assert clip({"speed": value})[0][0] == 1.0
    assert value[0] == 2.0
    assert clip.corrections.clipped == {"speed": 1}
    with pytest.raises(ObservationError, match=r"obs\['speed'\].*outside the bounds"):
        ObservationGuard(space, out_of_bounds="raise")({"speed": value})
    assert ObservationGuard(space, out_of_bounds="pass")({"speed": value})[0][0] == 2.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", ["clip", "raise", "pass"])
@pytest.mark.parametrize("size", [2, 40])
def test_not_finite_is_never_passed_on_silently(bad, how, size):
    value = np.zeros(size, np.float32)
    value[1] = bad
    guard = ObservationGuard(spaces.Box(-np.inf, np.inf, (size,)), out_of_bounds=how)
    with pytest.raises(ObservationError, match="not finite"):
        guard(value)


def test_bounds_that_differ_by_element_are_checked_by_element():
    low, high = np.zeros(20, np.float32), np.arange(1, 21, dtype=np.float32)
    guard = ObservationGuard(spaces.Box(low, high))
    assert guard(high)[0].tolist() == high.tolist()
    assert guard(high + 1)[0].tolist() == high.tolist()
    assert guard.corrections.clipped == {"value": 1}


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(3), 2, 3),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1, 3])),
        (spaces.MultiBinary(2), [1, 0], [2, 0]),
    ],
)
def test_categories_are_checked(space, good, bad):
    guard = ObservationGuard(space)
    assert space.contains(guard(good)[0])
    with pytest.raises(ObservationError, match="no category"):
        guard(bad)
    with pytest.raises(ObservationError, match="whole numbers"):
        guard(0.5)


@pytest.mark.parametrize(
    "value",
    [[f32(0, 0), f32(0.5)], (f32(0, 0), f32(0.5)), [[0.0, 0.0], [0.5]], np.array([f32(0, 0), 0.5], object)],
)
def test_any_sequence_is_a_tuple_observation(value):
    guard = ObservationGuard(spaces.Tuple((UNIT, spaces.Box(0, 1, (1,)))))
    assert [leaf.tolist() for leaf in guard(value)] == [[0.0, 0.0], [0.5]]


def test_an_array_is_a_tuple_observation_of_its_rows():
    guard = ObservationGuard(spaces.Tuple((UNIT, UNIT)))
    assert guard(np.array([[0.1, 0.2], [0.3, 0.4]]))[1] == pytest.approx([0.3, 0.4])


def test_nested_and_named_leaves_are_named_in_errors():
    space = spaces.Tuple((spaces.Dict({"x": UNIT}), UNIT))
    guard = ObservationGuard(space, ["pose", "goal"])
    with pytest.raises(ObservationError, match=r"obs\['pose/x'\]: shape \(3,\), expected \(2,\)"):
        guard([{"x": [0, 0, 0]}, f32(0, 0)])
    with pytest.raises(ObservationError, match=r"'pose'.*missing keys"):
        guard([{}, f32(0, 0)])


def test_a_missing_or_foreign_key_is_named():
    guard = ObservationGuard(spaces.Dict({"speed": UNIT}))
    with pytest.raises(ObservationError, match=r"missing keys \['speed'\], unexpected keys \['sped'\]"):
        guard({"sped": f32(0, 0)})
