"""Shared rings, registers and cells, between threads of hand and real second processes."""

import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tickrate.errors import VersionMismatch, WireError
from tickrate.runtime import shared_file
from tickrate.runtime.control_block import ControlBlock
from tickrate.runtime.register import Register
from tickrate.runtime.row_ring import RowRing
from tickrate.runtime.shared_file import shared_folder

ROW = np.dtype([("number", "<u8"), ("values", "<f4", (10,)), ("odd", "u1", (3,))])
ROOT = Path(__file__).parents[2]


def row_of(number):
    row = np.zeros((), ROW)
    row["number"], row["values"], row["odd"] = number, number, number % 256
    return row


def second_process(code, *arguments):
    """Start a Python process that runs ``code`` with these arguments."""
    imports = "import sys\nfrom pathlib import Path\nimport numpy as np\n"
    imports += "from tickrate import clock\n"
    imports += "from tickrate.runtime.control_block import ControlBlock\n"
    imports += "from tickrate.runtime.register import Register\n"
    imports += "from tickrate.runtime.row_ring import RowRing\n"
    command = [sys.executable, "-c", imports + code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


# --- ring ---------------------------------------------------------------------------------------------------


def test_rows_come_out_in_order_and_a_full_ring_drops(tmp_path):
    with RowRing(tmp_path / "ring", ROW, 4, create=True) as ring:
        assert len(ring.pop(10)) == 0
        assert [ring.push(row_of(i)) for i in range(6)] == [True] * 4 + [False] * 2
        assert (ring.pending(), ring.dropped) == (4, 2)
        assert ring.pop(3)["number"].tolist() == [0, 1, 2]
        assert ring.push(row_of(6))
        rows = ring.pop(10)
        assert rows["number"].tolist() == [3, 6]
        assert rows["values"][1].tolist() == [6.0] * 10
        assert rows.dtype == ROW
        rows["number"] = 0  # a copy of one's own
        assert (ring.pending(), ring.dropped) == (0, 2)


def test_many_laps(tmp_path):
    with RowRing(tmp_path / "ring", ROW, 3, create=True) as ring:
        taken = []
        for i in range(100):
            assert ring.push(row_of(i)[()])  # a scalar
            if i % 2:
                taken += ring.pop(5)["number"].tolist()
        assert taken == list(range(100))


def test_a_row_counts_only_when_it_is_whole(tmp_path):
    path = tmp_path / "ring"
    with RowRing(path, ROW, 4, create=True) as ring:
        ring.push(row_of(1))
        ring.push(row_of(2))
        begin = path.read_bytes().index(row_of(2).tobytes())
        with path.open("r+b") as file:  # as if the second row's bytes had not all arrived yet
            file.seek(begin + 20)
            file.write(b"\x01")
        assert ring.pop(9)["number"].tolist() == [1]
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(row_of(2).tobytes())
        assert ring.pop(9)["number"].tolist() == [2]


def test_both_sides_can_be_restarted(tmp_path):
    path = tmp_path / "ring"
    RowRing(path, ROW, 8, create=True).close()
    for begin in range(0, 20, 4):
        with RowRing(path, ROW, 8, create=False) as producer:
            for i in range(begin, begin + 4):
                producer.push(row_of(i))
        with RowRing(path, ROW, 8, create=False) as consumer:
            assert consumer.pop(99)["number"].tolist() == list(range(begin, begin + 4))


def test_a_producer_killed_before_it_moved_the_head_loses_nothing(tmp_path):
    path = tmp_path / "ring"
    with RowRing(path, ROW, 8, create=True) as ring:
        ring.push(row_of(0))
        ring.push(row_of(1))
        ring._cells[RowRing._HEAD] = 1  # row 1 is written whole, the head does not say so yet
    with RowRing(path, ROW, 8, create=False) as ring:
        ring.push(row_of(2))
        assert ring.pop(9)["number"].tolist() == [0, 1, 2]


def test_another_dtype_is_refused(tmp_path):
    with RowRing(tmp_path / "ring", ROW, 4, create=True) as ring:
        with pytest.raises(WireError, match="dtype"):
            ring.push(np.zeros((), "f4"))
        with pytest.raises(WireError, match=r"ring: row_bytes is \d+ there and 4 here"):
            RowRing(tmp_path / "ring", np.dtype("f4"), 4, create=False)
        with pytest.raises(WireError, match="capacity is 4 there and 5 here"):
            RowRing(tmp_path / "ring", ROW, 5, create=False)


PRODUCE = """
dtype = np.dtype([("number", "<u8"), ("values", "<f4", (10,)), ("odd", "u1", (3,))])
ring = RowRing(Path(sys.argv[1]), dtype, 64, create=False)
row = np.zeros((), ring.dtype)
for number in range(int(sys.argv[2])):
    row["number"], row["values"], row["odd"] = number, number, number % 256
    while not ring.push(row):
        clock.sleep(0.0002)
"""


def test_a_second_process_produces(tmp_path):
    path, count = tmp_path / "ring", 20_000
    with RowRing(path, ROW, 64, create=True) as ring, second_process(PRODUCE, path, count) as process:
        expected = 0
        while expected < count:
            rows = ring.pop(50)
            if not len(rows):
                assert process.poll() is None or ring.pending()
                continue
            np.testing.assert_array_equal(rows["number"], np.arange(expected, expected + len(rows)))
            assert (rows["values"] == rows["number"].astype(np.float32)[:, None]).all()
            assert (rows["odd"] == (rows["number"] % 256)[:, None]).all()
            expected += len(rows)
        assert process.wait(20) == 0
        assert ring.pending() == 0


# --- register -----------------------------------------------------------------------------------------------


def test_the_newest_payload_wins(tmp_path):
    with Register(tmp_path / "register", 100, create=True) as register:
        assert register.version() == Register.NONE == -1
        assert register.read() is None
        register.write(0, b"")
        assert (register.version(), register.read()) == (0, (0, b""))
        for version in range(1, 6):
            register.write(version, b"x" * version)
        with Register(tmp_path / "register", 100, create=False) as reader:
            assert reader.version() == 5
            assert reader.read() == (5, b"xxxxx")
        with pytest.raises(WireError, match="101 bytes; it holds at most 100"):
            register.write(6, bytes(101))
        with pytest.raises(WireError, match="negative"):
            register.write(-1, b"")
        assert register.read() == (5, b"xxxxx")


def test_a_writer_killed_in_a_write_leaves_the_payload_before(tmp_path):
    path = tmp_path / "register"
    with Register(path, 100, create=True) as register:
        register.write(1, b"old payload")
        register.write(2, b"new payload")
        register._cells[Register._WRITES] = 1  # the second write was under way
        register._cells[Register._VERSION] = 2
    with Register(path, 100, create=False) as register:
        assert register.read() == (1, b"old payload")
        register.write(3, b"next")
        assert register.read() == (3, b"next")


def test_a_torn_payload_is_never_returned(tmp_path):
    path = tmp_path / "register"
    with Register(path, 100, create=True) as register:
        register.write(1, b"payload")
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"payload"))
            file.write(b"P")
        assert register.read() is None
        assert register.version() == 1


WRITE = """
register = Register(Path(sys.argv[1]), 100_000, create=False)
version = 0
print("ready", flush=True)
while True:
    version += 1
    register.write(version, np.full(1000 + version % 7 * 10_000, version % 251, np.uint8).tobytes())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_second_process_writes_without_a_pause(tmp_path):
    path = tmp_path / "register"
    with Register(path, 100_000, create=True) as register, second_process(WRITE, path) as process:
        assert process.stdout.readline() == "ready\n"
        newest, reads = 0, 0
        while reads < 3000 or newest < 1000:
            entry = register.read()
            if entry is None:
                continue
            version, payload = entry
            assert version >= newest
            assert len(payload) == 1000 + version % 7 * 10_000
            assert payload == payload[:1] * len(payload)
            assert payload[0] == version % 251
            newest, reads = version, reads + 1
        process.kill()
        process.wait(10)
        after = register.read()  # killed at any moment: there still is a whole payload
        assert after is not None
        assert after[0] >= newest


# --- control block ------------------------------------------------------------------------------------------

CELLS = {"pause": "int64", "beat": "float64", "count": "int64"}


def test_cells(tmp_path):
    with ControlBlock(tmp_path / "block", CELLS, create=True) as block:
        assert [block.get(name) for name in CELLS] == [0, 0.0, 0]
        block.set("pause", -(2**62))
        block.set("beat", 1.25)
        with ControlBlock(tmp_path / "block", CELLS, create=False) as other:
            assert (other.get("pause"), other.get("beat"), other.get("count")) == (-(2**62), 1.25, 0)
            assert isinstance(other.get("pause"), int)
        with pytest.raises(TypeError):
            block.set("pause", 0.5)
        with pytest.raises(WireError, match="no cell 'stop'; it has"):
            block.get("stop")
        with pytest.raises(WireError, match="cells is"):
            ControlBlock(tmp_path / "block", {"pause": "int64"}, create=False)
        with pytest.raises(WireError, match="int64 or float64"):
            ControlBlock(tmp_path / "block", {"pause": "bool"}, create=True)


ANSWER = """
block = ControlBlock(Path(sys.argv[1]), {"pause": "int64", "beat": "float64", "count": "int64"}, create=False)
while not block.get("pause"):
    block.set("count", block.get("count") + 1)
    block.set("beat", clock.now())
print(block.get("count"))
"""


def test_a_second_process_sees_a_flag(tmp_path):
    path = tmp_path / "block"
    with ControlBlock(path, CELLS, create=True) as block, second_process(ANSWER, path) as process:
        beats = set()
        while len(beats) < 20:
            assert process.poll() is None
            beats.add(block.get("beat"))
        block.set("pause", 1)
        out, _ = process.communicate(timeout=20)
        assert int(out) == block.get("count") > 0


# --- files --------------------------------------------------------------------------------------------------


def test_a_missing_foreign_or_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "block"
    with pytest.raises(WireError, match=r"block does not exist: the process that makes it is not running"):
        ControlBlock(path, CELLS, create=False)
    ControlBlock(path, CELLS, create=True).close()
    with pytest.raises(WireError, match="kind is control there and register here"):
        Register(path, 100, create=False)
    good = path.read_bytes()
    text = b'{"kind": "control"}'
    for data, error, message in [
        (b"", WireError, "no shared file"),
        (b"something else" + bytes(5000), WireError, "no shared file"),
        (good[:-8], WireError, "another size"),
        (good[:8] + b"\x07" + good[9:], VersionMismatch, "format 7"),
        (good[:30] + b"!" + good[31:], WireError, "checksum"),
        (
            struct.pack("<8sIII", b"TICKSHM\0", 1, len(text), zlib.crc32(text)) + text + bytes(5000),
            WireError,
            "cells",
        ),
        *(
            (
                struct.pack("<8sIII", b"TICKSHM\0", 1, len(t), zlib.crc32(t)) + t + bytes(5000),
                WireError,
                "JSON",
            )
            for t in (b"", b"\xff", b"7", b"[]", b"[" * 4000)
        ),
    ]:
        path.write_bytes(data)
        with pytest.raises(error, match=f"{path}.*{message}"):
            ControlBlock(path, CELLS, create=False)


def test_creating_replaces_what_an_earlier_run_left(tmp_path):
    path = tmp_path / "register"
    old = Register(path, 10, create=True)
    old.write(5, b"old")
    with Register(path, 20, create=True) as new:
        assert new.read() is None
        assert old.read() == (5, b"old")  # who still has the old one open is not disturbed
        assert path.stat().st_mode & 0o077 == 0 or os.name == "nt"
    old.close()
    old.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["register"]


def test_remove(tmp_path):
    ring = RowRing(tmp_path / "ring", ROW, 4, create=True)
    ring.remove()
    ring.remove()
    assert list(tmp_path.iterdir()) == []


def test_too_large_for_the_folder_is_refused(tmp_path):
    with pytest.raises(WireError, match="are free in"):
        Register(tmp_path / "register", 1 << 60, create=True)
    assert list(tmp_path.iterdir()) == []


def test_the_shared_folder_has_room_or_is_the_temporary_one(monkeypatch, tmp_path):
    assert shared_folder().is_dir()
    monkeypatch.setattr(shared_file, "_SHARED_MEMORY", tmp_path)
    assert shared_folder(1) == tmp_path
    assert shared_folder(1 << 62) != tmp_path
    monkeypatch.setattr(shared_file, "_SHARED_MEMORY", tmp_path / "missing")
    assert shared_folder(1) != tmp_path / "missing"
