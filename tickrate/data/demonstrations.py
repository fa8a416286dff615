"""Loads demonstrations, recorded before as segment files, into a replay of their own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tickrate.data.priorities import Proportional
from tickrate.data.records import Segment
from tickrate.data.replay import ADD_ROWS, Replay
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError, RecordError

_log = logging.getLogger(__name__)


def load_demonstrations(
    paths: Sequence[Path],
    schema: RecordSchema,
    *,
    gamma: float,
    n_step: int,
    seed: int,
    sampling: Proportional | None = None,
) -> Replay:
    """Return a replay in memory with the rows of all files; its snapshots leave the rows out.

    The files are only read. Each file's streams become streams of their own, so that two recordings may have
    used the same numbers. Rows of evaluation episodes are left out, as in any replay.

    Args:
        paths: segment files; their order counts for a resume.
        schema: what the run records.
        gamma: discount per step.
        n_step: most steps in a return.
        seed: of the sampling.
        sampling: how to prioritise, as in the run's own replay.

    Raises:
        ConfigError: if a file is not there, there is nothing to sample in any of them, or they do not fit
            into memory.
        RecordError: if a file is damaged, holds a number that is not finite, or was recorded with another
            schema; names the file and the first field that differs.
    """
    segments = [_open(path, schema) for path in paths]
    count = sum(segment.head - segment.oldest for segment in segments)
    least = schema.history + n_step + 2
    replay = Replay(
        schema,
        max(count, least),
        gamma=gamma,
        n_step=n_step,
        seed=seed,
        sampling=sampling,
        save_rows=False,
    )
    streams: dict[tuple[int, int], int] = {}
    for file, segment in enumerate(segments):
        for begin in range(segment.oldest, segment.head, ADD_ROWS):
            rows = segment.read(np.arange(begin, min(begin + ADD_ROWS, segment.head)))
            known, which = np.unique(rows["stream"], return_inverse=True)
            numbers = [streams.setdefault((file, stream), len(streams)) for stream in known.tolist()]
            rows["stream"] = np.array(numbers, np.uint32)[which]
            try:
                replay.add(rows)
            except RecordError as error:
                raise RecordError(f"{segment.path}: {error}") from error
        segment.close()
    if not len(replay):
        raise ConfigError(f"there is no transition to learn from in {', '.join(map(str, paths))}")
    return replay


def _open(path: Path, schema: RecordSchema) -> Segment:
    try:
        segment = Segment.open(path, writable=False)
    except OSError as error:
        raise ConfigError(f"the demonstrations {path} cannot be read: {error.strerror}") from error
    if difference := schema.difference(segment.schema):
        raise RecordError(
            f"the demonstrations {path} were recorded with other spaces than this run has (here: the run): "
            f"{difference}"
        )
    for note in segment.notes:
        _log.warning("%s", note)
    return segment
