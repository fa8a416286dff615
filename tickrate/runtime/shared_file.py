"""A file that two processes of one machine map at once, and that says what it is.

It lies in memory where the system has a place for that (`shared_folder`). `RowRing`, `Register` and
`ControlBlock` are such files, and share three promises. No call ever blocks. Nothing relies on the order in
which one core's writes reach another: a row or a payload counts only if its sequence number and its checksum
fit, so a reader sees it whole or not at all. Single numbers are aligned 8-byte cells, written in one piece.
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

from tickrate.errors import VersionMismatch, WireError

FORMAT = 1

_MAGIC = b"TICKSHM\0"
_PREFIX = struct.Struct("<8sIII")  # magic, format, length and crc32 of the JSON description
_HEADER_BYTES = 4096
_RESERVED_BYTES = 1 << 20
"""Files up to this size get their place on the disk at once: a mapped write to a full disk ends the process.
Larger ones lie in memory, and take pages as they fill."""
LINE = 64
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


class SharedFile:
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
        # mkstemp's file is readable by this user alone.
        handle, name = tempfile.mkstemp(prefix=self.path.name, dir=self.path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            file.truncate(size)
            if size <= _RESERVED_BYTES and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
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
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WireError(f"{self.path}: its description is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise WireError(f"{self.path}: its description is no JSON object: {str(found)[:100]}")
        for key in {**found, **description}:
            if found.get(key) != description.get(key):
                raise WireError(
                    f"{self.path}: {key} is {found.get(key)} there and {description.get(key)} here"
                )

    def close(self) -> None:
        """Unmap the file; closing twice does no harm."""
        self.whole_numbers.release()
        self.real_numbers.release()
        self.bytes.release()
        self.map.close()


class Shared:
    """What everything that is shared has in common: a file to close and to remove."""

    _file: SharedFile

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
