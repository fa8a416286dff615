"""Episode reports on their way to the trainer: numbered, in order, sent again until they are acknowledged.

They wait in the companion's memory, unlike rows: a killed companion takes those that were not acknowledged
with it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import msgspec

from tickrate.wire.messages import EpisodeReport

BUFFERED_REPORTS = 10_000
"""Reports kept while no trainer takes them; beyond it the oldest are dropped."""
REPORTS_UNDER_WAY = 64
"""Reports that may be under way unacknowledged."""
REPORTS_AGAIN_S = 2.0
"""Reports that are not acknowledged for so long are sent again."""


class ReportQueue:
    """The reports of one boot of a companion."""

    def __init__(self) -> None:
        self._waiting: deque[EpisodeReport] = deque(maxlen=BUFFERED_REPORTS)
        self._sent = 0
        self._moved_at = 0.0
        self.made = 0
        """Reports made so far; the number of the newest."""
        self.acknowledged = 0
        """Reports up to this number have arrived, or were dropped."""

    def __len__(self) -> int:
        """Return how many wait for their acknowledgement."""
        return len(self._waiting)

    def add(self, report: EpisodeReport) -> None:
        """Take a report; it is numbered here. In a full queue the oldest gives way."""
        if len(self._waiting) == BUFFERED_REPORTS:  # the trainer must not wait for it
            self.acknowledged = self._waiting[0].sequence
        self.made += 1
        self._waiting.append(msgspec.structs.replace(report, sequence=self.made))

    def due(self, now: float) -> Iterator[EpisodeReport]:
        """Yield the reports to send at the time ``now`` (s), and count each as sent."""
        if self._sent > self.acknowledged and now - self._moved_at > REPORTS_AGAIN_S:
            self.rewind()  # one was lost on the way
        limit = self.acknowledged + REPORTS_UNDER_WAY
        for report in itertools.islice(self._waiting, REPORTS_UNDER_WAY):
            if self._sent < report.sequence <= limit:
                yield report
                self._sent, self._moved_at = report.sequence, now

    def on_ack(self, number: int, now: float) -> None:
        """Note that all reports up to ``number`` have arrived."""
        if number > self.acknowledged:
            self.acknowledged, self._moved_at = min(number, self.made), now
        while self._waiting and self._waiting[0].sequence <= self.acknowledged:
            self._waiting.popleft()

    def rewind(self) -> None:
        """Send again what is not acknowledged."""
        self._sent = self.acknowledged
