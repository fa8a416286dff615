"""What a tracker is, several at once, and the one rule for all of them: a broken one never stops a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Takes in measurements of a run. The keys, units and meanings are those of `metrics.METRICS`."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Note values measured at a step.

        Args:
            step: transitions of the run so far; the x axis.
            values: metric key to value, of any type that ``float`` takes; NaN and infinities are allowed.
        """
        ...

    def close(self) -> None:
        """Write what is still held back and let go of files; a second call does nothing."""
        ...


class MultiTracker:
    """Hands everything to several trackers, in order."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._trackers = list(trackers)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Note values measured at a step; they are converted to floats once, for all trackers."""
        plain = {key: float(value) for key, value in values.items()}
        for tracker in self._trackers:
            tracker.scalars(step, plain)

    def close(self) -> None:
        """Close every tracker."""
        for tracker in self._trackers:
            tracker.close()


class Breaker:
    """Runs disk operations until one fails; says so once, and skips all that follow.

    A full or vanished disk must neither end a run nor fill the log, and each later attempt would cost time.

    Args:
        what: what is being written, for the log line.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.broken = False

    def attempt(self, action: Callable[[], object]) -> None:
        """Run ``action`` unless an earlier one failed; an ``OSError`` is logged, once."""
        if self.broken:
            return
        try:
            action()
        except OSError as error:
            self.broken = True
            _log.warning("%s cannot be written and is given up for this run: %s", self._what, error)
