"""Groups put the right leaves into the right columns, and refuse by name what they cannot read."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.errors import ConfigError

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
        ((), {"camera": spaces.Box(0, 255, (64, 64), np.uint8)}, "'camera' is an image"),
        ((), {"gear": spaces.Discrete(5)}, "'gear' is a Discrete"),
        ((), {"note": spaces.Text(5)}, "'note' is a Text"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(paths, extra, words):
    with pytest.raises(ConfigError) as error:
        GroupPacker("actor", paths, {**SPACES, **extra})
    assert words in str(error.value)


def test_an_image_outside_the_group_is_no_obstacle():
    all_spaces = {**SPACES, "camera": spaces.Box(0, 255, (64, 64), np.uint8)}
    assert GroupPacker("actor", ("speed",), all_spaces).size == 1
