"""Reads a replay's snapshot back: whether it was made by a replay like this one, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.records import Segment
from tickrate.data.schema import RecordSchema
from tickrate.data.snapshot import read_snapshot
from tickrate.errors import RecordError

WEIGHT = np.dtype("<f8")
"""How the weight of a row in the sum tree is saved."""

_SETTINGS = ("schema", "capacity", "gamma", "n_step", "mapped", "priority_exponent")
_LOAD_ROWS = 1024


@dataclass(frozen=True)
class SavedReplay:
    """What a snapshot holds, checked.

    Attributes:
        path: the snapshot.
        oldest: number of the oldest row that it is about.
        head: number of the row after the newest.
        rows: bytes of the rows, mapped; none where they are kept elsewhere.
        weights: weight of each row in the sum tree; None where rows were drawn alike.
        largest_priority: the largest priority so far.
        streams: (episode, step) of the newest row of each stream.
        counters: rows of evaluations, and rows that came twice.
        random: the generator of the sampling.
    """

    path: Path
    oldest: int
    head: int
    rows: NDArray[np.uint8]
    weights: NDArray[np.float64] | None
    largest_priority: float
    streams: dict[int, tuple[int, int]]
    counters: tuple[int, int]
    random: np.random.Generator

    def segment(self, schema: RecordSchema, capacity: int) -> Segment:
        """Return a new segment in memory with the rows."""
        segment = Segment.in_memory(schema, capacity, first=self.oldest)
        step = _LOAD_ROWS * schema.row_dtype.itemsize
        for begin in range(0, len(self.rows), step):
            segment.append(self.rows[begin : begin + step].view(schema.row_dtype))
        return segment

    def check_within(self, segment: Segment) -> None:
        """Refuse a segment that lacks rows which the snapshot needs.

        Raises:
            RecordError: if it does.
        """
        if segment.head < self.head:
            where = segment.path or "what is stored"
            raise RecordError(
                f"{where} ends at row {segment.head}, but {self.path} needs its rows up to {self.head}"
            )


def read_saved(path: Path, mine: dict[str, Any], row_bytes: int) -> SavedReplay:
    """Read a snapshot for a replay whose own state is ``mine``.

    Args:
        path: the file.
        mine: what the replay would save now: settings that differ are refused.
        row_bytes: bytes of a row in the snapshot, 0 where rows are kept elsewhere.

    Raises:
        RecordError: if it is missing, damaged, or was made with other settings.
    """
    state, data = read_snapshot(path)
    state.setdefault("priority_exponent", None)  # snapshots of earlier releases know no priorities
    weight_bytes = 0 if mine["priority_exponent"] is None else WEIGHT.itemsize
    random = np.random.Generator(np.random.PCG64())
    try:
        for key in _SETTINGS:
            if state[key] != mine[key]:
                raise ValueError(f"{key} was {state[key]} when it was saved and is {mine[key]} now")
        oldest, head = int(state["oldest"]), int(state["head"])
        count, size = head - oldest, row_bytes + weight_bytes
        if not (0 <= oldest <= head and count <= mine["capacity"] and len(data) == count * size):
            raise ValueError(f"it says rows {oldest} to {head} but has {len(data)} bytes of {size} each")
        random.bit_generator.state = state["random"]
        streams = {int(stream): (int(episode), int(step)) for stream, episode, step in state["streams"]}
        counters = int(state["evaluation_rows"]), int(state["duplicate_rows"])
        largest = float(state["largest_priority"]) if weight_bytes else 1.0
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"{path} cannot be restored: {error}") from error
    rows, weights = data[: count * row_bytes], np.array(data[count * row_bytes :]).view(WEIGHT)
    return SavedReplay(
        path, oldest, head, rows, weights if weight_bytes else None, largest, streams, counters, random
    )
