"""Recordings as npz files: bit-equal there and back, written by others, everything wrong refused by name."""

import io
import json
import zipfile

import numpy as np
import pytest
from naive_replay import episode_keys, make_rows, make_schema

from tickrate.data import capacity
from tickrate.data.npz_format import read_npz, write_npz
from tickrate.data.recordings import read_recording, write_recording
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, RecordError


def recorded(stack=3):
    """Two streams, interleaved, with every fixed field in use; the last episode is not over."""
    schema = make_schema(stack)
    left = episode_keys(0, 3, 5, Flag.TERMINATED) + episode_keys(0, 4, 6, Flag.TRUNCATED)
    right = episode_keys(7, 0, 4, Flag.TRUNCATED) + episode_keys(7, 2, 8, None)
    keys = [key for pair in zip(left, right, strict=False) for key in pair] + left[len(right) :]
    rows = make_rows(schema, keys, np.random.default_rng(0))
    rows["policy_version"] = np.arange(len(rows))
    for name in ("start", "lateness", "observation_age"):
        rows[name] = np.random.default_rng(1).random(len(rows))
    rows["flags"] |= int(Flag.EXPERT)
    rows["flags"][::5] |= int(Flag.TAKEOVER)
    return schema, rows


@pytest.mark.parametrize("stack", [1, 3])
def test_what_is_written_is_read_bit_for_bit(tmp_path, stack):
    schema, rows = recorded(stack)
    write_npz(tmp_path / "demos.npz", schema, rows)
    read_schema, read = read_npz(tmp_path / "demos.npz")
    assert read_schema == schema
    assert read.tobytes() == rows.tobytes()
    write_recording(tmp_path / "demos.seg", schema, [read[:7], read[7:]], len(read))
    assert read_recording(tmp_path / "demos.seg")[1].tobytes() == rows.tobytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demos.npz", "demos.seg"]


def test_another_program_can_read_it_and_write_one(tmp_path):
    schema, rows = recorded(1)
    write_npz(tmp_path / "demos.npz", schema, rows)
    with np.load(tmp_path / "demos.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert json.loads(str(arrays["schema"]))["action"]["dtype"] == "float32"
    np.testing.assert_array_equal(arrays["observation/frame"], rows["o/frame"])
    np.testing.assert_array_equal(arrays["terminated"], (rows["flags"] & Flag.TERMINATED) != 0)
    # the least that a file must hold, in the dtypes that numpy has by itself
    np.savez(
        tmp_path / "foreign.npz",
        **{"observation/place": np.arange(8.0).reshape(4, 2), "observation/key": np.arange(4)},
        action=np.array([[0.5], [0.25], [0.0], [0.0]]),
        reward=np.array([1.0, 2.0, 0.0, 0.0]),
        terminated=np.array([False, True, False, False]),
        truncated=np.zeros(4, bool),
        final=np.array([False, False, True, False]),
        episode=np.array([0, 0, 0, 1]),
        step=np.array([0, 1, 2, 0]),
    )
    schema, rows = read_npz(tmp_path / "foreign.npz")
    named = {field.name: field.dtype for field in schema.observation}
    assert named == {"place": "float32", "key": "int64"}  # floats as runs record them
    replay = Replay(schema, 20, gamma=0.5, seed=1)
    replay.add(rows)
    batch = replay.sample(32)
    assert len(replay) == 2
    last = batch.rows == 1
    assert (batch.reward[last] == 2.0).all()
    assert (batch.discount == np.where(last, 0.0, 0.5)).all()
    np.testing.assert_array_equal(batch.next_observation["place"][last][0], [4.0, 5.0])


def arrays_of(schema, rows, path):
    write_npz(path, schema, rows)
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def changed(name, change):
    def apply(arrays):
        arrays[name] = change(arrays[name])

    return apply


def with_value(name, at, value):
    def apply(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return apply


def without(*names):
    def apply(arrays):
        for name in names:
            del arrays[name]

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("reward"), r"\['reward'\] are missing"),
        (without("action"), "action"),
        (without("schema", "action"), "'action' is missing"),
        (without("observation/vector"), r"\['observation/vector'\] are missing"),
        (lambda a: a.update(rewards=np.zeros(3)), r"\['rewards'\] mean nothing here"),
        (changed("observation/frame", lambda v: v[:, :1]), "'observation/frame' is uint8"),
        (changed("observation/frame", lambda v: v.astype(np.int16)), "'observation/frame' is int16"),
        (changed("action", lambda v: v.astype(np.float64)), "'action' is float64"),
        (changed("reward", lambda v: v[:-1]), "'reward' is float32"),
        (changed("terminated", lambda v: v.astype(np.uint8)), r"'terminated' is uint8.*expected bool"),
        (changed("step", lambda v: v.astype(np.float32)), "'step' is float32"),
        (changed("episode", lambda v: v.astype(np.int64) - 1), "'episode' has -1 to"),
        (changed("episode", lambda v: v.astype(np.int64) << 31), "give 0 to 2"),
        (changed("step", lambda v: v[::-1].copy()), "is not after the entry before it"),
        (with_value("reward", 3, np.nan), "'reward' holds a number that is not finite"),
        (
            with_value("observation/vector", 3, np.inf),
            "'observation/vector' holds a number that is not finite",
        ),
        (with_value("final", 10, False), "contradict"),
        (changed("schema", lambda v: np.array("{}")), "no record schema"),
        (changed("schema", lambda v: np.array(["{}"])), "'schema' is no text"),
        (changed("schema", lambda v: np.zeros(3)), "'schema' is no text"),
    ],
)
def test_arrays_that_cannot_be_are_refused_by_name(tmp_path, change, message):
    arrays = arrays_of(*recorded(1), tmp_path / "good.npz")
    change(arrays)
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(RecordError, match=message) as error:
        read_npz(tmp_path / "bad.npz")
    assert "bad.npz" in str(error.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            [(0, 0, 0, 0), (0, 0, 1, int(Flag.TERMINATED)), (0, 1, 0, 0)],
            "step 1 ends its episode, and no final",
        ),
        ([(0, 0, 0, int(Flag.TRUNCATED)), (0, 0, 1, 0)], "step 0 ends its episode, and no final"),
        ([(0, 0, 0, 0), (0, 0, 1, int(Flag.FINAL | Flag.TERMINATED))], "step 1 is final, and no step"),
        ([(0, 0, 0, 0), (0, 0, 0, 0)], "is not after the entry before it"),
        ([], "not a single entry"),
    ],
)
def test_episodes_that_a_replay_would_misread_are_refused(tmp_path, keys, message):
    schema = make_schema(1)
    write_npz(tmp_path / "bad.npz", schema, make_rows(schema, keys, np.random.default_rng(0)))
    with pytest.raises(RecordError, match=message):
        read_npz(tmp_path / "bad.npz")


def test_a_last_step_whose_final_observation_had_not_come_yet_is_taken(tmp_path):
    schema = make_schema(1)
    keys = [(0, 0, 0, 0), (0, 0, 1, int(Flag.TERMINATED))]
    write_npz(tmp_path / "d.npz", schema, make_rows(schema, keys, np.random.default_rng(0)))
    assert len(read_npz(tmp_path / "d.npz")[1]) == 2


# --- hostile bytes --------------------------------------------------------------------------------


def test_no_damage_raises_anything_else(tmp_path):
    write_npz(tmp_path / "good.npz", *recorded(1))
    data = (tmp_path / "good.npz").read_bytes()
    bad = tmp_path / "bad.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(150):
        broken = bytearray(data)
        if number % 3 == 0:
            del broken[int(rng.integers(len(broken))) :]
        else:
            for at in rng.integers(len(broken), size=1 + number % 5):
                broken[at] ^= int(rng.integers(1, 256))
        bad.write_bytes(broken)
        try:
            read_npz(bad)
        except (RecordError, ConfigError):
            refused += 1
    assert refused > 100


def member(array_bytes, name="reward.npy", compressed=False):
    out = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", kind) as archive:
        archive.writestr(name, array_bytes)
    return out.getvalue()


def npy(header):
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "array",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}") + b"\0" * 4,
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"\x80\x04N." + b"\0" * 4,
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}") + b"\0" * 4,
        npy("__import__('os').system('true')"),
        npy("{'descr': '<f4', ("),
        npy("{'descr': '''<f4"),
        npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}") + b"\0" * 8,
        b"\x93NUMPY\x03\x00" + b"\0" * 20,
        b"no array at all",
        b"",
    ],
)
def test_members_that_are_no_plain_arrays_are_refused(tmp_path, array):
    (tmp_path / "bad.npz").write_bytes(member(array))
    with pytest.raises(RecordError, match=r"bad\.npz: 'reward\.npy' is"):
        read_npz(tmp_path / "bad.npz")


def test_files_that_are_no_npz_and_files_too_large_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "bad.npz"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(RecordError, match="no npz file"):
        read_npz(path)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("reward.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("reward.npy", b"")
    path.write_bytes(out.getvalue())
    with pytest.raises(RecordError, match="two of one name"):
        read_npz(path)
    path.write_bytes(member(b"\0" * 50_000_000, compressed=True))  # 50 kB on the disk
    monkeypatch.setattr(capacity, "available_memory", lambda: 20_000_000)
    with pytest.raises(ConfigError, match=r"holds 0\.05 GB, but 0\.02 GB of memory are free"):
        read_npz(path)


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space"):
        write_npz(tmp_path / "d.npz", *recorded(1))
    schema, rows = recorded(1)
    with pytest.raises(RecordError, match="3 rows came for"):
        write_recording(tmp_path / "d.seg", schema, [rows[:3]], 4)
    with pytest.raises(RecordError, match="no rows"):
        write_recording(tmp_path / "d.seg", schema, [], 0)
    assert list(tmp_path.iterdir()) == []
