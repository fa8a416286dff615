"""`RealTimeEnv`: a Gymnasium environment that drives an interface on an absolute, elastic clock.

Order of a time-step: ``step(a)`` waits for the end of the running step, captures the observation, sends ``a``
at the start of the next step and returns. So the command in force while an observation was captured is the
one before, and the action buffer in the returned observation already ends with ``a``. ``reset()`` sends the
default action (or the last one), which is in force during the first step. Such steps are taken by
`WallClock`; with ``real_time=False`` the world waits, and `LockStep` takes them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import gymnasium

from tickrate.clock import Clock, make_clock, request_locked_memory, request_realtime_scheduling
from tickrate.errors import ConfigError, EpisodeOver
from tickrate.realtime.answers import observation_time, unpack_reset
from tickrate.realtime.config import RealTimeConfig, check_capture
from tickrate.realtime.episode import Episode
from tickrate.realtime.lock_step import LockStep
from tickrate.realtime.parts import build_parts
from tickrate.realtime.stepper import Stepper
from tickrate.realtime.timegrid import TimeGrid
from tickrate.realtime.timing import LOGGER, TimingSummary, timing_info
from tickrate.realtime.wall_clock import WallClock


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
        self._intake, self._action_guard, self._commander = parts.intake, parts.action_guard, parts.commander
        # An environment that is dropped or outlives the program without close() still makes its device safe.
        self._finalizer = weakref.finalize(self, parts.commander.leave, "close")
        self._grid = TimeGrid(
            self.config.time_step_duration,
            self.config.time_step_timeout_factor,
            self.config.late_policy,
            self.config.capture_offset,
        )
        engine = (self._clock, self._stepper, parts)
        self._episode = Episode(self.config, *engine, self._grid)
        self._mode: WallClock | LockStep = (
            WallClock(self.config, *engine, self._grid, self._episode)
            if self.config.real_time
            else LockStep(*engine, self._episode)
        )
        self._begun = self._closed = False

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
        interrupted, self._episode.running = self._episode.running, False
        try:
            return self._reset(entered, interrupted, seed, options)
        except (KeyboardInterrupt, SystemExit):  # the latter: a SIGTERM in the middle of a call
            self._commander.leave("signal")
            raise
        except BaseException:
            self._commander.leave("exception")
            raise

    def _reset(
        self, entered: float, interrupted: bool, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        clock, episode = self._clock, self._episode
        if not self._begun:
            self._ask_for_privileges()
        self._mode.leave(interrupted)
        joined = clock.now()
        result = self._stepper.call(
            "reset()", self.config.reset_timeout_s, self.interface.reset, seed=seed, options=options
        )
        captured = clock.now()
        observation, info = unpack_reset(result)
        episode.prepare(observation, interrupted)
        began = clock.now()
        start = self._mode.begin(began)
        self._begun = True
        returned = episode.begin(began, captured, info)
        age = began - observation_time(info, captured)
        info["timing"] = timing_info(start, captured, age, episode.log.overruns)
        if episode.bench is not None:
            episode.bench.reset(entered, joined, clock.now())
        return returned, info

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
        if not self._episode.running:
            self._refuse_step()
        try:
            return self._mode.step(action)
        except (KeyboardInterrupt, SystemExit):  # the latter: a SIGTERM in the middle of a call
            self._episode.running = False
            self._commander.leave("signal")
            raise
        except BaseException:
            self._episode.running = False
            self._commander.leave("exception")
            raise

    def _refuse_step(self) -> NoReturn:
        if self._closed:
            raise EpisodeOver("step() was called on a closed environment: make a new one")
        raise EpisodeOver(
            "no episode is running (it ended, failed, or never began): call reset() before step()"
        )

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
        self._episode.pause()

    def stop(self) -> None:
        """Wait for the running step to end, at most one period."""
        self._mode.stop()

    def stop_device(self) -> None:
        """Send the safe action now, if the device was commanded; the episode goes on with the next step."""
        self._episode.make_safe()

    def close(self) -> None:
        """Make the device safe, close the interface, end the threads. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._episode.running = False
        try:
            self._commander.leave("close")
            self._episode.report_rate()
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
        return self._action_guard.copy(self._episode.default)

    @property
    def time_step_duration(self) -> float:
        """Length of the next time-steps, in seconds."""
        return self._grid.period

    @property
    def start_obs_capture(self) -> float:
        """When the next observations are captured, in seconds after the start of their step."""
        return self._grid.capture_offset

    @property
    def ep_max_length(self) -> float:
        """Steps after which an episode is truncated."""
        return self._episode.max_length

    def set_default_action(self, default_action: Any) -> None:
        """Change the action that ``reset`` sends. The safe action stays what it is.

        Raises:
            ConfigError: if it is no element of the action space.
        """
        self._episode.default = self._action_guard.strict(default_action, "default action")

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
        try:
            self._grid.change(time_step_duration, time_step_timeout_factor)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def set_start_obs_capture(self, start_obs_capture: float) -> None:
        """Change when observations are captured, in seconds after the start of a step, from the next step on.

        Raises:
            ConfigError: if that is not within the step (set a longer ``time_step_duration`` first).
        """
        check_capture(start_obs_capture, self._grid.period)
        self._grid.capture_at(start_obs_capture)

    def set_ep_max_length(self, ep_max_length: float) -> None:
        """Change the number of steps after which an episode is truncated, from the next step on.

        Raises:
            ConfigError: if it is less than one step.
        """
        if not ep_max_length >= 1:
            raise ConfigError(f"ep_max_length is {ep_max_length}: give 1 step or more, or infinity")
        self._episode.max_length = ep_max_length

    def timing_summary(self) -> TimingSummary:
        """Return how well the clock was kept in all steps so far."""
        return self._episode.log.summary(1.0 / self._grid.period)

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
        if self._episode.bench is None:
            raise ConfigError("benchmarks() needs benchmark=True in the configuration")
        return self._episode.bench.result()
