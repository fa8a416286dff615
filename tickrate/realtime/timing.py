"""What the clock really did: the timing of every step, its summary, and durations in rtgym's form."""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

LOGGER = logging.getLogger("tickrate.realtime")

KEPT = 1 << 16
"""Latenesses kept for the quantiles: the newest 65536 steps."""

RATE_KEPT = 0.95
"""Below this share of the target rate, the rate was not kept and one line says so."""


@dataclass(frozen=True)
class TimingSummary:
    """How well an environment kept its clock; quantiles over the newest 65536 steps, the rest over all."""

    p50_s: float
    """Median lateness of a step's start, in seconds."""
    p99_s: float
    """99th percentile of the lateness, in seconds."""
    max_s: float
    """Largest lateness, in seconds."""
    overruns: int
    """Steps late by a period (or by the time-out, if that is shorter)."""
    timeouts: int
    """Steps after which the grid had to restart."""
    skipped: int
    """Periods dropped to keep the phase."""
    steps: int
    """Steps within episodes."""
    achieved_hz: float
    """Steps per second within episodes; NaN before the first."""
    target_hz: float
    """Steps per second asked for."""

    def __str__(self) -> str:
        return (
            f"{self.steps} steps at {self.achieved_hz:.2f} Hz of {self.target_hz:.2f} Hz; late by "
            f"{self.p50_s * 1e6:.0f} us (median), {self.p99_s * 1e6:.0f} us (p99), "
            f"{self.max_s * 1e6:.0f} us (max); {self.overruns} overruns, "
            f"{self.timeouts} time-outs, {self.skipped} periods dropped"
        )


class TimingLog:
    """Counts and lateness of the steps of one environment; resets and pauses are not in it.

    Attributes:
        lateness: ring of the newest `KEPT` latenesses, in seconds.
        last: end of the last step, in seconds.
        max_s: largest lateness, in seconds.
        steps, overruns, timeouts, skipped: see `TimingSummary`.
    """

    __slots__ = (
        "_began",
        "_elapsed",
        "_episode_elapsed",
        "_episode_steps",
        "_past_steps",
        "_timed_steps",
        "_warned",
        "last",
        "lateness",
        "max_s",
        "overruns",
        "skipped",
        "steps",
        "timeouts",
    )

    def __init__(self) -> None:
        self.lateness = array("d", bytes(8 * KEPT))
        self._warned = False
        # The present uninterrupted run: when it began, the end of its last step, the steps before it.
        self._began = self.last = 0.0
        self._past_steps = 0
        self._elapsed = self._episode_elapsed = self.max_s = 0.0
        self._episode_steps = self._timed_steps = 0
        self.steps = self.overruns = self.timeouts = self.skipped = 0

    def begin_episode(self, at: float) -> None:
        """Note that the first step of an episode began at ``at`` (seconds)."""
        self.pause()
        self.resume(at)
        self._episode_steps = 0
        self._episode_elapsed = 0.0

    def pause(self) -> None:
        """Leave the time from the last step until `resume` out of the rate."""
        steps, elapsed = self.steps - self._past_steps, self.last - self._began
        if steps > 0:
            self._elapsed += elapsed
            self._episode_elapsed += elapsed
            self._timed_steps += steps
            self._episode_steps += steps
        self._past_steps = self.steps

    def resume(self, at: float) -> None:
        """Begin a run of steps at ``at`` (seconds): those noted before are not part of it."""
        self._began = self.last = at
        self._past_steps = self.steps

    def record(self, at: float, lateness: float) -> None:
        """Note a step that ended at ``at``, late by ``lateness`` (both in seconds)."""
        self.lateness[self.steps % KEPT] = lateness
        self.steps += 1
        self.last = at
        if lateness > self.max_s:
            self.max_s = lateness

    def warn_once(self, target_hz: float, minimum_steps: int = 10) -> None:
        """Log one line, once, if the episode did not keep its rate."""
        self.pause()
        if self._warned or self._episode_steps < minimum_steps or self._episode_elapsed <= 0:
            return
        achieved = self._episode_steps / self._episode_elapsed
        if achieved < RATE_KEPT * target_hz:
            self._warned = True
            LOGGER.warning(
                "achieved %.2f Hz of %.2f Hz over %d steps; said once, info['timing'] has every step",
                achieved,
                target_hz,
                self._episode_steps,
            )

    def summary(self, target_hz: float) -> TimingSummary:
        """Return the summary of all steps so far."""
        kept = np.frombuffer(self.lateness, dtype=np.float64, count=min(self.steps, KEPT)).copy()
        steps = self.steps - self._past_steps
        elapsed = self._elapsed + (self.last - self._began if steps else 0.0)
        timed_steps = self._timed_steps + steps
        p50, p99 = np.percentile(kept, [50, 99]) if len(kept) else (float("nan"), float("nan"))
        return TimingSummary(
            p50_s=float(p50),
            p99_s=float(p99),
            max_s=self.max_s,
            overruns=self.overruns,
            timeouts=self.timeouts,
            skipped=self.skipped,
            steps=self.steps,
            achieved_hz=timed_steps / elapsed if elapsed > 0 else float("nan"),
            target_hz=target_hz,
        )


def timing_info(start: float, capture: float, age: float, overruns: int) -> dict[str, Any]:
    """Return ``info["timing"]`` of a step that was not late (times in seconds; ``overruns`` so far)."""
    return {
        "start": start,
        "capture": capture,
        "observation_age": age,
        "lateness": 0.0,
        "skipped": 0,
        "timed_out": False,
        "overrun": False,
        "overruns": overruns,
    }


_DURATIONS = (
    "time_step_duration",
    "step_duration",
    "join_duration",
    "inference_duration",
    "send_control_duration",
    "get_obs_duration",
)
_CLOCK = (
    "start_step",
    "end_step_join",
    "end_step",
    "start_get_obs",
    "end_get_obs",
    "start_send_control",
    "end_send_control",
)


class PolyakBenchmark:
    """Running mean and running mean deviation of the durations of a step, in seconds."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._averages: dict[str, tuple[float, float] | None] = dict.fromkeys(_DURATIONS)
        self._end_step: float | None = None
        self._start_send: float | None = None

    def step(self, start: float, join: float, end: float) -> None:
        """Note when ``step()`` was entered, when the running step was over, and when it returned."""
        if self._end_step is not None:
            self._add("inference_duration", start - self._end_step)
        self._add("join_duration", join - start)
        self._add("step_duration", end - start)
        self._end_step = end

    def reset(self, start: float, join: float, end: float) -> None:
        """Note a reset: no duration of a step, but thinking begins at its end."""
        self._end_step = end
        self._start_send = None

    def capture(self, start: float, end: float) -> None:
        """Note when the observation's capture began and ended."""
        self._add("get_obs_duration", end - start)

    def send(self, start: float, end: float) -> None:
        """Note when the sending of a command began and ended."""
        if self._start_send is not None:
            self._add("time_step_duration", start - self._start_send)
        self._start_send = start
        self._add("send_control_duration", end - start)

    def result(self) -> dict[str, Any]:
        """Return (average, average deviation) by duration; (None, 0.0) before its first value."""
        return {key: (None, 0.0) if value is None else value for key, value in self._averages.items()}

    def _add(self, key: str, value: float) -> None:
        old = self._averages[key]
        if old is None:
            self._averages[key] = (value, 0.0)
            return
        average, deviation = old
        change = value - average
        self._averages[key] = (
            average + self._weight * change,
            deviation + self._weight * (abs(change) - deviation),
        )


class TraceBenchmark:
    """Every moment of every step, in seconds on the environment's clock."""

    def __init__(self) -> None:
        self._clock: dict[str, list[float]] = {key: [] for key in _CLOCK}

    def step(self, start: float, join: float, end: float) -> None:
        """Note when ``step()`` was entered, when the running step was over, and when it returned."""
        self._clock["start_step"].append(start)
        self._clock["end_step_join"].append(join)
        self._clock["end_step"].append(end)

    reset = step

    def capture(self, start: float, end: float) -> None:
        """Note when the observation's capture began and ended."""
        self._clock["start_get_obs"].append(start)
        self._clock["end_get_obs"].append(end)

    def send(self, start: float, end: float) -> None:
        """Note when the sending of a command began and ended."""
        self._clock["start_send_control"].append(start)
        self._clock["end_send_control"].append(end)

    def result(self) -> dict[str, Any]:
        """Return the moments under "clock" and the durations between them under "deltas"."""
        clock = {key: np.array(values, dtype=np.float64) for key, values in self._clock.items()}
        deltas = {
            "step_duration": clock["end_step"] - clock["start_step"],
            "join_duration": clock["end_step_join"] - clock["start_step"],
            "inference_duration": clock["start_step"][1:] - clock["end_step"][:-1],
            "send_control_duration": clock["end_send_control"] - clock["start_send_control"],
            "get_obs_duration": clock["end_get_obs"] - clock["start_get_obs"],
            "time_step_duration": np.diff(clock["start_step"]),
        }
        return {"clock": clock, "deltas": deltas}
