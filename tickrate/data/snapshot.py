"""A file that is there whole or not at all: JSON header and bytes, one checksum, replaced in one move."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import RecordError

MAGIC = b"TICKSNAP"
FORMAT = 1

_PREFIX = np.dtype([("magic", "V8"), ("format", "<u4"), ("length", "<u4")])
_TRAILER_BYTES = 4
_CHUNK = 1 << 22
MAX_HEADER_BYTES = 1 << 26


def write_snapshot(path: Path, header: dict[str, Any], chunks: Iterable[NDArray[Any]]) -> None:
    """Write the file beside its place, force it to the disk, and put it there in one move.

    Args:
        path: where it shall be; a file there is replaced.
        header: JSON-able; where the state is described.
        chunks: arrays whose bytes follow one another.
    """
    text = json.dumps(header).encode()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            crc = 0
            for part in (np.array((MAGIC, FORMAT, len(text)), _PREFIX).tobytes(), text):
                crc = zlib.crc32(part, crc)
                file.write(part)
            for chunk in chunks:
                data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
                crc = zlib.crc32(data, crc)
                file.write(data)
            file.write(crc.to_bytes(_TRAILER_BYTES, "little"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_snapshot(path: Path) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return (header, bytes) of a snapshot whose checksum is right; the bytes are mapped, not loaded.

    Raises:
        RecordError: if the file is missing, cut short, damaged, or no snapshot.
    """
    if not path.is_file():
        raise RecordError(f"{path} is missing")
    size = path.stat().st_size
    if size < _PREFIX.itemsize + _TRAILER_BYTES:
        raise RecordError(f"{path} is no snapshot: it has only {size} bytes")
    whole = np.memmap(path, np.uint8, mode="r")
    prefix = np.frombuffer(whole[: _PREFIX.itemsize].tobytes(), _PREFIX)[0]
    if prefix["magic"].tobytes() != MAGIC or prefix["format"] != FORMAT:
        raise RecordError(f"{path} is no snapshot of format {FORMAT}")
    begin, end = _PREFIX.itemsize + int(prefix["length"]), size - _TRAILER_BYTES
    if prefix["length"] > MAX_HEADER_BYTES or begin > end:
        raise RecordError(f"{path}: its header of {prefix['length']} bytes does not fit: the file is damaged")
    crc = 0
    for at in range(0, end, _CHUNK):
        crc = zlib.crc32(whole[at : min(at + _CHUNK, end)].data, crc)
    if crc != int.from_bytes(whole[end:].tobytes(), "little"):
        raise RecordError(f"{path} does not match its checksum: it is damaged or was cut short")
    try:
        header = json.loads(whole[_PREFIX.itemsize : begin].tobytes())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise RecordError(f"{path}: its header is no JSON object: {str(header)[:100]}")
    return header, np.asarray(whole[begin:end])
