"""The replay against a naive one on random episodes, hand-worked returns, threads, resume, limits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from endless import WIDE, endless_writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_replay import NaiveReplay, assert_same, episode_keys, make_rows, make_schema
from streams import histories

from tickrate.data import capacity
from tickrate.data.replay import SNAPSHOT, Replay
from tickrate.data.schema import Field, Flag, RecordSchema
from tickrate.errors import ConfigError, RecordError

SIMPLE = RecordSchema((Field("o", "float32", (1,)),), Field("action", "float32", (1,)))


def simple_rows(rewards, end=Flag.TERMINATED, *, stream=0, episode=0):
    """An episode whose observation at step t is t."""
    rows = SIMPLE.empty(len(rewards) + 1)
    rows["stream"], rows["episode"], rows["step"] = stream, episode, np.arange(len(rows))
    rows["reward"][:-1] = rewards
    rows["o/o"][:, 0] = rows["step"]
    rows["flags"][-2], rows["flags"][-1] = end, Flag.FINAL
    return rows


def by_row(replay, size=256):
    """{row: (reward, discount, observation, next observation)} of a batch that holds every transition."""
    batch = replay.sample(size)
    return {
        int(row): (float(r), float(d), float(o[0]), float(n[0]))
        for row, r, d, o, n in zip(
            batch.rows,
            batch.reward,
            batch.discount,
            batch.observation["o"],
            batch.next_observation["o"],
            strict=True,
        )
    }


# --- returns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "last"), [(Flag.TERMINATED, 0.0), (Flag.TRUNCATED, 1.0)])
def test_three_step_returns_worked_by_hand(end, last):
    replay = Replay(SIMPLE, 100, gamma=0.9, n_step=3)
    replay.add(simple_rows([1, 2, 3, 4], end))
    # row: (return, discount, observation, bootstrap observation); a truncated end uses observation 4
    expected = {
        0: (1 + 0.9 * 2 + 0.81 * 3, 0.729, 0, 3),
        1: (2 + 0.9 * 3 + 0.81 * 4, 0.729 * last, 1, 4),
        2: (3 + 0.9 * 4, 0.81 * last, 2, 4),
        3: (4, 0.9 * last, 3, 4),
    }
    found = by_row(replay)
    assert found.keys() == expected.keys()
    for row, right in expected.items():
        assert found[row] == pytest.approx(right, rel=1e-6)


def test_a_time_out_bootstraps_from_the_final_observation_not_from_the_next_episode():
    replay = Replay(SIMPLE, 100, gamma=0.9)
    replay.add(simple_rows([1.0], Flag.TRUNCATED))
    replay.add(simple_rows([5.0], Flag.TERMINATED, episode=1))
    found = by_row(replay)
    assert found[0] == pytest.approx((1.0, 0.9, 0.0, 1.0))
    assert found[2] == pytest.approx((5.0, 0.0, 0.0, 1.0))
    assert len(found) == len(replay) == 2


def test_returns_grow_as_successors_arrive():
    replay = Replay(SIMPLE, 100, gamma=0.5, n_step=3)
    rows = simple_rows([1, 2, 4, 8])
    seen = []
    for row in rows:
        replay.add(row)
        seen.append(by_row(replay)[0][:2] if len(replay) else None)
    assert seen == [None, (1, 0.5), (2, 0.25), (3, 0.125), (3, 0.125)]


def test_an_episode_that_breaks_off_never_reaches_into_the_next():
    replay = Replay(SIMPLE, 100, gamma=0.5, n_step=3)
    replay.add(simple_rows([1, 2, 4, 8])[:3])  # no more than the first three rows ever came
    replay.add(simple_rows([16, 16], episode=1))
    found = by_row(replay)
    assert found[0] == (2, 0.25, 0, 2)
    assert found[1] == (2, 0.5, 1, 2)
    assert 2 not in found
    assert len(found) == 4


def test_a_gap_in_the_steps_is_not_bridged():
    replay = Replay(SIMPLE, 100, gamma=0.5, n_step=3)
    rows = simple_rows([1, 2, 4, 8])
    replay.add(rows[[0, 1, 3, 4]])
    assert by_row(replay) == {0: (1, 0.5, 0, 1), 2: (8, 0, 3, 4)}


# --- against the naive replay ---------------------------------------------------------------------


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chunks=histories(),
    n_step=st.integers(1, 4),
    stack=st.sampled_from([1, 2, 4]),
    limit=st.integers(9, 60),
    seed=st.integers(0, 99),
)
def test_equal_to_a_naive_replay(chunks, n_step, stack, limit, seed):
    schema = make_schema(stack)
    replay = Replay(schema, limit, gamma=0.9, n_step=n_step, seed=seed)
    naive = NaiveReplay(schema, gamma=0.9, n_step=n_step)
    rng = np.random.default_rng(seed)
    for keys in chunks:
        rows = make_rows(schema, keys, rng)
        replay.add(rows)
        naive.add(rows)
        assert replay.rows_added == len(naive.rows)
        assert_same(replay, naive, max(0, len(naive.rows) - limit), batch_size=16)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chunks=histories(), stack=st.sampled_from([1, 3]), limit=st.integers(9, 200))
def test_a_mapped_replay_is_the_same_and_survives_reopening(tmp_path_factory, chunks, stack, limit):
    schema = make_schema(stack)
    path = tmp_path_factory.mktemp("replay") / "rows.seg"
    replay = Replay(schema, limit, gamma=0.9, n_step=2, path=path)
    naive = NaiveReplay(schema, gamma=0.9, n_step=2)
    rng = np.random.default_rng(0)
    for keys in chunks:
        rows = make_rows(schema, keys, rng)
        replay.add(rows)
        naive.add(rows)
    oldest = replay._storage.segment.oldest  # whole commits are given up, of at most limit // 64 rows
    assert (
        max(0, len(naive.rows) - limit) <= oldest <= max(0, len(naive.rows) - limit + max(0, limit // 64 - 1))
    )
    assert_same(replay, naive, oldest)
    index = replay._storage.index
    again = Replay(schema, limit, gamma=0.9, n_step=2, path=path)
    assert again.notes == []
    for name in ("entries", "sampleable", "previous", "_following", "_depth"):
        alive = np.arange(index.oldest, index.head) % limit if name != "_depth" or stack > 1 else slice(0)
        np.testing.assert_array_equal(getattr(again._storage.index, name)[alive], getattr(index, name)[alive])
    assert_same(again, naive, oldest)


def test_two_streams_interleaved_with_both_kinds_of_end():
    schema = make_schema(stack=3)
    rng = np.random.default_rng(1)
    replay, naive = Replay(schema, 1000, gamma=0.97, n_step=3), NaiveReplay(schema, gamma=0.97, n_step=3)
    left = episode_keys(0, 0, 7, Flag.TERMINATED) + episode_keys(0, 1, 5, Flag.TRUNCATED)
    right = episode_keys(1, 0, 4, Flag.TRUNCATED) + episode_keys(1, 1, 8, Flag.TERMINATED)
    keys = [key for pair in zip(left, right, strict=True) for key in pair]
    for begin in range(0, len(keys), 5):
        rows = make_rows(schema, keys[begin : begin + 5], rng)
        replay.add(rows)
        naive.add(rows)
    assert len(replay) == 24
    assert_same(replay, naive, 0, batch_size=500)


def test_adding_in_one_batch_or_row_by_row_is_the_same():
    schema = make_schema(stack=2)
    rng = np.random.default_rng(2)
    keys = [key for episode in range(40) for key in episode_keys(episode % 3, episode, 6, Flag.TRUNCATED)]
    rows = make_rows(schema, keys, rng)
    whole, single = Replay(schema, 150, n_step=3, seed=5), Replay(schema, 150, n_step=3, seed=5)
    whole.add(rows)
    for row in rows:
        single.add(row)
    assert_batches_equal(whole.sample(300), single.sample(300))


def assert_batches_equal(one, two):
    for name in ("action", "reward", "discount", "rows"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    for name in ("observation", "next_observation", "extras"):
        left, right = getattr(one, name), getattr(two, name)
        assert left.keys() == right.keys()
        for path in left:
            np.testing.assert_array_equal(left[path], right[path])


# --- what is taken in, what is drawn --------------------------------------------------------------


def test_evaluation_rows_stay_out_and_are_counted():
    replay = Replay(SIMPLE, 100)
    rows = simple_rows([1, 2, 3])
    rows["flags"] |= int(Flag.EVALUATION)
    replay.add(rows)
    assert (len(replay), replay.rows_added, replay.evaluation_rows) == (0, 0, 4)
    replay.add(simple_rows([1, 2, 3], episode=1))
    assert len(replay) == 3


def test_rows_that_come_twice_are_dropped_and_counted():
    replay = Replay(SIMPLE, 100)
    rows = simple_rows([1, 2, 3])
    replay.add(rows)
    replay.add(rows[1:])
    replay.add(np.concatenate([rows, simple_rows([1], episode=1), rows]))
    assert replay.duplicate_rows == 3 + 4 + 4
    assert (len(replay), replay.rows_added) == (4, 6)
    assert replay.streams() == {0: (1, 1)}


def test_every_transition_is_drawn_equally_often():
    replay = Replay(SIMPLE, 64, seed=3)
    for episode in range(9):
        replay.add(simple_rows(np.ones(1 + episode % 4), episode=episode))
    counts = np.zeros(64)
    for _ in range(200):
        np.add.at(counts, replay.sample(100).rows, 1)
    drawn = counts[counts > 0]
    assert len(drawn) == len(replay)
    expected = 20_000 / len(replay)
    chi_square = ((drawn - expected) ** 2 / expected).sum()
    assert chi_square < 2 * len(replay)  # mean len - 1, standard deviation about 6 here


def test_few_sampleable_among_many_rows():
    replay = Replay(SIMPLE, 1000)
    for episode in range(500):  # episodes that broke off after one row: nothing to sample in them
        replay.add(simple_rows([1.0], episode=episode)[:1])
    replay.add(simple_rows([1.0, 2.0], episode=500))
    assert len(replay) == 2
    assert set(replay.sample(64).rows.tolist()) == {500, 501}


def test_batches_are_contiguous_copies():
    schema = make_schema(stack=2)
    replay = Replay(schema, 100)
    replay.add(make_rows(schema, episode_keys(0, 0, 20, Flag.TERMINATED), np.random.default_rng(0)))
    batch = replay.sample(32)
    arrays = [batch.action, batch.reward, batch.discount, batch.rows, *batch.extras.values()]
    arrays += [*batch.observation.values(), *batch.next_observation.values()]
    for array in arrays:
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert batch.reward.dtype == batch.discount.dtype == np.float32
    assert batch.observation["frame"].shape == (32, 2, 2, 2)
    batch.observation["vector"][:] = np.nan
    assert np.isfinite(replay.sample(64).observation["vector"]).all()


def test_read_gives_back_whole_rows():
    schema = make_schema(stack=2)
    replay = Replay(schema, 30)
    rows = make_rows(schema, episode_keys(0, 0, 40, Flag.TERMINATED), np.random.default_rng(0))
    replay.add(rows)
    np.testing.assert_array_equal(replay.read(np.array([40, 11, 25])), rows[[40, 11, 25]])
    with pytest.raises(RecordError, match="row 10 is not stored; the rows 11 to 40 are"):
        replay.read(np.array([10]))


def test_bad_rows_and_arguments_are_refused():
    replay = Replay(SIMPLE, 100)
    rows = simple_rows([1, 2, 3])
    rows["o/o"][2] = np.nan
    with pytest.raises(RecordError, match=r"'o/o' is not finite in the row of stream 0, episode 0, step 2"):
        replay.add(rows)
    rows = simple_rows([1, np.inf, 3])
    with pytest.raises(RecordError, match="'reward' is not finite"):
        replay.add(rows)
    assert replay.rows_added == 0
    with pytest.raises(RecordError, match="another schema"):
        replay.add(make_schema().empty(1))
    with pytest.raises(ConfigError, match="cannot sample 4 of 0"):
        replay.sample(4)
    replay.add(simple_rows([1]))
    with pytest.raises(ConfigError, match="cannot sample 0 of 1"):
        replay.sample(0)
    for change, message in [({"gamma": 1.5}, "gamma"), ({"gamma": 0.0}, "gamma"), ({"n_step": 0}, "n_step")]:
        with pytest.raises(ConfigError, match=message):
            Replay(SIMPLE, 100, **change)
    with pytest.raises(ConfigError, match="too few"):
        Replay(SIMPLE, 3, n_step=2)


def test_a_replay_larger_than_the_memory_is_refused_with_the_numbers(monkeypatch):
    # 44 bytes of the row's head, 4 to the next multiple of 8, a frame of 4096, and 26 of the index
    schema = RecordSchema((Field("camera", "uint8", (64, 64), stack=4),), Field("action", "float32", (1,)))
    monkeypatch.setattr(capacity, "available_memory", lambda: 2_000_000_000)
    with pytest.raises(
        ConfigError, match=r"1,000,000 rows of 4,170 bytes needs 4\.17 GB.*2\.00 GB of memory.*479,616"
    ):
        Replay(schema, 1_000_000)
    Replay(schema, 400_000)


def test_a_replay_larger_than_the_disk_is_refused_with_the_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr(capacity, "available_disk", lambda folder: 1_000_000)
    with pytest.raises(ConfigError, match=r"1.00 MB of the disk of .* is free"):
        Replay(SIMPLE, 1_000_000, path=tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


PICTURES = """
from pathlib import Path
import numpy as np
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, RecordSchema

def resident():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))

schema = RecordSchema((Field("image", "uint8", (64, 64), stack=4),), Field("action", "float32", (2,)))
replay = Replay(schema, 100_000)
before = resident()
for begin in range(0, 100_000, 1000):
    rows = schema.empty(1000)
    rows["step"] = np.arange(begin, begin + 1000)
    rows["o/image"] = np.random.default_rng(begin).integers(0, 256, rows["o/image"].shape, np.uint8)
    replay.add(rows)
batch = replay.sample(256)
assert batch.observation["image"].shape == (256, 4, 64, 64), batch.observation["image"].shape
print(len(replay), resident() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_stacked_pictures_are_held_once_in_their_own_bytes():
    done = subprocess.run([sys.executable, "-c", PICTURES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    count, grown = (int(word) for word in done.stdout.split())
    assert count >= 99_990
    assert 100_000 * 64 * 64 <= grown <= 1.2 * 100_000 * 64 * 64


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mapped", "rows"), [(False, 300_000), (True, 100_000)])
def test_no_torn_rows_while_another_thread_writes(tmp_path, mapped, rows):
    replay, seen = Replay(WIDE, 500, path=tmp_path / "rows.seg" if mapped else None), 0
    with endless_writer(replay) as written:
        while seen < rows or written() < 5_000:
            batch = replay.sample(1000)
            seen += 1000
            value = batch.rows.astype(np.float64)
            np.testing.assert_array_equal(batch.reward, value)
            for held, offset in ((batch.observation, 0), (batch.next_observation, 1)):
                assert (held["a"] == value[:, None] + offset).all()
                assert (held["frame"] == value[:, None] + offset).all()
                assert (held["pair"][:, 1] == value + offset).all()
                assert ((held["pair"][:, 0] == value + offset - 1) | (value + offset == 0)).all()
            assert (batch.action == value[:, None]).all()


# --- resume ---------------------------------------------------------------------------------------


def filled(schema, path=None, limit=200, seed=1):
    replay = Replay(schema, limit, n_step=3, gamma=0.95, seed=seed, path=path)
    rng = np.random.default_rng(7)
    for episode in range(30):
        replay.add(make_rows(schema, episode_keys(episode % 2, episode, 11, Flag.TRUNCATED), rng))
    replay.sample(17)
    return replay


@pytest.mark.parametrize("mapped", [False, True])
def test_a_restored_replay_continues_bit_for_bit(tmp_path, mapped):
    schema = make_schema(stack=3)
    replay = filled(schema, tmp_path / "rows.seg" if mapped else None)
    replay.add(
        make_rows(schema, episode_keys(0, 0, 3, Flag.TRUNCATED), np.random.default_rng(0))
    )  # duplicates
    replay.save(tmp_path)
    assert (tmp_path / SNAPSHOT).is_file()
    right = [replay.sample(64) for _ in range(3)]
    replay.close()
    again = Replay(schema, 200, n_step=3, gamma=0.95, seed=99, path=tmp_path / "rows.seg" if mapped else None)
    again.restore(tmp_path)
    assert again.duplicate_rows == 4
    assert again.streams() == {0: (28, 11), 1: (29, 11)}
    for batch in right:
        assert_batches_equal(again.sample(64), batch)
    rows = make_rows(schema, episode_keys(0, 28, 11, Flag.TRUNCATED), np.random.default_rng(0))
    again.add(rows)  # what was there before is still known
    assert again.duplicate_rows == 16


def test_streams_are_remembered_after_their_rows_are_gone(tmp_path):
    replay = Replay(SIMPLE, 20)
    replay.add(simple_rows([1, 2], stream=5, episode=3))
    for episode in range(10):
        replay.add(simple_rows([1, 2, 3], episode=episode))
    replay.save(tmp_path / "file")
    again = Replay(SIMPLE, 20)
    again.restore(tmp_path / "file")
    assert again.streams() == {0: (9, 3), 5: (3, 2)}
    again.add(simple_rows([1, 2], stream=5, episode=3))
    assert again.duplicate_rows == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 0.9}, "gamma"),
        ({"n_step": 1}, "n_step"),
        ({"limit": 100}, "capacity"),
        ({"stack": 1}, "schema"),
    ],
)
def test_restoring_with_other_settings_is_refused_and_changes_nothing(tmp_path, change, message):
    filled(make_schema(3)).save(tmp_path)
    settings_ = {"gamma": 0.95, "n_step": 3} | {k: v for k, v in change.items() if k in ("gamma", "n_step")}
    other = Replay(make_schema(change.get("stack", 3)), change.get("limit", 200), **settings_)
    with pytest.raises(RecordError, match=message):
        other.restore(tmp_path)
    assert (len(other), other.rows_added) == (0, 0)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "missing", "header"])
def test_a_damaged_snapshot_is_refused_and_changes_nothing(tmp_path, damage):
    schema = make_schema(3)
    replay = filled(schema)
    target = tmp_path / "snapshot"
    replay.save(target)
    data = bytearray(target.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    if damage == "header":
        data[12:16] = b"\xff\xff\xff\x7f"
    target.write_bytes({"cut": data[:-100], "empty": b""}.get(damage, data))
    if damage == "missing":
        target.unlink()
    other = Replay(schema, 200, n_step=3, gamma=0.95, seed=4)
    untouched = Replay(schema, 200, n_step=3, gamma=0.95, seed=4)
    with pytest.raises(RecordError, match="snapshot"):
        other.restore(target)
    rows = make_rows(schema, episode_keys(0, 0, 5, Flag.TERMINATED), np.random.default_rng(0))
    other.add(rows)
    untouched.add(rows)
    assert_batches_equal(other.sample(8), untouched.sample(8))


def test_a_failed_save_leaves_the_old_snapshot(tmp_path, monkeypatch):
    replay = filled(make_schema())
    replay.save(tmp_path)
    before = (tmp_path / SNAPSHOT).read_bytes()

    def full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        replay.save(tmp_path)
    assert (tmp_path / SNAPSHOT).read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [SNAPSHOT]


def test_a_journal_shorter_than_its_snapshot_is_refused(tmp_path):
    replay = filled(make_schema(), tmp_path / "rows.seg")
    replay.save(tmp_path)
    replay.close()
    (tmp_path / "rows.seg").unlink()
    with pytest.raises(RecordError, match=r"ends at row 0, but .* needs its rows up to 360"):
        Replay(make_schema(), 200, n_step=3, gamma=0.95, path=tmp_path / "rows.seg").restore(tmp_path)


WRITER = """
import sys
import numpy as np
from pathlib import Path
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, RecordSchema
schema = RecordSchema((Field("o", "float32", (1,)),), Field("action", "float32", (1,)))
replay = Replay(schema, 5000, path=Path(sys.argv[1]))
for step in range(10**9):
    row = schema.empty(1)
    row["step"], row["o/o"], row["reward"] = step, step, step
    replay.add(row)
    if step % 100 == 0:
        print(step, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_loses_nothing_it_had_added(tmp_path):
    path = tmp_path / "rows.seg"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=root
    ) as process:
        told = 0
        while told < 8000:  # more than the ring holds
            told = int(process.stdout.readline())
        process.kill()
    replay = Replay(SIMPLE, 5000, path=path)
    assert replay.rows_added > told
    assert len(replay) >= 5000 - 5000 // 64 - 2
    for row, (reward, _, observation, following) in by_row(replay).items():
        assert reward == observation == row
        assert following == row + 1
