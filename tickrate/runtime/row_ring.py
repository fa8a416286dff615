"""A ring of rows from one process to another: in order, whole, and without waiting."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import WireError
from tickrate.runtime.shared_file import LINE, Shared, SharedFile


class RowRing(Shared):
    """Hands rows from one producer to one consumer, in order, without either waiting for the other.

    Either side may be restarted: it goes on where its predecessor stopped.

    Args:
        path: the file.
        dtype: dtype of a row, structured or not.
        capacity: rows that fit.
        create: see `SharedFile`; usually the launcher or the producer creates.
    """

    _HEAD, _DROPPED = 0, 1  # the producer's cells
    _TAIL = LINE // 8  # the consumer's cell
    _SLOTS = 2 * LINE
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
        self._file = SharedFile(path, description, self._SLOTS + capacity * self._stride, create=create)
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
        if not self._producing:
            # A producer that was killed before it moved the head may have finished this row.
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
        rows = self.peek(limit)
        self.free(len(rows))
        return rows

    def peek(self, limit: int) -> NDArray[Any]:
        """Return a copy of up to ``limit`` rows, oldest first, and leave them in; see `free`."""
        rows = bytearray()
        number = self._cells[self._TAIL]
        for _ in range(limit):
            row = self._row(number)
            if row is None:
                break
            rows += row
            number += 1
        return np.frombuffer(rows, self.dtype)

    def free(self, count: int) -> None:
        """Give up the oldest ``count`` rows, which were peeked at: now the producer may write over them."""
        self._cells[self._TAIL] += count

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
