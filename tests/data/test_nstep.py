"""The n-step index by itself: histories, the ring's edge, and streams that are remembered."""

import numpy as np

from tickrate.data.nstep import NStepIndex
from tickrate.data.schema import Field, Flag, RecordSchema

SCHEMA = RecordSchema((Field("o", "float32", (1,)),), Field("action", "float32", (1,)))


def rows_of(*keys, reward=1.0):
    """Rows for (stream, episode, step) or (stream, episode, step, flags)."""
    rows = SCHEMA.empty(len(keys))
    for row, key in zip(rows, keys, strict=True):
        row["stream"], row["episode"], row["step"] = key[:3]
        row["flags"] = key[3] if len(key) > 3 else 0
        row["reward"] = reward
    return rows


def sampleable(index):
    return np.flatnonzero(index.sampleable).tolist()


def test_a_row_waits_for_its_successor():
    index = NStepIndex(10, gamma=0.5, n_step=1, history=0)
    index.append(0, rows_of((0, 0, 0), (1, 0, 0)))
    assert sampleable(index) == []
    index.append(2, rows_of((1, 0, 1)))
    assert sampleable(index) == [1]
    assert index.entries[1].item() == (1.0, 0.5, 2)
    index.append(3, rows_of((0, 0, 1)))
    assert sampleable(index) == [0, 1]
    assert index.entries["bootstrap"][0] == 3
    assert index.count == 2


def test_nothing_follows_a_final_row():
    index = NStepIndex(10, gamma=0.5, n_step=2, history=0)
    index.append(0, rows_of((0, 0, 0, Flag.TERMINATED), (0, 0, 1, Flag.FINAL), (0, 0, 2), (0, 0, 3)))
    assert sampleable(index) == [0, 2]
    assert index.entries[0].item() == (1.0, 0.0, 1)


def test_the_last_step_number_is_not_followed_by_the_next_episode():
    index = NStepIndex(10, gamma=0.5, n_step=1, history=0)
    index.append(0, rows_of((0, 0, 2**32 - 1), (0, 1, 0), (0, 1, 1)))
    assert sampleable(index) == [1]


def test_a_stack_needs_its_frames_since_the_gap():
    index = NStepIndex(20, gamma=0.5, n_step=1, history=2)
    index.append(0, rows_of(*[(0, 0, step) for step in (0, 1, 2, 5, 6, 7, 8)]))
    # rows 0 and 1 repeat the first frame; rows 3 and 4 (steps 5 and 6) would need steps 3 and 4
    assert sampleable(index) == [0, 1, 5]


def test_rows_at_the_rings_edge_lose_their_history_in_time():
    index = NStepIndex(8, gamma=0.5, n_step=1, history=2)
    index.append(0, rows_of(*[(0, 0, step) for step in range(8)]))
    assert sampleable(index) == list(range(7))
    index.release(1)
    assert sampleable(index) == [3, 4, 5, 6]  # rows 1 and 2 need row 0
    assert index.count == 4
    index.append(8, rows_of((0, 0, 8)))
    assert sampleable(index) == [3, 4, 5, 6, 7]
    index.release(8)
    assert sampleable(index) == []
    assert index.count == 0


def test_a_dropped_row_is_no_ancestor():
    index = NStepIndex(4, gamma=0.5, n_step=3, history=0)
    index.append(0, rows_of((0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0)))
    index.release(1)
    index.append(4, rows_of((1, 0, 1), reward=7.0))  # in the slot of row 0
    index.release(2)
    index.append(5, rows_of((0, 0, 3)))  # in the slot of row 1: the ancestors 0 and 1 are gone
    assert index.entries[0].item() == (
        0.0,
        0.0,
        0,
    )  # row 4 has no successor yet, and got nothing of another stream
    assert index.entries[2].item() == (1.0, 0.5, 1)
    assert sampleable(index) == [2, 3]


def test_a_parent_that_was_dropped_is_not_linked():
    index = NStepIndex(2, gamma=0.5, n_step=1, history=0)
    index.append(0, rows_of((0, 0, 0), (1, 0, 0)))
    index.release(2)
    index.append(2, rows_of((2, 0, 0), (0, 0, 1)))
    assert sampleable(index) == []


def test_fresh_rows():
    index = NStepIndex(50, gamma=0.5, n_step=1, history=0)
    index.append(0, rows_of((3, 2, 5)))
    rows = rows_of(
        (3, 2, 5), (3, 1, 9), (3, 2, 6), (4, 0, 0), (3, 2, 6), (3, 3, 0), (4, 0, 0), (3, 2, 7), (4, 0, 1)
    )
    assert index.fresh(rows).tolist() == [False, False, True, True, False, True, False, False, True]
    index.remember({3: (9, 9), 8: (0, 0)})
    assert index.streams() == {3: (9, 9), 8: (0, 0)}
    assert index.fresh(rows_of((3, 9, 9), (3, 9, 10), (8, 0, 0), (8, 0, 1))).tolist() == [
        False,
        True,
        False,
        True,
    ]


def test_many_streams():
    index = NStepIndex(1000, gamma=0.5, n_step=1, history=0)
    for step in range(3):
        index.append(step * 100, rows_of(*[(stream * 1_000_003, 0, step) for stream in range(100)]))
    assert index.count == 200
    assert len(index.streams()) == 100
    assert (index.entries["bootstrap"][:200] == np.arange(100, 300)).all()


def test_streams_that_join_one_by_one():
    index = NStepIndex(1000, gamma=0.5, n_step=1, history=0)
    for stream in range(100):  # each asked about before it is stored, as a replay does
        rows = rows_of((stream, 0, 0))
        assert index.fresh(rows).all()
        index.append(stream, rows)
        assert not index.fresh(rows).any()
    assert len(index.streams()) == 100
