"""The record schema: layout, identity, packing, and refusing what does not fit."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tickrate.data.schema import FIXED_FIELDS, Field, Flag, RecordSchema
from tickrate.errors import RecordError

SCHEMA = RecordSchema(
    observation=(
        Field("camera", "uint8", (4, 5), stack=3),
        Field("speed", "float32", (1,)),
        Field("gear", "int64", ()),
        Field("actions", "float32", (2, 3)),
    ),
    action=Field("action", "float32", (3,)),
    extras=(Field("log_probability", "float32", ()),),
)


def observation(frame=0, first=False):
    frames = [frame, frame, frame] if first else [frame - 2, frame - 1, frame]
    return {
        "camera": np.stack([np.full((4, 5), f, np.uint8) for f in frames]),
        "speed": np.array([1.5], np.float32),
        "gear": np.array(3, np.int64),
        "actions": np.arange(6, dtype=np.float32).reshape(2, 3),
    }


def test_a_row_begins_with_the_fixed_fields_and_keeps_native_dtypes():
    dtype = SCHEMA.row_dtype
    assert dtype.names[: len(FIXED_FIELDS)] == tuple(name for name, _ in FIXED_FIELDS)
    assert [dtype[name].str for name, _ in FIXED_FIELDS] == [code for _, code in FIXED_FIELDS]
    assert dtype["o/camera"].base == np.uint8
    assert dtype["o/camera"].shape == (4, 5)  # one frame of the three
    assert dtype["o/gear"] == np.int64
    assert dtype["x/log_probability"] == np.float32
    assert dtype.itemsize % 8 == 0
    for name in dtype.names:
        assert dtype.fields[name][1] % dtype[name].base.itemsize == 0


def test_head_is_the_beginning_of_the_row_and_frames_come_last():
    row, head = SCHEMA.row_dtype, SCHEMA.head_dtype
    assert [(name, head.fields[name][1]) for name in head.names] == [
        (name, row.fields[name][1]) for name in head.names
    ]
    assert list(SCHEMA.apart) == ["o/camera"]
    assert row.fields["o/camera"][1] == SCHEMA.head_bytes
    assert SCHEMA.stored_bytes == SCHEMA.head_bytes + 20
    assert SCHEMA.history == 2


def test_json_and_digest_identify_the_schema():
    again = RecordSchema.from_json(SCHEMA.to_json())
    assert again == SCHEMA
    assert again.digest() == SCHEMA.digest()
    other = RecordSchema(SCHEMA.observation[:-1], SCHEMA.action, SCHEMA.extras)
    assert other.digest() != SCHEMA.digest()
    assert "'o/actions' is float32[2, 3] here and absent there" in SCHEMA.difference(other)
    assert SCHEMA.difference(again) == ""


@given(
    st.text() | st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_hostile_json_is_a_record_error(text):
    with pytest.raises(RecordError):
        RecordSchema.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "object"},
        {"dtype": "float32,float32"},
        {"shape": [-1]},
        {"shape": [1 << 40]},
        {"shape": [0, 1 << 40]},
        {"shape": [1] * 40},
        {"shape": ["3"]},
        {"stack": 0},
        {"stack": 1000},
        {"name": ""},
        {"name": 7},
        {"more": 1},
    ],
)
def test_a_bad_field_is_refused(change):
    body = json.loads(SCHEMA.to_json())
    body["observation"][0] |= change
    with pytest.raises(RecordError):
        RecordSchema.from_json(json.dumps(body))


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, b"\xff", "null", '{"observation": 1}'])
def test_text_that_breaks_the_reader_is_a_record_error(text):
    with pytest.raises(RecordError, match="no record schema"):
        RecordSchema.from_json(text)


def test_many_large_fields_are_refused_before_a_row_is_laid_out():
    leaves = tuple(Field(f"leaf{i}", "float64", (1 << 24,)) for i in range(64))
    with pytest.raises(RecordError, match="too large"):
        RecordSchema(leaves, Field("action", "float32", (1,)))


def test_duplicate_names_and_a_stacked_action_are_refused():
    leaf = Field("a", "float32", (1,))
    with pytest.raises(RecordError, match="not unique"):
        RecordSchema((leaf, leaf), leaf)
    with pytest.raises(RecordError, match="only observation leaves"):
        RecordSchema((leaf,), Field("action", "float32", (1,), stack=2))


def test_from_spaces():
    schema = RecordSchema.from_spaces(
        {
            "camera": spaces.Box(0, 255, (4, 8, 8), np.uint8),
            "gear": spaces.Discrete(6),
            "x": spaces.Box(-1, 1, (2,), np.float64),
        },
        spaces.Box(-1, 1, (3,), np.float32),
        stacks={"camera": 4},
    )
    assert schema.observation == (
        Field("camera", "uint8", (8, 8), stack=4),
        Field("gear", "int64", ()),
        Field("x", "float64", (2,)),
    )
    assert schema.action == Field("action", "float32", (3,))
    box = spaces.Box(0, 1, (3,), np.float32)
    with pytest.raises(RecordError, match="no leaves"):
        RecordSchema.from_spaces({"a": box}, box, stacks={"b": 3})
    with pytest.raises(RecordError, match="stack's length 4"):
        RecordSchema.from_spaces({"a": box}, box, stacks={"a": 4})
    with pytest.raises(RecordError, match="Text"):
        RecordSchema.from_spaces({"a": spaces.Text(5)}, box)


def test_pack_one_row():
    rows = SCHEMA.empty(2)
    SCHEMA.pack(
        rows[1],
        observation(9),
        stream=3,
        episode=2,
        step=5,
        flags=Flag.TRUNCATED | Flag.LATE,
        action=np.array([0.1, 0.2, 0.3]),
        reward=-1.25,
        policy_version=17,
        start=100.5,
        lateness=0.002,
        observation_age=0.01,
        extras={"log_probability": -0.7},
    )
    row = rows[1]
    assert [row[name] for name in ("stream", "episode", "step", "flags", "policy_version")] == [
        3,
        2,
        5,
        34,
        17,
    ]
    assert row["reward"] == -1.25
    assert row["start"] == 100.5
    np.testing.assert_array_equal(row["o/camera"], np.full((4, 5), 9))
    np.testing.assert_array_equal(row["action"], np.float32([0.1, 0.2, 0.3]))
    assert row["o/gear"] == 3
    assert row["x/log_probability"] == np.float32(-0.7)
    assert not rows[0].tobytes().strip(b"\0")
    np.testing.assert_array_equal(SCHEMA.rows_from_bytes(rows.tobytes()), rows)


def test_pack_a_batch_of_environments():
    rows = SCHEMA.empty(2)
    one, two = observation(4), observation(8, first=True)
    batch = {path: np.stack([one[path], two[path]]) for path in one}
    SCHEMA.pack(
        rows, batch, stream=[0, 1], episode=[5, 6], step=[7, 0], action=np.ones((2, 3)), reward=[1, 2]
    )
    assert rows["reward"].tolist() == [1, 2]
    assert rows["o/camera"][:, 0, 0].tolist() == [4, 8]
    batch["camera"][1, 0] = 99  # a first stack that still holds a frame of the episode before
    with pytest.raises(RecordError, match="History"):
        SCHEMA.pack(rows, batch, stream=[0, 1], episode=[5, 6], step=[7, 0])


def test_the_first_stack_of_an_episode_must_hold_one_frame():
    row = SCHEMA.empty(1)[0]
    SCHEMA.pack(row, observation(7, first=True), stream=0, episode=0, step=0)
    SCHEMA.pack(row, observation(8), stream=0, episode=0, step=1)
    with pytest.raises(RecordError, match=r"'camera'.*History"):
        SCHEMA.pack(row, observation(7), stream=0, episode=0, step=0)


def test_what_does_not_fit_is_named():
    row = SCHEMA.empty(1)[0]
    good = observation(5)
    for change, message in [
        ({"speed": np.zeros(2, np.float32)}, r"'speed': shape \(2,\)"),
        ({"speed": np.zeros(1, np.int32)}, "'speed': dtype int32"),
        ({"camera": good["camera"].astype(np.float32)}, "'camera': dtype float32"),
        ({"radar": np.zeros(1)}, "radar"),
    ]:
        with pytest.raises(RecordError, match=message):
            SCHEMA.pack(row, good | change, stream=0, episode=0, step=1)
    with pytest.raises(RecordError, match="'gear' is missing"):
        SCHEMA.pack(row, {k: v for k, v in good.items() if k != "gear"}, stream=0, episode=0, step=1)
    with pytest.raises(RecordError, match="'action': shape"):
        SCHEMA.pack(row, good, stream=0, episode=0, step=1, action=[1.0])
    with pytest.raises(RecordError, match="value"):
        SCHEMA.pack(row, good, stream=0, episode=0, step=1, extras={"value": 1.0})
    with pytest.raises(RecordError, match="whole number of rows"):
        SCHEMA.rows_from_bytes(b"\0" * (SCHEMA.row_dtype.itemsize + 1))
