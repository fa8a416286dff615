"""The newest policy of a worker, kept on its disk: it can act at the next start without a trainer."""

from __future__ import annotations

import logging
import struct
import zlib
from pathlib import Path

from tickrate import clock
from tickrate.runtime.run_folder import write_atomically
from tickrate.wire.messages import MAX_MESSAGE_BYTES, Weights

_log = logging.getLogger(__name__)

KEEP_EVERY_S = 10.0
"""Policies come several times a second; one in so many seconds is written."""
_HEAD = struct.Struct("<8sQQI")  # magic, version, life of the run, crc32 of the payload
_MAGIC = b"TICKPOL\0"


class WeightsFile:
    """One policy in one file, whole or not at all.

    Args:
        path: the file.
        life: the life of the run that the worker belongs to; the policy of another one is not read.
    """

    def __init__(self, path: Path, life: int) -> None:
        self._path, self._life = path, life
        self._next = 0.0

    def read(self) -> tuple[int, bytes] | None:
        """Return (version, weights), or None if there is none that can be used."""
        try:
            if self._path.stat().st_size > MAX_MESSAGE_BYTES:
                return None
            data = self._path.read_bytes()
        except OSError:
            return None
        if len(data) < _HEAD.size:
            return None
        magic, version, life, crc = _HEAD.unpack_from(data)
        payload = data[_HEAD.size :]
        if magic != _MAGIC or life != self._life or zlib.crc32(payload) != crc:
            return None
        return version, payload

    def keep(self, weights: Weights, life: int) -> None:
        """Write a policy, unless one was written in the last seconds; a full disk is no reason to stop."""
        now = clock.now()
        if now < self._next:
            return
        self._next = now + KEEP_EVERY_S
        head = _HEAD.pack(_MAGIC, weights.version, life, zlib.crc32(weights.payload))
        try:
            write_atomically(self._path, head + weights.payload)
        except OSError as error:
            _log.warning("the newest policy could not be kept in %s: %s", self._path, error)
