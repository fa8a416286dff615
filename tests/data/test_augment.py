"""Left-right mirroring."""

import numpy as np
import pytest

from tickrate.data.augment import Mirror
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError


def batch_of(count=4):
    rng = np.random.default_rng(0)

    def leaves():
        return {
            "lidar": rng.normal(size=(count, 2, 3)).astype(np.float32),
            "pose": rng.normal(size=(count, 2)).astype(np.float32),
            "camera": rng.integers(0, 256, (count, 4, 5), dtype=np.uint8),
        }

    action = rng.normal(size=(count, 3)).astype(np.float32)
    ones = np.ones(count, np.float32)
    return Batch(leaves(), action, ones, ones, leaves(), np.arange(count))


MIRROR = Mirror(
    {"lidar": ([2, 1, 0], None), "pose": (None, [1, -1]), "camera": (range(4, -1, -1), None)},
    action=[1, 1, -1],
)


def test_the_first_half_is_mirrored_everywhere_and_the_second_stays():
    batch, before = batch_of(5), batch_of(5)
    assert MIRROR(batch) is batch
    for now, then in (
        (batch.observation, before.observation),
        (batch.next_observation, before.next_observation),
    ):
        np.testing.assert_array_equal(now["lidar"][:2], then["lidar"][:2, :, ::-1])
        np.testing.assert_array_equal(now["pose"][:2], then["pose"][:2] * [1, -1])
        np.testing.assert_array_equal(now["camera"][:2], then["camera"][:2, :, ::-1])
        assert now["camera"].dtype == np.uint8
        for path in now:
            np.testing.assert_array_equal(now[path][2:], then[path][2:])
    np.testing.assert_array_equal(batch.action[:2], before.action[:2] * [1, 1, -1])
    np.testing.assert_array_equal(batch.action[2:], before.action[2:])


def test_mirroring_twice_gives_the_batch_back():
    batch, before = batch_of(8), batch_of(8)
    MIRROR(MIRROR(batch))
    np.testing.assert_array_equal(batch.action, before.action)
    for path in batch.observation:
        np.testing.assert_array_equal(batch.observation[path], before.observation[path])


def test_a_signed_permutation():
    batch, before = batch_of(), batch_of()
    Mirror({"lidar": ([1, 0, 2], [-1, -1, 1])}, 1)(batch)
    expected = before.observation["lidar"][:2][:, :, [1, 0, 2]] * [-1, -1, 1]
    np.testing.assert_array_equal(batch.observation["lidar"][:2], expected)
    np.testing.assert_array_equal(batch.action, before.action)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        ({"lidar": ([0, 0, 1], None)}, 1, "no permutation"),
        ({"lidar": ([1, 2, 0], None)}, 1, "mirroring twice"),
        ({"lidar": ([1, 0, 2], [-1, 1, 1])}, 1, "mirroring twice"),
        ({"lidar": ([1, 0, 2], [1, 1])}, 1, "2 signs for 3"),
        ({"lidar": (None, 0.5)}, 1, "must each be"),
        ({}, [1, 2], "must each be"),
    ],
)
def test_what_is_no_mirror_is_refused(observation, action, message):
    with pytest.raises(ConfigError, match=message):
        Mirror(observation, action)


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        (Mirror({"radar": (None, -1)}, 1), "no observation leaf 'radar'"),
        (Mirror({"lidar": ([1, 0], None)}, 1), "'lidar'"),
        (Mirror({"camera": (None, -1)}, 1), "uint8, whose sign"),
        (Mirror({}, [1, -1]), "'action'"),
    ],
)
def test_what_does_not_fit_the_batch_is_named(mirror, message):
    with pytest.raises(ConfigError, match=message):
        mirror(batch_of())
