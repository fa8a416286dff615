"""The segment store: its ring, its file, and what becomes of damage."""

import json
import zlib

import numpy as np
import pytest
from naive_replay import episode_keys, make_rows, make_schema

from tickrate.data import capacity, segment_file
from tickrate.data.commits import ENTRY
from tickrate.data.records import Segment
from tickrate.data.schema import Field, RecordSchema
from tickrate.errors import ConfigError, RecordError

SCHEMA = make_schema(stack=2)


def rows_of(count, seed=0):
    return make_rows(SCHEMA, episode_keys(0, 0, count, None), np.random.default_rng(seed))


def stored(segment):
    return segment.read(np.arange(segment.oldest, segment.head))


def file_with(path, commits, limit=640):
    """A segment file with commits of these sizes; return the rows written."""
    segment = Segment.create(path, SCHEMA, limit)
    rows = rows_of(sum(commits))
    at = 0
    for count in commits:
        segment.append(rows[at : at + count])
        at += count
    segment.close()
    return rows


def part(path, name):
    """Where a part of the file begins."""
    schema, limit, size = segment_file._read_header(path)
    return segment_file._layout(schema, limit, size)[0][name]


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_ring_keeps_the_newest_rows(tmp_path, mapped):
    segment = Segment.create(tmp_path / "s", SCHEMA, 50) if mapped else Segment.in_memory(SCHEMA, 50)
    rows = rows_of(130)
    at = 0
    for count in (1, 30, 19, 7, 50, 2, 21):
        assert segment.append(rows[at : at + count]) == at
        at += count
        assert (segment.oldest, segment.head) == (max(0, at - 50), at)
        np.testing.assert_array_equal(stored(segment), rows[segment.oldest : at])
    assert segment.frames["o/frame"].shape == (50, 2, 2)


def test_a_file_gives_up_whole_commits(tmp_path):
    path = tmp_path / "s"
    rows = file_with(path, [10] * 64 + [3])  # the last overwrites the first three rows of the oldest commit
    segment = Segment.open(path, SCHEMA)
    assert (segment.oldest, segment.head, segment.notes) == (10, 643, [])
    np.testing.assert_array_equal(stored(segment), rows[10:])
    segment.append(rows[:7])
    assert segment.oldest == 10
    segment.append(rows[:1])
    assert segment.oldest == 20


def test_reopening_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "s"
    rows = rows_of(300)
    Segment.create(path, SCHEMA, 100).close()
    for at in range(0, 300, 30):
        segment = Segment.open(path)
        assert (segment.head, segment.notes) == (at, [])
        segment.append(rows[at : at + 17])
        segment.append(rows[at + 17 : at + 30])
        segment.close()
    segment = Segment.open(path)
    assert segment.head == 300
    np.testing.assert_array_equal(stored(segment), rows[segment.oldest :])


@pytest.mark.parametrize("where", ["rows", "o/frame"])
def test_a_damaged_tail_is_cut_off_with_a_note(tmp_path, where):
    path = tmp_path / "s"
    rows = file_with(path, [10, 10, 5])
    size = SCHEMA.head_bytes if where == "rows" else 4
    flip(path, part(path, where) + 22 * size)
    segment = Segment.open(path)
    assert segment.head == 20
    assert segment.notes == [f"{path}: cut off 1 of the newest commits: damaged; kept 20 good rows"]
    segment.append(rows[20:])
    segment.close()
    again = Segment.open(path)
    assert again.notes == []
    np.testing.assert_array_equal(stored(again), rows)


def test_a_torn_log_entry_at_the_end_is_cut_off(tmp_path):
    path = tmp_path / "s"
    rows = file_with(path, [10, 10, 5])
    flip(path, part(path, "log") + 2 * ENTRY.itemsize + 9)
    segment = Segment.open(path)
    assert segment.head == 20
    assert len(segment.notes) == 1
    segment.append(rows[20:])
    assert Segment.open(path).notes == []


def test_a_kill_while_the_oldest_commit_was_overwritten(tmp_path):
    path = tmp_path / "s"
    file_with(path, [10] * 64)
    flip(
        path, part(path, "rows") + 3 * SCHEMA.head_bytes
    )  # a byte of row 640, whose commit was never entered
    segment = Segment.open(path)
    assert (segment.oldest, segment.head) == (10, 640)
    assert "1 of the oldest commits: they were being overwritten" in segment.notes[0]


def test_damage_at_the_beginning_of_a_file_that_never_wrapped_is_called_so(tmp_path):
    path = tmp_path / "s"
    file_with(path, [10] * 30)  # of 640 rows
    flip(path, part(path, "rows") + 3 * SCHEMA.head_bytes)
    segment = Segment.open(path)
    assert "cut off 1 of the oldest commits: damaged; kept 290 good rows" in segment.notes[0]


@pytest.mark.parametrize(
    ("where", "offset", "message"),
    [
        ("rows", 12 * SCHEMA.head_bytes, "rows 10 to 19 does not match its checksum, with good ones"),
        ("o/frame", 12 * 4, "rows 10 to 19 does not match its checksum, with good ones"),
        ("log", ENTRY.itemsize + 9, "rows 0 to 9 is followed by a gap"),
    ],
)
def test_damage_in_the_middle_is_refused(tmp_path, where, offset, message):
    path = tmp_path / "s"
    file_with(path, [10, 10, 5])
    flip(path, part(path, where) + offset)
    with pytest.raises(RecordError, match=f"{path}: .*{message}"):
        Segment.open(path)


@pytest.mark.parametrize(
    ("first", "count"), [(20, 117_440_513), (20, 641), (635, 10), (2**64 - 5, 5), (2**62, 1)]
)
def test_an_entry_that_no_commit_can_have_is_no_good_one(tmp_path, first, count):
    """Its checksums are right, as far as the rows that it speaks of are there at all."""
    path = tmp_path / "s"
    rows = file_with(path, [10, 10])
    segment = Segment.open(path)
    crc = segment._checksum(first, count)
    segment.close()
    entry = np.zeros((), ENTRY)
    entry["first"], entry["count"], entry["crc"] = first, count, crc
    entry["check"] = zlib.crc32(entry.tobytes()[:16])
    data = bytearray(path.read_bytes())
    at = part(path, "log") + 2 * ENTRY.itemsize
    data[at : at + ENTRY.itemsize] = entry.tobytes()
    path.write_bytes(data)
    segment = Segment.open(path)
    assert (segment.oldest, segment.head) == (0, 20)
    assert "cut off 1 of the newest commits: damaged" in segment.notes[0]
    np.testing.assert_array_equal(stored(segment), rows)


def test_no_good_commit_at_all_is_refused(tmp_path):
    path = tmp_path / "s"
    file_with(path, [10, 10])
    data = bytearray(path.read_bytes())
    begin = part(path, "rows")
    data[begin : begin + 20 * SCHEMA.head_bytes] = bytes(20 * SCHEMA.head_bytes)
    path.write_bytes(data)
    with pytest.raises(RecordError, match="none of its 2 commits"):
        Segment.open(path)
    begin = part(path, "log")
    data[begin : begin + 2 * ENTRY.itemsize] = b"\xaa" * 2 * ENTRY.itemsize
    path.write_bytes(data)
    with pytest.raises(RecordError, match="none of the 2 entries"):
        Segment.open(path)


def header(text, magic=segment_file.MAGIC, version=1, crc=None):
    crc = zlib.crc32(text) if crc is None else crc
    return np.array((magic, version, len(text), crc), segment_file._HEADER).tobytes() + text


GOOD = {"schema": json.loads(SCHEMA.to_json()), "digest": SCHEMA.digest(), "capacity": 100}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no tickrate segment file"),
        (b"PK\3\4" + bytes(5000), "no tickrate segment file"),
        (header(b"{}", version=9), "has format 9, this tickrate reads format 1"),
        (header(b"{}", crc=5), "checksum"),
        (header(b"{}"), "cannot be read"),
        (header(b"\xff\xfe"), "cannot be read"),
        (header(json.dumps(GOOD | {"capacity": 0}).encode()), "capacity 0"),
        (header(json.dumps(GOOD | {"capacity": 2.5}).encode()), "capacity 2.5"),
        (header(json.dumps(GOOD | {"digest": "x"}).encode()), "digest x"),
        (header(json.dumps(GOOD | {"schema": 3}).encode()), "cannot be read"),
        (header(json.dumps(GOOD).encode()), "its header says"),  # and nothing after it
    ],
)
def test_a_file_that_is_no_segment_is_refused(tmp_path, data, message):
    path = tmp_path / "s"
    path.write_bytes(data)
    with pytest.raises(RecordError, match=message):
        Segment.open(path)


def test_another_schema_is_refused_by_field(tmp_path):
    file_with(tmp_path / "s", [3])
    with pytest.raises(RecordError, match=r"'o/frame' is uint8\[2, 2\] x4 here and uint8\[2, 2\] x2 there"):
        Segment.open(tmp_path / "s", make_schema(stack=4))


def test_an_existing_file_is_never_replaced(tmp_path):
    rows = file_with(tmp_path / "s", [3])
    with pytest.raises(FileExistsError):
        Segment.create(tmp_path / "s", SCHEMA, 100)
    np.testing.assert_array_equal(stored(Segment.open(tmp_path / "s")), rows)


@pytest.mark.parametrize("limit", [0, -5, 2**32])
def test_an_impossible_capacity_is_refused(tmp_path, limit):
    with pytest.raises(ConfigError, match="between 1 and"):
        Segment.in_memory(SCHEMA, limit)
    with pytest.raises(ConfigError, match="between 1 and"):
        Segment.create(tmp_path / "s", SCHEMA, limit)


def test_a_field_without_elements_can_be_stored():
    schema = RecordSchema((Field("none", "float32", (0,)),), Field("action", "float32", (1,)))
    segment = Segment.in_memory(schema, 10)
    segment.append(schema.empty(3))
    assert segment.read(np.arange(3))["o/none"].shape == (3, 0)


def test_available_memory_is_that_of_the_tightest_limit(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    (tmp_path / "memory.max").write_text("900000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    monkeypatch.setattr(capacity, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(capacity, "_CGROUP", tmp_path)
    assert capacity.available_memory() == 400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.available_memory() == 1_024_000
    assert capacity.available_disk(tmp_path) > 0
