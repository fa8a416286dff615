"""The log of finished episodes: one JSON object a line, each report once, whole lines only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tickrate import clock
from tickrate.errors import RunFolderError
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.run_folder import write_atomically

Key = tuple[int, int]
"""Boot and number of a worker's report."""


class EpisodeLog:
    """The episodes of a run, in memory and in a file.

    Args:
        path: the file; it is made with the first episode.

    Attributes:
        entries: what the lines say, oldest first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[dict[str, Any]] = []
        self._known: set[tuple[str, int, int]] = set()

    def read(self) -> None:
        """Take in what is in the file; a last line that a killed process left unfinished is cut off it.

        Raises:
            RunFolderError: if it is damaged elsewhere.
        """
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
        if lines.pop():
            write_atomically(self._path, b"".join(line + b"\n" for line in lines))
        try:
            self.entries = [json.loads(line) for line in lines]
            keys = [(entry.get("worker"), entry.get("report")) for entry in self.entries]
            self._known = {(str(worker), int(key[0]), int(key[1])) for worker, key in keys if key}
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise RunFolderError(f"{self._path} is damaged: {error}") from error

    def knows(self, worker: str, key: Key | None) -> bool:
        """Tell whether a worker's report is in the log already."""
        return key is not None and (worker, *key) in self._known

    def add(
        self, summary: EpisodeSummary, *, worker: str, key: Key | None, total_steps: int, wall_s: float
    ) -> None:
        """Write an episode down.

        Args:
            summary: how it went.
            worker: whose it was.
            key: of its report, None where there are no reports.
            total_steps: training steps of the run so far.
            wall_s: wall time of the run so far, in seconds.

        Raises:
            OSError: if it cannot be written (a full disk); the log is as it was then.
        """
        entry = {
            "worker": worker,
            "report": key,
            "episode": summary.episode,
            "evaluation": summary.evaluation,
            "policy_version": summary.policy_version,
            "steps": summary.steps,
            "return": summary.total_return,
            "score": summary.score,
            "ended": summary.ended,
            "lap_time_s": summary.metrics.get("lap_time_s"),
            "clean": bool(summary.metrics.get("lap_clean", 1.0)),
            "duration_s": summary.duration_s,
            "total_steps": total_steps,
            "wall_s": wall_s,
            "finished": clock.wall_time(),
            "metrics": summary.metrics,
        }
        _add_line(self._path, json.dumps(entry))
        self.entries.append(entry)
        if key is not None:
            self._known.add((worker, *key))


def _add_line(path: Path, line: str) -> None:
    """Append a line to a log: all of it, or on an error none."""
    with path.open("ab", buffering=0) as log:
        begin = log.seek(0, 2)
        try:
            data = memoryview(line.encode() + b"\n")
            while data:
                data = data[log.write(data) :]
        except OSError:
            log.truncate(begin)
            raise
