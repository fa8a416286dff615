"""The commit log of a segment file: which rows were written together, and whether they are still the same.

One entry a commit: number of its first row, count, crc32 of its rows and frames, crc32 of the entry. The log
is a ring with as many entries as the segment has rows; a commit has at least one row, so an entry is only
overwritten when the rows it speaks of are long gone.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import RecordError

ENTRY = np.dtype([("first", "<u8"), ("count", "<u4"), ("crc", "<u4"), ("check", "<u4"), ("unused", "<u4")])
_CHECKED_BYTES = 16
"""Bytes of an entry that its own checksum covers: first, count, crc."""

_MOST_ROWS = np.uint64(1 << 62)

Checksum = Callable[[int, int], int]
"""``checksum(first, count)``: crc32 of the stored rows ``first`` to ``first + count - 1``."""


class CommitLog:
    """The log over an array of entries, usually part of a mapped file.

    Args:
        entries: one `ENTRY` per row of the segment; zeros in a new file.

    Attributes:
        live: (first, end) of each commit whose rows are all still there, oldest first.
    """

    def __init__(self, entries: NDArray[np.void]) -> None:
        self._entries = entries
        self._next = 0
        self.live: deque[tuple[int, int]] = deque()

    def commit(self, first: int, count: int, crc: int) -> None:
        """Enter rows that have been written: from here on they count."""
        entry = np.zeros((), ENTRY)
        entry["first"], entry["count"], entry["crc"] = first, count, crc
        entry["check"] = zlib.crc32(entry.tobytes()[:_CHECKED_BYTES])
        self._entries[self._next] = entry
        self._next = (self._next + 1) % len(self._entries)
        self.live.append((first, first + count))

    def make_room(self, keep: int) -> int | None:
        """Give up each commit that begins before row ``keep``; return the end of the last one or None."""
        end = None
        while self.live and self.live[0][0] < keep:
            end = self.live.popleft()[1]
        return end

    def recover(self, checksum: Checksum) -> list[str]:
        """Find the newest unbroken chain of good commits, make it the live one, and return what was cut off.

        Raises:
            RecordError: if there is damage elsewhere than at the two ends of the chain.
        """
        log = np.array(self._entries)
        written = np.flatnonzero(log["count"])
        slots = written[_entry_checks(log[written]) == log["check"][written]]
        slots = slots[_possible(log[slots], len(log))]
        if not len(slots):
            if len(written) > 1:
                raise RecordError(
                    f"none of the {len(written)} entries of its commit log can be read: restore a copy"
                )
            return ["the only commit: damaged"] if len(written) else []
        unreadable = len(written) - len(slots)
        slots = slots[np.argsort(log["first"][slots], kind="stable")]
        first = log["first"][slots].astype(np.int64)
        end = first + log["count"][slots].astype(np.int64)
        whole = (
            first + len(log) >= end.max()
        )  # older ones are overwritten in part or whole: nothing to verify them by
        slots, first, end = slots[whole], first[whole], end[whole]
        crcs = [checksum(int(f), int(e - f)) for f, e in zip(first, end, strict=True)]
        good = np.flatnonzero(log["crc"][slots] == np.array(crcs, np.uint32))
        if not len(good):
            raise RecordError(f"none of its {len(slots)} commits matches its checksum: restore a copy")
        begin, stop = int(good[0]), int(good[-1]) + 1
        self._refuse_inner_damage(first[begin:stop], end[begin:stop], good - begin)
        self.live = deque((int(f), int(e)) for f, e in zip(first[begin:stop], end[begin:stop], strict=True))
        self._next = (int(slots[stop - 1]) + 1) % len(log)
        self._entries[slots[stop:]] = np.zeros((), ENTRY)
        newest = len(slots) - stop + unreadable
        # At most one commit's rows, a 64th of the ring, are ahead of the last entry.
        wraps = end.max() + max(1, len(log) // 64) > len(log)
        why = "they were being overwritten" if wraps else "damaged"
        notes = [f"{begin} of the oldest commits: {why}"] if begin else []
        return notes + ([f"{newest} of the newest commits: damaged"] if newest else [])

    @staticmethod
    def _refuse_inner_damage(
        first: NDArray[np.int64], end: NDArray[np.int64], good: NDArray[np.int64]
    ) -> None:
        broken = np.setdiff1d(np.arange(len(first)), good)
        gaps = np.flatnonzero(first[1:] != end[:-1])
        for at, what in ((broken, "does not match its checksum"), (gaps, "is followed by a gap")):
            if len(at):
                raise RecordError(
                    f"the commit of rows {first[at[0]]} to {end[at[0]] - 1} {what}, with good ones "
                    "on both sides: the file was damaged after it was written; restore a copy"
                )


def _possible(entries: NDArray[np.void], capacity: int) -> NDArray[np.bool_]:
    """Tell which entries a commit can have: rows that lie side by side in the ring, numbered below 2^62."""
    first, count = entries["first"], entries["count"].astype(np.uint64)
    possible: NDArray[np.bool_] = (first < _MOST_ROWS) & (count <= capacity - first % capacity)
    return possible


def _entry_checks(entries: NDArray[np.void]) -> NDArray[np.uint32]:
    raw = entries.tobytes()
    size = ENTRY.itemsize
    checks = [zlib.crc32(raw[at : at + _CHECKED_BYTES]) for at in range(0, len(raw), size)]
    return np.array(checks, np.uint32)
