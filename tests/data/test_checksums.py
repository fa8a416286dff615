"""The hash of a transition is the same where it was seen and where it was stored, and any bit changes it."""

import hashlib
import struct

import numpy as np
import pytest

from tickrate.data.checksums import (
    CHECKSUM_FIELD,
    Verdict,
    has_checksum,
    observation_bytes,
    transition_checksum,
)
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, Flag, RecordSchema
from tickrate.errors import ConfigError, RecordError
from tickrate.runtime.recorder import Recorder

SMALL = RecordSchema((Field("x", "float32", (2,)),), Field("action", "float32", (1,)), (CHECKSUM_FIELD,))
IMAGES = RecordSchema(
    (
        Field("speed", "float32", (3,)),
        Field("gear", "int64", ()),
        Field("tiny", "uint8", (2,), stack=2),
        Field("camera", "uint8", (40, 40), stack=4),
    ),
    Field("action", "float32", (2,)),
    (CHECKSUM_FIELD,),
)
E, U, D = Verdict.EQUAL, Verdict.UNKNOWN, Verdict.DIFFERENT


class Device:
    """An environment of stacks, as a worker sees it: float64 vectors, whole stacks cloned at a reset."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.frames = {name: [self._frame(shape)] * n for name, shape, n in self._stacks}
        return self._look()

    def step(self):
        for name, shape, _ in self._stacks:
            self.frames[name] = [*self.frames[name][1:], self._frame(shape)]
        return self._look()

    _stacks = (("tiny", (2,), 2), ("camera", (40, 40), 4))

    def _frame(self, shape):
        return self.rng.integers(0, 256, shape).astype(np.uint8)

    def _look(self):
        stacks = {name: np.stack(frames) for name, frames in self.frames.items()}
        return {"speed": self.rng.normal(size=3), "gear": np.int64(self.rng.integers(9)), **stacks}


def drive(recorder, device, lengths, ends, rng):
    for length, end in zip(lengths, ends, strict=True):
        recorder.begin(device.reset())
        for step in range(length):
            last = step == length - 1
            ended = (last and end == "terminated", last and end == "truncated")
            recorder.step(rng.normal(size=2), float(rng.normal()), *ended, device.step())
        if end == "cut":
            recorder.cut()


def rows_of(schema, fill):
    rows = []
    fill(Recorder(schema, 3, 0, lambda row: rows.append(row.tobytes())))
    return schema.rows_from_bytes(b"".join(rows))


@pytest.fixture(scope="module")
def image_rows():
    rng = np.random.default_rng(1)
    return rows_of(
        IMAGES, lambda r: drive(r, Device(), (6, 1, 9, 2), ("terminated", "truncated", "cut", "cut"), rng)
    )


def test_the_hash_worked_by_hand():
    before = observation_bytes(SMALL, {"x": [1.0, 2.0]})
    after = observation_bytes(SMALL, {"x": np.array([3.0, 4.0])})  # float64 is stored as float32
    body = struct.pack("<2f f f B 2f", 1, 2, 0.5, 0.1, 2, 3, 4)
    expected = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")
    assert transition_checksum(SMALL, before, np.array([0.5]), 0.1, False, True, after) == expected


def test_vectors_stacks_and_every_kind_of_end_are_equal_in_the_replay(image_rows):
    replay = Replay(IMAGES, 1000, n_step=3)
    replay.add(image_rows)
    final = (image_rows["flags"] & Flag.FINAL) != 0
    assert np.count_nonzero(final) == 4
    verdicts = replay.verify(np.arange(len(image_rows)))
    np.testing.assert_array_equal(verdicts, np.where(final, U, E))
    assert (image_rows["x/checksum"][final] == 0).all()


def test_a_row_without_a_successor_is_unknown_until_it_arrives(image_rows):
    replay = Replay(IMAGES, 1000)
    replay.add(image_rows[:3])
    assert replay.verify(np.array([0, 1, 2])).tolist() == [E, E, U]
    replay.add(image_rows[3])
    assert replay.verify(np.array([2])).tolist() == [E]
    assert replay.verify(np.array([], np.int64)).tolist() == []


def test_rows_whose_earlier_frames_were_overwritten_are_unknown_and_lost_rows_are_refused(image_rows):
    replay = Replay(IMAGES, 9)
    episode = image_rows[9:18]  # the third episode: steps 0 to 8 of 9
    replay.add(episode)
    replay.add(image_rows[18:21])  # its final row and two more: its steps 0 to 2 are gone
    assert replay.verify(np.arange(3, 10)).tolist() == [U, U, U, E, E, E, U]
    with pytest.raises(RecordError, match="row 2 is not stored"):
        replay.verify(np.array([2, 5]))


@pytest.mark.parametrize(
    ("name", "touched"),
    [
        ("reward", [3]),
        ("action", [3]),
        ("o/speed", [2, 3]),  # the observation after step 2 and before step 3
        ("o/gear", [2, 3]),
        ("o/tiny", [2, 3, 4]),  # in the stacks of the observations 3 and 4
        ("o/camera", [2, 3, 4, 5]),  # a stack of 4: in the observations 3 to 6
        ("x/checksum", [3]),
    ],
)
def test_a_single_flipped_bit_is_found_in_every_transition_that_holds_it(image_rows, name, touched):
    rows = image_rows[:7].copy()
    value = rows[name][3:4].copy()
    value.view(np.uint8).reshape(-1)[-1] ^= 1 if value.dtype.kind != "f" else 0x80
    rows[name][3:4] = value
    replay = Replay(IMAGES, 100)
    replay.add(rows)
    verdicts = replay.verify(np.arange(6))
    assert np.flatnonzero(verdicts == D).tolist() == touched
    assert np.count_nonzero(verdicts == E) == 6 - len(touched)


def test_a_changed_end_is_found(image_rows):
    rows = image_rows[:7].copy()
    assert rows["flags"][5] == Flag.TERMINATED
    rows["flags"][5] = Flag.TRUNCATED
    replay = Replay(IMAGES, 100)
    replay.add(rows)
    assert replay.verify(np.array([4, 5])).tolist() == [E, D]


def test_a_reset_that_leaves_old_frames_in_the_stack_is_found():
    """The replay repeats the first frame, so it would hand out another stack than the worker saw."""
    device, rng = Device(), np.random.default_rng(2)

    def fill(recorder):
        first = device.reset()
        first["camera"] = first["camera"].copy()
        first["camera"][0] ^= 255
        recorder.begin(first)
        for _ in range(5):
            recorder.step(rng.normal(size=2), 0.0, False, False, device.step())

    replay = Replay(IMAGES, 100)
    replay.add(rows_of(IMAGES, fill))
    assert replay.verify(np.arange(5)).tolist() == [D, E, E, E, U]


def test_without_hashes_there_is_nothing_to_verify():
    plain = RecordSchema(SMALL.observation, SMALL.action)
    assert has_checksum(SMALL)
    assert not has_checksum(plain)
    with pytest.raises(ConfigError, match=r"worker\.checksum"):
        Replay(plain, 100).verify(np.array([0]))
