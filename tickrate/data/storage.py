"""What a replay keeps: rows, the index over them and their priorities, which change as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data import capacity as limits
from tickrate.data.nstep import NStepIndex
from tickrate.data.priorities import Priorities, Proportional
from tickrate.data.records import Segment
from tickrate.data.sampling import check_count, draw, earlier
from tickrate.data.saved_replay import WEIGHT, SavedReplay
from tickrate.data.schema import RecordSchema, Rows, taken
from tickrate.data.segment_file import require_disk
from tickrate.data.sum_tree import SumTree
from tickrate.errors import ConfigError, RecordError
from tickrate.trees import Leaves

_SCAN_ROWS = 1024
"""Rows copied at once where all are gone through."""


class Storage:
    """A segment of rows, the index over it and, where wanted, the priorities of its rows.

    Not safe for several threads by itself: `Replay` holds the lock.

    Args:
        segment: the rows. What it holds already is indexed, the same as if it had just been added.
        gamma: discount per step, in (0, 1].
        n_step: most steps in a return, at least 1.
        sampling: how to prioritise; None draws every row alike.
        rows_elsewhere: whether the rows can be had again without a snapshot, which leaves them out then.
        largest_priority: the largest priority so far: what every row begins with.

    Attributes:
        segment: the rows.
        index: what sampling needs of each row.
        priorities: by what rows are drawn; None where all are drawn alike.

    Raises:
        ValueError: if ``largest_priority`` cannot be.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        gamma: float,
        n_step: int,
        sampling: Proportional | None,
        rows_elsewhere: bool,
        largest_priority: float = 1.0,
    ) -> None:
        self.segment = segment
        self._schema = segment.schema
        self._capacity = segment.capacity
        self._gamma, self._n_step = gamma, n_step
        self._sampling = sampling
        self._rows_elsewhere = rows_elsewhere
        self.index = self._build_index()
        self.priorities = self._new_priorities(largest_priority)

    @classmethod
    def open(
        cls,
        path: Path | None,
        schema: RecordSchema,
        capacity: int,
        *,
        gamma: float,
        n_step: int,
        sampling: Proportional | None,
        save_rows: bool,
    ) -> Storage:
        """Open what is in the file ``path``, make it there, or make it in memory (None).

        The arguments are those of `Replay`.

        Raises:
            ConfigError: if it does not fit in memory or on the disk.
            RecordError: if the file is damaged or has another schema or capacity.
        """
        require_room(path, schema, capacity, prioritised=sampling is not None)
        return cls(
            _open_segment(path, schema, capacity),
            gamma=gamma,
            n_step=n_step,
            sampling=sampling,
            rows_elsewhere=path is not None or not save_rows,
        )

    def _build_index(self) -> NStepIndex:
        """Return the index over all rows of the segment."""
        segment = self.segment
        index = NStepIndex(
            self._capacity,
            gamma=self._gamma,
            n_step=self._n_step,
            history=self._schema.history,
            first=segment.oldest,
        )
        for begin in range(segment.oldest, segment.head, _SCAN_ROWS):
            slots = np.arange(begin, min(begin + _SCAN_ROWS, segment.head)) % self._capacity
            index.append(begin, segment.rows[slots])
        return index

    def _new_priorities(self, largest: float) -> Priorities | None:
        """Return priorities in which every row is new; None where all are drawn alike."""
        if self._sampling is None:
            return None
        priorities = Priorities(self._capacity, self._sampling.exponent, largest)
        priorities.admit(np.flatnonzero(self.index.sampleable))
        return priorities

    # --- rows in and out -----------------------------------------------------------------------------------

    def store(self, rows: Rows) -> NDArray[np.bool_]:
        """Store rows that are newer than all before them in their stream; return which are, ``(n,)``."""
        fresh = self.index.fresh(rows)
        if not fresh.all():
            rows = taken(rows, fresh)
        first = self.segment.append(rows)
        refused = self.index.release(self.segment.oldest)
        admitted = self.index.append(first, rows)
        if self.priorities is not None:
            for slots in refused:
                self.priorities.withdraw(slots)
            self.priorities.admit(admitted)
        return fresh

    def gather(self, slots: NDArray[np.int64]) -> tuple[Rows, Leaves]:
        """Return the heads of rows, and what is stored apart, stacks rebuilt."""
        rows = self.segment.rows.take(slots)
        frames = {
            name: self.segment.frames[name].take(earlier(self.index, slots, field.stack), axis=0)
            for name, field in self._schema.apart.items()
        }
        return rows, frames

    def draw(
        self, count: int, beta: float | None, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        """Draw ``count`` slots, ``(count,)``, and with priorities their importance weights, ``(count,)``.

        Args:
            count: at least 1.
            beta: see `Replay.sample`.
            rng: where chance comes from.

        Raises:
            ConfigError: if there is nothing to draw, or ``beta`` cannot be.
        """
        check_count(self.index, count)
        if self.priorities is None:
            if beta is not None:
                raise ConfigError(f"beta is {beta}, but this replay has no priorities to correct for")
            return draw(self.index, count, rng), None
        if beta is not None and not 0.0 <= beta <= 1.0:
            raise ConfigError(f"beta is {beta}; it must be between 0 and 1")
        return self.priorities.draw(count, 1.0 if beta is None else beta, rng)

    def update_priorities(self, numbers: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the priorities of rows by number, ``(n,)`` each; those that are not stored are left out.

        Raises:
            ConfigError: if there are no priorities, or one is negative.
        """
        if self.priorities is None:
            raise ConfigError("this replay draws every row alike: it has no priorities to update")
        stored = (numbers >= self.segment.oldest) & (numbers < self.segment.head)
        self.priorities.update(numbers[stored] % self._capacity, priorities[stored])

    def close(self) -> None:
        """Flush and let go of the rows; the storage is empty afterwards."""
        self.segment.close()
        self.index = self._build_index()
        self.priorities = self._new_priorities(1.0)

    # --- snapshots -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the storage's part of a snapshot's header: settings, rows, streams (JSON)."""
        return {
            "schema": self._schema.digest(),
            "capacity": self._capacity,
            "gamma": self._gamma,
            "n_step": self._n_step,
            "mapped": self._rows_elsewhere,
            "priority_exponent": None if self._sampling is None else self._sampling.exponent,
            "largest_priority": None if self.priorities is None else self.priorities.largest,
            "oldest": self.segment.oldest,
            "head": self.segment.head,
            "streams": [[stream, *last] for stream, last in self.index.streams().items()],
        }

    @property
    def saved_row_bytes(self) -> int:
        """Bytes that a row takes in a snapshot: 0 where the rows are kept elsewhere."""
        return 0 if self._rows_elsewhere else self._schema.row_dtype.itemsize

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yield what a snapshot holds after its header: the rows, and their weights in the sum tree."""
        numbers = np.arange(self.segment.oldest, self.segment.head)
        if not self._rows_elsewhere:
            for begin in range(0, len(numbers), _SCAN_ROWS):
                yield self.segment.read(numbers[begin : begin + _SCAN_ROWS])
        if self.priorities is not None:
            yield self.priorities.weights(numbers % self._capacity).astype(WEIGHT, copy=False)

    def restored(self, saved: SavedReplay) -> Storage:
        """Return a storage like this one with what a snapshot holds; this one stays as it is.

        Rows that are kept elsewhere are shared with it; those that came after the snapshot count as new.

        Raises:
            RecordError: if the snapshot needs rows that are not there any more, or holds no priorities.
        """
        segment = self.segment if self._rows_elsewhere else saved.segment(self._schema, self._capacity)
        saved.check_within(segment)
        try:
            storage = Storage(
                segment,
                gamma=self._gamma,
                n_step=self._n_step,
                sampling=self._sampling,
                rows_elsewhere=self._rows_elsewhere,
                largest_priority=saved.largest_priority,
            )
            storage._put_back(saved)
        except ValueError as error:
            raise RecordError(f"{saved.path} cannot be restored: {error}") from error
        return storage

    def _put_back(self, saved: SavedReplay) -> None:
        """Take over the streams and the priorities of a snapshot."""
        self.index.remember(saved.streams)
        if self.priorities is not None and saved.weights is not None:
            kept = np.arange(max(saved.oldest, self.segment.oldest), saved.head)
            self.priorities.put_back(kept % self._capacity, saved.weights[kept - saved.oldest])


def require_room(path: Path | None, schema: RecordSchema, capacity: int, *, prioritised: bool) -> None:
    """Refuse a storage that does not fit: its rows (in memory, or in a file still to be made) and its index.

    Raises:
        ConfigError: with the numbers.
    """
    if path is not None and not any(path.parent.glob(f"{path.name}*")):  # nobody has reserved it yet
        require_disk(path, schema, capacity)
    row_bytes = NStepIndex.bytes_per_row(schema.history) + (schema.stored_bytes if path is None else 0)
    needed = capacity * row_bytes + (SumTree.bytes_needed(capacity) if prioritised else 0)
    limits.require(
        needed,
        limits.available_memory(),
        rows=capacity,
        row_bytes=-(-needed // capacity),
        where="memory",
    )


def _open_segment(path: Path | None, schema: RecordSchema, capacity: int) -> Segment:
    if path is None:
        return Segment.in_memory(schema, capacity)
    if not path.exists():
        return Segment.create(path, schema, capacity)
    segment = Segment.open(path, schema)
    if segment.capacity != capacity:
        raise RecordError(f"{path} was made for {segment.capacity} rows, this run wants {capacity}")
    return segment
