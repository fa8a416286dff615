"""Sequences against a naive replay on random episodes, worked by hand, and while another thread writes."""

import numpy as np
import pytest
from endless import WIDE, endless_writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_replay import NaiveReplay, episode_keys, make_rows, make_schema
from streams import histories

from tickrate.data.augment import Mirror
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, Flag, RecordSchema
from tickrate.errors import ConfigError

SIMPLE = RecordSchema((Field("o", "float32", (1,)),), Field("action", "float32", (1,)))


def simple_rows(rewards, end=Flag.TERMINATED, *, stream=0, episode=0):
    """An episode whose observation at step t is t, and whose action there is -t."""
    rows = SIMPLE.empty(len(rewards) + 1)
    rows["stream"], rows["episode"], rows["step"] = stream, episode, np.arange(len(rows))
    rows["reward"][:-1] = rewards
    rows["o/o"][:, 0] = rows["step"]
    rows["action"][:-1, 0] = -rows["step"][:-1].astype(np.float32)
    rows["flags"][-2], rows["flags"][-1] = end, Flag.FINAL
    return rows


def from_row(replay, row, length):
    """The sequence that begins at a row: a dict of its arrays."""
    batch = replay.sample_sequences(256, length)
    at = int(np.flatnonzero(batch.rows[:, 0] == row)[0])
    return {
        "observation": batch.observation["o"][at, :, 0].tolist(),
        "action": batch.action[at, :, 0].tolist(),
        "reward": batch.reward[at].tolist(),
        "discount": batch.discount[at].tolist(),
        "mask": batch.mask[at].tolist(),
        "first": bool(batch.first[at]),
        "ended": bool(batch.ended[at]),
        "rows": batch.rows[at].tolist(),
    }


@pytest.mark.parametrize(("end", "last"), [(Flag.TERMINATED, 0.0), (Flag.TRUNCATED, 0.5)])
def test_an_episode_that_ends_within_the_sequence_worked_by_hand(end, last):
    replay = Replay(SIMPLE, 100, gamma=0.5, n_step=3)  # n-step returns leave the single steps alone
    replay.add(simple_rows([1, 2, 4], end))
    replay.add(simple_rows([8, 16], episode=1))
    assert from_row(replay, 1, 4) == {
        "observation": [1, 2, 3, 3, 3],  # 3 is the true final observation, and repeats
        "action": [-1, -2, 0, 0],
        "reward": [2, 4, 0, 0],
        "discount": [0.5, last, 0, 0],
        "mask": [True, True, False, False],
        "first": False,
        "ended": True,
        "rows": [1, 2, 3, 3],
    }
    assert from_row(replay, 0, 2) == {
        "observation": [0, 1, 2],
        "action": [0, -1],
        "reward": [1, 2],
        "discount": [0.5, 0.5],
        "mask": [True, True],
        "first": True,
        "ended": False,
        "rows": [0, 1],
    }


def test_a_sequence_stops_at_the_newest_row_and_grows_with_the_episode():
    replay = Replay(SIMPLE, 100, gamma=0.5)
    rows = simple_rows([1, 2, 4])
    replay.add(rows[:2])
    assert from_row(replay, 0, 3)["mask"] == [True, False, False]
    assert from_row(replay, 0, 3)["observation"] == [0, 1, 1, 1]
    assert not from_row(replay, 0, 3)["ended"]
    replay.add(rows[2:])
    assert from_row(replay, 0, 3)["mask"] == [True, True, True]
    assert from_row(replay, 0, 3)["discount"] == [0.5, 0.5, 0.0]
    assert from_row(replay, 0, 3)["ended"]


def test_a_gap_in_the_steps_ends_a_sequence():
    replay = Replay(SIMPLE, 100, gamma=0.5)
    replay.add(simple_rows([1, 2, 4, 8])[[0, 1, 3, 4]])
    assert from_row(replay, 0, 4)["reward"] == [1, 0, 0, 0]
    assert not from_row(replay, 0, 4)["ended"]
    assert from_row(replay, 2, 4)["reward"] == [8, 0, 0, 0]


def assert_sequences_same(replay, naive, oldest, length, batch_size=32):
    """Check a batch of sequences against the naive replay, bit for bit."""
    starts = naive.transitions(oldest)
    assert len(replay) == len(starts)
    if not starts:
        return
    batch = replay.sample_sequences(batch_size, length)
    assert len(batch) == batch_size
    assert batch.mask.shape == batch.reward.shape == batch.discount.shape == (batch_size, length)
    for i, number in enumerate(batch.rows[:, 0].tolist()):
        assert number in starts
        right = naive.sequence(number, oldest, length)
        real = len(right.numbers)
        assert batch.first[i] == right.first
        np.testing.assert_array_equal(batch.mask[i], np.arange(length) < real)
        np.testing.assert_array_equal(batch.rows[i, :real], right.numbers)
        np.testing.assert_array_equal(batch.discount[i, :real], np.float32(right.gamma_or_zero))
        for at, n in enumerate(right.numbers):
            assert batch.reward[i, at] == naive.rows[n]["reward"]
            np.testing.assert_array_equal(batch.action[i, at], naive.rows[n]["action"])
            assert batch.extras["value"][i, at] == naive.rows[n]["x/value"]
        for name in ("reward", "discount", "action"):
            assert not getattr(batch, name)[i, real:].any()
        for at in range(length + 1):
            observation = right.observations[min(at, real)]
            for path in ("vector", "frame"):
                np.testing.assert_array_equal(batch.observation[path][i, at], observation[path])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chunks=histories(),
    length=st.integers(1, 6),
    n_step=st.integers(1, 3),
    stack=st.sampled_from([1, 2, 4]),
    limit=st.integers(9, 60),
    seed=st.integers(0, 99),
)
def test_equal_to_a_naive_replay_also_when_the_ring_comes_round(chunks, length, n_step, stack, limit, seed):
    schema = make_schema(stack)
    replay = Replay(schema, limit, gamma=0.9, n_step=n_step, seed=seed)
    naive = NaiveReplay(schema, gamma=0.9, n_step=n_step)
    rng = np.random.default_rng(seed)
    for keys in chunks:
        rows = make_rows(schema, keys, rng)
        replay.add(rows)
        naive.add(rows)
        assert_sequences_same(replay, naive, max(0, len(naive.rows) - limit), length, batch_size=12)


def test_every_start_is_drawn_equally_often_however_short_what_is_left():
    replay = Replay(SIMPLE, 64, seed=3)
    for episode in range(9):
        replay.add(simple_rows(np.ones(1 + episode % 4), episode=episode))
    counts = np.zeros(64)
    for _ in range(200):
        np.add.at(counts, replay.sample_sequences(100, 3).rows[:, 0], 1)
    drawn = counts[counts > 0]
    assert len(drawn) == len(replay)
    expected = 20_000 / len(replay)
    chi_square = ((drawn - expected) ** 2 / expected).sum()
    assert chi_square < 2 * len(replay)  # mean len - 1, standard deviation about 6 here


def test_sequences_are_contiguous_copies_in_native_dtypes():
    schema = make_schema(stack=2)
    replay = Replay(schema, 100)
    replay.add(make_rows(schema, episode_keys(0, 0, 20, Flag.TERMINATED), np.random.default_rng(0)))
    batch = replay.sample_sequences(8, 5)
    arrays = [batch.action, batch.reward, batch.discount, batch.mask, batch.rows, *batch.extras.values()]
    arrays += batch.observation.values()
    for array in arrays:
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert batch.observation["frame"].shape == (8, 6, 2, 2, 2)
    assert batch.observation["frame"].dtype == np.uint8
    assert batch.reward.dtype == batch.discount.dtype == batch.extras["value"].dtype == np.float32
    assert batch.weights is None
    batch.observation["vector"][:] = np.nan
    assert np.isfinite(replay.sample_sequences(64, 5).observation["vector"]).all()


def test_bad_lengths_are_refused():
    replay = Replay(SIMPLE, 100)
    with pytest.raises(ConfigError, match="cannot sample 4 of 0"):
        replay.sample_sequences(4, 2)
    replay.add(simple_rows([1]))
    with pytest.raises(ConfigError, match="sequences of 0 steps"):
        replay.sample_sequences(4, 0)


def test_whole_sequences_are_mirrored():
    replay = Replay(SIMPLE, 100)
    replay.add(simple_rows([1, 2, 4, 8]))
    batch = replay.sample_sequences(6, 3)
    before = batch.observation["o"].copy(), batch.action.copy()
    mirrored = Mirror({"o": (None, -1)}, action=-1)(batch)
    np.testing.assert_array_equal(mirrored.observation["o"][:3], -before[0][:3])
    np.testing.assert_array_equal(mirrored.observation["o"][3:], before[0][3:])
    np.testing.assert_array_equal(mirrored.action[:3], -before[1][:3])


@pytest.mark.parametrize("mapped", [False, True])
def test_no_torn_sequences_while_another_thread_writes(tmp_path, mapped):
    replay, seen = Replay(WIDE, 500, path=tmp_path / "rows.seg" if mapped else None), 0
    with endless_writer(replay) as written:
        while seen < 60_000 or written() < 5_000:
            batch = replay.sample_sequences(200, 5)
            seen += 1000
            start = batch.rows[:, :1].astype(np.float64)
            steps = start + np.arange(6)  # an endless episode: observation n is n, until the newest row
            real = np.concatenate([np.ones((200, 1), np.bool_), batch.mask], axis=1)
            for name in ("a", "frame"):
                assert (batch.observation[name][real] == steps[real][:, None]).all()
            assert (batch.observation["pair"][real][:, 1] == steps[real]).all()
            assert (batch.reward[batch.mask] == steps[:, :-1][batch.mask]).all()
            assert (batch.action[batch.mask] == steps[:, :-1][batch.mask][:, None]).all()
            assert (batch.rows[batch.mask] == steps[:, :-1][batch.mask]).all()
            assert batch.mask[:, 0].all()
