"""What two processes of one machine share: a ring of rows, a newest-wins register, a block of named numbers.

All three are plain files mapped by both sides, in memory where the system has a place for that
(`shared_folder`). No call ever blocks. Nothing here relies on the order in which one core's writes reach
another: a row or a payload counts only if its sequence number and its checksum fit, so a reader sees it whole
    or not at all. Single numbers are
aligned 8-byte cells, which are written in one piece.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import VersionMismatch, WireError

FORMAT = 1

_MAGIC = b"TICKSHM\0"
_PREFIX = struct.Struct("<8sIII")  # magic, format, length and crc32 of the JSON description
_HEADER_BYTES = 4096
_LINE = 64
"""Bytes of a cache line: cells with different writers lie on different lines."""

_SHARED_MEMORY = Path("/dev/shm")


def shared_folder(needed_bytes: int = 256 << 20) -> Path:
    """Return where shared files belong: in memory where possible, else the temporary folder.

    Args:
        needed_bytes: room that ``/dev/shm`` must have to be chosen; a container often has only 64 MB there,
            and a process that fills it is killed.
    """
    writable = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    if writable and shutil.disk_usage(_SHARED_MEMORY).free >= needed_bytes:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


class _SharedFile:
    """A mapped file that describes itself, so that the two sides cannot misread each other.

    Args:
        path: the file.
        description: what it is; both sides must give the same.
        size: bytes after the header.
        create: make it anew (a file left by an earlier run is replaced) or open what another process made.

    Raises:
        WireError: if there is no such file, or it is something else; names the file and what differs.
        VersionMismatch: if another version of tickrate made it.
    """

    def __init__(self, path: Path, description: Mapping[str, Any], size: int, *, create: bool) -> None:
        self.path = path
        if create:
            self._create(description, _HEADER_BYTES + size)
        try:
            with path.open("r+b") as file:
                self._check(file.read(_HEADER_BYTES), description)
                if os.fstat(file.fileno()).st_size != _HEADER_BYTES + size:
                    raise WireError(f"{path} has another size than its description says: it was damaged")
                self.map = mmap.mmap(file.fileno(), _HEADER_BYTES + size)
        except FileNotFoundError as error:
            raise WireError(f"{path} does not exist: the process that makes it is not running") from error
        self.bytes = memoryview(self.map)[_HEADER_BYTES:]
        self.whole_numbers = self.bytes.cast("q")
        self.real_numbers = self.bytes.cast("d")

    def _create(self, description: Mapping[str, Any], size: int) -> None:
        text = json.dumps(description).encode()
        header = _PREFIX.pack(_MAGIC, FORMAT, len(text), zlib.crc32(text)) + text
        if len(header) > _HEADER_BYTES:
            raise WireError(
                f"{self.path}: its description takes {len(header)} bytes (at most {_HEADER_BYTES})"
            )
        free = shutil.disk_usage(self.path.parent).free
        if free < size:
            raise WireError(
                f"{self.path} needs {size:,} bytes, but only {free:,} are free in {self.path.parent}"
            )
        handle, name = tempfile.mkstemp(
            prefix=self.path.name, dir=self.path.parent
        )  # readable by this user alone
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            file.truncate(size)
        Path(name).replace(self.path)

    def _check(self, header: bytes, description: Mapping[str, Any]) -> None:
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise WireError(f"{self.path} is no shared file of tickrate")
        _, version, length, crc = _PREFIX.unpack_from(header)
        if version != FORMAT:
            raise VersionMismatch(f"{self.path} has format {version}, this process uses format {FORMAT}")
        text = header[_PREFIX.size : _PREFIX.size + length]
        if zlib.crc32(text) != crc:
            raise WireError(f"{self.path}: its description does not match its checksum: it was damaged")
        found = json.loads(text)
        for key in {**found, **description}:
            if found.get(key) != description.get(key):
                raise WireError(
                    f"{self.path}: {key} is {found.get(key)} there and {description.get(key)} here"
                )

    def close(self) -> None:
        self.whole_numbers.release()
        self.real_numbers.release()
        self.bytes.release()
        self.map.close()


class _Shared:
    """What the three have in common: a file to close and to remove."""

    _file: _SharedFile

    @property
    def path(self) -> Path:
        """The shared file."""
        return self._file.path

    def close(self) -> None:
        """Unmap the file; it stays for the other side. Closing twice does no harm."""
        self._file.close()

    def remove(self) -> None:
        """Unmap and delete the file. Who has it open keeps the mapping, but no new process can join."""
        self.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RowRing(_Shared):
    """Hands rows from one producer to one consumer, in order, without either waiting for the other.

    Either side may be restarted: it goes on where its predecessor stopped.

    Args:
        path: the file.
        dtype: dtype of a row, structured or not.
        capacity: rows that fit.
        create: see `_SharedFile`; usually the launcher or the producer creates.
    """

    _HEAD, _DROPPED, _TAIL = (
        0,
        1,
        _LINE // 8,
    )  # cells: the first two are the producer's, the last the consumer's
    _SLOTS = 2 * _LINE
    _STAMP = struct.Struct("<QI4x")  # of a slot: row number + 1, crc32 of the row begun with that number

    def __init__(self, path: Path, dtype: np.dtype[Any], capacity: int, *, create: bool) -> None:
        if capacity < 1:
            raise WireError(f"{path}: a ring of {capacity} rows; it needs at least 1")
        self.dtype = dtype
        self.capacity = capacity
        self._stride = self._STAMP.size + -(-dtype.itemsize // 8) * 8
        layout = zlib.crc32(repr(dtype).encode())
        description = {
            "kind": "ring",
            "capacity": capacity,
            "row_bytes": dtype.itemsize,
            "row_layout": layout,
        }
        self._file = _SharedFile(path, description, self._SLOTS + capacity * self._stride, create=create)
        self._cells = self._file.whole_numbers
        self._producing = False

    def push(self, row: NDArray[Any] | np.void) -> bool:
        """Copy in a row (scalar, of the ring's dtype); without room, count it as dropped and return False.

        Raises:
            WireError: if the row has another dtype.
        """
        if row.dtype != self.dtype:
            raise WireError(f"{self.path}: this row has the dtype {row.dtype}, the ring has {self.dtype}")
        cells = self._cells
        number = cells[self._HEAD]
        if (
            not self._producing
        ):  # a producer that was killed before it moved the head may have finished this row
            number += self._row(number) is not None
            self._producing = True
        at = self._offset(number)
        if number - cells[self._TAIL] >= self.capacity:
            cells[self._DROPPED] += 1
            return False
        data = row.tobytes()
        begin = at + self._STAMP.size
        self._file.bytes[begin : begin + len(data)] = data
        self._STAMP.pack_into(self._file.bytes, at, number + 1, zlib.crc32(data, (number + 1) & 0xFFFFFFFF))
        cells[self._HEAD] = number + 1
        return True

    def pop(self, limit: int) -> NDArray[Any]:
        """Take out up to ``limit`` rows, oldest first, as an array of its own, ``(n,)``; n may be 0."""
        rows = bytearray()
        number = self._cells[self._TAIL]
        for _ in range(limit):
            row = self._row(number)
            if row is None:
                break
            rows += row
            number += 1
        self._cells[self._TAIL] = number  # only now may the producer write over them
        return np.frombuffer(rows, self.dtype)

    def _row(self, number: int) -> bytes | None:
        """Return row ``number``, None while it is not there or not there whole."""
        at = self._offset(number)
        slot = bytes(self._file.bytes[at : at + self._stride])
        stamp, crc = self._STAMP.unpack_from(slot)
        if stamp != number + 1:
            return None
        row = slot[self._STAMP.size : self._STAMP.size + self.dtype.itemsize]
        return row if zlib.crc32(row, stamp & 0xFFFFFFFF) == crc else None

    def _offset(self, number: int) -> int:
        return self._SLOTS + number % self.capacity * self._stride

    def pending(self) -> int:
        """Return the number of rows that wait for the consumer."""
        return max(0, self._cells[self._HEAD] - self._cells[self._TAIL])

    @property
    def dropped(self) -> int:
        """Rows that found no room, ever."""
        return self._cells[self._DROPPED]


class Register(_Shared):
    """Holds the newest payload of one writer for any number of readers: weights in mid-episode.

    The writer fills two slots in turn, so a reader can copy the one while the other is written, and is torn
    only if it is overtaken twice; the checksum tells, and it reads again.

    Args:
        path: the file.
        capacity_bytes: longest payload.
        create: see `_SharedFile`.
    """

    NONE = -1
    """Version before anything was written."""

    _WRITES, _VERSION = 0, 1  # cells: how often it was written, and the newest version + 1
    _SLOTS = _LINE
    _STAMP = struct.Struct("<QqQI4x")  # of a slot: count of writes, version, length, crc32 of the payload
    _TRIES = 8

    def __init__(self, path: Path, capacity_bytes: int, *, create: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self._stride = self._STAMP.size + -(-capacity_bytes // 8) * 8
        description = {"kind": "register", "capacity_bytes": capacity_bytes}
        self._file = _SharedFile(path, description, self._SLOTS + 2 * self._stride, create=create)
        self._cells = self._file.whole_numbers

    def write(self, version: int, payload: bytes) -> None:
        """Make ``payload`` the newest.

        Raises:
            WireError: if it is longer than the register, or the version is negative.
        """
        if len(payload) > self.capacity_bytes:
            raise WireError(
                f"{self.path}: a payload of {len(payload)} bytes; it holds at most {self.capacity_bytes}"
            )
        if version < 0:
            raise WireError(f"{self.path}: version {version} is negative")
        count = self._cells[self._WRITES] + 1
        at = self._offset(count)
        begin = at + self._STAMP.size
        self._file.bytes[begin : begin + len(payload)] = payload
        self._STAMP.pack_into(
            self._file.bytes, at, count, version, len(payload), _payload_crc(count, version, payload)
        )
        self._cells[self._WRITES] = count
        self._cells[self._VERSION] = version + 1

    def version(self) -> int:
        """Return the newest version, `NONE` before the first; cheap enough for every tick."""
        return self._cells[self._VERSION] - 1

    def read(self) -> tuple[int, bytes] | None:
        """Return (version, payload) of the newest write, whole.

        None means that there is none yet, or that the writer was faster than every attempt to copy one: ask
        again at the next tick.
        """
        for _ in range(self._TRIES):
            count = self._cells[self._WRITES]
            if count == 0:
                return None
            at = self._offset(count)
            stamp, version, length, crc = self._STAMP.unpack_from(self._file.bytes, at)
            if stamp != count or length > self.capacity_bytes:
                continue
            begin = at + self._STAMP.size
            payload = bytes(self._file.bytes[begin : begin + length])
            if _payload_crc(count, version, payload) == crc:
                return version, payload
        return None

    def _offset(self, count: int) -> int:
        return self._SLOTS + count % 2 * self._stride


def _payload_crc(count: int, version: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<Qq", count, version)))


class ControlBlock(_Shared):
    """Named numbers that the processes of a run see at once: pause, stop, heartbeats, counters.

    Each cell should have one writer; setting is a single 8-byte store, so readers see the old value or the
    new.

    Args:
        path: the file.
        cells: ``"int64"`` or ``"float64"`` by name; every process gives the same.
        create: see `_SharedFile`; all cells are 0 then.

    Raises:
        WireError: if the kinds are others, or the file was made for other cells.
    """

    def __init__(self, path: Path, cells: Mapping[str, str], *, create: bool) -> None:
        foreign = {name: kind for name, kind in cells.items() if kind not in ("int64", "float64")}
        if foreign or not cells:
            raise WireError(
                f"{path}: cells are int64 or float64, and at least one; got {foreign or dict(cells)}"
            )
        description = {"kind": "control", "cells": [[name, kind] for name, kind in cells.items()]}
        self._file = _SharedFile(path, description, len(cells) * _LINE, create=create)
        views: dict[str, memoryview[Any]] = {
            "int64": self._file.whole_numbers,
            "float64": self._file.real_numbers,
        }
        self._cells = {name: (views[kind], i * _LINE // 8) for i, (name, kind) in enumerate(cells.items())}

    def get(self, name: str) -> int | float:
        """Return a cell's value."""
        view, at = self._cell(name)
        value: int | float = view[at]
        return value

    def set(self, name: str, value: int | float) -> None:
        """Set a cell; a whole-number cell takes whole numbers only (TypeError otherwise)."""
        view, at = self._cell(name)
        view[at] = value

    def _cell(self, name: str) -> tuple[memoryview[Any], int]:
        if name not in self._cells:
            raise WireError(f"{self.path} has no cell {name!r}; it has {list(self._cells)}")
        return self._cells[name]
