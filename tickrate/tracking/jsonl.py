"""The tracker that writes ``metrics.jsonl``: one JSON object a line, for scripts and for our own plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tickrate.clock import now, wall_time
from tickrate.tracking.tracker import Breaker


class JsonlTracker:
    """Appends ``{"step": ..., "time": ..., "<key>": value, ...}`` a call.

    ``time`` is wall time (s since the epoch). NaN and infinities, for which JSON has no numbers, are written
    as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; ``float()`` reads them.

    Args:
        path: the file; its folder is made, and lines are appended to what is there (a resumed run).
        flush_s: a call hands the lines over to the operating system when the last time is this long ago (s);
            a process kill loses no more.
    """

    def __init__(self, path: Path, *, flush_s: float = 1.0) -> None:
        self._path = Path(path)
        self._flush_s = flush_s
        self._pending: list[str] = []
        self._flushed = now()
        self._breaker = Breaker(str(self._path))
        self._breaker.attempt(lambda: self._path.parent.mkdir(parents=True, exist_ok=True))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line. See `Tracker`."""
        if self._breaker.broken:
            return
        line: dict[str, Any] = {"step": int(step), "time": round(wall_time(), 3)}
        line |= {key: _plain(float(value)) for key, value in values.items()}
        self._pending.append(json.dumps(line, allow_nan=False))
        if now() - self._flushed >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Hand the lines so far to the operating system."""
        self._flushed = now()
        if self._pending:
            lines, self._pending = "\n".join(self._pending) + "\n", []
            self._breaker.attempt(lambda: self._append(lines))

    def close(self) -> None:
        """Write what is held back. See `Tracker`."""
        self.flush()

    def _append(self, lines: str) -> None:
        # Opened for each block: nothing stays open between, and a block a second costs nothing.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)


def read_jsonl(path: Path) -> Iterator[dict[str, float]]:
    """Yield the lines of a ``metrics.jsonl`` as floats; a last line cut off by a kill is left out.

    Raises:
        OSError: if the file cannot be read.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                values = json.loads(line)
            except ValueError:
                continue
            if isinstance(values, dict):
                yield {str(k): float(v) for k, v in values.items() if _is_number(v)}


def _plain(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
