"""Opens the environment of an experiment: a live one on its clock, or a Gymnasium one in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from tickrate import registry, trees
from tickrate.clock import Clock
from tickrate.data.checksums import CHECKSUM_FIELD
from tickrate.data.schema import Field, RecordSchema
from tickrate.errors import ConfigError, RecordError, suggest
from tickrate.realtime import ENVIRONMENT_IDS
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.env import RealTimeEnv
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.timing import TimingSummary
from tickrate.trees import Leaves


@dataclass(frozen=True)
class EnvironmentConfig:
    """Which environment a run drives."""

    id: str = "circuit"
    """A live environment of the package (``circuit``, ``drone``), ``module:Class`` of your own interface, or
    the id of a registered Gymnasium environment (lock-step)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the interface, or of ``gymnasium.make``."""
    realtime: dict[str, Any] = field(default_factory=dict)
    """Keys of the real-time configuration to change (``time_step_duration``, ...); live environments only."""


StepResult = tuple[Leaves, float, bool, bool, dict[str, Any]]


class Acted(Protocol):
    """What an actor must know of where it acts; an `Environment` and an `EnvironmentContract` say it."""

    @property
    def leaf_spaces(self) -> Mapping[str, spaces.Space[Any]]:
        """Canonical observation: path -> space, the action buffer last."""
        ...

    @property
    def action_space(self) -> spaces.Box:
        """Bounded box of floats."""
        ...

    @property
    def period_s(self) -> float:
        """Time-step in seconds; 0 in lock-step."""
        ...

    @property
    def action_buffer_length(self) -> int:
        """Actions in flight that the observation holds."""
        ...


class Environment(Acted, Protocol):
    """What a worker drives: canonical observations in, actions out, whatever is behind it."""

    def reset(self, seed: int | None = None) -> tuple[Leaves, dict[str, Any]]:
        """Begin an episode; return its first observation by path, and info."""
        ...

    def step(self, action: Any) -> StepResult:
        """Apply an action; return the observation by path, reward, terminated, truncated, info."""
        ...

    def stop_device(self) -> None:
        """Make the device safe now."""
        ...

    def timing(self) -> TimingSummary | None:
        """Return how well the clock was kept; None for an environment without one."""
        ...

    def close(self) -> None:
        """Make the device safe and let go of it."""
        ...


class LiveEnvironment:
    """A `RealTimeEnv` with its observations as an ordered map from path to array."""

    def __init__(self, env: RealTimeEnv) -> None:
        self.env = env
        self.leaf_spaces: Mapping[str, spaces.Space[Any]] = env.leaf_spaces
        self.action_space = _continuous(env.action_space, type(env.interface).__name__)
        self.period_s = float(env.config.time_step_duration)
        self.action_buffer_length = int(env.config.act_buf_len) if env.config.act_in_obs else 0

    def reset(self, seed: int | None = None) -> tuple[Leaves, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def step(self, action: Any) -> StepResult:
        """Apply an action on the clock."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), terminated, truncated, info

    def stop_device(self) -> None:
        """Send the safe action now."""
        self.env.stop_device()

    def timing(self) -> TimingSummary | None:
        """Return the timing of the steps since the environment was made."""
        return self.env.timing_summary()

    def close(self) -> None:
        """Make the device safe and let go of it."""
        self.env.close()


class LockStepEnvironment:
    """Any Gymnasium environment with Box actions and vector observations; it waits for each action."""

    period_s = 0.0
    action_buffer_length = 0

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        self._env = env
        self.leaf_spaces: Mapping[str, spaces.Space[Any]] = trees.leaf_spaces(env.observation_space)
        for path, space in self.leaf_spaces.items():
            if not isinstance(space, spaces.Box) or len(space.shape) > 1 or space.dtype == np.uint8:
                raise ConfigError(
                    f"{name}: observation leaf {path!r} is {space}; only vectors (Box with at most one axis) "
                    "can be trained on so far"
                )
        self.action_space = _continuous(env.action_space, name)

    def reset(self, seed: int | None = None) -> tuple[Leaves, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self._env.reset(seed=seed)
        return trees.leaves(self._env.observation_space, observation), info

    def step(self, action: Any) -> StepResult:
        """Apply an action and wait for the result."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        by_path = trees.leaves(self._env.observation_space, observation)
        return by_path, float(reward), bool(terminated), bool(truncated), info

    def stop_device(self) -> None:
        """A simulation that waits for us is safe already: there is nothing to send."""

    def timing(self) -> TimingSummary | None:
        """There is no clock to be late for."""
        return None

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _continuous(space: spaces.Space[Any], name: str) -> spaces.Box:
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"{name}: the action space {space} is not continuous (Box of floats); "
            "there is no algorithm for it yet"
        )
    if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
        raise ConfigError(f"{name}: the action space {space} is unbounded; give finite low and high")
    return space


def is_live(config: EnvironmentConfig) -> bool:
    """Tell whether the environment is an interface, on its own clock, rather than a Gymnasium environment."""
    return config.id in registry.ENVIRONMENTS or ":" in config.id


def realtime_config(config: EnvironmentConfig) -> dict[str, Any]:
    """Return the configuration of the `RealTimeEnv` for a live environment, in dict form, overrides applied.

    It is checked, but the interface is not made: no device is touched.

    Raises:
        ConfigError: for an id that names no live environment, a class that is no interface, or a real-time
        key
            or value that cannot be.
    """
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
    if "obs_format" in config.realtime:
        raise ConfigError("environment.realtime.obs_format cannot be set: a run keeps observations by path")
    settings |= config.realtime | {"obs_format": "dict"}
    RealTimeConfig.from_mapping(settings)
    return settings


def open_environment(config: EnvironmentConfig, clock: Clock | None = None) -> Environment:
    """Make the environment of a run. Nothing is sent to a device and nothing is reset.

    Raises:
        ConfigError: if the id is unknown or the spaces are of a kind that cannot be trained on yet.
    """
    if is_live(config):
        live_env = RealTimeEnv(realtime_config(config), clock=clock)
        try:
            return LiveEnvironment(live_env)
        except ConfigError:
            live_env.close()
            raise
    if config.realtime:
        raise ConfigError(
            f"environment.realtime is set, but {config.id!r} is a Gymnasium environment in lock-step"
        )
    if config.id in ENVIRONMENT_IDS:
        raise ConfigError(f"{config.id!r} runs on its own clock: name its interface, as 'module:Class'")
    try:
        env = gymnasium.make(config.id, **config.kwargs)
    except gymnasium.error.Error as error:
        live = ", ".join(sorted(registry.ENVIRONMENTS))
        raise ConfigError(
            f"environment {config.id!r} is neither a live one of tickrate ({live}), nor 'module:Class', "
            f"nor a Gymnasium id that can be made here: {error}.{suggest(config.id, registry.ENVIRONMENTS)}"
        ) from error
    except TypeError as error:
        raise ConfigError(f"environment {config.id!r} with kwargs {config.kwargs}: {error}") from error
    try:
        return LockStepEnvironment(env, config.id)
    except ConfigError:
        env.close()
        raise


def record_schema(
    leaf_spaces: Mapping[str, spaces.Space[Any]],
    action_space: spaces.Box,
    *,
    stacks: Mapping[str, int] | None = None,
    checksum: bool = False,
) -> RecordSchema:
    """Return the schema of the records that a worker on such an environment writes (floats as float32).

    Args:
        leaf_spaces: canonical observation, path -> space.
        action_space: the action space.
        stacks: leaves whose first axis is a history, newest last, by its length: each frame is sent and
        stored
            once.
        checksum: whether each transition carries a hash (`tickrate.data.checksums`).

    Raises:
        RecordError: if a stack does not fit its leaf, or names none.
    """
    stacks = stacks or {}
    if foreign := sorted(stacks.keys() - leaf_spaces.keys()):
        raise RecordError(f"stacks() of the interface names {foreign}, which is not observed")
    observation = tuple(_field(path, space, stacks.get(path, 1)) for path, space in leaf_spaces.items())
    extras = (CHECKSUM_FIELD,) if checksum else ()
    return RecordSchema(observation=observation, action=_field("action", action_space), extras=extras)


def _field(name: str, space: spaces.Space[Any], stack: int = 1) -> Field:
    assert space.shape is not None  # leaves are Box, Discrete or Multi-...: all have a shape and a dtype
    assert space.dtype is not None
    dtype = np.dtype(np.float32) if np.issubdtype(space.dtype, np.floating) else np.dtype(space.dtype)
    shape = tuple(space.shape)
    if stack > 1:
        if not shape or shape[0] != stack:
            raise RecordError(
                f"stacks() of the interface says that {name!r} holds {stack} frames, but its shape is {shape}"
            )
        shape = shape[1:]
    return Field(name=name, dtype=dtype.name, shape=shape, stack=stack)
