"""The section ``environment`` of an experiment: what a run drives, and how that becomes an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tickrate import registry
from tickrate.errors import ConfigError
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.delays import DelayedInterface, delay_range
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.timing_leaf import TIMING_LIMIT

SIMULATED_KEYS = ("act_in_obs", "act_buf_len", "timing_in_obs")
"""Keys of the real-time configuration that mean something for a Gymnasium environment, which has no clock."""


@dataclass(frozen=True)
class DelayConfig:
    """Delays added to an environment, counted in steps; each command and each observation draws its own."""

    action: int | tuple[int, int] = 0
    """Steps added to commands: one number, or [shortest, longest]."""
    observation: int | tuple[int, int] = 0
    """Steps added to observations: one number, or [shortest, longest]."""

    def __post_init__(self) -> None:
        """Refuse delays that cannot be, or are too long to be told to a policy."""
        if self.longest >= TIMING_LIMIT:  # in real time there is one more
            raise ConfigError(
                f"delays of up to {self.longest} steps in all: {TIMING_LIMIT - 1:g} is the longest that the "
                "leaf 'timing' can tell; make the time-step longer instead"
            )

    def __str__(self) -> str:
        ends = {name: delay_range(name, getattr(self, name)) for name in ("action", "observation")}
        return ", ".join(f"{name} {low} to {high} steps" for name, (low, high) in ends.items())

    @property
    def hides_commands(self) -> bool:
        """Whether a late observation leaves open which command was in force at the reward beside it."""
        shortest, longest = delay_range("action", self.action)
        return delay_range("observation", self.observation)[1] > 0 and shortest != longest

    @property
    def longest(self) -> int:
        """Steps that the longest delay of a command and that of an observation make together."""
        return delay_range("action", self.action)[1] + delay_range("observation", self.observation)[1]


@dataclass(frozen=True)
class EnvironmentConfig:
    """Which environment a run drives."""

    id: str = "circuit"
    """A live environment of the package (``circuit``, ``drone``), ``module:Class`` of your own interface, or
    the id of a registered Gymnasium environment (lock-step)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the interface, or of ``gymnasium.make``."""
    realtime: dict[str, Any] = field(default_factory=dict)
    """Keys of the real-time configuration to change (``time_step_duration``, ...). For a Gymnasium id only
    ``act_in_obs``, ``act_buf_len`` and ``timing_in_obs``: it then observes its action buffer too."""
    delays: DelayConfig | None = None
    """Delays to add, in steps, for instance ``{action: [3, 5], observation: 0}``; none when left out. Seeded
    by the run's seed. Unless ``realtime`` says otherwise, ``timing_in_obs`` is then on and ``act_buf_len``
    long enough for the longest delay."""
    stacks: dict[str, int] = field(default_factory=dict)
    """For a Gymnasium id: leaves that are histories of frames, newest last (``FrameStackObservation``), by
    their length: ``{value: 4}``. Each frame is then sent and stored once. An interface has ``stacks()``."""

    def __post_init__(self) -> None:
        """Refuse histories that are none."""
        if wrong := {path: n for path, n in self.stacks.items() if n < 2}:
            raise ConfigError(f"environment.stacks is {wrong}: a history holds 2 frames or more")


def is_live(config: EnvironmentConfig) -> bool:
    """Tell whether the environment is an interface, on its own clock, rather than a Gymnasium environment."""
    return config.id in registry.ENVIRONMENTS or ":" in config.id


def realtime_config(config: EnvironmentConfig) -> dict[str, Any]:
    """Return the configuration of the `RealTimeEnv` for a live environment, in dict form, overrides applied.

    It is checked, but the interface is not made: no device is touched.

    Raises:
        ConfigError: for an id that names no live environment, a class that is no interface, or a real-time
            key or value that cannot be.
    """
    if config.stacks:
        raise ConfigError(
            f"environment.stacks is set, but {config.id!r} is an interface: let it declare its histories by "
            "a method stacks()"
        )
    if config.id in registry.ENVIRONMENTS:
        build: Callable[..., Mapping[str, Any]] = registry.resolve(registry.ENVIRONMENTS[config.id].config)
        try:
            settings = dict(build(**config.kwargs))
        except TypeError as error:
            raise ConfigError(f"environment {config.id!r} with kwargs {config.kwargs}: {error}") from error
    else:
        interface = registry.resolve(config.id)
        if not (isinstance(interface, type) and issubclass(interface, RealTimeGymInterface)):
            raise ConfigError(f"{config.id} is {interface!r}, not a class derived from RealTimeGymInterface")
        settings = {"interface": interface, "interface_kwargs": dict(config.kwargs)}
    return _settled(settings, config)


def simulated_config(config: EnvironmentConfig, interface: RealTimeGymInterface) -> dict[str, Any]:
    """Return the configuration of the lock-step `RealTimeEnv` for a Gymnasium environment.

    Args:
        config: what was asked for.
        interface: the environment as an interface.

    Raises:
        ConfigError: for a key that only a clock gives a meaning, or a value that cannot be.
    """
    if foreign := sorted(config.realtime.keys() - set(SIMULATED_KEYS)):
        raise ConfigError(
            f"environment.realtime sets {', '.join(foreign)}, but {config.id!r} is a Gymnasium environment "
            f"in lock-step, which has no clock: only {', '.join(SIMULATED_KEYS)} can be set"
        )
    settings = {
        "interface": lambda: interface,
        "real_time": False,
        "out_of_bounds_observation": "pass",  # many simulators leave their declared bounds
    }
    return _settled(settings, config)


def _settled(settings: dict[str, Any], config: EnvironmentConfig) -> dict[str, Any]:
    """Return the settings with the overrides and the delays that were asked for; checked."""
    if "obs_format" in config.realtime:
        raise ConfigError("environment.realtime.obs_format cannot be set: a run keeps observations by path")
    settings = settings | config.realtime | {"obs_format": "dict"}
    checked = RealTimeConfig.from_mapping(settings)
    if config.delays is None:
        return settings
    # In real time a command is under way for a step even to a device that obeys at once.
    longest = config.delays.longest + int(checked.real_time)
    chosen = {"timing_in_obs": True, "act_buf_len": max(checked.act_buf_len, longest)}
    settings |= {key: value for key, value in chosen.items() if key not in config.realtime}
    settings["interface"] = partial(_delayed, settings["interface"], config.delays)
    return settings


def _delayed(make: Callable[..., Any], delays: DelayConfig, *args: Any, **kwargs: Any) -> DelayedInterface:
    return DelayedInterface(
        make(*args, **kwargs), action_delay=delays.action, observation_delay=delays.observation
    )
