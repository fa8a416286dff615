"""Keeps the newest transitions and hands out batches or sequences, to any thread that asks.

Threads: one writer and any number of samplers. Every call holds one lock, a sampler only while it draws and
copies its rows (tens of microseconds; with priorities some hundreds) and the writer for at most `ADD_ROWS`
rows at a time, so no batch ever holds half a row.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.batch import Batch, SequenceBatch
from tickrate.data.checksums import Verdict, compare, has_checksum
from tickrate.data.priorities import Proportional
from tickrate.data.sampling import assemble
from tickrate.data.saved_replay import read_saved
from tickrate.data.schema import Flag, RecordSchema, Rows, taken
from tickrate.data.sequences import assemble_sequences, walk
from tickrate.data.snapshot import write_snapshot
from tickrate.data.storage import Storage
from tickrate.errors import ConfigError, RecordError

ADD_ROWS = 1024
"""Most rows written while the lock is held once."""

SNAPSHOT = "replay.snapshot"
"""Name of the file that `Replay.save` writes into a checkpoint's folder."""


class Replay:
    """The newest transitions of a run, in memory or in a file.

    A row is sampleable once its successor (same stream and episode, next step) has arrived; its return covers
    the up to ``n_step`` steps known by then. Rows of evaluation episodes are counted and left out, and so are
    rows that are not newer than the last of their stream: a stream's episodes must be numbered upwards, also
    by a restarted worker.

    Args:
        schema: what a row holds.
        capacity: rows kept; an episode of N transitions takes N + 1. Usual: 10^5 to 10^6.
        gamma: discount per step, in (0, 1]. Usual: 0.99 to 0.995.
        n_step: most steps in a return. Usual: 1 to 5.
        seed: of the sampling.
        path: a segment file to keep the rows in. An existing one is opened, verified and continued: rows
            survive a killed process. None keeps them in memory.
        sync: force each `add` to the disk before it returns, so that its rows survive a power cut.
        sampling: how to prioritise; None draws every row alike.
        save_rows: put the rows into snapshots; off where they can be had again (from demonstration files).
            Those of a file never are.

    Raises:
        ConfigError: if an argument cannot work, or the capacity does not fit in memory or on the disk.
        RecordError: if the file at ``path`` is damaged or has another schema or capacity.
    """

    def __init__(
        self,
        schema: RecordSchema,
        capacity: int,
        *,
        gamma: float = 0.99,
        n_step: int = 1,
        seed: int = 0,
        path: Path | None = None,
        sync: bool = False,
        sampling: Proportional | None = None,
        save_rows: bool = True,
    ) -> None:
        if not 0.0 < gamma <= 1.0:
            raise ConfigError(f"replay: gamma is {gamma}; it must be above 0 and at most 1")
        if n_step < 1:
            raise ConfigError(f"replay: n_step is {n_step}; it must be at least 1")
        if capacity < schema.history + n_step + 2:
            raise ConfigError(
                f"replay: {capacity} rows of capacity are too few for n_step {n_step} "
                f"and stacks of {schema.history + 1}"
            )
        self.schema = schema
        self.gamma = gamma
        self.n_step = n_step
        self.evaluation_rows = 0
        self.duplicate_rows = 0
        self._capacity = capacity
        self._sync = sync
        self._lock = threading.Lock()
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._floats = [name for name, field in schema.columns.items() if field.storage.kind == "f"]
        self._storage = Storage.open(
            path, schema, capacity, gamma=gamma, n_step=n_step, sampling=sampling, save_rows=save_rows
        )

    # --- what there is -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled now."""
        return self._storage.index.count

    @property
    def capacity(self) -> int:
        """Rows that fit."""
        return self._capacity

    @property
    def prioritised(self) -> bool:
        """Whether rows are drawn by priority."""
        return self._storage.priorities is not None

    @property
    def rows_added(self) -> int:
        """Rows ever stored; the number that the next row gets."""
        return self._storage.segment.head

    @property
    def oldest_row(self) -> int:
        """Number of the oldest row that is still stored."""
        return self._storage.segment.oldest

    @property
    def notes(self) -> list[str]:
        """What had to be cut off when the file was opened, one sentence each; empty is the rule."""
        return self._storage.segment.notes

    def streams(self) -> dict[int, tuple[int, int]]:
        """Return (episode, step) of the newest row of each stream; only later ones are taken in."""
        with self._lock:
            return self._storage.index.streams()

    def read(self, numbers: NDArray[np.int64]) -> Rows:
        """Return whole rows by number (`Batch.rows`), for the times, flags and versions a batch leaves out.

        Raises:
            RecordError: if one is not stored any more.
        """
        with self._lock:
            return self._storage.segment.read(numbers)

    # --- in ------------------------------------------------------------------------------------------------

    def add(self, rows: Rows) -> NDArray[np.bool_]:
        """Store rows: one (a scalar) or many, of any streams, each stream's in order.

        Args:
            rows: structured array of dtype ``schema.row_dtype``; it is copied.

        Returns:
            Which rows are new, ``(n,)``: False for those that are stored already or were overtaken.

        Raises:
            RecordError: if the dtype is another, or a number is not finite (named; nothing is stored then).
        """
        rows = self._checked(rows)
        evaluation = (rows["flags"] & Flag.EVALUATION) != 0
        new = np.ones(len(rows), np.bool_)
        kept = ~evaluation
        if evaluation.any():
            rows = taken(rows, kept)
            self.evaluation_rows += len(new) - len(rows)
        fresh = np.ones(len(rows), np.bool_)
        step = min(ADD_ROWS, self._capacity)
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            with self._lock:
                fresh[part] = self._storage.store(rows[part])
                self.duplicate_rows += int(np.count_nonzero(~fresh[part]))
        new[kept] = fresh
        if self._sync:
            self._storage.segment.flush()
        return new

    def finite(self, rows: Rows) -> NDArray[np.bool_]:
        """Tell which rows hold finite numbers only, ``(n,)``: `add` refuses the others."""
        good: NDArray[np.bool_] = np.isfinite(rows["reward"])
        for name in self._floats:
            good &= np.isfinite(rows[name]).reshape(len(rows), -1).all(axis=1)
        return good

    def _checked(self, rows: Rows) -> Rows:
        rows = np.asarray(rows).reshape(-1)
        if rows.dtype != self.schema.row_dtype:
            raise RecordError(
                f"these rows have the dtype {rows.dtype}, the replay stores {self.schema.row_dtype}: "
                "the writer has another schema"
            )
        for name in ("reward", *self._floats):
            finite = np.isfinite(rows[name])
            if not finite.all():
                row = rows[int(np.argmin(finite.reshape(len(rows), -1).all(axis=1)))]
                where = f"stream {row['stream']}, episode {row['episode']}, step {row['step']}"
                raise RecordError(
                    f"{name!r} is not finite in the row of {where}: one NaN would spoil the networks"
                )
        return rows

    # --- out -----------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, *, beta: float | None = None) -> Batch:
        """Return ``batch_size`` transitions drawn with replacement from all that can be sampled.

        Args:
            batch_size: transitions, at least 1.
            beta: with priorities, the exponent of the importance weights, in [0, 1]: 0 weights all alike, 1
                (which None means) corrects the bias of the drawing in full.

        Raises:
            ConfigError: if ``batch_size`` is below 1 or there is nothing to sample yet; or for a ``beta``
                that cannot be, or is given where there are no priorities.
        """
        with self._lock:
            slots, weights = self._storage.draw(batch_size, beta, self._rng)
            entries = self._storage.index.entries.take(slots)
            rows, frames = self._storage.gather(np.concatenate((slots, entries["bootstrap"])))
            newest = self._storage.segment.head - 1
        return assemble(self.schema, rows, frames, entries, self._numbers(slots, newest), weights)

    def sample_sequences(self, batch_size: int, length: int, *, beta: float | None = None) -> SequenceBatch:
        """Return ``batch_size`` sequences of ``length`` steps; each row that `sample` could draw begins one.

        First rows are drawn as `sample` draws, with the same probabilities. A sequence follows its episode
        and ends with it.

        Args:
            batch_size: sequences, at least 1.
            length: steps of each, at least 1; fewer are real where the episode has no more.
            beta: see `sample`.

        Raises:
            ConfigError: as `sample`, or if ``length`` is below 1.
        """
        if length < 1:
            raise ConfigError(f"cannot sample sequences of {length} steps: ask for at least 1")
        with self._lock:
            starts, weights = self._storage.draw(batch_size, beta, self._rng)
            slots = walk(self._storage.index, starts, length)
            rows, frames = self._storage.gather(slots.reshape(-1))
            newest = self._storage.segment.head - 1
        shape = slots.shape
        frames = {name: values.reshape(*shape, *values.shape[1:]) for name, values in frames.items()}
        numbers = self._numbers(slots, newest)
        return assemble_sequences(self.schema, rows.reshape(shape), frames, numbers, self.gamma, weights)

    def update_priorities(self, rows: NDArray[np.int64], priorities: NDArray[Any]) -> None:
        """Set the priorities of rows, as a rule of the last batch.

        Rows that were overwritten meanwhile, or cannot be sampled, are left out, and so are values that are
        not finite: an update that was skipped says nothing of its rows.

        Args:
            rows: row numbers, ``(n,)``: `Batch.rows`, or the first of each of `SequenceBatch.rows`.
            priorities: how much there is to learn from each, 0 or more, ``(n,)``; usually the absolute error.

        Raises:
            ConfigError: if the replay has none, there are not as many as rows, or one is negative.
        """
        numbers = np.asarray(rows, np.int64).reshape(-1)
        given = np.asarray(priorities, np.float64).reshape(-1)
        if given.shape != numbers.shape:
            raise ConfigError(f"{len(given)} priorities were given for {len(numbers)} rows: give one each")
        with self._lock:
            self._storage.update_priorities(numbers, given)

    def _numbers(self, slots: NDArray[np.int64], newest: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that were in these slots when ``newest`` was the newest row."""
        return newest - (newest - slots) % self._capacity

    def verify(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Compare transitions, put together as `sample` would, with the hashes that the worker made of them.

        Args:
            numbers: row numbers, at most a few thousand at once (whole observations are copied).

        Returns:
            A `Verdict` for each number. `Verdict.UNKNOWN` where a row cannot be sampled: it is a FINAL one,
            its successor has not arrived yet (ask again later), or frames of its stack are overwritten.

        Raises:
            ConfigError: if the rows carry no hashes (``worker.checksum`` was off).
            RecordError: if a row is not stored any more.
        """
        if not has_checksum(self.schema):
            raise ConfigError("these rows carry no checksums: the worker has to run with worker.checksum on")
        numbers = np.asarray(numbers, np.int64).reshape(-1)
        verdicts = np.full(len(numbers), Verdict.UNKNOWN, np.uint8)
        with self._lock:
            index = self._storage.index
            if len(numbers):
                self._storage.segment.read(np.array([numbers.min(), numbers.max()]))  # refuses the lost
            slots = numbers % self._capacity
            known = index.sampleable[slots]
            slots = slots[known]
            rows, frames = self._storage.gather(np.concatenate((slots, index.following(slots))))
            entries = index.entries.take(slots)
        batch = assemble(self.schema, rows, frames, entries, numbers[known])
        verdicts[known] = compare(self.schema, rows[: len(slots)], batch)
        return verdicts

    # --- resume --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a resume needs beside the rows: random state, counters, streams, settings (JSON)."""
        with self._lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        return self._storage.state() | {
            "evaluation_rows": self.evaluation_rows,
            "duplicate_rows": self.duplicate_rows,
            "random": self._rng.bit_generator.state,
        }

    def save(self, path: Path) -> None:
        """Write a snapshot, atomically: into the folder ``path`` (as `SNAPSHOT`), or as the file ``path``.

        It holds `state`, the rows, and the priorities, if there are any; adding and sampling wait for it. Of
        a mapped replay, whose file holds the rows already and is flushed, the rows are left out.
        """
        with self._lock:
            self._storage.segment.flush()
            write_snapshot(_snapshot(path), self._state(), self._storage.chunks())

    def restore(self, path: Path) -> None:
        """Continue from what `save` wrote; the next batch is bit for bit the one that would have come then.

        A mapped replay keeps rows that its file got after the snapshot.

        Raises:
            RecordError: if the snapshot is missing or damaged, was made with other settings, or needs rows
                that the mapped file lacks. The replay is as it was before the call then.
        """
        saved = read_saved(_snapshot(path), self.state(), self._storage.saved_row_bytes)
        storage = self._storage.restored(saved)
        with self._lock:
            self._storage = storage
            self._rng = saved.random
            self.evaluation_rows, self.duplicate_rows = saved.counters

    def close(self) -> None:
        """Flush and let go of the storage; the replay is empty afterwards."""
        with self._lock:
            self._storage.close()


def _snapshot(path: Path) -> Path:
    return path / SNAPSHOT if path.is_dir() else path
