"""Batches from two sources, what a run records itself and demonstrations, each with a fixed share.

RLPD's symmetric sampling (Ball et al. 2023, arXiv 2302.02948) is a share of one half.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.batch import AnyBatch, Batch, SequenceBatch
from tickrate.data.replay import Replay
from tickrate.errors import ConfigError, RecordError

SNAPSHOT = "demonstrations.snapshot"
"""Name of the file that `Mixture.save` writes into a checkpoint's folder, beside the replay's own."""

CHECKSUM = "demonstrations.crc32"
"""Name of the file that says which rows they were; checkpoints from before there was one have none."""


class Mixture:
    """Draws a part of each batch from demonstrations and the rest from the run's own replay.

    The two parts are spread evenly over the batch, so that any half of it holds its share of both. A row of a
    demonstration is numbered ``~row`` in the batch: below 0, so that it is never taken for one of the run's.
    While the run has nothing to sample yet, the whole batch comes from demonstrations.

    Args:
        own: what the run records.
        demonstrations: what was recorded before, of the same schema; it is not empty and does not change.
        share: share of each batch from the demonstrations, in (0, 1]; 1 leaves the run's own rows out.

    Raises:
        ConfigError: if the share cannot be, or the two replays differ in what they hold or how they sample.
    """

    def __init__(self, own: Replay, demonstrations: Replay, share: float) -> None:
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"the share of demonstrations is {share}; it must be above 0 and at most 1")
        if difference := own.schema.difference(demonstrations.schema):
            raise ConfigError(f"the demonstrations are of another schema than the run: {difference}")
        if own.prioritised != demonstrations.prioritised:
            raise ConfigError("either both, the run's rows and the demonstrations, have priorities or none")
        self.own = own
        self.demonstrations = demonstrations
        self._share = share

    @property
    def prioritised(self) -> bool:
        """Whether rows are drawn by priority."""
        return self.own.prioritised

    def demonstrated(self, batch_size: int) -> int:
        """Return how many of a batch are demonstrations, once the run has rows of its own.

        Raises:
            ConfigError: if the batch is too small to hold any, or any else.
        """
        count = round(self._share * batch_size)
        if self._share < 1.0 and not 0 < count < batch_size:
            raise ConfigError(
                f"a share of {self._share} of a batch of {batch_size} is {count} transitions from "
                "demonstrations: change the share or the batch size"
            )
        return count

    def sample(self, batch_size: int, *, beta: float | None = None) -> Batch:
        """Return a mixed batch; arguments and errors are those of `Replay.sample`.

        Importance weights are relative to the largest of each part.
        """
        if not (count := self._from_own(batch_size)):
            return _renumbered(self.demonstrations.sample(batch_size, beta=beta))
        taught = _renumbered(self.demonstrations.sample(batch_size - count, beta=beta))
        return _joined(taught, self.own.sample(count, beta=beta))

    def sample_sequences(self, batch_size: int, length: int, *, beta: float | None = None) -> SequenceBatch:
        """Return mixed sequences; arguments and errors are those of `Replay.sample_sequences`."""
        if not (count := self._from_own(batch_size)):
            return _renumbered(self.demonstrations.sample_sequences(batch_size, length, beta=beta))
        taught = _renumbered(self.demonstrations.sample_sequences(batch_size - count, length, beta=beta))
        return _joined(taught, self.own.sample_sequences(count, length, beta=beta))

    def _from_own(self, batch_size: int) -> int:
        taught = self.demonstrated(batch_size)
        return batch_size - taught if len(self.own) else 0

    def update_priorities(self, rows: NDArray[np.int64], priorities: NDArray[Any]) -> None:
        """Set the priorities of rows of a mixed batch; see `Replay.update_priorities`."""
        rows, priorities = np.asarray(rows), np.asarray(priorities)
        if rows.shape != priorities.shape:
            raise ConfigError(
                f"{priorities.shape} priorities were given for {rows.shape} rows: give one each"
            )
        taught = rows < 0
        self.demonstrations.update_priorities(~rows[taught], priorities[taught])
        self.own.update_priorities(rows[~taught], priorities[~taught])

    def save(self, folder: Path) -> None:
        """Write what both need to continue into a checkpoint's folder."""
        self.own.save(folder)
        self.demonstrations.save(folder / SNAPSHOT)
        (folder / CHECKSUM).write_text(f"{self._checksum:08x}\n", encoding="ascii")

    @functools.cached_property
    def _checksum(self) -> int:
        """CRC-32 of the demonstrations' rows, which do not change."""
        crc = 0
        for begin in range(self.demonstrations.oldest_row, self.demonstrations.rows_added, 4096):
            end = min(begin + 4096, self.demonstrations.rows_added)
            crc = zlib.crc32(self.demonstrations.read(np.arange(begin, end)).tobytes(), crc)
        return crc

    def restore(self, folder: Path) -> None:
        """Continue from what `save` wrote.

        Raises:
            RecordError: if a part is missing or damaged, or the demonstrations are not those of then.
        """
        if not (folder / SNAPSHOT).exists():
            raise RecordError(
                f"{folder} holds no {SNAPSHOT}: the run was begun without demonstrations. Go on without "
                "them, or begin a new run"
            )
        kept = folder / CHECKSUM
        if (
            kept.exists()
            and kept.read_text(encoding="ascii", errors="replace").strip() != f"{self._checksum:08x}"
        ):
            raise RecordError(
                "replay.demonstrations are not the rows that the run was begun with: give the same files, in "
                "the same order, or begin a new run"
            )
        self.demonstrations.restore(folder / SNAPSHOT)
        self.own.restore(folder)


def _renumbered(batch: AnyBatch) -> AnyBatch:
    return dataclasses.replace(batch, rows=~batch.rows)


def _joined(taught: AnyBatch, own: AnyBatch) -> AnyBatch:
    """Return one batch of two, the first spread evenly over it."""
    total = len(taught) + len(own)
    first = ((np.arange(len(taught)) + 0.5) * (total / len(taught))).astype(np.int64)
    second = np.delete(np.arange(total), first)

    def join(one: Any, two: Any) -> Any:
        if one is None:
            return None
        if isinstance(one, dict):
            return {name: join(values, two[name]) for name, values in one.items()}
        joined = np.empty((total, *one.shape[1:]), one.dtype)
        joined[first], joined[second] = one, two
        return joined

    names = [field.name for field in dataclasses.fields(taught)]
    return dataclasses.replace(
        taught, **{name: join(getattr(taught, name), getattr(own, name)) for name in names}
    )
