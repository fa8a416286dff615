"""Segment files that no longer grow: read whole, written whole or not at all, cut to the rows they hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tickrate.data import capacity as limits
from tickrate.data.records import Segment
from tickrate.data.schema import RecordSchema, Rows
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
    rows = segment.schema.empty(count)
    whole = rows.view(np.uint8)
    size = segment.schema.row_dtype.itemsize
    at = 0
    for chunk in chunks_of(segment):  # as bytes: numpy copies fields, and leaves what lies between them
        whole[at : at + len(chunk) * size] = chunk.view(np.uint8)
        at += len(chunk) * size
    return segment.schema, rows


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


def require_memory(schema: RecordSchema, count: int) -> None:
    """Refuse to read rows that do not fit into memory.

    Raises:
        ConfigError: with the numbers.
    """
    size = schema.row_dtype.itemsize
    limits.require(count * size, limits.available_memory(), rows=count, row_bytes=size, where="memory")
