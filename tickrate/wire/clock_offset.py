"""The offset between two machines' clocks, from the round trips of pings.

A ping leaves at t0 (here), arrives at t1 and is answered at t2 (there), and the answer arrives at t3 (here).
The other clock is ahead by ((t1 - t0) + (t2 - t3)) / 2, right within half of the round trip (t3 - t0) -
(t2 - t1) (RFC 5905, section 8). The shortest round trip of the last few is the one to believe.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 64
"""Pings that are looked at: half a minute of them, so that the clocks' drift stays far below a
millisecond."""


class ClockOffset:
    """Estimates how far another machine's monotonic clock is ahead of ours."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.seconds: float | None = None
        """The other clock minus ours (s); None before the first answer."""
        self.rtt_s: float | None = None
        """The shortest round trip (s): the offset is right within half of it."""

    def add(self, sent: float, received: float, answered: float, back: float) -> None:
        """Take in one round trip; times that cannot be (a foreign or late answer) are left out."""
        rtt = (back - sent) - (answered - received)
        if not math.isfinite(received + answered) or back < sent or answered < received or rtt < -1e-6:
            return
        offset = ((received - sent) + (answered - back)) / 2
        if self._samples and abs(offset - self._samples[-1][1]) > 1.0 + rtt:
            self._samples.clear()  # the other machine, or its clock, is another one now
        self._samples.append((max(0.0, rtt), offset))
        self.rtt_s, self.seconds = min(self._samples)
