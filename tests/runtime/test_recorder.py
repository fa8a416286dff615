"""The rows of an episode, worked out by hand."""

import numpy as np
import pytest
from runtime_kit import SCHEMA

from tickrate.data.schema import Field, Flag, RecordSchema
from tickrate.errors import RecordError
from tickrate.runtime.recorder import Recorder


def place(a, b):
    return {"place": np.array([a, b], np.float32)}


@pytest.fixture
def recorder():
    rows = []
    made = Recorder(SCHEMA, stream=7, first_episode=1_000_000, sink=lambda row: rows.append(row.copy()))
    made.rows = rows
    return made


def test_an_episode_of_two_steps_is_three_rows(recorder):
    timing = {"start": 10.0, "lateness": 0.25, "observation_age": 0.5, "overrun": False}
    late = timing | {"start": 10.5, "overrun": True}
    recorder.begin(place(1, 2))
    recorder.step(np.array([0.5]), 1.5, False, False, place(3, 4), timing=timing, policy_version=8)
    recorder.step(np.array([-1.0]), 2.5, True, False, place(5, 6), timing=late, policy_version=9)
    rows = np.array(recorder.rows)
    assert rows["stream"].tolist() == [7, 7, 7]
    assert rows["episode"].tolist() == [1_000_000] * 3
    assert rows["step"].tolist() == [0, 1, 2]
    assert rows["flags"].tolist() == [0, Flag.TERMINATED | Flag.LATE, Flag.FINAL]
    assert rows["o/place"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert rows["action"].ravel().tolist() == [0.5, -1.0, 0.0]
    assert rows["reward"].tolist() == [1.5, 2.5, 0.0]
    assert rows["policy_version"].tolist()[:2] == [8, 9]
    assert rows["start"].tolist()[:2] == [10.0, 10.5]
    assert rows["lateness"].tolist()[:2] == [0.25, 0.25]
    assert rows["observation_age"].tolist()[:2] == [0.5, 0.5]


def test_a_truncated_evaluation_episode_carries_its_flags_on_every_row(recorder):
    recorder.begin(place(0, 0), evaluation=True)
    recorder.step(np.array([0.0]), 0.0, False, False, place(0, 1))
    recorder.step(np.array([0.0]), 0.0, False, True, place(0, 2))
    flags = [int(row["flags"]) for row in recorder.rows]
    e = Flag.EVALUATION
    assert flags == [e, e | Flag.TRUNCATED, e | Flag.FINAL]


def test_terminated_wins_over_truncated(recorder):
    recorder.begin(place(0, 0))
    recorder.step(np.array([0.0]), 0.0, True, True, place(0, 1))
    assert int(recorder.rows[0]["flags"]) == Flag.TERMINATED


def test_a_cut_between_steps_leaves_the_transition_usable(recorder):
    recorder.begin(place(0, 0))
    recorder.step(np.array([0.3]), 1.0, False, False, place(0, 1))
    recorder.cut()
    assert [int(row["flags"]) for row in recorder.rows] == [0, Flag.FINAL]  # neither terminated nor truncated
    assert recorder.rows[1]["o/place"].tolist() == [0, 1]
    recorder.begin(place(1, 0))
    recorder.step(np.array([0.3]), 1.0, False, False, place(1, 1))
    assert recorder.episode == 1_000_001
    assert int(recorder.rows[2]["step"]) == 0


def test_a_stacked_leaf_keeps_its_newest_frame_and_extras_are_kept():
    schema = RecordSchema(
        observation=(Field("frames", "uint8", (2,), stack=3),),
        action=Field("action", "float32", (1,)),
        extras=(Field("log_prob", "float32", ()),),
    )
    rows = []
    recorder = Recorder(schema, 0, 0, lambda row: rows.append(row.copy()))
    frames = {"frames": np.arange(6, dtype=np.uint8).reshape(3, 2)}
    recorder.begin(frames)
    recorder.step(np.array([0.0]), 0.0, True, False, frames, extras={"log_prob": -1.5})
    assert rows[0]["o/frames"].tolist() == [4, 5]
    assert rows[0]["x/log_prob"] == -1.5
    assert rows[1]["x/log_prob"] == 0.0  # the final row has none
    recorder.begin(frames)
    recorder.step(np.array([0.0]), 0.0, False, False, frames, extras={"log_prob": -2.5})
    recorder.step(np.array([0.0]), 0.0, False, False, frames)
    assert [row["x/log_prob"] for row in rows[2:]] == [-2.5, 0.0]  # nor has a step that gave none
    with pytest.raises(RecordError, match=r"the extras \['x/value'\], but rows of this run hold"):
        recorder.step(np.array([0.0]), 0.0, False, False, frames, extras={"value": 1.0})


def test_a_stream_and_a_step_have_flags_of_their_own():
    rows = []
    recorder = Recorder(SCHEMA, 0, 0, lambda row: rows.append(int(row["flags"])), flags=Flag.EXPERT)
    recorder.begin(place(0, 0))
    recorder.step(np.array([0.0]), 0.0, False, False, place(0, 1), flags=Flag.TAKEOVER)
    recorder.step(np.array([0.0]), 0.0, True, False, place(0, 2), flags=Flag.FALLBACK)
    x = Flag.EXPERT
    assert rows == [x | Flag.TAKEOVER, x | Flag.FALLBACK | Flag.TERMINATED, x | Flag.FINAL]
