"""The running episode, in either mode: the action in force, the observation at hand, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tickrate.clock import Clock
from tickrate.errors import DeviceLost
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.parts import Parts
from tickrate.realtime.stepper import Stepper
from tickrate.realtime.timegrid import TimeGrid
from tickrate.realtime.timing import PolyakBenchmark, TimingLog, TraceBenchmark, timing_info
from tickrate.realtime.timing_leaf import TimingLeaf

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]
"""What ``step`` returns: observation, reward, terminated, truncated, info."""


class Episode:
    """What the two modes of stepping (`WallClock`, `LockStep`) share.

    Args:
        config: the configuration.
        clock: the environment's clock.
        stepper: runs the calls into the interface.
        parts: the environment's parts.
        grid: the environment's grid.

    Attributes:
        last: leaves of the command in force, as it was told to the device.
        default: leaves of the action that a reset sends.
        steps: steps begun in this episode.
        max_length: steps after which it is truncated.
        running: whether ``step`` may be called.
        paused: whether the next step is not to be late for the time since the last one.
        tail: makes the action buffer's part of an observation, see `ObservationLayout.tail`.
        log: the timing of all steps.
        bench: durations of all steps; None if the configuration does not ask for them.
    """

    __slots__ = (
        "_clock",
        "_commander",
        "_config",
        "_grid",
        "_guard",
        "_intake",
        "_interface",
        "_layout",
        "_safe",
        "_stepper",
        "bench",
        "buffer",
        "default",
        "last",
        "log",
        "max_length",
        "paused",
        "running",
        "steps",
        "tail",
        "timing",
        "values",
    )

    def __init__(
        self, config: RealTimeConfig, clock: Clock, stepper: Stepper, parts: Parts, grid: TimeGrid
    ) -> None:
        self._config, self._clock, self._stepper, self._grid = config, clock, stepper, grid
        self._interface, self._commander, self._guard = parts.interface, parts.commander, parts.action_guard
        self._intake, self._layout = parts.intake, parts.layout
        self._safe = parts.safe
        self.values: list[Any] = []
        self.timing = TimingLeaf(grid, config.real_time) if config.timing_in_obs else None
        self.buffer = parts.buffer
        self.tail = parts.layout.tail(parts.buffer)
        self.default = parts.default
        self.last = parts.buffer.last()
        self.steps = 0
        self.max_length = config.ep_max_length
        self.running = self.paused = False
        self.log = TimingLog()
        self.bench: PolyakBenchmark | TraceBenchmark | None = None
        if config.benchmark:
            trace = config.benchmark_type == "trace"
            self.bench = TraceBenchmark() if trace else PolyakBenchmark(config.benchmark_polyak)

    # ---------------------------------------------------------------- the beginning

    def prepare(self, observation: Any, interrupted: bool) -> None:
        """Take the interface's first observation, and bring the action buffer to what it is after a reset.

        Args:
            observation: what ``reset`` of the interface returned.
            interrupted: whether the episode before was still running.
        """
        self._intake.begin_episode()
        self.values = self._intake.check(observation)
        config, buffer, last = self._config, self.buffer, self.last
        if config.reset_act_buf:
            buffer.fill(self.default)
        if not config.real_time:
            self.last = buffer.last()
        elif config.last_act_on_reset:
            buffer.replace(last)
        else:
            # An action that was never applied makes room for the one that is; an applied one is history.
            if interrupted and not config.reset_act_buf:
                buffer.push(self.default)
            else:
                buffer.replace(self.default)
            self.last = self.default

    def begin(self, at: float, captured: float, info: dict[str, Any]) -> Any:
        """Let the first step begin at ``at`` (seconds); return the first observation, as it is handed out.

        Args:
            at: seconds.
            captured: when ``reset`` of the interface returned the observation, in seconds.
            info: what it returned with it.
        """
        if self.timing is not None:
            self.values.append(self.timing.begin(at, captured, info))
        self.steps = 0
        self.paused = False
        self.running = True
        self.log.begin_episode(at)
        return self._layout.assemble(self.values, self.tail(None))

    # ---------------------------------------------------------------- a step

    def send(self, told: list[Any]) -> None:
        """Send a command outside of the tick."""
        outgoing = self._commander.prepare(self._guard.copy(told))
        start = self._clock.now()
        self._commander.send(outgoing)
        if self.bench is not None:
            self.bench.send(start, self._clock.now())

    def hand_out(self, observation: Any, tail: Sequence[Any], info: dict[str, Any], captured: float) -> Any:
        """Check an observation and return it in the form that was asked for, with the buffer's `tail`.

        Args:
            observation: the interface's.
            tail: the action buffer's part.
            info: the interface's; corrections are noted in it.
            captured: when it was captured, in seconds.
        """
        corrections = self._intake.corrections
        before = corrections.total
        self.values = values = self._intake.check(observation)
        if corrections.total != before:
            info["observation_corrections"] = corrections.total - before
        if self.timing is not None:
            values.append(self.timing.measure(captured, captured, info))
        return self._layout.assemble(values, tail)

    def truncation(self, info: dict[str, Any], age: float) -> tuple[bool, str | None]:
        """Return whether the episode is cut at this observation, ``age`` seconds old, and why."""
        limit = self._config.max_observation_age_s
        if limit is not None and age > limit:
            return True, f"stale observation: {age:.3g} s old, max_observation_age_s is {limit:g}"
        if info.get("truncated"):
            return True, str(info.get("truncation_reason", "the interface truncated the episode"))
        return self.steps >= self.max_length, None

    # ---------------------------------------------------------------- the ends

    def end(self, terminated: bool, before: list[Any]) -> list[Any] | None:
        """Leave the episode; return what the device was really told, None if ``reset`` will tell the rest."""
        self.running = False
        if self._config.last_act_on_reset:
            return None
        return self._safe if self._commander.leave("terminated" if terminated else "truncated") else before

    def conclude(
        self, info: dict[str, Any], applied: list[Any] | None, reason: str | None, terminated: bool
    ) -> None:
        """Say in ``info`` how the episode ended, and put right what the device was told (``applied``)."""
        if applied is not None:
            self._rewrite(applied)
            info["final_command"] = self._guard.copy(applied)
        if reason is not None and not terminated:
            info["truncation_reason"] = reason
        self.report_rate()
        if self._config.wait_on_done:
            self.pause()

    def lost(self, error: DeviceLost, told: list[Any]) -> StepResult:
        """Truncate: the last observation again, with the given action at the end of its buffer."""
        self.running = False
        safe = self._commander.leave("truncated")
        before = self.last
        self.buffer.push(told)
        values = [np.copy(value) for value in self.values]
        observation = self._layout.assemble(values, self.tail(None))
        applied = self._safe if safe else before
        time_now = self._clock.now()
        info: dict[str, Any] = {"timing": timing_info(time_now, time_now, 0.0, self.log.overruns)}
        self.conclude(info, applied, f"device lost: {error}", terminated=False)
        return observation, 0.0, False, True, info

    def make_safe(self) -> None:
        """Send the safe action now, if the device was commanded; the episode goes on with the next step."""
        if self._commander.armed and self._commander.make_safe():
            self._rewrite(self._safe)

    def pause(self) -> None:
        """Call the interface's ``wait``; the next step is not late for it."""
        self._stepper.drop_capture()
        self._stepper.call("wait()", self._config.reset_timeout_s, self._interface.wait)
        self.paused = True
        self.log.pause()

    def report_rate(self) -> None:
        """Log one line, once, if the rate was not kept; in lock-step there is none to keep."""
        if self._config.real_time:
            self.log.warn_once(1.0 / self._grid.period)

    def _rewrite(self, applied: list[Any]) -> None:
        """Make ``applied`` the command in force, in place of the newest one."""
        self.buffer.replace(applied)
        self.last = applied
