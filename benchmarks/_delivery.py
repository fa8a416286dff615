"""Compares what a run's workers committed to their outboxes with what is in the trainer's journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tickrate.data.records import Segment
from tickrate.data.schema import Flag, Rows, taken
from tickrate.runtime.ledger import Ledger


@dataclass(frozen=True)
class Delivered:
    """The rows of one stream at both ends, in order; both without the stream, which the trainer sets."""

    worker: str
    sent: Rows
    """What is in the outbox and belongs into the journal: all but the rows of evaluations."""
    evaluated: Rows
    """The rows of evaluations in the outbox: they are delivered, and kept out of the data."""
    got: Rows
    """What is in the journal."""
    gone: int
    """Rows that the outbox does not keep any more, so that nothing can be said of them."""
    open: int
    """Rows that the trainer has not acknowledged."""

    @property
    def lost(self) -> int:
        """Rows of the outbox that did not arrive."""
        absent = len(np.setdiff1d(keys(self.sent), keys(self.got)))
        return max(absent, self.open) + self.gone

    @property
    def doubled(self) -> int:
        """Rows that are in the journal more than once."""
        return len(self.got) - len(np.unique(keys(self.got)))

    @property
    def disorder(self) -> int:
        """Places in the journal where a row does not come after the one before it."""
        return int(np.count_nonzero(np.diff(keys(self.got)) <= 0))

    @property
    def equal(self) -> bool:
        """Whether both ends are the same, byte by byte."""
        return digest(self.sent) == digest(self.got)


def delivered(run: Path) -> Iterator[Delivered]:
    """Yield each stream of a run whose roles have ended; each worker has kept its last outbox here."""
    stored = journal(run)
    ledger = Ledger(run / "ledger", 0)
    for number, (worker, _) in sorted(ledger.streams().items()):
        outbox = Segment.open(run / "workers" / worker / "outbox.seg")
        rows = comparable(outbox.read(np.arange(outbox.oldest, outbox.head)))
        evaluation = (rows["flags"] & Flag.EVALUATION) != 0
        yield Delivered(
            worker,
            taken(rows, ~evaluation),
            taken(rows, evaluation),
            comparable(taken(stored, stored["stream"] == number)),
            outbox.oldest,
            outbox.head - ledger.expected(number),
        )


def journal(run: Path) -> Rows:
    """Return all rows of a run's journal; whatever it has dropped for want of room then counts as lost."""
    segment = Segment.open(run / "journal.seg")
    return segment.read(np.arange(segment.oldest, segment.head))


def comparable(rows: Rows) -> Rows:
    """Return rows without their stream."""
    rows = taken(rows, slice(None))
    rows["stream"] = 0
    return rows


def keys(rows: Rows) -> np.ndarray:
    """Return one number for each row, which rises within a worker: episode and step."""
    return (rows["episode"].astype(np.int64) << 32) | rows["step"]


def digest(rows: Rows) -> str:
    """Return the beginning of the SHA-256 of rows."""
    return hashlib.sha256(rows.tobytes()).hexdigest()[:16]
