"""Mixed batches: shares, what comes from where, priorities that find their way back, demonstration files."""

import numpy as np
import pytest
from naive_replay import episode_keys, make_rows, make_schema

from tickrate.data.demonstrations import load_demonstrations
from tickrate.data.mixture import Mixture
from tickrate.data.priorities import Proportional
from tickrate.data.records import Segment
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, Flag, RecordSchema
from tickrate.errors import ConfigError, RecordError

SCHEMA = RecordSchema(
    (Field("o", "float32", (2,)),), Field("action", "float32", (1,)), (Field("x", "int32", ()),)
)


def rows_of(value, steps, *, stream=0, episode=0, flags=0):
    """An episode in which every number is ``value``, but the step of the observation."""
    rows = SCHEMA.empty(steps + 1)
    rows["stream"], rows["episode"], rows["step"] = stream, episode, np.arange(steps + 1)
    rows["o/o"][:, 0], rows["o/o"][:, 1] = value, rows["step"]
    rows["reward"] = rows["action"][:, 0] = rows["x/x"] = value
    rows["flags"] = flags
    rows["flags"][-2] |= int(Flag.TRUNCATED)
    rows["flags"][-1] |= int(Flag.FINAL)
    return rows


def mixture(share=0.5, *, own=10, taught=10, sampling=None, seed=0):
    replays = [Replay(SCHEMA, 100, gamma=0.5, seed=seed + i, sampling=sampling) for i in range(2)]
    for replay, value, steps in zip(replays, (1.0, 2.0), (own, taught), strict=True):
        if steps:
            replay.add(rows_of(value, steps))
    return Mixture(*replays, share)


@pytest.mark.parametrize(("share", "taught"), [(0.5, 8), (0.25, 4), (0.1, 2), (0.9, 14)])
def test_each_batch_holds_its_share_of_demonstrations_throughout(share, taught):
    batch = mixture(share).sample(16)
    from_demonstrations = batch.rows < 0
    assert from_demonstrations.sum() == taught
    np.testing.assert_array_equal(batch.reward, np.where(from_demonstrations, 2.0, 1.0))
    np.testing.assert_array_equal(batch.action[:, 0], batch.reward)
    np.testing.assert_array_equal(batch.extras["x"], batch.reward)
    steps = np.where(from_demonstrations, ~batch.rows, batch.rows)
    np.testing.assert_array_equal(batch.observation["o"], np.stack([batch.reward, steps], axis=1))
    np.testing.assert_array_equal(batch.next_observation["o"], np.stack([batch.reward, steps + 1], axis=1))
    assert batch.weights is None
    assert batch.extras["x"].dtype == np.int32
    for half in (from_demonstrations[:8], from_demonstrations[8:]):  # a half is what `Mirror` mirrors
        assert abs(half.sum() - taught / 2) <= 0.5


def test_sequences_are_mixed_alike():
    batch = mixture(0.25).sample_sequences(8, 3)
    from_demonstrations = batch.rows[:, 0] < 0
    assert from_demonstrations.sum() == 2
    assert ((batch.rows < 0) == from_demonstrations[:, None]).all()
    value = np.where(from_demonstrations, 2.0, 1.0)[:, None]
    np.testing.assert_array_equal(batch.reward, value * batch.mask)
    np.testing.assert_array_equal(batch.observation["o"][..., 0], np.broadcast_to(value, (8, 4)))


def test_before_the_run_has_rows_all_are_demonstrations_and_a_share_of_one_always():
    empty = mixture(0.25, own=0)
    assert (empty.sample(8).rows < 0).all()
    assert (empty.sample_sequences(8, 2).rows < 0).all()
    empty.own.add(rows_of(1.0, 3))
    assert (empty.sample(8).rows < 0).sum() == 2
    assert (mixture(1.0).sample(8).rows < 0).all()


def test_priorities_find_their_way_back_to_each_source():
    mixed = mixture(0.5, sampling=Proportional(1.0))
    batch = mixed.sample(8, beta=0.5)
    assert batch.weights.shape == (8,)
    mixed.update_priorities(batch.rows, np.arange(1.0, 9.0))
    for replay, sign in ((mixed.own, 1), (mixed.demonstrations, -1)):
        given = {}
        for row, priority in zip(batch.rows.tolist(), range(1, 9), strict=True):
            if (row < 0) == (sign < 0):
                given[row if sign > 0 else ~row] = priority
        weights = replay._storage.priorities.weights(np.arange(10))
        for row in range(10):
            assert weights[row] == pytest.approx(given.get(row, 1.0), rel=1e-5)
    with pytest.raises(ConfigError, match="give one each"):
        mixed.update_priorities(batch.rows, np.ones(7))


def test_what_cannot_be_mixed_is_refused():
    for share in (0.0, 1.5, np.nan):
        with pytest.raises(ConfigError, match="share of demonstrations"):
            mixture(share)
    for share, size in ((0.1, 4), (0.9, 4)):
        with pytest.raises(ConfigError, match=f"of a batch of {size} is"):
            mixture(share).sample(size)
    other = Replay(make_schema(), 100)
    with pytest.raises(ConfigError, match=r"another schema.*'o/o' is float32\[2\] here and absent there"):
        Mixture(Replay(SCHEMA, 100), other, 0.5)
    with pytest.raises(ConfigError, match="priorities"):
        Mixture(Replay(SCHEMA, 100), Replay(SCHEMA, 100, sampling=Proportional()), 0.5)


# --- files ----------------------------------------------------------------------------------------


def write(path, *episodes, schema=SCHEMA):
    segment = Segment.create(path, schema, 200)
    for rows in episodes:
        segment.append(rows)
    segment.close()
    return path


def load(*paths, schema=SCHEMA, **settings):
    return load_demonstrations(paths, schema, **{"gamma": 0.5, "n_step": 2, "seed": 1} | settings)


def test_files_that_used_the_same_numbers_are_all_taken_in(tmp_path):
    one = write(tmp_path / "one.seg", rows_of(1.0, 4), rows_of(2.0, 4, episode=1), rows_of(3.0, 2, stream=9))
    two = write(tmp_path / "two.seg", rows_of(4.0, 5))
    before = one.read_bytes()
    replay = load(one, two)
    assert len(replay) == 4 + 4 + 2 + 5
    assert replay.duplicate_rows == 0
    assert set(np.unique(replay.sample(400).action)) == {1.0, 2.0, 3.0, 4.0}
    assert one.read_bytes() == before


def test_a_file_that_may_only_be_read_or_that_is_damaged_at_its_end_is_left_as_it_is(tmp_path, caplog):
    path = write(tmp_path / "one.seg", *(rows_of(1.0, 4, episode=e) for e in range(3)))
    data = bytearray(path.read_bytes())
    data[data.rindex(rows_of(1.0, 4, episode=2)[-1:].tobytes())] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)
    assert len(load(path)) == 4 + 4 + 2  # the last commit, rows 13 and 14, is left out
    assert "cut off 1 of the newest commits" in caplog.text
    assert path.read_bytes() == bytes(data)


def test_files_that_cannot_be_used_are_refused_by_name(tmp_path):
    other = make_schema()
    foreign = write(
        tmp_path / "foreign.seg",
        make_rows(other, episode_keys(0, 0, 3, Flag.TERMINATED), np.random.default_rng(0)),
        schema=other,
    )
    with pytest.raises(
        RecordError, match=r"foreign\.seg were recorded with other spaces.*'o/o' is float32\[2\]"
    ):
        load(foreign)
    with pytest.raises(ConfigError, match=r"none\.seg cannot be read: No such file"):
        load(tmp_path / "none.seg")
    with pytest.raises(ConfigError, match="no transition"):
        load(write(tmp_path / "empty.seg"))
    with pytest.raises(ConfigError, match="no transition"):
        load(write(tmp_path / "evaluation.seg", rows_of(1.0, 4, flags=int(Flag.EVALUATION))))
    bad = rows_of(1.0, 4)
    bad["o/o"][2] = np.nan
    with pytest.raises(RecordError, match=r"bad\.seg: 'o/o' is not finite"):
        load(write(tmp_path / "bad.seg", bad))


def test_a_resumed_mixture_draws_bit_for_bit_the_same_and_other_files_are_refused(tmp_path):
    path = write(tmp_path / "one.seg", rows_of(2.0, 30))

    def make(*paths, seed=0):
        own = Replay(SCHEMA, 100, gamma=0.5, n_step=2, seed=seed, sampling=Proportional())
        return Mixture(own, load(*paths, seed=seed, sampling=Proportional()), 0.5)

    mixed = make(path)
    mixed.own.add(rows_of(1.0, 20))
    for _ in range(3):
        batch = mixed.sample(16)
        mixed.update_priorities(batch.rows, np.abs(batch.observation["o"][:, 1]))
    mixed.save(tmp_path)
    again = make(path, seed=5)
    again.restore(tmp_path)
    for _ in range(3):
        one, two = mixed.sample(16, beta=0.3), again.sample(16, beta=0.3)
        np.testing.assert_array_equal(one.rows, two.rows)
        np.testing.assert_array_equal(one.weights, two.weights)
        np.testing.assert_array_equal(one.observation["o"], two.observation["o"])
    (tmp_path / "other").mkdir()
    mixed.own.save(tmp_path / "other")
    with pytest.raises(RecordError, match="the run was begun without demonstrations"):
        make(path).restore(tmp_path / "other")
    changed = write(tmp_path / "changed.seg", rows_of(2.5, 30))  # as many rows, and others
    with pytest.raises(
        RecordError, match="are not the rows that the run was begun with: give the same files"
    ):
        make(changed).restore(tmp_path)
    with pytest.raises(RecordError, match="are not the rows that the run was begun with"):
        make(path, write(tmp_path / "two.seg", rows_of(3.0, 10))).restore(tmp_path)
