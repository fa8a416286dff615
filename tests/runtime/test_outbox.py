"""The outbox keeps what was committed, numbers included: through kills, full disks and damaged files."""

import hashlib
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from delivery_kit import same_rows
from runtime_kit import SCHEMA, rows_of

from tickrate.data import segment_file
from tickrate.data.commits import ENTRY
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError, FolderInUse, RecordError
from tickrate.runtime.outbox import Outbox, OutboxConfig

ROW_BYTES = SCHEMA.stored_bytes + ENTRY.itemsize
SMALL = OutboxConfig(max_bytes=1 << 16)


@pytest.fixture
def open_outbox(tmp_path):
    made = []

    def begin(config=SMALL, schema=SCHEMA):
        made.append(Outbox(tmp_path, schema, config))
        return made[-1]

    yield begin
    for outbox in made:
        outbox.close()


def rows(first, count, episode=0):
    return rows_of(episode, count, first=first, final=False)


def steps(outbox):
    return outbox.read(outbox.oldest, outbox.head)["step"].tolist()


def test_numbers_go_on_over_restarts(open_outbox):
    outbox = open_outbox()
    identity = outbox.identity
    assert (outbox.head, outbox.oldest, outbox.pending, identity > 0) == (0, 0, 0, True)
    outbox.append(rows(0, 30))
    outbox.acknowledge(10)
    assert outbox.belongs_to(5)
    outbox.close()
    again = open_outbox()
    assert (again.identity, again.head, again.oldest, again.life) == (identity, 30, 10, 5)
    assert again.pending_bytes == 20 * SCHEMA.stored_bytes
    again.append(rows(30, 5))
    assert again.head == 35
    assert steps(again) == list(range(10, 35))
    assert not again.belongs_to(6)
    again.acknowledge(9)  # an overtaken one
    assert again.oldest == 10


def test_one_process_uses_it_at_a_time(open_outbox):
    """The companion of a killed worker may still be there when its successor comes."""
    first = open_outbox()
    with pytest.raises(FolderInUse, match=r"the outbox in .* is in use by process \d+ on "):
        open_outbox()
    first.close()
    open_outbox()


WRITER = """
import sys, hashlib
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from runtime_kit import SCHEMA, rows_of
from tickrate.runtime.outbox import Outbox, OutboxConfig
outbox = Outbox(Path(sys.argv[1]), SCHEMA, OutboxConfig(max_bytes=1 << 22))
number = 0
while True:
    rows = rows_of(0, 37, first=number, final=False)
    rows["reward"] = number
    outbox.append(rows)
    number += 37
    print(number, hashlib.sha256(rows.tobytes()).hexdigest(), flush=True)
"""


def test_what_was_committed_survives_a_kill(open_outbox, tmp_path):
    here = str(__file__).rpartition("/")[0]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), here], stdout=subprocess.PIPE, text=True
    )
    told = [writer.stdout.readline().split() for _ in range(40)]
    writer.send_signal(signal.SIGKILL)
    told += [line.split() for line in writer.stdout.read().splitlines() if len(line.split()) == 2]
    writer.wait(10)
    writer.stdout.close()
    outbox = open_outbox(OutboxConfig(max_bytes=1 << 22))
    assert outbox.notes == []
    committed = int(told[-1][0])
    # It may have been killed between a commit (of up to 37 rows, in pieces) and its word about it.
    assert committed <= outbox.head <= committed + 37
    for end, digest in told:
        data = outbox.read(int(end) - 37, 37)
        assert hashlib.sha256(data.tobytes()).hexdigest() == digest


@pytest.mark.parametrize("committed", [1, 59, 60])
def test_the_overlap_after_a_kill_is_taken_once(open_outbox, committed):
    """60 rows lie in the shared memory; the companion is killed after it committed some and freed none."""
    outbox = open_outbox()
    outbox.append(rows(0, 40, episode=3))
    outbox.append(rows(40, committed, episode=3))
    outbox.close()
    again = open_outbox()
    again.append(rows(40, 60, episode=3))  # the same memory, looked at anew
    assert again.head == 100
    assert steps(again) == list(range(100))
    again.append(rows(40, 1, episode=4))  # later rows are never compared
    assert again.head == 101


def test_rows_of_a_new_control_process_are_no_overlap(open_outbox):
    outbox = open_outbox()
    outbox.append(rows(0, 5, episode=0))
    outbox.close()
    again = open_outbox()
    again.append(rows(0, 5, episode=1_000_000))
    assert again.head == 10


def test_the_oldest_are_dropped_and_counted(open_outbox, tmp_path):
    outbox = open_outbox()
    capacity = (1 << 16) // ROW_BYTES
    for block in range(20):
        outbox.append(rows(100 * block, 100))
    kept = outbox.pending
    assert capacity - capacity // 64 <= kept <= capacity
    assert outbox.dropped == 2000 - kept
    assert steps(outbox) == list(range(2000 - kept, 2000))
    assert (tmp_path / "outbox.seg").stat().st_size <= (1 << 16) + 4 * 4096
    outbox.acknowledge(2000)  # what is acknowledged makes room without a loss
    outbox.append(rows(2000, capacity))
    assert outbox.dropped == 2000 - kept
    assert not outbox.full
    outbox.close()
    assert open_outbox().dropped == 2000 - kept


def test_a_block_larger_than_the_outbox_keeps_its_newest_rows(open_outbox):
    outbox = open_outbox()
    outbox.append(rows(0, 5000))
    assert steps(outbox)[-1] == 4999
    assert outbox.dropped + outbox.pending == 5000


def test_with_stop_it_is_full_before_anything_is_dropped(open_outbox):
    outbox = open_outbox(OutboxConfig(max_bytes=1 << 16, on_full="stop"))
    capacity, number = (1 << 16) // ROW_BYTES, 0
    while not outbox.full:
        outbox.append(rows(number, 10))
        number += 10
    assert outbox.dropped == 0
    assert number <= capacity * 7 / 8 + 10  # an eighth is left for what is on its way
    outbox.append(rows(number, capacity // 8 - 20))
    assert outbox.dropped == 0
    outbox.acknowledge(number)
    assert not outbox.full


def test_in_memory_it_is_the_same_but_forgets(open_outbox, tmp_path):
    outbox = open_outbox(OutboxConfig(max_bytes=1 << 16, storage="memory"))
    outbox.append(rows(0, 3000))
    assert outbox.dropped + outbox.pending == 3000
    outbox.acknowledge(2990)
    assert steps(outbox) == list(range(2990, 3000))
    assert outbox.belongs_to(3)
    assert not outbox.belongs_to(4)
    identity = outbox.identity
    outbox.begin_anew("test")
    assert (outbox.head, outbox.life, outbox.identity != identity) == (0, 0, True)
    assert list(tmp_path.iterdir()) == []


# --- damage -------------------------------------------------------------------------------------------------


def fill(open_outbox, blocks=10, acknowledged=0):
    outbox = open_outbox()
    for block in range(blocks):
        outbox.append(rows(10 * block, 10))
    outbox.acknowledge(acknowledged)
    identity = outbox.identity
    outbox.close()
    return identity


def spoil(path, number):
    """Flip a byte of row ``number`` in a segment file."""
    stored, capacity, header = segment_file._read_header(path)
    parts, _ = segment_file._layout(stored, capacity, header)
    with path.open("r+b") as file:
        file.seek(parts["rows"] + number * stored.head_bytes + 8)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 255]))


def test_a_damaged_end_is_cut_off_and_said(open_outbox, tmp_path):
    identity = fill(open_outbox)
    spoil(tmp_path / "outbox.seg", 99)
    outbox = open_outbox()
    assert outbox.identity == identity
    assert 90 <= outbox.head < 100
    assert "newest commits: damaged; kept" in outbox.notes[0]
    assert steps(outbox) == list(range(outbox.head))


def test_damage_in_the_middle_is_an_error(open_outbox, tmp_path):
    fill(open_outbox)
    spoil(tmp_path / "outbox.seg", 50)
    with pytest.raises(RecordError, match=r"outbox\.seg: the commit of rows .* does not match its checksum"):
        open_outbox()
    with pytest.raises(RecordError):  # and the failed attempt has let go of the lock
        open_outbox()


@pytest.mark.parametrize("damage", ["gone", "empty", "text", "bits"])
def test_without_its_state_it_is_set_aside_and_begins_anew(open_outbox, tmp_path, damage):
    identity = fill(open_outbox)
    state = tmp_path / "outbox.state"
    data = state.read_bytes()
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes(
            {"empty": b"", "text": b"hello" * 999, "bits": data[:30] + b"\xff" + data[31:]}[damage]
        )
    outbox = open_outbox()
    assert outbox.identity != identity
    assert (outbox.head, outbox.life) == (0, 0)
    (kept,) = tmp_path.glob("outbox-*.kept")
    assert "gone or damaged" in outbox.notes[0]
    assert str(kept) in outbox.notes[0]
    assert kept.stat().st_size > 0


def test_a_disk_that_was_set_back_gives_no_number_twice(open_outbox, tmp_path):
    """The file ends below what was acknowledged: the missing rows are delivered, their numbers are used."""
    identity = fill(open_outbox, acknowledged=40)
    old = (tmp_path / "outbox.seg").read_bytes()
    outbox = open_outbox()
    outbox.append(rows(100, 50))
    outbox.acknowledge(150)
    outbox.close()
    (tmp_path / "outbox.seg").write_bytes(old)
    again = open_outbox()
    assert again.identity != identity
    assert (again.head, again.pending) == (0, 0)


def test_an_outbox_that_was_being_made_when_its_process_was_killed_is_made_anew(open_outbox, tmp_path):
    fill(open_outbox, blocks=0)
    outbox = open_outbox()
    outbox._set("identity", 0)
    outbox.close()
    assert open_outbox().identity > 0


def other_schema():
    body = json.loads(SCHEMA.to_json())
    body["observation"][0]["shape"] = [3]
    return RecordSchema.from_json(json.dumps(body))


def test_undelivered_rows_of_another_shape_are_named_and_kept(open_outbox, tmp_path):
    fill(open_outbox, acknowledged=30)
    with pytest.raises(RecordError, match=r"holds 70 undelivered rows of another shape \(.*place.*--drain"):
        open_outbox(schema=other_schema())
    outbox = open_outbox()
    outbox.acknowledge(100)
    identity = outbox.identity
    outbox.close()
    fresh = open_outbox(schema=other_schema())  # all delivered: the new shape may begin
    assert (fresh.head, fresh.identity != identity) == (0, True)


def test_another_size_takes_effect_once_all_is_delivered(open_outbox):
    fill(open_outbox)
    larger = OutboxConfig(max_bytes=1 << 17)
    outbox = open_outbox(larger)
    assert outbox.pending == 100
    outbox.acknowledge(100)
    outbox.close()
    assert open_outbox(larger).head == 0


# --- another run, another past ------------------------------------------------------------------------------


def test_rows_of_another_life_are_set_aside_not_deleted(open_outbox, tmp_path):
    fill(open_outbox, acknowledged=40)
    outbox = open_outbox()
    before = (tmp_path / "outbox.seg").read_bytes()
    identity = outbox.identity
    outbox.begin_anew("these rows belong to another run")
    assert (outbox.head, outbox.identity != identity) == (0, True)
    (kept,) = tmp_path.glob("outbox-*.kept")
    assert kept.read_bytes() == before
    assert f"(60 undelivered rows): the rows so far were set aside as {kept}" in outbox.notes[-1]
    outbox.append(rows(0, 3))
    outbox.close()
    assert open_outbox().head == 3


def test_nothing_is_set_aside_when_all_was_delivered(open_outbox, tmp_path):
    fill(open_outbox, acknowledged=100)
    open_outbox().begin_anew("another run")
    assert list(tmp_path.glob("*.kept")) == []


def test_rows_whose_numbers_were_taken_get_new_ones(open_outbox, tmp_path):
    fill(open_outbox, acknowledged=40)
    outbox = open_outbox()
    assert outbox.opened_at == 100
    fresh = rows(500, 25)
    outbox.append(fresh)
    outbox.renumber("set back")
    assert (outbox.head, outbox.oldest, outbox.opened_at) == (25, 0, 0)
    same_rows(outbox.read(0, 25), fresh)
    assert len(list(tmp_path.glob("*.kept"))) == 1


# --- limits -------------------------------------------------------------------------------------------------


def test_a_full_disk_is_named_with_its_numbers(open_outbox, monkeypatch):
    monkeypatch.setattr(segment_file.limits, "available_disk", lambda folder: 50_000)
    with pytest.raises(ConfigError, match=r"worker\.outbox\.max_bytes is 65536.* only 0\.05 MB of the disk"):
        open_outbox()


def test_too_little_room_for_a_few_rows_is_refused(open_outbox):
    wide = json.loads(SCHEMA.to_json())
    wide["observation"][0]["shape"] = [2000]
    schema = RecordSchema.from_json(json.dumps(wide))
    need = 16 * (schema.stored_bytes + ENTRY.itemsize)
    with pytest.raises(ConfigError, match=f"max_bytes is 65536, but 16 rows of this environment take {need}"):
        open_outbox(schema=schema)


@pytest.mark.parametrize("values", [{"max_bytes": 1000}, {"on_full": "wait"}, {"storage": "tape"}])
def test_impossible_settings_are_refused_by_name(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        OutboxConfig(**values)


def test_reading_beyond_what_is_there_gives_what_is_there(open_outbox):
    outbox = open_outbox()
    outbox.append(rows(0, 10))
    assert len(outbox.read(5, 100)) == 5
    assert len(outbox.read(10, 5)) == 0
    assert np.shares_memory(outbox.read(0, 1), outbox.read(0, 1)) is False
