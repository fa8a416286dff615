"""Stores what has arrived of all workers in one go: many small batches cost as much as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate import clock
from tickrate.data.checksums import Verdict, has_checksum
from tickrate.data.schema import Flag, taken
from tickrate.runtime.learner import Learner
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.peers import Peer

STORE_BYTES = 1 << 20
"""Rows that wait to be stored together, in bytes; a large batch does not wait for others."""


class Arrivals:
    """Rows that were taken in and are stored next; nothing of them is acknowledged before.

    Args:
        learner: what keeps and learns.
        ledger: notes how far each stream has come, once its rows are in the journal.
        refuse: called with what had to be left out, in words.

    Attributes:
        spoilt_rows: rows that were left out because they hold numbers that are not finite.
    """

    def __init__(self, learner: Learner, ledger: Ledger, refuse: Callable[[str], None]) -> None:
        self._learner, self._ledger, self._refuse = learner, ledger, refuse
        self._checked = has_checksum(learner.replay.schema)
        self._waiting: list[tuple[Peer, NDArray[Any]]] = []
        self._bytes = 0
        self._touched: dict[int, Peer] = {}
        self.spoilt_rows = 0

    def touch(self, peer: Peer) -> None:
        """Note that a peer's rows have moved on, even if none of them is to be stored."""
        self._touched[peer.stream] = peer

    def add(self, peer: Peer, rows: NDArray[Any]) -> None:
        """Take rows of one worker, in order; they are changed here and must not be used afterwards."""
        rows["stream"] = peer.stream  # what the ledger gave this worker, whatever it says itself
        finite = self._learner.replay.finite(rows)
        if not finite.all():
            spoilt = int(np.count_nonzero(~finite))
            self.spoilt_rows += spoilt
            self._refuse(f"{spoilt} rows of {peer.name} hold numbers that are not finite: left out")
            rows = taken(rows, finite)
        if len(rows):
            self._waiting.append((peer, rows))
            self._bytes += rows.nbytes
        if self._bytes >= STORE_BYTES:
            self.store()

    def store(self) -> None:
        """Store what waits and note it in the ledger: from here on it may be acknowledged."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            before = self._learner.replay.rows_added
            new = self._learner.intake.add(_joined([rows for _, rows in waiting]))
            begin = 0
            for peer, rows in waiting:
                self._note(peer, rows, new[begin : begin + len(rows)])
                begin += len(rows)
            if self._checked:
                self._compare({peer.stream: peer for peer, _ in waiting}, before)
        for peer in self._touched.values():
            self._ledger.advance(peer.stream, peer.receiver.expected)
        self._touched.clear()

    def _note(self, peer: Peer, rows: NDArray[Any], new: NDArray[np.bool_]) -> None:
        acted = (rows["flags"] & Flag.FINAL) == 0
        peer.stored_at = clock.now()
        peer.rate.count(len(rows))
        peer.rows += len(rows)
        peer.steps += int(np.count_nonzero(acted))
        newest = np.flatnonzero(acted & new)
        if len(newest):
            peer.policy = self._learner.intake.note_policy(rows[newest[-1]], peer.clock_offset_s)

    def _compare(self, peers: dict[int, Peer], before: int) -> None:
        """In checksum mode, prove that the new transitions are the ones that the workers saw."""
        replay = self._learner.replay
        # The newest row of each worker waited for its successor, the first one of these.
        waiting = [peer.unproved for peer in peers.values() if peer.unproved is not None]
        waiting = sorted(number for number in waiting if number >= replay.oldest_row)
        numbers = np.array([*waiting, *range(before, replay.rows_added)], np.int64)
        if not len(numbers):
            return
        verdicts, streams = replay.verify(numbers), replay.read(numbers)["stream"]
        for stream, peer in peers.items():
            mine = streams == stream
            peer.proved += int(np.count_nonzero(verdicts[mine] == Verdict.EQUAL))
            wrong = numbers[mine][verdicts[mine] == Verdict.DIFFERENT]
            if mine.any():
                last = verdicts[mine][-1] == Verdict.UNKNOWN
                peer.unproved = int(numbers[mine][-1]) if last else None
            if len(wrong):
                peer.different += len(wrong)
                self._refuse(
                    f"{len(wrong)} transitions of {peer.name} differ from what it saw, first row {wrong[0]}"
                )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of rows as one, bytes between the fields included."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)
