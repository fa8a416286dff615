"""Groups put the right leaves into the right columns, and refuse by name what they cannot read."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.errors import ConfigError
from tickrate.realtime.spaces import buffer_space

SPACES = {
    "speed": spaces.Box(0, 9, (1,)),
    "scan": spaces.Box(0, 9, (2, 2), np.int16),
    "lamp": spaces.MultiBinary(2),
}


def test_leaves_lie_side_by_side_in_the_groups_order():
    packer = GroupPacker("actor", ("scan", "speed"), SPACES)
    out = np.zeros((2, packer.size), np.float32)
    packer.pack({"speed": np.array([[7.0], [8.0]]), "scan": np.arange(8).reshape(2, 2, 2)}, out)
    np.testing.assert_array_equal(out, [[0, 1, 2, 3, 7], [4, 5, 6, 7, 8]])


def test_an_empty_group_reads_everything():
    packer = GroupPacker("actor", (), SPACES)
    assert packer.paths == ("speed", "scan", "lamp")
    assert packer.size == 7


def test_a_scalar_leaf_is_one_column():
    assert GroupPacker("actor", (), {"x": spaces.Box(0, 1, ())}).size == 1


@pytest.mark.parametrize(
    ("paths", "extra", "words"),
    [
        (("spede",), {}, "Did you mean 'speed'"),
        (("speed", "speed"), {}, "twice"),
        ((), {"camera": spaces.Box(0, 255, (64, 64), np.uint8)}, "give it to an image encoder"),
        ((), {"word": spaces.Discrete(1 << 20)}, "'word' is Discrete(1048576): its categories would take"),
        ((), {"far": spaces.Discrete(2, start=-(1 << 24))}, "of the size 16777216"),
        ((), {"note": spaces.Text(5)}, "'note' is a Text"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(paths, extra, words):
    with pytest.raises(ConfigError) as error:
        GroupPacker("actor", paths, {**SPACES, **extra})
    assert words in str(error.value)


def test_categories_become_one_hot_whatever_they_start_at():
    packer = GroupPacker("actor", (), {"gear": spaces.Discrete(3, start=-1), "speed": SPACES["speed"]})
    out = np.full((3, packer.size), 9.0, np.float32)
    packer.pack({"gear": np.array([-1, 1, 0]), "speed": np.array([[5.0], [6.0], [7.0]])}, out)
    np.testing.assert_array_equal(out, [[1, 0, 0, 5], [0, 0, 1, 6], [0, 1, 0, 7]])


def test_an_action_buffer_of_categories_becomes_one_hot_entry_by_entry():
    discrete = buffer_space(spaces.Discrete(3, start=5), 2)
    parts = buffer_space(spaces.MultiDiscrete([2, 3]), 2)
    packer = GroupPacker("actor", (), {"keys": discrete, "actions": parts})
    out = np.zeros((1, packer.size), np.float32)
    packer.pack({"keys": np.array([[7, 5]]), "actions": np.array([[[0, 2], [1, 1]]])}, out)
    keys = [0, 0, 1, 1, 0, 0]
    np.testing.assert_array_equal(out[0], [*keys, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize("value", [-2, 2])
def test_a_category_that_does_not_exist_spoils_its_own_row_only(value):
    packer = GroupPacker("actor", (), {"speed": SPACES["speed"], "gear": spaces.Discrete(3, start=-1)})
    out = np.zeros((2, packer.size), np.float32)
    packer.pack({"speed": np.ones((2, 1)), "gear": np.array([value, 1])}, out)
    np.testing.assert_array_equal(out, [[1, np.nan, np.nan, np.nan], [1, 0, 0, 1]])


def test_an_image_outside_the_group_is_no_obstacle():
    all_spaces = {**SPACES, "camera": spaces.Box(0, 255, (64, 64), np.uint8)}
    assert GroupPacker("actor", ("speed",), all_spaces).size == 1
