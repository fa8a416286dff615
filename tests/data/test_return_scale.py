"""Rewards are divided so that returns have unit spread and stay inside the limit; worked by hand."""

import json
import math

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.data.batch import Batch
from tickrate.data.return_scale import ReturnScale
from tickrate.data.schema import Flag, RecordSchema
from tickrate.errors import ConfigError

SCHEMA = RecordSchema.from_spaces({"x": spaces.Box(-1, 1, (1,))}, spaces.Box(-1, 1, (1,)))


def rows(rewards, *, stream=0, first_step=0, end=None):
    made = SCHEMA.empty(len(rewards))
    made["reward"], made["stream"] = rewards, stream
    made["step"] = first_step + np.arange(len(rewards))
    if end is not None:
        made["flags"][-1] = end
    return made


def batch(rewards):
    rewards = np.asarray(rewards, np.float32)
    leaves = {"x": np.zeros((len(rewards), 1), np.float32)}
    return Batch(leaves, leaves["x"], rewards, np.ones_like(rewards), leaves, np.arange(len(rewards)))


def test_nothing_is_scaled_before_anything_was_seen():
    assert ReturnScale(0.5, 5.0)(batch([3.0])).reward.tolist() == [3.0]


def test_the_divisor_is_the_spread_of_the_sums_or_what_the_limit_asks():
    scale = ReturnScale(0.5, 5.0)
    scale.observe(rows([1.0, 1.0, 1.0], end=int(Flag.TERMINATED)))  # sums 1, 1.5, 1.75
    sums = [1.0, 1.5, 1.75]
    spread = np.std(sums)
    assert scale.divisor == pytest.approx(max(spread, 1.75 / 5.0), rel=1e-5)  # 1.75 / 5 = 0.35 is the larger
    assert ReturnScale(0.5, 100.0).divisor == 1.0
    wide = ReturnScale(0.5, 100.0)
    wide.observe(rows([1.0, 1.0, 1.0]))
    assert wide.divisor == pytest.approx(spread, rel=1e-4)
    np.testing.assert_allclose(scale(batch([0.35, -0.7])).reward, [1.0, -2.0], rtol=1e-5)


@pytest.mark.parametrize("end", [Flag.TERMINATED, Flag.TRUNCATED])
def test_a_sum_begins_anew_with_an_episode_and_each_stream_has_its_own(end):
    scale = ReturnScale(0.9, 1.0)
    scale.observe(rows([1.0, 1.0], end=int(end)))
    scale.observe(rows([-1.0], stream=7))
    scale.observe(rows([1.0]))  # of a new episode: its sum is 1, not 1 + 0.9 * 1.9
    assert scale.divisor == pytest.approx(1.9)


def test_row_by_row_is_the_same_as_all_at_once_and_a_resume_goes_on():
    rewards = np.random.default_rng(0).normal(2.0, 3.0, 40).astype(np.float32)
    whole = ReturnScale(0.9, 5.0)
    whole.observe(rows(rewards))
    parts = ReturnScale(0.9, 5.0)
    for i in range(20):
        parts.observe(rows(rewards[i : i + 1], first_step=i))
    resumed = ReturnScale(0.9, 5.0)
    resumed.restore(json.loads(json.dumps(parts.state())))
    resumed.observe(rows(rewards[20:], first_step=20))
    assert resumed.divisor == whole.divisor
    assert math.isfinite(whole.divisor)


def test_a_state_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="return scale"):
        ReturnScale(0.9, 5.0).restore({"sums": []})
