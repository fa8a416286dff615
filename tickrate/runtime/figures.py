"""Live figures of a run: how well the clock was kept in the last steps, and how often something happens."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate import clock
from tickrate.data.schema import Flag

RECENT_STEPS = 2000
"""Steps over which the live timing figures are taken (100 s at 20 Hz)."""
LATENESS_STEPS = 1_000_000
"""Steps that the timing histogram shows at most: the newest (14 hours at 20 Hz)."""


class StepTiming:
    """Timing of the live steps among the rows of a run.

    Attributes:
        overruns: steps that ended after their deadline.
    """

    def __init__(self) -> None:
        self.overruns = 0
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._all: deque[float] = deque(maxlen=LATENESS_STEPS)
        self._starts: deque[tuple[int, int, float]] = deque(maxlen=RECENT_STEPS)

    def add(self, acted: NDArray[Any]) -> None:
        """Take in rows with an action; those of a lock-step environment have no times and are passed over."""
        timed = acted[acted["start"] > 0]
        lateness = timed["lateness"].tolist()
        self._recent.extend(lateness)
        self._all.extend(lateness)
        columns = (timed[name].tolist() for name in ("episode", "step", "start"))
        self._starts.extend(zip(*columns, strict=True))
        self.overruns += int(np.count_nonzero(timed["flags"] & Flag.LATE))

    def figures(self) -> dict[str, float]:
        """Return the figures of the last `RECENT_STEPS` steps; none before the first."""
        if not self._recent:
            return {}
        late_ms = 1000 * np.asarray(self._recent)
        return {
            "timing/lateness_p50_ms": float(np.percentile(late_ms, 50)),
            "timing/lateness_p99_ms": float(np.percentile(late_ms, 99)),
            "timing/lateness_max_ms": float(late_ms.max()),
            "timing/overruns": float(self.overruns),
            "timing/achieved_hz": self._achieved_hz(),
        }

    def lateness(self) -> NDArray[np.float32]:
        """Return the lateness of the steps in seconds, of at most the newest `LATENESS_STEPS`."""
        return np.fromiter(self._all, dtype=np.float32)

    def _achieved_hz(self) -> float:
        """Return the rate of steps that follow one another; the gap between two episodes is none."""
        gaps = [
            later[2] - earlier[2]
            for earlier, later in itertools.pairwise(self._starts)
            if (later[0], later[1]) == (earlier[0], earlier[1] + 1)
        ]
        total = sum(gaps)
        return len(gaps) / total if total > 0 else 0.0


class Rate:
    """Events per second over the last few seconds."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._total = 0
        self._window_s = window_s

    def count(self, events: int = 1) -> None:
        """Count events, now."""
        self._counts.append((clock.now(), events))
        self._total += events
        self._forget()

    def per_second(self) -> float:
        """Return the rate over the window."""
        self._forget()
        return self._total / self._window_s

    def _forget(self) -> None:
        horizon = clock.now() - self._window_s
        while self._counts and self._counts[0][0] < horizon:
            self._total -= self._counts.popleft()[1]
