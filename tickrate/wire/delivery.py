"""Delivery of numbered rows as pure arithmetic: what to send, what to take in, what to ask for again.

The rows of an outbox are numbered for ever. The worker keeps a row until the trainer's cumulative
acknowledgement has passed it; the trainer takes rows in order only, leaves out what it has, and asks again
for what is missing (go-back-N). It grants ``window`` rows beyond what it has stored, so no more than that are
under way or unread, however slow it is. Acknowledgement and grant are totals, not increments: one that is
lost, repeated or overtaken does no harm.
"""

from __future__ import annotations

RESEND_AFTER_S = 10.0
"""Seconds without any progress after which a worker sends again what is not acknowledged; doubles each
time."""
LONGEST_PAUSE_S = 60.0
"""Most seconds between two such attempts."""


class Sender:
    """The worker's side, for one outbox.

    Args:
        acknowledged: rows below this number are known to be safe at the trainer.
    """

    def __init__(self, acknowledged: int = 0) -> None:
        self.acknowledged = acknowledged
        """Rows below this number are safe at the trainer."""
        self.granted = acknowledged
        """Rows below this number may be sent."""
        self.next = acknowledged
        """Number of the next row to send."""
        self.resent = 0
        """Rows sent again so far."""
        self._progress_at = 0.0
        self._patience_s = RESEND_AFTER_S

    def begin(self, acknowledged: int) -> None:
        """Begin with a trainer, or an outbox, that has the rows below this number; nothing is granted yet."""
        self.acknowledged = self.granted = self.next = acknowledged
        self._patience_s = RESEND_AFTER_S

    def may_send(self, head: int, most: int) -> int:
        """Return how many rows from `next` on may be sent now, below ``head`` and at most ``most``."""
        return max(0, min(head - self.next, self.granted - self.next, most))

    def sent(self, count: int, now: float) -> None:
        """Note that ``count`` rows have been sent at the time ``now`` (s).

        Raises:
            ValueError: if the grant does not cover them.
        """
        if count > self.granted - self.next:
            raise ValueError(
                f"{count} rows from {self.next} on with a grant of {self.granted}: ask may_send()"
            )
        if self.next == self.acknowledged:
            self._progress_at = now
        self.next += count

    def on_ack(self, acknowledged: int, granted: int, *, resend: bool, now: float) -> None:
        """Take in an acknowledgement; an older one, overtaken on the way, changes nothing."""
        if acknowledged > self.acknowledged:
            self.acknowledged = acknowledged
            self.next = max(self.next, acknowledged)
            self._progress_at, self._patience_s = now, RESEND_AFTER_S
        self.granted = max(self.granted, granted)
        if resend and acknowledged == self.acknowledged:
            self.rewind(now)

    def rewind(self, now: float) -> None:
        """Send again everything that is not acknowledged: rows were lost, or the trainer is another one."""
        self.resent += self.next - self.acknowledged
        self.next = self.acknowledged
        self._progress_at = now

    def forget_grant(self) -> None:
        """The trainer that gave the grant is gone; its successor grants anew."""
        self.granted = self.next = self.acknowledged

    def skip_to(self, oldest: int) -> None:
        """Go on from ``oldest``: the outbox has dropped the rows before it."""
        self.acknowledged = max(self.acknowledged, oldest)
        self.next = max(self.next, oldest)
        self.granted = max(self.granted, self.next)

    def overdue(self, now: float) -> bool:
        """Tell whether it is time to send again for want of progress; the next time is twice as far off."""
        if self.next == self.acknowledged or now - self._progress_at < self._patience_s:
            return False
        self._patience_s = min(2 * self._patience_s, LONGEST_PAUSE_S)
        return True


class Receiver:
    """The trainer's side, for one outbox of one worker.

    Args:
        window: rows that may be under way or unread. Usual range: a few seconds of rows.
        expected: number of the next new row.

    Raises:
        ValueError: if ``window`` is below 1.
    """

    def __init__(self, window: int, expected: int = 0) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} rows would let nothing through; give 1 or more")
        self.window = window
        self.expected = expected
        """Number of the next new row; all below are stored, or were dropped by the worker."""
        self.lost = 0
        """Rows that the worker had dropped before they could be delivered."""
        self.repeated = 0
        """Rows that came again and were left out."""
        self.early = 0
        """Rows that came before others that are missing, and will come again."""

    @property
    def granted(self) -> int:
        """Rows below this number may be sent."""
        return self.expected + self.window

    def on_rows(self, sequence: int, count: int, oldest: int) -> tuple[int, int]:
        """Take in rows numbered from ``sequence``; return which of them, ``(begin, end)``, to store.

        Nothing is counted as stored yet: call `stored` once they are.

        Args:
            sequence: number of the first row.
            count: how many there are.
            oldest: the lowest row number that the worker still holds.
        """
        self.on_dropped(oldest)
        if sequence > self.expected:
            self.early += count
            return 0, 0
        skip = min(count, self.expected - sequence)
        self.repeated += skip
        return skip, count

    def stored(self, end: int) -> None:
        """Note that all rows below number ``end`` are stored."""
        self.expected = max(self.expected, end)

    def on_dropped(self, oldest: int) -> None:
        """Note that the worker has dropped the rows below ``oldest``: what is missing of them never comes."""
        if oldest > self.expected:
            self.lost += oldest - self.expected
            self.expected = oldest

    def missing(self, sent: int) -> bool:
        """Tell whether rows are missing although the worker has sent all below ``sent``."""
        return sent > self.expected
