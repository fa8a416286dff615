"""The trainer's ledger: which streams there are, and up to which row each is safe in the journal.

A stream is one outbox of one worker; its number is its place here, and every row in the journal carries it.
An entry's name is written once, before the first row of the stream; afterwards only one 8-byte cell moves,
after the rows are in the journal. So a killed trainer finds, at worst, a cell that is one batch behind: that
batch comes again and the replay leaves it out.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from tickrate.errors import RecordError, Refused, WireError
from tickrate.runtime.shared_file import Shared, SharedFile

STREAMS = 4096
"""Streams of a run: each worker has one, and one more each time its outbox had to be made anew."""

_EXPECTED = struct.Struct("<q")
_NAME = struct.Struct("<QI4x128s")  # outbox, crc32 of outbox and name, name
_STRIDE = 192
_HEAD = 64
_LIFE = 0


class Ledger(Shared):
    """The streams of a run, in a file that outlives the trainer.

    Args:
        path: the file; made if it is not there.
        life: the life of the run, drawn when its folder was made; kept in a new file.
        capacity: most streams.

    Raises:
        RecordError: if the file is damaged or something else.
    """

    def __init__(self, path: Path, life: int, *, capacity: int = STREAMS) -> None:
        new = not path.exists()
        self._capacity = capacity
        try:
            self._file = SharedFile(
                path, {"kind": "ledger", "streams": capacity}, _HEAD + capacity * _STRIDE, create=new
            )
        except WireError as error:
            raise RecordError(f"the ledger cannot be used: {error}") from error
        if new:
            self._file.whole_numbers[_LIFE] = life
        self._numbers: dict[tuple[str, int], int] = {}
        self._load()

    @property
    def life(self) -> int:
        """The life of the run."""
        return self._file.whole_numbers[_LIFE]

    def _load(self) -> None:
        for number in range(self._capacity):
            outbox, crc, raw = _NAME.unpack_from(self._file.bytes, self._at(number) + _EXPECTED.size)
            if crc == 0 and outbox == 0:
                self._free = number
                return
            if crc != _crc(outbox, raw):
                self._numbers.setdefault(("", number), number)  # killed while it was entered: no row has it
                continue
            self._numbers[raw.rstrip(b"\0").decode(errors="replace"), outbox] = number
        self._free = self._capacity

    def stream(self, worker: str, outbox: int) -> int:
        """Return the number of a stream; a new one is entered.

        Raises:
            Refused: if there is no room for a new one.
        """
        known = self._numbers.get((worker, outbox))
        if known is not None:
            return known
        if self._free >= self._capacity:
            raise Refused(
                f"this run has {self._capacity} streams, its limit: {worker!r} cannot join. A worker whose "
                "folder is kept needs one only; start a new run"
            )
        number, self._free = self._free, self._free + 1
        raw = worker.encode()
        _NAME.pack_into(
            self._file.bytes,
            self._at(number) + _EXPECTED.size,
            outbox,
            _crc(outbox, raw.ljust(128, b"\0")),
            raw,
        )
        self._numbers[worker, outbox] = number
        return number

    def expected(self, stream: int) -> int:
        """Return the number of the next row of a stream."""
        return self._file.whole_numbers[self._at(stream) // 8]

    def advance(self, stream: int, expected: int) -> None:
        """Note that all rows below ``expected`` are in the journal (or lost for good)."""
        self._file.whole_numbers[self._at(stream) // 8] = expected

    def streams(self) -> dict[int, tuple[str, int]]:
        """Return (worker, outbox) by stream number."""
        return {number: key for key, number in self._numbers.items() if key[0]}

    @staticmethod
    def _at(number: int) -> int:
        return _HEAD + number * _STRIDE


def _crc(outbox: int, raw: bytes) -> int:
    return zlib.crc32(raw.rstrip(b"\0"), zlib.crc32(outbox.to_bytes(8, "little"))) or 1
