"""A register that one process writes and others read: the newest payload wins, and is never torn."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from tickrate.errors import WireError
from tickrate.runtime.shared_file import LINE, Shared, SharedFile


class Register(Shared):
    """Holds the newest payload of one writer for any number of readers: weights in mid-episode.

    The writer fills two slots in turn, so a reader can copy the one while the other is written, and is torn
    only if it is overtaken twice; the checksum tells, and it reads again.

    Args:
        path: the file.
        capacity_bytes: longest payload.
        create: see `SharedFile`.
    """

    NONE = -1
    """Version before anything was written."""

    _WRITES, _VERSION = 0, 1  # cells: how often it was written, and the newest version + 1
    _SLOTS = LINE
    _STAMP = struct.Struct("<QqQI4x")  # of a slot: count of writes, version, length, crc32 of the payload
    _TRIES = 8

    def __init__(self, path: Path, capacity_bytes: int, *, create: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self._stride = self._STAMP.size + -(-capacity_bytes // 8) * 8
        description = {"kind": "register", "capacity_bytes": capacity_bytes}
        self._file = SharedFile(path, description, self._SLOTS + 2 * self._stride, create=create)
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
