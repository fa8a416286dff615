import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ConfigError
from tickrate.realtime.observations import History

PAIR = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32), dtype=np.float32)


def test_newest_last_and_reset_fills():
    history = History(3, spaces.Box(-10.0, 10.0, (1,), np.float32))
    assert history.reset([1.0]).tolist() == [[1.0], [1.0], [1.0]]
    assert history.push([2.0]).tolist() == [[1.0], [1.0], [2.0]]
    assert history.push([3.0]).tolist() == [[1.0], [2.0], [3.0]]
    assert history.push([4.0]).tolist() == [[2.0], [3.0], [4.0]]
    assert history.push([5.0]).tolist() == [[3.0], [4.0], [5.0]]
    assert history.reset([9.0]).tolist() == [[9.0], [9.0], [9.0]]
    assert len(history) == 3


def test_neither_the_sensor_nor_the_caller_can_rewrite_the_past():
    history = History(2, spaces.Box(-10.0, 10.0, (1,), np.float32))
    reused = np.array([1.0], np.float32)
    first = history.reset(reused)
    reused[0] = 2.0
    second = history.push(reused)
    first[:] = 7.0
    second[:] = 8.0
    reused[0] = 3.0
    assert history.value().tolist() == [[1.0], [2.0]]


def test_frames_stay_uint8():
    history = History(4, spaces.Box(0, 255, (2, 3), np.uint8))
    frame = np.full((2, 3), 200, np.uint8)
    out = history.reset(frame)
    assert out.dtype == np.uint8
    assert out.shape == (4, 2, 3)
    assert history.space == spaces.Box(0, 255, (4, 2, 3), np.uint8)
    assert history.space.contains(out)
    with pytest.raises(ValueError, match="keep images uint8"):
        history.push(frame / 255.0)


@pytest.mark.parametrize(
    "space",
    [
        PAIR,
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiBinary(3),
    ],
)
def test_values_lie_in_the_space(space):
    history = History(3, space)
    space.seed(1)
    assert history.space.contains(history.reset(space.sample()))
    for _ in range(5):
        sample = space.sample()
        out = history.push(sample)
        assert history.space.contains(out)
        assert np.array_equal(out[-1], sample)


def test_bounds_are_per_entry():
    space = History(2, PAIR).space
    assert space.low.tolist() == [[-1.0, 0.0], [-1.0, 0.0]]
    assert space.high.tolist() == [[1.0, 5.0], [1.0, 5.0]]


def test_misuse_is_refused():
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    with pytest.raises(RuntimeError, match="reset"):
        History(2, box).push([0.0, 0.0])
    with pytest.raises(ValueError, match=r"\(3,\)"):
        History(2, box).reset([0.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match="length 0"):
        History(0, box)
    with pytest.raises(ConfigError):
        History(2, spaces.Text(3))
