"""`RealTimeEnv`: a Gymnasium environment that drives an interface on an absolute, elastic clock.

Order of a time-step: ``step(a)`` waits for the end of the running step, captures the observation, sends ``a``
at the start of the next step and returns. So the command in force while an observation was captured is the
one before, and the action buffer in the returned observation already ends with ``a``. ``reset()`` sends the
default action (or the last one), which is in force during the first step.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import gymnasium
import numpy as np

from tickrate.clock import Clock, make_clock, request_locked_memory, request_realtime_scheduling
from tickrate.errors import ConfigError, DeviceLost, EpisodeOver
from tickrate.realtime.config import RealTimeConfig, check_capture
from tickrate.realtime.parts import build_parts, unpack_reset, unpack_step
from tickrate.realtime.stepper import Stepper
from tickrate.realtime.timegrid import TimeGrid
from tickrate.realtime.timing import LOGGER, PolyakBenchmark, TimingLog, TimingSummary, TraceBenchmark

_CAPTURE = "get_obs_rew_terminated_info()"

COLLECT_SLACK_S = 2e-3
"""With more time than this before the next capture, young garbage is collected before sleeping."""
COLLECT_COUNT = 350
"""And only from this many young objects on: half of CPython's own threshold."""


class RealTimeEnv(gymnasium.Env[Any, Any]):
    """A live device as a Gymnasium environment.

    Args:
        config: a `RealTimeConfig`, or the same as a dictionary.
        clock: the clock to use; one made for ``config.clock_mode`` when omitted.
        render_mode: kept for `gymnasium.make`; `render` calls the interface whatever it is.

    Attributes:
        interface: the interface, built from the configuration.
        config: the configuration.
        leaf_spaces: path to leaf space of the canonical observation, the action buffer (``actions``) last.

    Raises:
        ConfigError: for a configuration that cannot work.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human"], "render_fps": 20}  # type: ignore[misc]

    def __init__(
        self,
        config: Mapping[str, Any] | RealTimeConfig | None = None,
        *,
        clock: Clock | None = None,
        render_mode: str | None = None,
    ) -> None:
        if config is None:
            config = RealTimeConfig()
        self.config = config if isinstance(config, RealTimeConfig) else RealTimeConfig.from_mapping(config)
        self.render_mode = render_mode
        self._clock: Clock = clock if clock is not None else make_clock(self.config.clock_mode)
        limits = (self.config.interface_timeout_s, self.config.reset_timeout_s)
        self._stepper = Stepper(self._clock, self.config.call_mode, *limits)
        try:
            parts = build_parts(self.config, self._stepper)
        except BaseException:
            self._stepper.close()
            raise
        self.interface = parts.interface
        self.action_space = parts.action_space
        self.observation_space = parts.layout.space
        self.leaf_spaces = parts.layout.leaf_spaces
        self._intake, self._layout, self._action_guard = parts.intake, parts.layout, parts.action_guard
        self._default, self._safe = parts.default, parts.safe
        self._buffer, self._commander = parts.buffer, parts.commander
        self._last = parts.buffer.last()
        # An environment that is dropped or outlives the program without close() still makes its device safe.
        self._finalizer = weakref.finalize(self, parts.commander.leave, "close")
        self._start_clockwork(self.config)

    def _start_clockwork(self, config: RealTimeConfig) -> None:
        self._grid = TimeGrid(config.time_step_duration, config.time_step_timeout_factor, config.late_policy)
        self._offset = config.capture_offset
        self._overlapping = config.async_threading and self._offset < self._grid.period
        self._ep_max_length = config.ep_max_length
        self._capture_at = 0.0
        self._values: list[Any] = []
        self._steps = 0
        self._running = self._paused = self._grid_runs = self._closed = False
        self._log = TimingLog()
        self._bench: PolyakBenchmark | TraceBenchmark | None = None
        if config.benchmark:
            trace = config.benchmark_type == "trace"
            self._bench = TraceBenchmark() if trace else PolyakBenchmark(config.benchmark_polyak)

    # ---------------------------------------------------------------- episodes

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode: make the device safe, reset the interface, send the first action.

        A reset is outside of the grid: however long it takes, no step is late for it.

        Args:
            seed: passed to the interface, and seeds ``np_random``.
            options: passed to the interface.

        Returns:
            The first observation and its info.

        Raises:
            DeviceLost: if the interface cannot reconnect.
            InterfaceTimeout: if its ``reset`` does not return within ``reset_timeout_s``.
        """
        super().reset(seed=seed)
        if self._closed:
            raise EpisodeOver("this environment was closed: make a new one")
        entered = self._clock.now()
        interrupted, self._running = self._running, False
        try:
            return self._reset(entered, interrupted, seed, options)
        except KeyboardInterrupt:
            self._commander.leave("signal")
            raise
        except BaseException:
            self._commander.leave("exception")
            raise

    def _reset(
        self, entered: float, interrupted: bool, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        config, grid = self.config, self._grid
        keep_flow = config.last_act_on_reset and config.real_time
        self._stepper.drop_capture()
        if keep_flow and interrupted:
            self._clock.sleep_until(grid.due)
        if not self._grid_runs:
            self._ask_for_privileges()
        if config.real_time and not keep_flow:
            self._commander.leave("reset")
        joined = self._clock.now()
        result = self._stepper.call(
            "reset()", config.reset_timeout_s, self.interface.reset, seed=seed, options=options
        )
        captured = self._clock.now()
        observation, info = unpack_reset(result)
        self._intake.begin_episode()
        self._values = self._intake.check(observation)
        self._first_action(interrupted)
        began = self._clock.now()
        if config.real_time:
            self._send(self._last)
            late = began - grid.due
            if (
                keep_flow
                and self._grid_runs
                and not self._paused
                and 0 <= late < min(grid.timeout, grid.period)
            ):
                grid.advance(began)
            else:
                grid.restart(began)
            self._grid_runs = True
            self._plan_capture()
        self._steps = 0
        self._paused = False
        self._running = True
        self._log.begin_episode(began)
        observation = self._layout.assemble(self._values, self._buffer)
        seen = self._seen(info, captured)
        info["timing"] = self._timing(began if not config.real_time else grid.start, captured, began - seen)
        if self._bench is not None:
            self._bench.reset(entered, joined, self._clock.now())
        return observation, info

    def _first_action(self, interrupted: bool) -> None:
        """Bring the action buffer to what it is after a reset; its last entry is sent next."""
        config, buffer = self.config, self._buffer
        last = self._last
        if config.reset_act_buf:
            buffer.fill(self._default)
        if not config.real_time:
            self._last = buffer.last()
            return
        if config.last_act_on_reset:
            buffer.replace(last)
            return
        # An action that was never applied makes room for the one that is; one that was applied is history.
        if interrupted and not config.reset_act_buf:
            buffer.push(self._default)
        else:
            buffer.replace(self._default)
        self._last = self._default

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait for the end of the running step, return its observation, start the next one with ``action``.

        Args:
            action: the next command; None sends nothing and repeats the buffer's last entry.

        Returns:
            Observation, reward, terminated, truncated, info. ``info["timing"]`` holds ``start`` (planned
            start of the step that begins now), ``capture``, ``observation_age``, ``lateness`` (seconds),
            ``skipped``, ``timed_out``, ``overrun`` and ``overruns`` (so far). ``info["applied_action"]`` is
            there when the guard made something else of ``action``: what a record of this step should hold.
            ``info["final_command"]`` is there when the episode ended and the device was left with another
            command than ``action`` (the safe one), which is no choice of the policy's.
            ``info["truncation_reason"]`` tells why an episode was cut, ``info["observation_corrections"]``
            how many leaves of this observation the guard clipped or held.

        Raises:
            EpisodeOver: if no episode is running.
            ActionError: for an action that the guard refuses.
            ObservationError: for an observation that does not fit its space.
            InterfaceTimeout: if the interface hangs.
        """
        if not self._running:
            self._refuse_step()
        try:
            return self._step(action) if self.config.real_time else self._lock_step(action)
        except KeyboardInterrupt:
            self._running = False
            self._commander.leave("signal")
            raise
        except BaseException:
            self._running = False
            self._commander.leave("exception")
            raise

    def _refuse_step(self) -> NoReturn:
        if self._closed:
            raise EpisodeOver("step() was called on a closed environment: make a new one")
        raise EpisodeOver(
            "no episode is running (it ended, failed, or never began): call reset() before step()"
        )

    def _step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # Before the sleep: all that can be done before. Between sleep and command: as little as possible,
        # for that is how late the command is. After the command: checks, forms, bookkeeping.
        clock, grid, log, stepper, before = self._clock, self._grid, self._log, self._stepper, self._last
        get, commander = self.interface.get_obs_rew_terminated_info, self._commander
        entered = clock.now()
        told, changed = (before, False) if action is None else self._action_guard(action, before)
        outgoing = commander.prepare(self._action_guard.copy(told))
        waited, lateness = False, 0.0
        if entered > grid.due or self._paused:
            waited, lateness = self._enter(entered)
        at = grid.due if waited else self._capture_at
        self._steps += 1
        may_end = self._steps >= self._ep_max_length or self.config.max_observation_age_s is not None
        applied: list[Any] | None = None
        terminated, truncated, reason = False, False, None
        collecting = self._stop_collecting(at - entered)
        try:
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
                ends = may_end or result[2] or "truncated" in result[3]
            except (TypeError, IndexError):
                ends = True  # no answer that can be used: unpacking it says why
            if ends:
                _, _, terminated, info = unpack_step(result)
                truncated, reason = self._truncation(info, ready - self._seen(info, capture))
            timed_out, skipped, due = grid.timed_out, grid.skipped, grid.due
            if terminated or truncated:
                applied = self._end_episode(terminated, before)
            else:
                if action is not None:
                    commander.armed = True
                    if direct:
                        stepper.calling("send_control()")
                        self.interface.send_control(outgoing)
                    else:
                        commander.send(outgoing)
                    if self._bench is not None:
                        self._bench.send(ready, clock.now())
                grid.advance(ready)
                due = grid.start
                if self._overlapping:
                    self._plan_capture()
                else:
                    self._capture_at = due + self._offset
        except DeviceLost as error:
            return self._lost(error, told)
        finally:
            stepper.disarm()
            if collecting:
                gc.enable()
        observation, reward, terminated, info = unpack_step(result)
        log.record(ready, lateness)
        overrun = lateness >= grid.timeout or lateness >= grid.period
        if overrun:
            log.overruns += 1
            log.skipped += skipped
        if self._paused:
            self._paused = timed_out = False
        elif timed_out:
            log.timeouts += 1
        self._buffer.push(told)
        self._last = told
        returned = self._hand_out(observation, info)
        info["timing"] = {
            "start": due,
            "capture": capture,
            "observation_age": ready - self._seen(info, capture),
            "lateness": lateness,
            "skipped": skipped,
            "timed_out": timed_out,
            "overrun": overrun,
            "overruns": log.overruns,
        }
        if changed:
            info["applied_action"] = self._action_guard.copy(told)
        if terminated or truncated:
            self._after_episode(info, applied, reason, terminated)
            truncated = truncated and not terminated
        if self._bench is not None:
            self._bench.capture(capture, captured)
            self._bench.step(entered, ready, clock.now())
        return returned, reward, terminated, truncated, info

    def _lock_step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send once, capture, return: the world waits, so the observation shows the action's effect."""
        entered, before = self._clock.now(), self._last
        told, changed = (before, False) if action is None else self._action_guard(action, before)
        try:
            if action is not None:
                self._send(told)
            capture = self._clock.now()
            result = self._stepper.step_call(_CAPTURE, self.interface.get_obs_rew_terminated_info)
            captured = self._clock.now()
        except DeviceLost as error:
            return self._lost(error, told)
        observation, reward, terminated, info = unpack_step(result)
        self._steps += 1
        seen = self._seen(info, capture)
        truncated, reason = self._truncation(info, captured - seen)
        self._log.record(captured, 0.0)
        self._buffer.push(told)
        self._last = told
        returned = self._hand_out(observation, info)
        info["timing"] = self._timing(captured, capture, captured - seen)
        if changed:
            info["applied_action"] = self._action_guard.copy(told)
        if terminated or truncated:
            self._running = False
            self._after_episode(info, None, reason, terminated)
        if self._bench is not None:
            self._bench.capture(capture, captured)
            self._bench.step(entered, captured, self._clock.now())
        return returned, reward, terminated, truncated and not terminated, info

    # ------------------------------------------------------------ parts of a step

    def _enter(self, entered: float) -> tuple[bool, float]:
        """Settle lateness that the caller caused; return whether to wait for the grid, and lateness (s)."""
        grid = self._grid
        if self._paused:
            grid.timed_out = True  # a pause is no time-out, but the grid begins anew in the same way
            return False, 0.0
        return grid.settle(entered), entered - grid.end

    def _settle(self, ready: float, waited: bool, lateness: float) -> tuple[float, float]:
        """Wait for the step's end, or settle a slow capture's lateness; return ready and lateness (s)."""
        grid, stepper = self._grid, self._stepper
        if ready < grid.due and not grid.timed_out:
            stepper.arm(_CAPTURE, grid.due - ready)
            ready = self._clock.sleep_until(grid.due)
        if not (waited or self._paused):
            lateness = ready - grid.end
        if not grid.timed_out and grid.settle(ready):
            stepper.arm(_CAPTURE, grid.due - ready)
            ready = self._clock.sleep_until(grid.due)
        return ready, lateness

    @staticmethod
    def _stop_collecting(slack: float) -> bool:
        """Turn garbage collection off, after some if there is time for it; return whether it was on."""
        if not gc.isenabled():
            return False
        if slack > COLLECT_SLACK_S and gc.get_count()[0] > COLLECT_COUNT:
            gc.collect(0)
        gc.disable()
        return True

    def _hand_out(self, observation: Any, info: dict[str, Any]) -> Any:
        """Check an observation and return it in the form that was asked for, with the action buffer."""
        corrections = self._intake.corrections
        before = corrections.total
        self._values = values = self._intake.check(observation)
        if corrections.total != before:
            info["observation_corrections"] = corrections.total - before
        return self._layout.assemble(values, self._buffer)

    def _send(self, told: list[Any]) -> None:
        """Send a command outside of the tick."""
        outgoing = self._commander.prepare(self._action_guard.copy(told))
        start = self._clock.now()
        self._commander.send(outgoing)
        if self._bench is not None:
            self._bench.send(start, self._clock.now())

    def _plan_capture(self) -> None:
        self._capture_at = self._grid.start + self._offset
        if self._overlapping and self._offset < self._grid.period:
            self._stepper.begin_capture(self._capture_at, self.interface.get_obs_rew_terminated_info)

    def _truncation(self, info: dict[str, Any], age: float) -> tuple[bool, str | None]:
        limit = self.config.max_observation_age_s
        if limit is not None and age > limit:
            return True, f"stale observation: {age:.3g} s old, max_observation_age_s is {limit:g}"
        if info.get("truncated"):
            return True, str(info.get("truncation_reason", "the interface truncated the episode"))
        return self._steps >= self._ep_max_length, None

    @staticmethod
    def _seen(info: Mapping[str, Any], capture: float) -> float:
        """Return when an observation's newest data were taken: as the interface says, or at its capture."""
        return float(info["observation_time"]) if "observation_time" in info else capture

    def _end_episode(self, terminated: bool, before: list[Any]) -> list[Any] | None:
        """Leave the episode; return what the device was really told, None if ``reset`` will tell the rest."""
        self._running = False
        if self.config.last_act_on_reset:
            return None
        return self._safe if self._commander.leave("terminated" if terminated else "truncated") else before

    def _after_episode(
        self, info: dict[str, Any], applied: list[Any] | None, reason: str | None, terminated: bool
    ) -> None:
        if applied is not None:
            self._buffer.replace(applied)
            self._last = applied
            info["final_command"] = self._action_guard.copy(applied)
        if reason is not None and not terminated:
            info["truncation_reason"] = reason
        if self.config.real_time:
            self._log.warn_once(1.0 / self._grid.period)
        if self.config.wait_on_done:
            self.wait()

    def _lost(self, error: DeviceLost, told: list[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Truncate: the last observation again, with the given action at the end of its buffer."""
        self._running = False
        safe = self._commander.leave("truncated")
        before = self._last
        self._buffer.push(told)
        observation = self._layout.assemble([np.copy(value) for value in self._values], self._buffer)
        applied = self._safe if safe else before
        time_now = self._clock.now()
        info: dict[str, Any] = {"timing": self._timing(time_now, time_now, 0.0)}
        self._after_episode(info, applied, f"device lost: {error}", terminated=False)
        return observation, 0.0, False, True, info

    def _timing(self, start: float, capture: float, age: float) -> dict[str, Any]:
        return {
            "start": start,
            "capture": capture,
            "observation_age": age,
            "lateness": 0.0,
            "skipped": 0,
            "timed_out": False,
            "overrun": False,
            "overruns": self._log.overruns,
        }

    def _ask_for_privileges(self) -> None:
        self._commander.catch_sigterm()
        if self.config.realtime_priority is not None:
            grant = request_realtime_scheduling(self.config.realtime_priority)
            LOGGER.log(20 if grant.granted else 30, "realtime_priority: %s", grant.reason)
        if self.config.lock_memory:
            grant = request_locked_memory()
            LOGGER.log(20 if grant.granted else 30, "lock_memory: %s", grant.reason)

    # ---------------------------------------------------------------- pauses and ends

    def wait(self) -> None:
        """Let the running step end, then call the interface's ``wait``. The next step is not late for it."""
        self.stop()
        self._stepper.drop_capture()
        self._stepper.call("wait()", self.config.reset_timeout_s, self.interface.wait)
        self._paused = True
        self._log.pause()

    def stop(self) -> None:
        """Wait for the running step to end, at most one period."""
        if self._running and self.config.real_time:
            self._clock.sleep_until(self._grid.end)

    def stop_device(self) -> None:
        """Send the safe action now, if the device was commanded; the episode goes on with the next step."""
        if self._commander.armed and self._commander.make_safe():
            self._buffer.replace(self._safe)
            self._last = self._safe

    def close(self) -> None:
        """Make the device safe, close the interface, end the threads. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._running = False
        try:
            self._commander.leave("close")
            if self.config.real_time:
                self._log.warn_once(1.0 / self._grid.period)
            closing = getattr(self.interface, "close", None)
            if callable(closing):
                self._stepper.call("close()", self.config.reset_timeout_s, closing)
        finally:
            self._finalizer.detach()
            self._stepper.close()

    def render(self, mode: str = "human", join_thread: bool = False) -> Any:
        """Call the interface's ``render`` and return what it returns.

        Args:
            mode: not used; people pass it.
            join_thread: whether to let the running step end first, for a render that must not meet a capture.
        """
        if join_thread:
            self.stop()
        return self._stepper.call("render()", self.config.interface_timeout_s, self.interface.render)

    # ---------------------------------------------------------------- settings and measurements

    @property
    def default_action(self) -> Any:
        """The action that ``reset`` sends (a copy)."""
        return self._action_guard.copy(self._default)

    @property
    def time_step_duration(self) -> float:
        """Length of the next time-steps, in seconds."""
        return self._grid.period

    @property
    def start_obs_capture(self) -> float:
        """When the next observations are captured, in seconds after the start of their step."""
        return self._offset

    @property
    def ep_max_length(self) -> float:
        """Steps after which an episode is truncated."""
        return self._ep_max_length

    def set_default_action(self, default_action: Any) -> None:
        """Change the action that ``reset`` sends. The safe action stays what it is.

        Raises:
            ConfigError: if it is no element of the action space.
        """
        self._default = self._action_guard.strict(default_action, "default action")

    def set_time_step_duration(
        self, time_step_duration: float, time_step_timeout_factor: float | None = None
    ) -> None:
        """Change the length of a step from the next step on; the running one keeps its planned end.

        A capture at the end of the step stays there; an earlier one moves only if the step becomes too short.

        Args:
            time_step_duration: seconds.
            time_step_timeout_factor: periods; unchanged when omitted.

        Raises:
            ConfigError: if one of them is not positive.
        """
        at_end = self._offset >= self._grid.period
        try:
            self._grid.change(time_step_duration, time_step_timeout_factor)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._offset = time_step_duration if at_end else min(self._offset, time_step_duration)
        self._overlapping = self.config.async_threading and self._offset < time_step_duration

    def set_start_obs_capture(self, start_obs_capture: float) -> None:
        """Change when observations are captured, in seconds after the start of a step, from the next step on.

        Raises:
            ConfigError: if that is not within the step (set a longer ``time_step_duration`` first).
        """
        check_capture(start_obs_capture, self._grid.period)
        self._offset = start_obs_capture
        self._overlapping = self.config.async_threading and start_obs_capture < self._grid.period

    def set_ep_max_length(self, ep_max_length: float) -> None:
        """Change the number of steps after which an episode is truncated, from the next step on.

        Raises:
            ConfigError: if it is less than one step.
        """
        if not ep_max_length >= 1:
            raise ConfigError(f"ep_max_length is {ep_max_length}: give 1 step or more, or infinity")
        self._ep_max_length = ep_max_length

    def timing_summary(self) -> TimingSummary:
        """Return how well the clock was kept in all steps so far."""
        return self._log.summary(1.0 / self._grid.period)

    def guard_counts(self) -> dict[str, Any]:
        """Return what the guards did so far: actions held, clipped, slowed; leaves clipped, held, by path."""
        actions = self._action_guard
        return {
            "actions_held": actions.held,
            "actions_clipped": actions.clipped,
            "actions_rate_limited": actions.rate_limited,
            "observation_clipped": dict(self._intake.corrections.clipped),
            "observation_held": dict(self._intake.corrections.held),
        }

    def benchmarks(self) -> dict[str, Any]:
        """Return durations (``benchmark_type`` "polyak") or moments and durations ("trace"), in seconds.

        Raises:
            ConfigError: if the environment was not configured with ``benchmark=True``.
        """
        if self._bench is None:
            raise ConfigError("benchmarks() needs benchmark=True in the configuration")
        return self._bench.result()
