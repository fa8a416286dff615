"""Segment files that no longer grow: read whole, written whole or not at all, cut to the rows they hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tickrate.data import capacity as limits
from tickrate.data.records import Segment
from tickrate.data.schema import Flag, RecordSchema, Rows
from tickrate.data.snapshot import read_snapshot
from tickrate.errors import RecordError

CHUNK_ROWS = 1024


def read_recording(path: Path) -> tuple[RecordSchema, Rows]:
    """Return (schema, rows) of a segment file, which is only read; the rows are a copy, ``(n,)``.

    Raises:
        RecordError: if it is no segment file, or damaged.
        ConfigError: if its rows do not fit into memory.
    """
    segment = Segment.open(path, writable=False)
    count = segment.head - segment.oldest
    require_memory(segment.schema, count)
    return segment.schema, joined(segment.schema, chunks_of(segment), count)


def read_snapshot_rows(path: Path, schema: RecordSchema) -> Rows:
    """Return the rows of a replay in memory, as its snapshot in a checkpoint has them, ``(n,)``.

    Raises:
        RecordError: if the snapshot is missing or damaged, holds no rows, or was made with another schema.
    """
    state, data = read_snapshot(path)
    size = schema.row_dtype.itemsize
    try:
        if state["mapped"]:
            raise ValueError("its rows are in a journal, not in it")
        if state["schema"] != schema.digest():
            raise ValueError("it was made with another schema")
        count = int(state["head"]) - int(state["oldest"])
        if not 0 <= count * size <= len(data):
            raise ValueError(f"it says {count} rows but has {len(data)} bytes")
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    return np.array(data[: count * size]).view(schema.row_dtype)


def write_recording(path: Path, schema: RecordSchema, chunks: Iterable[Rows], count: int) -> None:
    """Write a segment file of just these rows; it stands at ``path`` once all of it is on the disk.

    Args:
        path: where; a file there is replaced.
        schema: what a row holds.
        chunks: the rows, in the order in which they are to be kept.
        count: how many they are together, at least 1.

    Raises:
        RecordError: if there are none, or not as many.
        ConfigError: if they do not fit on the disk.
    """
    if count < 1:
        raise RecordError(f"there are no rows to write into {path}")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.unlink(missing_ok=True)
    try:
        segment = Segment.create(unfinished, schema, count)
        for chunk in chunks:
            segment.append(chunk)
        written = segment.head
        segment.close()
        if written != count:
            raise RecordError(f"{written} rows came for {path}, announced were {count}")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def trim_recording(path: Path) -> int:
    """Give back the space that a segment file reserved and did not use; return its rows.

    A file without rows is removed.
    """
    segment = Segment.open(path, writable=False)
    count = segment.head - segment.oldest
    if not count:
        path.unlink()
    elif count < segment.capacity:
        write_recording(path, segment.schema, chunks_of(segment), count)
    return count


def chunks_of(segment: Segment) -> Iterator[Rows]:
    """Yield the rows of a segment, oldest first, some at a time."""
    for begin in range(segment.oldest, segment.head, CHUNK_ROWS):
        yield segment.read(np.arange(begin, min(begin + CHUNK_ROWS, segment.head)))


def joined(schema: RecordSchema, chunks: Iterable[Rows], count: int) -> Rows:
    """Return the ``count`` rows of all chunks, ``(count,)``, bytes between their fields included."""
    rows = schema.empty(count)
    whole, at = rows.view(np.uint8), 0
    for chunk in chunks:
        data = np.ascontiguousarray(chunk).view(np.uint8)
        whole[at : at + len(data)] = data
        at += len(data)
    return rows


def require_memory(schema: RecordSchema, count: int) -> None:
    """Refuse to read rows that do not fit into memory.

    Raises:
        ConfigError: with the numbers.
    """
    size = schema.row_dtype.itemsize
    limits.require(count * size, limits.available_memory(), rows=count, row_bytes=size, where="memory")


def check_order(rows: Rows) -> None:
    """Refuse rows that a replay would not understand.

    Raises:
        RecordError: if there are none, a stream's rows are not in rising order of (episode, step), a final
            one ends its episode again, or an episode ended and its final observation is not there.
    """
    if not len(rows):
        raise RecordError("there is not a single entry")
    flags = rows["flags"]
    final, ended = (flags & Flag.FINAL) != 0, (flags & (Flag.TERMINATED | Flag.TRUNCATED)) != 0
    order = np.argsort(rows["stream"], kind="stable")
    one, two = order[:-1], order[1:]
    same = rows["stream"][one] == rows["stream"][two]
    episode, step = rows["episode"].astype(np.int64), rows["step"].astype(np.int64)
    rising = (episode[two] > episode[one]) | ((episode[two] == episode[one]) & (step[two] > step[one]))
    follows = (episode[two] == episode[one]) & (step[two] == step[one] + 1) & final[two]
    for wrong, at, what in (
        (final & ended, np.arange(len(rows)), "is final, and no step: it cannot be terminated or truncated"),
        (same & ~rising, two, "is not after the entry before it: order by episode and step"),
        (same & ended[one] & ~follows, one, "ends its episode, and no final entry follows it"),
    ):
        if wrong.any():
            row = rows[at[int(np.argmax(wrong))]]
            raise RecordError(
                f"the entry of stream {row['stream']}, episode {row['episode']}, step {row['step']} {what}"
            )
