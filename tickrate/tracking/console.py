"""The tracker that prints plain lines, for logs and for output that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from tickrate.clock import now
from tickrate.tracking.metrics import METRICS

SHOWN = (
    "train/return",
    "train/lap_time_s",
    "eval/return",
    "eval/lap_time_s",
    "timing/achieved_hz",
    "timing/lateness_p99_ms",
    "learn/updates_per_s",
    "learn/policy_lag_versions",
)
"""The keys on a line, in order; the others are in the files."""


class ConsoleTracker:
    """Prints one line with the newest values of the main metrics, at most one every ``period_s`` seconds.

    Args:
        stream: where to; the standard output of the moment when omitted.
        period_s: shortest time between two lines (s).
        keys: which metrics.
    """

    def __init__(
        self, stream: TextIO | None = None, *, period_s: float = 10.0, keys: tuple[str, ...] = SHOWN
    ) -> None:
        self._stream = stream
        self._period_s = period_s
        self._keys = keys
        self._newest: dict[str, float] = {}
        self._step = 0
        self._printed: float | None = None
        self._fresh = False
        self._broken = False

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take in values, and print a line if it is time. See `Tracker`."""
        self._step = step
        shown = {key: float(value) for key, value in values.items() if key in self._keys}
        self._newest |= shown
        self._fresh |= bool(shown)
        if self._fresh and (self._printed is None or now() - self._printed >= self._period_s):
            self._print()

    def close(self) -> None:
        """Print the last values if no line has shown them yet. See `Tracker`."""
        if self._fresh:
            self._print()

    def _print(self) -> None:
        self._fresh = False
        self._printed = now()
        if self._broken:
            return
        parts = [f"{_label(key)} {self._newest[key]:.4g}" for key in self._keys if key in self._newest]
        try:
            print(f"step {self._step}  " + "  ".join(parts), file=self._stream or sys.stdout, flush=True)
        except (OSError, ValueError):  # a closed pipe or stream: nobody reads, and nobody is left to be told
            self._broken = True


def _label(key: str) -> str:
    metric = METRICS.get(key)
    return metric.label if metric else key
