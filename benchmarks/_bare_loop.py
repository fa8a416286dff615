"""A control loop with nothing in it, beside the one that is measured: it shows a disturbed machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_LOOP = """
import struct, sys, time
period = float(sys.argv[1]); out = open(sys.argv[2], "wb", buffering=0)
due = time.perf_counter() + period
while True:
    time.sleep(max(0.0, due - time.perf_counter()))
    out.write(struct.pack("<d", time.perf_counter()))
    due += period
"""


class BareLoop:
    """Sleeps from point to point of a grid, in a process of its own, and notes when it woke.

    Args:
        period_s: of the grid, in seconds.
        file: where it writes.
    """

    def __init__(self, period_s: float, file: Path) -> None:
        self._period_s, self._file = period_s, file
        self._process = subprocess.Popen([sys.executable, "-c", _LOOP, str(period_s), str(file)])

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10.0)

    def stamps(self) -> NDArray[np.float64]:
        """Return when it woke, on the machine's clock (s)."""
        data = self._file.read_bytes()
        return np.frombuffer(data[: len(data) // 8 * 8])

    def lateness(self) -> NDArray[np.float64]:
        """Return how late each of these was (s), against the grid that the earliest lies on."""
        stamps = self.stamps()
        late = stamps - np.arange(len(stamps)) * self._period_s
        return late - late.min()

    def largest_gap(self, begin: float, end: float) -> float:
        """Return the largest time between two wakes from ``begin`` to ``end`` (s)."""
        stamps = self.stamps()
        inside = stamps[(stamps >= begin) & (stamps <= end)]
        return float(np.diff(inside).max(initial=0.0))
