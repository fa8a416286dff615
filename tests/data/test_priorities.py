"""Prioritised sampling: frequencies and weights by the paper's formula, a ring, resume, threads."""

import numpy as np
import pytest
from endless import endless_writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_replay import NaiveReplay, assert_same, episode_keys, make_rows, make_schema
from streams import histories

from tickrate.data import capacity
from tickrate.data.priorities import LARGEST_PRIORITY, SMALLEST_PRIORITY, Proportional
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, Flag, RecordSchema
from tickrate.data.snapshot import read_snapshot, write_snapshot
from tickrate.errors import ConfigError, RecordError

SIMPLE = RecordSchema((Field("o", "float32", (1,)),), Field("action", "float32", (1,)))


def simple_rows(steps, *, first=0, stream=0, episode=0, final=True):
    rows = SIMPLE.empty(steps + final)
    rows["stream"], rows["episode"], rows["step"] = stream, episode, first + np.arange(len(rows))
    if final:
        rows["flags"][-2], rows["flags"][-1] = Flag.TRUNCATED, Flag.FINAL
    return rows


def prioritised(exponent=0.5, limit=100, steps=5, seed=3, **settings_):
    replay = Replay(SIMPLE, limit, seed=seed, sampling=Proportional(exponent), **settings_)
    replay.add(simple_rows(steps))
    return replay


def frequencies(replay, draws, size):
    counts = np.zeros(size)
    for _ in range(draws // 500):
        np.add.at(counts, replay.sample(500).rows, 1)
    return counts


# --- the formula ----------------------------------------------------------------------------------


def test_rows_are_drawn_in_proportion_to_a_power_of_their_priority():
    replay = prioritised(exponent=0.5)
    priorities = np.array([0.0, 1.0, 4.0, 9.0, 100.0])
    replay.update_priorities(np.arange(5), priorities)
    counts = frequencies(replay, 50_000, 6)
    assert counts[5] == 0  # the final row
    assert counts[0] < 20  # 50_000 * 0.001 / 16 = 3 are expected
    expected = 50_000 * np.array([1.0, 2.0, 3.0, 10.0]) / 16.001
    assert ((counts[1:5] - expected) ** 2 / expected).sum() < 17.7  # 3 degrees of freedom: p = 0.0005


def test_importance_weights_are_those_of_the_paper():
    replay = prioritised(exponent=0.5)
    replay.update_priorities(np.arange(5), np.array([1.0, 4.0, 9.0, 16.0, 25.0]))
    share = np.array([1.0, 2.0, 3.0, 4.0, 5.0]) / 15.0
    for beta in (0.0, 0.4, 1.0):
        batch = replay.sample(200, beta=beta)
        weight = (5 * share) ** -beta
        weight /= weight[batch.rows].max()
        np.testing.assert_allclose(batch.weights, weight[batch.rows], rtol=1e-5)
        assert batch.weights.dtype == np.float32
        assert batch.weights.max() == 1.0
    np.testing.assert_array_equal(
        np.unique(replay.sample(200).weights), np.unique(replay.sample(200, beta=1.0).weights)
    )


def test_weighted_by_importance_the_mean_is_that_of_uniform_draws():
    replay = prioritised(exponent=1.0, steps=8)
    replay.update_priorities(np.arange(8), np.arange(1.0, 9.0))
    total, weights = 0.0, 0.0
    for _ in range(100):
        batch = replay.sample(500, beta=1.0)
        total += float((batch.weights * batch.rows).sum())
        weights += float(batch.weights.sum())
    assert total / weights == pytest.approx(3.5, abs=0.05)  # the mean of 0 to 7


def test_a_batch_is_stratified_and_in_random_order():
    replay = prioritised(steps=80)
    batch = replay.sample(80)  # all priorities are alike: one row from each of 80 equal parts
    assert sorted(batch.rows.tolist()) == list(range(80))
    assert batch.rows.tolist() != list(range(80))
    assert abs(np.corrcoef(batch.rows, np.arange(80))[0, 1]) < 0.4


def test_sequences_begin_where_priorities_are_high():
    replay = prioritised(exponent=1.0, steps=5)
    replay.update_priorities(np.arange(5), np.array([0.0, 0.0, 1.0, 3.0, 0.0]))
    starts = np.concatenate([replay.sample_sequences(400, 3, beta=1.0).rows[:, 0] for _ in range(10)])
    assert np.isin(starts, [2, 3]).mean() > 0.99
    assert (starts == 3).mean() == pytest.approx(0.75, abs=0.01)
    batch = replay.sample_sequences(400, 3, beta=1.0)
    common = np.isin(batch.rows[:, 0], [2, 3])
    ratio = batch.weights[common & (batch.rows[:, 0] == 2)][0] / batch.weights[batch.rows[:, 0] == 3][0]
    assert ratio == pytest.approx(3.0, rel=1e-4)


# --- what is new, what is gone --------------------------------------------------------------------


def test_new_rows_get_the_largest_priority_so_far():
    replay = prioritised(exponent=1.0, steps=3)
    replay.update_priorities(np.arange(3), np.array([7.0, 1.0, 1.0]))
    replay.update_priorities(np.arange(3), np.array([1.0, 1.0, 1.0]))  # so far: 7 counts on
    replay.add(simple_rows(1, episode=1))
    counts = frequencies(replay, 20_000, 6)
    assert counts[4] / 20_000 == pytest.approx(0.7, abs=0.02)


def test_rows_that_were_overwritten_are_left_out_of_updates():
    replay = Replay(SIMPLE, 8, sampling=Proportional(1.0), seed=0)
    replay.add(simple_rows(7, final=False))
    replay.add(simple_rows(6, first=7, final=False))  # rows 0 to 4 are gone, 8 to 12 are in their slots
    replay.update_priorities(np.arange(5), np.full(5, 1e6))
    assert frequencies(replay, 7000, 13)[5:12] == pytest.approx(1000, abs=150)
    replay.update_priorities(np.array([3, 6, 12, 99]), np.array([1e6, 994.0, 1e6, 1e6]))  # 12 is the newest
    counts = frequencies(replay, 10_000, 13)
    assert counts[:5].sum() == counts[12] == 0
    assert counts[6] / 10_000 == pytest.approx(0.994, abs=0.005)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chunks=histories(), stack=st.sampled_from([1, 3]), limit=st.integers(9, 60), seed=st.integers(0, 99))
def test_priorities_follow_the_rows_of_a_ring(chunks, stack, limit, seed):
    schema = make_schema(stack)
    replay = Replay(schema, limit, gamma=0.9, n_step=2, seed=seed, sampling=Proportional(0.7))
    naive = NaiveReplay(schema, gamma=0.9, n_step=2)
    rng = np.random.default_rng(seed)
    model, largest = {}, 1.0  # row number -> priority
    for keys in chunks:
        rows = make_rows(schema, keys, rng)
        replay.add(rows)
        naive.add(rows)
        oldest = max(0, len(naive.rows) - limit)
        assert_same(replay, naive, oldest, batch_size=16)
        model = {number: model.get(number, largest) for number in naive.transitions(oldest)}
        weights = replay._storage.priorities.weights(np.arange(limit))
        right = np.zeros(limit)
        for number, priority in model.items():
            right[number % limit] = (priority + SMALLEST_PRIORITY) ** 0.7
        np.testing.assert_allclose(weights, right, rtol=1e-12)
        if model:
            numbers = rng.integers(0, len(naive.rows) + 3, size=6)  # some gone, some to come
            priorities = rng.random(6) * 5
            replay.update_priorities(numbers, priorities)
            for number, priority in zip(numbers.tolist(), priorities.tolist(), strict=True):
                if number in model:
                    model[number], largest = priority, max(largest, priority)


def test_values_that_are_not_finite_leave_the_priority_and_larger_ones_are_cut():
    replay = prioritised(exponent=1.0, steps=2)
    replay.update_priorities(np.arange(2), np.array([np.nan, 3.0], np.float32))
    assert replay._storage.priorities.weights(np.arange(2)) == pytest.approx([1.0, 3.0], rel=1e-5)
    replay.update_priorities(np.arange(2), np.array([np.inf, 1e30]))
    assert replay._storage.priorities.weights(np.arange(2)) == pytest.approx([1.0, LARGEST_PRIORITY])
    assert replay.state()["largest_priority"] == LARGEST_PRIORITY


def test_what_cannot_be_is_refused():
    replay = prioritised()
    with pytest.raises(ConfigError, match=r"a priority is -1.0"):
        replay.update_priorities(np.arange(2), np.array([1.0, -1.0]))
    with pytest.raises(ConfigError, match="3 priorities were given for 2 rows"):
        replay.update_priorities(np.arange(2), np.ones(3))
    for beta in (-0.1, 1.1, np.nan):
        with pytest.raises(ConfigError, match="beta is"):
            replay.sample(4, beta=beta)
    with pytest.raises(ConfigError, match="cannot sample 4 of 0"):
        Replay(SIMPLE, 100, sampling=Proportional()).sample(4)
    for exponent in (0.0, 1.5, np.nan):
        with pytest.raises(ConfigError, match="exponent"):
            Proportional(exponent)
    uniform = Replay(SIMPLE, 100)
    uniform.add(simple_rows(3))
    with pytest.raises(ConfigError, match="no priorities"):
        uniform.sample(4, beta=0.4)
    with pytest.raises(ConfigError, match="no priorities"):
        uniform.update_priorities(np.arange(2), np.ones(2))
    assert uniform.sample(4).weights is None


def test_priorities_count_when_memory_is_checked(monkeypatch, tmp_path):
    # 48 bytes of a row, 25 of the index, 8 and a fifteenth for its weight and the sums above
    monkeypatch.setattr(capacity, "available_memory", lambda: 80_000_000)
    Replay(SIMPLE, 1_000_000)
    with pytest.raises(ConfigError, match=r"1,000,000 rows of 82 bytes needs 81\.53 MB"):
        Replay(SIMPLE, 1_000_000, sampling=Proportional())
    monkeypatch.setattr(capacity, "available_memory", lambda: 30_000_000)
    with pytest.raises(ConfigError, match=r"1,000,000 rows of 34 bytes needs 33\.53 MB"):
        Replay(SIMPLE, 1_000_000, sampling=Proportional(), path=tmp_path / "rows.seg")
    assert list(tmp_path.iterdir()) == []


# --- resume ---------------------------------------------------------------------------------------


def used(schema, path=None, seed=1, exponent=0.6):
    replay = Replay(schema, 200, n_step=3, gamma=0.95, seed=seed, path=path, sampling=Proportional(exponent))
    rng = np.random.default_rng(7)
    for episode in range(30):
        replay.add(make_rows(schema, episode_keys(episode % 2, episode, 11, Flag.TRUNCATED), rng))
        batch = replay.sample(16)
        replay.update_priorities(batch.rows, rng.random(16) * 3)
    return replay


@pytest.mark.parametrize("mapped", [False, True])
def test_a_restored_replay_draws_bit_for_bit_the_same(tmp_path, mapped):
    schema = make_schema(stack=3)
    path = tmp_path / "rows.seg" if mapped else None
    replay = used(schema, path)
    replay.save(tmp_path)
    right = []
    for _ in range(3):
        batch = replay.sample(64, beta=0.5)
        right.append(batch)
        replay.update_priorities(batch.rows, batch.reward.astype(np.float64) ** 2)
    replay.close()
    again = Replay(schema, 200, n_step=3, gamma=0.95, seed=99, path=path, sampling=Proportional(0.6))
    again.restore(tmp_path)
    for batch in right:
        mine = again.sample(64, beta=0.5)
        for name in ("rows", "weights", "action", "reward"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(batch, name))
        again.update_priorities(mine.rows, mine.reward.astype(np.float64) ** 2)


def test_rows_that_a_journal_got_after_the_snapshot_are_new(tmp_path):
    path = tmp_path / "rows.seg"
    replay = Replay(SIMPLE, 100, path=path, sampling=Proportional(1.0))
    replay.add(simple_rows(4, final=False))  # row 3 waits for its successor
    replay.update_priorities(np.arange(3), np.array([2.0, 5.0, 0.5]))
    replay.save(tmp_path)
    replay.add(simple_rows(2, first=4))
    replay.close()
    again = Replay(SIMPLE, 100, path=path, sampling=Proportional(1.0))
    again.restore(tmp_path)
    assert again._storage.priorities.weights(np.arange(7)) == pytest.approx(
        [2.0, 5.0, 0.5, 5.0, 5.0, 5.0, 0.0], rel=1e-5
    )


def test_another_exponent_is_refused_and_changes_nothing(tmp_path):
    used(make_schema()).save(tmp_path)
    for other in (Proportional(0.5), None):
        replay = Replay(make_schema(), 200, n_step=3, gamma=0.95, sampling=other)
        with pytest.raises(RecordError, match=r"priority_exponent was 0\.6 when it was saved and is"):
            replay.restore(tmp_path)
        assert replay.rows_added == 0


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_snapshot_with_impossible_priorities_is_refused(tmp_path, value):
    used(make_schema()).save(tmp_path / "file")
    state, data = read_snapshot(tmp_path / "file")
    data = np.array(data)
    data[-8:].view("<f8")[:] = value
    write_snapshot(tmp_path / "bad", state, [data])
    replay = Replay(make_schema(), 200, n_step=3, gamma=0.95, sampling=Proportional(0.6))
    with pytest.raises(RecordError, match="cannot be restored"):
        replay.restore(tmp_path / "bad")
    write_snapshot(
        tmp_path / "bad", state | {"largest_priority": value}, [np.array(read_snapshot(tmp_path / "file")[1])]
    )
    with pytest.raises(RecordError, match="cannot be restored"):
        replay.restore(tmp_path / "bad")
    assert replay.rows_added == 0


def test_a_snapshot_from_before_there_were_priorities_is_read(tmp_path):
    replay = Replay(SIMPLE, 100)
    replay.add(simple_rows(5))
    replay.save(tmp_path / "file")
    state, data = read_snapshot(tmp_path / "file")
    old = {k: v for k, v in state.items() if k not in ("priority_exponent", "largest_priority")}
    write_snapshot(tmp_path / "old", old, [np.array(data)])
    again = Replay(SIMPLE, 100)
    again.restore(tmp_path / "old")
    np.testing.assert_array_equal(again.sample(32).rows, replay.sample(32).rows)


def test_rows_that_are_kept_elsewhere_are_left_out_of_a_snapshot(tmp_path):
    sizes = {}
    for kept in (True, False):
        replay = prioritised(steps=60, save_rows=kept)
        replay.update_priorities(np.arange(60), np.arange(60.0))
        replay.save(tmp_path / str(kept))
        sizes[kept] = len(read_snapshot(tmp_path / str(kept))[1])
    assert sizes == {True: 61 * (SIMPLE.row_dtype.itemsize + 8), False: 61 * 8}
    again = prioritised(steps=60, save_rows=False, seed=8)
    again.restore(tmp_path / "False")
    np.testing.assert_array_equal(again.sample(40).rows, replay.sample(40).rows)
    shorter = prioritised(steps=50, save_rows=False)
    with pytest.raises(RecordError, match=r"ends at row 51, but .* needs its rows up to 61"):
        shorter.restore(tmp_path / "False")


# --- threads --------------------------------------------------------------------------------------


def test_no_torn_rows_while_another_thread_writes():
    replay, seen = Replay(SIMPLE, 500, sampling=Proportional(0.8)), 0
    with endless_writer(replay) as written:
        while seen < 50_000 or written() < 5_000:
            batch = replay.sample(500)
            seen += 500
            value = batch.rows.astype(np.float32)
            np.testing.assert_array_equal(batch.reward, value)
            np.testing.assert_array_equal(batch.observation["o"][:, 0], value)
            np.testing.assert_array_equal(batch.next_observation["o"][:, 0], value + 1)
            replay.update_priorities(batch.rows, value % 7)  # some were overwritten by now
