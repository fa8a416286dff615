"""The wall-clock mode: steps on the grid, for a world that does not wait.

`WallClock.step` is the hot path of the package: between the end of its sleep and the command, nothing is done
that can be done before or after. That, and the price of a call on cold caches, make it one long function.
"""

from __future__ import annotations

import gc
import math
from threading import get_ident
from typing import Any

from tickrate.clock import Clock, now
from tickrate.errors import DeviceLost
from tickrate.realtime.answers import observation_time, unpack_step
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.episode import Episode, StepResult
from tickrate.realtime.parts import Parts
from tickrate.realtime.stepper import Stepper
from tickrate.realtime.timegrid import TimeGrid
from tickrate.realtime.timing import KEPT

_CAPTURE = "get_obs_rew_terminated_info()"

COLLECT_SLACK_S = 2e-3
"""With more time than this before the next capture, young garbage is collected before sleeping."""
COLLECT_COUNT = 350
"""And only from this many young objects on: half of CPython's own threshold."""


class WallClock:
    """Steps an episode whose world goes on meanwhile.

    Args:
        config: the configuration.
        clock: the environment's clock.
        stepper: runs the calls into the interface.
        parts: the environment's parts.
        grid: where the steps start.
        episode: the environment's episode.
    """

    __slots__ = (
        "_assemble",
        "_async",
        "_buffer",
        "_capture_at",
        "_check",
        "_clock",
        "_commander",
        "_corrections",
        "_episode",
        "_grid",
        "_grid_runs",
        "_guard",
        "_interface",
        "_keep_flow",
        "_log",
        "_maximum_age",
        "_plain",
        "_single",
        "_stepper",
        "_tail",
        "_take",
        "_timing",
    )

    def __init__(
        self,
        config: RealTimeConfig,
        clock: Clock,
        stepper: Stepper,
        parts: Parts,
        grid: TimeGrid,
        episode: Episode,
    ) -> None:
        # The hot path finds all that it needs here: one look-up each.
        self._clock, self._stepper, self._grid, self._episode = clock, stepper, grid, episode
        self._interface, self._commander, self._guard = parts.interface, parts.commander, parts.action_guard
        self._buffer, self._log, self._tail = parts.buffer, episode.log, episode.tail
        self._plain, self._assemble = parts.layout.plain, parts.layout.assemble
        self._check, self._corrections = parts.intake.check, parts.intake.corrections
        self._single, self._take = parts.action_guard.single, parts.action_guard.take
        self._timing = episode.timing
        self._async = config.async_threading
        self._maximum_age = config.max_observation_age_s
        self._keep_flow = config.last_act_on_reset
        self._capture_at = 0.0
        self._grid_runs = False

    # ---------------------------------------------------------------- around an episode

    def leave(self, interrupted: bool) -> None:
        """Leave the episode before for a reset: make the device safe, or let the running step end."""
        self._stepper.drop_capture()
        if not self._keep_flow:
            self._commander.leave("reset")
        elif interrupted:
            self._clock.sleep_until(self._grid.due)

    def begin(self, began: float) -> float:
        """Send the first action at ``began`` (s, now) and return the planned start of the first step (s)."""
        grid, episode = self._grid, self._episode
        episode.send(episode.last)
        late = began - grid.due
        on_time = 0 <= late < min(grid.timeout, grid.period)
        if self._keep_flow and self._grid_runs and not episode.paused and on_time:
            grid.advance(began)
        else:
            grid.restart(began)
        self._grid_runs = True
        self._plan_capture()
        return grid.start

    def stop(self) -> None:
        """Wait for the running step to end, at most one period."""
        if self._episode.running:
            self._clock.sleep_until(self._grid.end)

    # ---------------------------------------------------------------- the hot path

    def step(self, action: Any) -> StepResult:
        """Wait for the end of the running step, capture, send ``action``, return the observation."""
        # Before the sleep: all that can be done before. Between sleep and command: as little as possible,
        # for that is how late the command is. After the command: checks, forms, bookkeeping.
        clock, grid, stepper, episode = self._clock, self._grid, self._stepper, self._episode
        get, commander, before = self._interface.get_obs_rew_terminated_info, self._commander, episode.last
        entered = clock.now()
        told, changed = before, False
        if action is not None:
            if (array := self._take(action)) is not None:
                told = [array]
            else:
                told, changed = self._guard(action, before)
        outgoing = told[0].copy() if self._single else self._guard.copy(told)
        if commander.prepro is not None:
            outgoing = commander.prepare(outgoing)
        tail = self._tail(told)
        waited, lateness = False, 0.0
        if entered > grid.due or episode.paused:
            waited, lateness = self._enter(entered)
        at = grid.due if waited else self._capture_at
        episode.steps += 1
        may_end = episode.steps >= episode.max_length or self._maximum_age is not None
        applied: list[Any] | None = None
        terminated, truncated, reason = False, False, None
        collecting = gc.isenabled()
        if collecting:  # not inside a tick: before it, if there is time
            if at - entered > COLLECT_SLACK_S and gc.get_count()[0] > COLLECT_COUNT:
                gc.collect(0)
            gc.disable()
        try:
            direct = get_ident() == stepper.watched_thread  # the usual case of `arm`, without the call
            if direct:
                stepper.guard.what = _CAPTURE
                stepper.guard.deadline = now() + stepper.limit_s + (at - entered if at > entered else 0.0)
            else:
                direct = stepper.arm(_CAPTURE, at - entered)
            if stepper.capturing:
                result = stepper.finish_capture(_CAPTURE)
                capture, ready = stepper.capture_start, stepper.capture_end
                direct = stepper.arm(_CAPTURE, 0.0)
            else:
                capture = clock.sleep_until(at)
                result = get() if direct else stepper.step_call(_CAPTURE, get)
                ready = clock.now()
            captured, late = ready, ready - grid.due
            if late < 0.0 or late >= grid.period or late >= grid.timeout or grid.timed_out:
                ready, lateness = self._settle(ready, waited, lateness)
            elif not waited:
                lateness = ready - grid.end
            try:
                observation, reward, terminated, info = result
                plain = not (may_end or terminated or "truncated" in info)
            except (TypeError, ValueError):
                plain = False  # no answer that can be used: unpacking it says why
            if not plain:
                observation, reward, terminated, info = unpack_step(result)
                truncated, reason = episode.truncation(info, ready - observation_time(info, capture))
            timed_out, skipped, due = grid.timed_out, grid.skipped, grid.due
            if terminated or truncated:
                applied = episode.end(terminated, before)
            else:
                if action is not None:
                    commander.armed = True
                    if direct:
                        stepper.guard.what = "send_control()"
                        self._interface.send_control(outgoing)
                    else:
                        commander.send(outgoing)
                    if episode.bench is not None:
                        episode.bench.send(ready, clock.now())
                grid.advance(ready)
                due = grid.start
                if self._async and grid.early:
                    self._plan_capture()
                else:
                    self._capture_at = due + grid.capture_offset
        except DeviceLost as error:
            return episode.lost(error, told)
        finally:
            stepper.guard.deadline = math.inf
            if collecting:
                gc.enable()
        if plain and type(info) is dict and type(reward) is float and reward - reward == 0.0:
            terminated, info = False, {**info}  # as unpack_step would, without the call
        else:
            observation, reward, terminated, info = unpack_step(result)
        log = self._log
        log.lateness[log.steps % KEPT] = lateness  # as log.record would
        log.steps += 1
        log.last = ready
        if lateness > log.max_s:
            log.max_s = lateness
        overrun = lateness >= grid.timeout or lateness >= grid.period
        if overrun:
            log.overruns += 1
            log.skipped += skipped
        if episode.paused:
            episode.paused = timed_out = False
            log.resume(ready)
            if self._timing is not None:
                self._timing.pause()
        elif timed_out:
            log.timeouts += 1
        self._buffer.push(told)
        episode.last = told
        corrections = self._corrections.total
        episode.values = values = self._check(observation)
        if self._corrections.total != corrections:
            info["observation_corrections"] = self._corrections.total - corrections
        if self._timing is not None:
            values.append(self._timing.measure(ready, capture, info))
        returned = (*values, *tail) if self._plain else self._assemble(values, tail)
        info["timing"] = {
            "start": due,
            "capture": capture,
            "observation_age": ready
            - (float(info["observation_time"]) if "observation_time" in info else capture),
            "lateness": lateness,
            "skipped": skipped,
            "timed_out": timed_out,
            "overrun": overrun,
            "overruns": log.overruns,
        }
        if changed:
            info["applied_action"] = self._guard.copy(told)
        if terminated or truncated:
            episode.conclude(info, applied, reason, terminated)
            truncated = truncated and not terminated
        if episode.bench is not None:
            episode.bench.capture(capture, captured)
            episode.bench.step(entered, ready, clock.now())
        return returned, reward, terminated, truncated, info

    # ---------------------------------------------------------------- its rarer parts

    def _enter(self, entered: float) -> tuple[bool, float]:
        """Settle lateness that the caller caused; return whether to wait for the grid, and lateness (s)."""
        grid = self._grid
        if self._episode.paused:
            grid.timed_out = True  # a pause is no time-out, but the grid begins anew in the same way
            return False, 0.0
        return grid.settle(entered), entered - grid.end

    def _settle(self, ready: float, waited: bool, lateness: float) -> tuple[float, float]:
        """Wait for the step's end, or settle a slow capture's lateness; return ready and lateness (s)."""
        grid, stepper = self._grid, self._stepper
        if ready < grid.due and not grid.timed_out:
            stepper.arm(_CAPTURE, grid.due - ready)
            ready = self._clock.sleep_until(grid.due)
        if not (waited or self._episode.paused):
            lateness = ready - grid.end
        if not grid.timed_out and grid.settle(ready):
            stepper.arm(_CAPTURE, grid.due - ready)
            ready = self._clock.sleep_until(grid.due)
        return ready, lateness

    def _plan_capture(self) -> None:
        grid = self._grid
        self._capture_at = grid.start + grid.capture_offset
        if self._async and grid.early:
            self._stepper.begin_capture(self._capture_at, self._interface.get_obs_rew_terminated_info)
