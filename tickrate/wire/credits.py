"""Flow control of rows as pure arithmetic: how many a worker may send, and how the trainer grants more.

Rows are numbered per boot, when they are sent. The trainer grants numbers: every row below ``granted`` may be
sent. It grants ``window`` rows beyond what it has stored, so no more than ``window`` rows of a worker are
under way or unread, however slow the trainer is. A grant is a total, not an increment, so one that is lost or
repeated does no harm. A worker that is out of credit and has heard nothing for a while says where it stands
with an empty batch; rows that were lost on the way are then counted as lost and their credit is given back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class CreditSender:
    """The worker's side, for one boot."""

    def __init__(self) -> None:
        self.next_sequence = 0
        """Number of the next row to send; all below have been sent."""
        self.granted = 0
        """Rows below this number may be sent."""

    @property
    def available(self) -> int:
        """Rows that may be sent now."""
        return max(0, self.granted - self.next_sequence)

    def may_send(self, count: int) -> int:
        """Return how many of ``count`` rows may be sent now."""
        return min(count, self.available)

    def sent(self, count: int) -> int:
        """Note that ``count`` rows are sent; return the number of the first.

        Raises:
            ValueError: if the credit does not cover them.
        """
        if count > self.available:
            raise ValueError(f"{count} rows with a credit of {self.available}: ask may_send() first")
        first = self.next_sequence
        self.next_sequence += count
        return first

    def on_credit(self, granted: int) -> None:
        """Take in a grant for this boot; an older one, overtaken on the way, changes nothing."""
        self.granted = max(self.granted, granted)


class CreditGranter:
    """The trainer's side, for one worker.

    Args:
        window: rows a worker may have under way or unread. Usual range: a few seconds of rows.

    Raises:
        ValueError: if ``window`` is below 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} rows would let nothing through; give 1 or more")
        self.window = window
        self.boot: int | None = None
        """The boot these numbers belong to; None before the first contact."""
        self.expected = 0
        """Number of the next new row; all below are stored or lost."""
        self.lost = 0
        """Rows that were sent and never came, over all boots."""
        self.repeated = 0
        """Rows that came again and were left out, over all boots."""
        self._last_grant = 0

    @property
    def granted(self) -> int:
        """Rows below this number may be sent."""
        return self.expected + self.window

    def on_hello(self, boot: int, sequence: int) -> None:
        """Follow a worker that has come up; ``sequence`` is the number of the next row it will send.

        A Hello counts even if its boot number is smaller, as it may be after the clock was set back.
        """
        if boot != self.boot:
            self.boot, self.expected, self._last_grant = boot, sequence, 0

    def on_rows(self, boot: int, sequence: int, count: int) -> int:
        """Take in rows ``sequence`` to ``sequence + count - 1``; return how many of the first to leave out.

        Call it when the rows have been taken from the mailbox and are about to be stored. Rows of an older
        boot (a process that was replaced but is not yet dead) are left out whole. A batch of no rows only
        tells the worker's position.
        """
        if self.boot is None:
            self.on_hello(boot, sequence)  # rows before the first contact went to an earlier trainer
        elif boot > self.boot:
            self.on_hello(boot, 0)  # its Hello was lost; the rows before these were meant for us
        elif boot < self.boot:
            self.repeated += count
            return count
        if sequence > self.expected:
            self.lost += sequence - self.expected
            self.expected = sequence
        skip = min(count, self.expected - sequence)
        self.repeated += skip
        self.expected = max(self.expected, sequence + count)
        return skip

    def next_grant(self, *, repeat: bool = False) -> int | None:
        """Return a grant to send now, or None while it is not worth a message.

        A grant is due once a quarter of the window has been used. ``repeat`` returns the present one in any
        case: for the answer to a Hello or an empty batch, and now and then in case one was lost.
        """
        if not repeat and self.granted - self._last_grant < max(1, self.window // 4):
            return None
        self._last_grant = self.granted
        return self.granted


class RowQueue:
    """Rows that wait to be sent: a ring of fixed size; when it is full the oldest are dropped and counted.

    Args:
        dtype: the row dtype.
        capacity: most rows kept.

    Raises:
        ValueError: if ``capacity`` is below 1.
    """

    def __init__(self, dtype: np.dtype[Any], capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a queue of capacity {capacity} holds nothing; give 1 or more")
        self._ring = np.zeros(capacity, dtype)
        self._first = 0
        self._count = 0
        self.dropped = 0
        """Rows dropped unsent since the start."""

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return self._count

    def put(self, rows: NDArray[Any]) -> None:
        """Append a copy of ``rows`` (``(n,)``), dropping the oldest beyond the capacity."""
        capacity = len(self._ring)
        self.dropped += max(0, self._count + len(rows) - capacity)
        rows = rows[-capacity:]
        overflow = max(0, self._count + len(rows) - capacity)
        self._first = (self._first + overflow) % capacity
        self._count -= overflow
        where = (self._first + self._count + np.arange(len(rows))) % capacity
        self._ring[where] = rows
        self._count += len(rows)

    def take(self, count: int) -> NDArray[Any]:
        """Remove and return up to ``count`` of the oldest rows, as a copy."""
        count = max(0, min(count, self._count))
        where = (self._first + np.arange(count)) % len(self._ring)
        self._first = (self._first + count) % len(self._ring)
        self._count -= count
        return self._ring[where]
