"""The numbers of a checkpoint: where the learner's counters stood, as ``counters.json`` holds them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tickrate.errors import RunFolderError


@dataclass(frozen=True)
class LearnerCounters:
    """What the learner has counted by a checkpoint."""

    steps: int
    """Training steps of the run."""
    updates: int
    """Updates that these steps were due for."""
    offline_updates: int
    """Updates that no step was due for."""
    forgiven: float
    """Updates that the limiter has cancelled."""
    published_at: int
    """Updates, of both kinds, when the newest policy was published."""
    version: int
    """Version of the newest policy."""
    best_score: float
    """Score of the best policy; -inf (null in the file) before the first evaluation."""
    best_version: int
    """Version of the best policy; 0 before the first evaluation."""
    wall_s: float
    """Seconds of wall time that the run had taken."""
    wall_offset_s: float
    """Seconds of them that earlier commands had taken."""
    started: float
    """When the command began, on the machine's monotonic clock."""
    overruns: int
    """Steps that ended after their deadline."""
    rows: int
    """Rows that the replay had ever stored."""
    return_scale: dict[str, Any] | None
    """State of the `ReturnScale`; None where rewards are not scaled."""
    round_target: int | None
    """Updates at which the present round is over; None while that is not known."""

    def to_json(self) -> dict[str, Any]:
        """Return what ``counters.json`` holds."""
        return dataclasses.asdict(self) | {
            "best_score": None if math.isinf(self.best_score) else self.best_score
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], checkpoint: Path) -> LearnerCounters:
        """Read what ``counters.json`` of this checkpoint, of this release or an earlier one, holds.

        Raises:
            RunFolderError: if a number is missing, or is none.
        """
        try:
            best, target = saved["best_score"], saved.get("round_target")  # earlier releases had no rounds
            return cls(
                steps=_whole(saved["steps"]),
                updates=_whole(saved["updates"]),
                offline_updates=_whole(saved.get("offline_updates", 0)),  # nor these
                forgiven=float(saved["forgiven"]),
                published_at=_whole(saved["published_at"]),
                version=_whole(saved["version"]),
                best_score=-math.inf if best is None else float(best),
                best_version=_whole(saved["best_version"]),
                wall_s=float(saved["wall_s"]),
                wall_offset_s=float(saved["wall_offset_s"]),
                started=float(saved["started"]),
                overruns=_whole(saved["overruns"]),
                rows=_whole(saved["rows"]),
                return_scale=saved["return_scale"],
                round_target=None if target is None else _whole(target),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RunFolderError(
                f"checkpoint {checkpoint}: counters.json lacks a number: {error!r}"
            ) from error


def _whole(number: Any) -> int:
    return int(float(number))
