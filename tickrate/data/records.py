"""The one storage of rows: a ring in memory, or in a mapped file written by commits with a checksum each.

Row ``number`` (counted from the first row ever) lives in slot ``number % capacity``. In a file the log entry
of a commit is written after its rows, so a process killed in between loses that commit only; and when the
ring comes round, the oldest commit is given up whole as soon as its first row is to be overwritten, so that
what is left can always be verified. A killed process loses nothing that was committed. A power cut can lose
what the system had not written back yet (`Segment.flush` forces it); `Segment.open` then cuts the damaged
tail off and says so.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data import capacity as limits
from tickrate.data.commits import CommitLog
from tickrate.data.schema import RecordSchema, Rows
from tickrate.data.segment_file import MAX_CAPACITY, Mapped, create_file, open_file
from tickrate.errors import ConfigError, RecordError
from tickrate.trees import Leaves

COMMIT_ROWS = 256
"""Most rows in a commit; a segment file gives up its oldest rows by whole commits, so they are kept small."""


class Segment:
    """A ring of rows; made by `in_memory`, `create` or `open`.

    One process writes a segment file at a time. Not safe for several threads by itself: `Replay` holds the
    lock.

    Attributes:
        schema: the rows' schema.
        capacity: slots of the ring.
        head: number of the next row to be written.
        oldest: number of the oldest row that is still there.
        rows: every slot's row without the fields stored apart, ``(capacity,)``.
        frames: every slot's value of each field stored apart, by its name in the row, ``(capacity, *shape)``.
        path: the file, None in memory.
        notes: what `open` had to cut off, one sentence each.
    """

    def __init__(
        self, schema: RecordSchema, rows: Rows, frames: Leaves, path: Path | None, mapped: Mapped | None
    ) -> None:
        self.schema = schema
        self.capacity = len(rows)
        self.head = self.oldest = 0
        self.rows = rows
        self.frames = frames
        self.path = path
        self.notes: list[str] = []
        self._bytes = rows.view(np.uint8).reshape(len(rows), schema.head_bytes)
        self._whole: np.memmap[Any, Any] | None = mapped.whole if mapped else None
        self._log = CommitLog(mapped.log) if mapped else None
        self._commit_rows = max(1, min(COMMIT_ROWS, self.capacity // 64)) if mapped else self.capacity

    @classmethod
    def in_memory(cls, schema: RecordSchema, capacity: int, *, first: int = 0) -> Segment:
        """Make an empty segment in memory; pages are taken as rows arrive. ``first`` numbers the first row.

        Raises:
            ConfigError: if it would not fit in the memory that is free now; with the numbers.
        """
        _check_capacity(capacity)
        limits.require(
            capacity * schema.stored_bytes,
            limits.available_memory(),
            rows=capacity,
            row_bytes=schema.stored_bytes,
            where="memory",
        )
        frames = {
            name: np.zeros((capacity, *field.shape), field.storage) for name, field in schema.apart.items()
        }
        segment = cls(schema, np.zeros(capacity, schema.head_dtype), frames, None, None)
        segment.head = segment.oldest = first
        return segment

    @classmethod
    def create(cls, path: Path, schema: RecordSchema, capacity: int) -> Segment:
        """Make an empty segment file, its whole size reserved on the disk.

        Raises:
            ConfigError: if it does not fit on the disk; with the numbers.
            FileExistsError: if ``path`` exists.
        """
        _check_capacity(capacity)
        mapped = create_file(path, schema, capacity)
        return cls(schema, mapped.rows, mapped.frames, path, mapped)

    @classmethod
    def open(cls, path: Path, schema: RecordSchema | None = None, *, writable: bool = True) -> Segment:
        """Open a segment file and verify every commit.

        Args:
            path: the file.
            schema: the schema it must have; whatever it has when omitted.
            writable: False leaves the file as it is, whatever is damaged in it or done to the segment; it
                need not even allow writing then, and another process may be writing it.

        Raises:
            RecordError: if it is no segment file, was cut short, has another schema, or is damaged elsewhere
                than at its ends. Damage at an end (a kill, a power cut) is cut off and said in `notes`.
        """
        stored, _, mapped = open_file(path, writable=writable)
        if schema is not None and schema != stored:
            raise RecordError(
                f"{path} has another schema than this run (here: the run): {schema.difference(stored)}"
            )
        segment = cls(stored, mapped.rows, mapped.frames, path, mapped)
        segment._recover()
        return segment

    def _recover(self) -> None:
        assert self._log is not None
        try:
            cut = self._log.recover(self._checksum)
        except RecordError as error:
            raise RecordError(f"{self.path}: {error}") from error
        if self._log.live:
            self.oldest, self.head = self._log.live[0][0], self._log.live[-1][1]
        kept = f"kept {self.head - self.oldest} good rows"
        self.notes = [f"{self.path}: cut off {what}; {kept}" for what in cut]

    def append(self, rows: Rows) -> int:
        """Write rows (dtype ``schema.row_dtype``, at most ``capacity``) and return the number of the first.

        In memory the oldest rows give way one by one, in a file commit by commit.
        """
        first, done = self.head, 0
        while done < len(rows):
            slot = self.head % self.capacity
            count = min(len(rows) - done, self._commit_rows, self.capacity - slot)
            keep = self.head + count - self.capacity
            if self._log is None:
                self.oldest = max(self.oldest, keep)
            else:
                self.oldest = self._log.make_room(keep) or self.oldest
            self._write(slot, rows[done : done + count])
            if self._log is not None:
                self._log.commit(self.head, count, self._checksum(self.head, count))
            self.head += count
            done += count
        return first

    def _write(self, slot: int, rows: Rows) -> None:
        end = slot + len(rows)
        whole = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), self.schema.row_dtype.itemsize)
        self._bytes[slot:end] = whole[:, : self.schema.head_bytes]
        for name, frames in self.frames.items():
            frames[slot:end] = rows[name]

    def _checksum(self, first: int, count: int) -> int:
        """Return the crc32 of a commit's rows and frames."""
        slot = first % self.capacity
        crc = zlib.crc32(self._bytes[slot : slot + count].data)
        for frames in self.frames.values():
            crc = zlib.crc32(frames[slot : slot + count].reshape(-1).view(np.uint8).data, crc)
        return crc

    def read(self, numbers: NDArray[np.int64]) -> Rows:
        """Return whole rows (a copy, dtype ``schema.row_dtype``) by their numbers.

        Raises:
            RecordError: if one of them is not stored (any more).
        """
        numbers = np.asarray(numbers, np.int64).reshape(-1)
        lost = numbers[(numbers < self.oldest) | (numbers >= self.head)]
        if len(lost):
            raise RecordError(f"row {lost[0]} is not stored; the rows {self.oldest} to {self.head - 1} are")
        slots = numbers % self.capacity
        rows = self.schema.empty(len(slots))
        whole = rows.view(np.uint8).reshape(len(slots), self.schema.row_dtype.itemsize)
        whole[:, : self.schema.head_bytes] = self._bytes[slots]
        for name, frames in self.frames.items():
            rows[name] = frames[slots]
        return rows

    def flush(self) -> None:
        """Force a segment file's pages to the disk (milliseconds to seconds); in memory nothing is done."""
        if self._whole is not None:
            self._whole.flush()

    def close(self) -> None:
        """Flush, and let go of the file or the memory; the segment is of no use afterwards."""
        self.flush()
        self.rows = self.rows[:0].copy()
        self.frames = {name: frames[:0].copy() for name, frames in self.frames.items()}
        self._bytes = self._bytes[:0].copy()
        self._log = self._whole = None
        self.oldest = self.head


def _check_capacity(capacity: int) -> None:
    if not 1 <= capacity <= MAX_CAPACITY:
        raise ConfigError(f"a replay's capacity is {capacity}; it must be between 1 and {MAX_CAPACITY}")
