"""The layout of a segment file: its header, where its parts lie, and the mapping of them as arrays.

Everything is little-endian, and each part starts at a page:

    header   magic, format version, length and crc32 of a JSON text: schema, its digest, capacity
    log      capacity entries of `commits.ENTRY`
    rows     capacity x head bytes: every field but those stored apart
    frames   for each field stored apart: capacity x its bytes
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tickrate.data import capacity as limits
from tickrate.data.commits import ENTRY
from tickrate.data.schema import MAX_JSON_BYTES, RecordSchema, Rows
from tickrate.errors import RecordError
from tickrate.trees import Leaves

MAGIC = b"TICKSEG\0"
FORMAT = 1
MAX_CAPACITY = 2**32 - 1

_PAGE = 4096
_HEADER = np.dtype([("magic", "V8"), ("format", "<u4"), ("length", "<u4"), ("crc", "<u4")])


@dataclass(frozen=True)
class Mapped:
    """The parts of a mapped segment file."""

    whole: np.memmap[Any, Any]
    log: NDArray[np.void]
    rows: Rows
    frames: Leaves


def require_disk(path: Path, schema: RecordSchema, capacity: int) -> None:
    """Refuse a segment file that does not fit on its disk.

    Raises:
        ConfigError: with the numbers.
    """
    limits.require(
        _layout(schema, capacity, len(_header(schema, capacity)))[1],
        limits.available_disk(path.parent),
        rows=capacity,
        row_bytes=schema.stored_bytes + ENTRY.itemsize,
        where=f"the disk of {path.parent}",
    )


def _header(schema: RecordSchema, capacity: int) -> bytes:
    body = {"schema": json.loads(schema.to_json()), "digest": schema.digest(), "capacity": capacity}
    text = json.dumps(body).encode()
    return np.array((MAGIC, FORMAT, len(text), zlib.crc32(text)), _HEADER).tobytes() + text


def create_file(path: Path, schema: RecordSchema, capacity: int) -> Mapped:
    """Write an empty segment file with its whole size reserved on the disk, and map it.

    Raises:
        ConfigError: if it does not fit on the disk; with the numbers.
        FileExistsError: if ``path`` exists.
    """
    require_disk(path, schema, capacity)
    header = _header(schema, capacity)
    parts, size = _layout(schema, capacity, len(header))
    if path.exists():
        raise FileExistsError(f"{path} exists already; open it, or remove it first")
    unfinished = path.with_name(
        f"{path.name}.{os.getpid()}.tmp"
    )  # so that a half-made file never stands at path
    try:
        with unfinished.open("wb") as file:
            file.write(header)
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # a mapped write to a full disk would end the process (SIGBUS)
                os.posix_fallocate(file.fileno(), 0, size)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return _map(path, schema, capacity, parts, "r+")


def open_file(path: Path, *, writable: bool = True) -> tuple[RecordSchema, int, Mapped]:
    """Return (schema, capacity, mapped parts) of a segment file. Its rows are not verified yet.

    What is written into the parts of one that is not ``writable`` stays in memory.

    Raises:
        RecordError: if it is no segment file of this format, or its size is not what its header says.
    """
    schema, capacity, header_size = _read_header(path)
    parts, size = _layout(schema, capacity, header_size)
    if path.stat().st_size != size:
        raise RecordError(
            f"{path} has {path.stat().st_size} bytes, but its header says {size}: the file was cut or grew"
        )
    return schema, capacity, _map(path, schema, capacity, parts, "r+" if writable else "c")


def _layout(schema: RecordSchema, capacity: int, header_size: int) -> tuple[dict[str, int], int]:
    """Return where each part of a segment file begins, and the file's size."""
    sizes = {"log": ENTRY.itemsize, "rows": schema.head_bytes}
    sizes |= {name: field.nbytes for name, field in schema.apart.items()}
    parts, offset = {}, header_size
    for part, size in sizes.items():
        offset = -(-offset // _PAGE) * _PAGE
        parts[part] = offset
        offset += size * capacity
    return parts, -(-offset // _PAGE) * _PAGE


def _map(
    path: Path, schema: RecordSchema, capacity: int, parts: dict[str, int], mode: Literal["r+", "c"]
) -> Mapped:
    whole = np.memmap(path, np.uint8, mode=mode)

    def view(part: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> NDArray[Any]:
        count = capacity * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        flat: NDArray[Any] = np.asarray(whole[parts[part] : parts[part] + count])
        return flat.view(dtype).reshape(capacity, *shape)

    frames = {name: view(name, field.storage, field.shape) for name, field in schema.apart.items()}
    return Mapped(whole, view("log", ENTRY), view("rows", schema.head_dtype), frames)


def _read_header(path: Path) -> tuple[RecordSchema, int, int]:
    """Return (schema, capacity, bytes of the header); everything in it is checked."""
    with path.open("rb") as file:
        start = file.read(_HEADER.itemsize)
        if len(start) < _HEADER.itemsize or not start.startswith(MAGIC):
            raise RecordError(f"{path} is no tickrate segment file")
        header = np.frombuffer(start, _HEADER)[0]
        if header["format"] != FORMAT:
            raise RecordError(f"{path} has format {header['format']}, this tickrate reads format {FORMAT}")
        if header["length"] > 2 * MAX_JSON_BYTES:
            raise RecordError(
                f"{path}: a header of {header['length']} bytes is too long: the file is damaged"
            )
        text = file.read(int(header["length"]))
    if zlib.crc32(text) != header["crc"]:
        raise RecordError(f"{path}: the header does not match its checksum: the file is damaged")
    try:
        body = json.loads(text)
        schema = RecordSchema.from_json(json.dumps(body["schema"]))
        capacity, digest = body["capacity"], body["digest"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: the header cannot be read: {error}") from error
    if digest != schema.digest() or not isinstance(capacity, int) or not 1 <= capacity <= MAX_CAPACITY:
        raise RecordError(
            f"{path}: the header says capacity {capacity} and digest {digest}: the file is damaged"
        )
    return schema, capacity, _HEADER.itemsize + len(text)
