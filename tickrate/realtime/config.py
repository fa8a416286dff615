"""The configuration of a real-time environment: one frozen dataclass, and the same thing as a dictionary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from tickrate.errors import ConfigError, suggest
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.timegrid import LATE_POLICIES

WAYS_OUT = ("terminated", "truncated", "close", "exception", "signal", "lost_policy", "reset")
"""The occasions on which the safe action can be sent; ``safe_on`` is a part of them."""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "obs_format": ("tuple", "dict", "flat"),
    "late_policy": LATE_POLICIES,
    "benchmark_type": ("polyak", "trace"),
    "clock_mode": ("cheap", "precise"),
    "call_mode": ("auto", "thread"),
    "nan_action": ("hold", "refuse"),
    "out_of_range_action": ("clip", "refuse"),
    "out_of_bounds_observation": ("clip", "raise", "pass"),
    "nonfinite_observation": ("raise", "hold"),
}
_FLAGS = (
    "real_time",
    "async_threading",
    "act_in_obs",
    "reset_act_buf",
    "benchmark",
    "wait_on_done",
    "last_act_on_reset",
    "lock_memory",
    "timing_in_obs",
)


@dataclass(frozen=True, kw_only=True)
class RealTimeConfig:
    """Everything that `RealTimeEnv` can be told. Each field is also a key of the dictionary form.

    Raises:
        ConfigError: for a value or a combination that cannot work.
    """

    interface: Callable[..., Any] = RealTimeGymInterface
    """Your interface: a class (or any callable) that is called once with the two entries below."""
    interface_args: tuple[Any, ...] = ()
    """Positional arguments of your interface."""
    interface_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of your interface."""

    time_step_duration: float = 0.05
    """Length of a time-step, in seconds. Usual: 0.001 to 0.2."""
    start_obs_capture: float | None = None
    """When the observation is captured, in seconds after the start of the step. None: at the step's end.
    Earlier than the end only when a slow capture must overlap with the caller's thinking."""
    time_step_timeout_factor: float = 1.0
    """How late a step may end before the grid is given up and restarts, in periods. Usual: 0.5 to 10."""
    late_policy: str = "skip"
    """After missed periods: "skip" drops them and keeps the phase, "catch_up" runs short steps to catch
    up."""
    ep_max_length: float = math.inf
    """Steps after which an episode is truncated; infinite for tasks without a limit."""
    real_time: bool = True
    """False: lock-step. ``step`` sends its action once, captures and returns without any waiting, ``reset``
    sends nothing, and as the world waits, the safe action is sent only on close, exception, signal, lost
    policy."""
    async_threading: bool = True
    """Whether a capture before the step's end runs on a second thread, while the caller thinks."""

    obs_format: str = "tuple"
    """Form of the observations: "tuple" (the buffer as separate last elements), "dict", or "flat" (a float32
    Box)."""
    act_in_obs: bool = True
    """Whether the action buffer is part of the observation."""
    act_buf_len: int = 1
    """Length of the action buffer: the largest total delay, in steps, rounded up. Usual: 1 to 8."""
    timing_in_obs: bool = False
    """Whether the observation has the leaf ``timing``, float32 of shape (3,), each from 0 to 32: its age and
    the length of the last step, in periods, and the steps that its command took
    (`tickrate.realtime.timing_leaf`). Not in the "tuple" form."""
    reset_act_buf: bool = True
    """Whether a reset fills the action buffer with the default action."""
    last_act_on_reset: bool = False
    """Whether a reset sends the last action again, instead of the default action, to keep the flow going."""
    wait_on_done: bool = False
    """Whether the interface's ``wait`` is called when an episode ends."""
    act_prepro_func: Callable[[Any], Any] | None = None
    """Applied to an action on its way to ``send_control``; the buffer keeps what it was before."""
    obs_prepro_func: Callable[[Any], Any] | None = None
    """Applied to every observation, without the action buffer, in ``reset`` and ``step`` alike. What it
    returns must fit the space below. A Tuple observation comes to it as a list."""
    obs_prepro_space: spaces.Space[Any] | None = None
    """Space of what ``obs_prepro_func`` returns. None: the interface's own space."""

    safe_action: Any = None
    """What is sent on the ways out below. None: the default action."""
    safe_on: tuple[str, ...] = WAYS_OUT
    """Ways out on which the safe action is sent: terminated, truncated, close, exception, signal,
    lost_policy, reset. With ``last_act_on_reset`` the flow goes on through terminated, truncated and
    reset."""
    nan_action: str = "hold"
    """A non-finite action: "hold" repeats the last command, "refuse" raises `ActionError`."""
    out_of_range_action: str = "clip"
    """An action outside its space: "clip" or "refuse". A category that does not exist is always refused."""
    rate_limit: Any = None
    """Largest change of a Box action from step to step, a number or one per dimension. None: no limit."""
    max_observation_age_s: float | None = None
    """Age of an observation, in seconds, beyond which the episode is truncated. None: no limit. Usual: 2 to 5
    periods."""
    out_of_bounds_observation: str = "clip"
    """A value outside its space: "clip" (and count), "raise", or "pass"."""
    nonfinite_observation: str = "raise"
    """NaN or infinity in an observation: "raise", or "hold" the last finite value (and count)."""

    interface_timeout_s: float = 10.0
    """Limit for one call of ``send_control``, ``get_obs_rew_terminated_info`` or ``render``, in seconds."""
    reset_timeout_s: float = 120.0
    """Limit for the interface's constructor, ``reset``, ``wait`` and ``close``, in seconds."""
    call_mode: str = "auto"
    """Where the interface is called: "auto" in the caller's thread where a hang there can be interrupted (the
    main thread, not on Windows), else on one thread of the environment; "thread" always there, for drivers
    that hang in native code."""
    clock_mode: str = "cheap"
    """How to wait: "cheap" sleeps, "precise" sleeps and then spins for at most 0.2 ms a step."""
    realtime_priority: int | None = None
    """SCHED_FIFO priority asked for at the first reset, 1 to 99. None: normal scheduling. A refusal is
    logged."""
    lock_memory: bool = False
    """Whether to ask for all memory to be locked in RAM at the first reset. A refusal is logged."""

    benchmark: bool = False
    """Whether ``benchmarks()`` is available."""
    benchmark_polyak: float = 0.1
    """Weight of the newest duration in the running averages, above 0 and at most 1."""
    benchmark_type: str = "polyak"
    """"polyak" for running averages, "trace" for the whole history."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "interface_args", tuple(self.interface_args))
        object.__setattr__(self, "interface_kwargs", dict(self.interface_kwargs))
        object.__setattr__(self, "safe_on", tuple(self.safe_on))
        if isinstance(self.benchmark_type, str):
            object.__setattr__(self, "benchmark_type", self.benchmark_type.lower())
        if not callable(self.interface):
            raise ConfigError(
                f"interface is {self.interface!r}: give a class or another callable, not an instance"
            )
        _check_choices(self)
        _check_times(self)
        _check_counts(self)

    @property
    def capture_offset(self) -> float:
        """When the observation is captured, in seconds after the start of a step."""
        return self.time_step_duration if self.start_obs_capture is None else self.start_obs_capture

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> RealTimeConfig:
        """Read the dictionary form; a key that is left out has its documented default.

        Raises:
            ConfigError: for a key that does not exist, naming the nearest one, or for a bad value.
        """
        if not isinstance(mapping, Mapping):
            raise ConfigError(
                f"the configuration is a {type(mapping).__name__}: give a dict or a RealTimeConfig"
            )
        names = [f.name for f in dataclasses.fields(cls)]
        for key in mapping:
            if key not in names:
                raise ConfigError(
                    f"unknown configuration key {key!r}.{suggest(str(key), names)} "
                    "Arguments of your own interface go into 'interface_kwargs'."
                )
        return cls(**mapping)

    def to_dict(self) -> dict[str, Any]:
        """Return the dictionary form, with fresh containers."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        out["interface_kwargs"] = dict(self.interface_kwargs)
        return out


def default_config_dict() -> dict[str, Any]:
    """Return a fresh dictionary with every key at its default.

    ``start_obs_capture`` is written out (0.05, the end of the default step): whoever changes
    ``time_step_duration`` changes it too, or deletes the key to always capture at the end.
    """
    out = RealTimeConfig().to_dict()
    out["start_obs_capture"] = out["time_step_duration"]
    return out


def __getattr__(name: str) -> Any:
    if name == "DEFAULT_CONFIG_DICT":
        return default_config_dict()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check_choices(config: RealTimeConfig) -> None:
    for key, choices in _CHOICES.items():
        value = getattr(config, key)
        if value not in choices:
            hint = suggest(value, choices) if isinstance(value, str) else ""
            raise ConfigError(f"{key} is {value!r}: choose one of {list(choices)}.{hint}")
    for key in _FLAGS:
        value = getattr(config, key)
        if value not in (True, False):
            raise ConfigError(f"{key} is {value!r}: give True or False")
    if config.timing_in_obs and config.obs_format == "tuple":
        raise ConfigError(
            'timing_in_obs adds the leaf "timing", which the tuple form has no place for: set obs_format to '
            '"dict" or "flat"'
        )
    for way in config.safe_on:
        if way not in WAYS_OUT:
            raise ConfigError(
                f"safe_on contains {way!r}: choose from {list(WAYS_OUT)}.{suggest(str(way), WAYS_OUT)}"
            )


def _number(config: RealTimeConfig, key: str) -> float:
    value = getattr(config, key)
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ConfigError(f"{key} is {value!r}: give a number")
    number = float(value)
    if math.isnan(number):
        raise ConfigError(f"{key} is NaN: give a number")
    return number


def _check_times(config: RealTimeConfig) -> None:
    for key in ("time_step_duration", "interface_timeout_s", "reset_timeout_s"):
        value = _number(config, key)
        if not 0 < value < math.inf:
            raise ConfigError(f"{key} is {value}: it must be a positive, finite number of seconds")
    if not _number(config, "time_step_timeout_factor") > 0:
        raise ConfigError(
            f"time_step_timeout_factor is {config.time_step_timeout_factor}: it must be positive (periods)"
        )
    if config.start_obs_capture is not None:
        check_capture(_number(config, "start_obs_capture"), config.time_step_duration)
    if config.max_observation_age_s is not None and not _number(config, "max_observation_age_s") > 0:
        raise ConfigError(
            f"max_observation_age_s is {config.max_observation_age_s}: give positive seconds, or None"
        )


def check_capture(start_obs_capture: float, time_step_duration: float) -> None:
    """Check that the capture begins within the step.

    Raises:
        ConfigError: if it does not.
    """
    if start_obs_capture < 0:
        raise ConfigError(f"start_obs_capture is {start_obs_capture}: it cannot be before the step begins")
    if start_obs_capture > time_step_duration * (1 + 1e-9):
        raise ConfigError(
            f"start_obs_capture is {start_obs_capture}, after the end of the step ({time_step_duration} s): "
            "set it to time_step_duration or less, or leave it out to capture at the end of the step"
        )


def _check_counts(config: RealTimeConfig) -> None:
    length = config.act_buf_len
    if isinstance(length, bool) or not hasattr(length, "__index__") or length < 0:
        raise ConfigError(f"act_buf_len is {length!r}: give a whole number of steps, 0 or more")
    limit = _number(config, "ep_max_length")
    if limit < 1 or (math.isfinite(limit) and limit != int(limit)):
        raise ConfigError(
            f"ep_max_length is {config.ep_max_length}: give a whole number of steps, 1 or more, or infinity"
        )
    if not 0 < _number(config, "benchmark_polyak") <= 1:
        raise ConfigError(f"benchmark_polyak is {config.benchmark_polyak}: it must be above 0 and at most 1")
    priority = config.realtime_priority
    if priority is not None and not 1 <= _number(config, "realtime_priority") <= 99:
        raise ConfigError(f"realtime_priority is {priority}: give 1 to 99, or None")
