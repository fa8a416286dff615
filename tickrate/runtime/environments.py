"""Opens the environment of an experiment: a live one on its clock, or a Gymnasium one in lock-step."""

from __future__ import annotations

from collections.abc import Mapping
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
from tickrate.realtime.env import RealTimeEnv
from tickrate.realtime.simulated import CheckedStacks, GymnasiumInterface
from tickrate.realtime.timing import TimingSummary
from tickrate.runtime.environment_config import (
    DelayConfig,
    EnvironmentConfig,
    is_live,
    realtime_config,
    simulated_config,
)
from tickrate.trees import Leaves, categories

__all__ = [
    "Acted",
    "DelayConfig",
    "Environment",
    "EnvironmentConfig",
    "LiveEnvironment",
    "LockStepEnvironment",
    "action_fault",
    "is_live",
    "open_environment",
    "realtime_config",
    "record_schema",
]

StepResult = tuple[Leaves, float, bool, bool, dict[str, Any]]


class Acted(Protocol):
    """What an actor must know of where it acts; an `Environment` and an `EnvironmentContract` say it."""

    @property
    def leaf_spaces(self) -> Mapping[str, spaces.Space[Any]]:
        """Canonical observation: path -> space, the action buffer last."""
        ...

    @property
    def action_space(self) -> spaces.Space[Any]:
        """A bounded Box of floats, Discrete, MultiDiscrete or MultiBinary."""
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
    """A `RealTimeEnv` with its observations as an ordered map from path to array.

    Args:
        env: the environment, in dict form.
        name: what to call it in messages; its interface's class when omitted.
        period_s: time-step in seconds; the environment's when omitted.

    Raises:
        ConfigError: if an observation or an action has no place in a row.
    """

    def __init__(self, env: RealTimeEnv, name: str | None = None, period_s: float | None = None) -> None:
        self.env = env
        self._real_time = bool(env.config.real_time)
        self.leaf_spaces: Mapping[str, spaces.Space[Any]] = env.leaf_spaces
        self.action_space: spaces.Space[Any] = env.action_space
        _recordable(self.leaf_spaces, self.action_space, name or type(env.interface).__name__)
        self.period_s = float(env.config.time_step_duration) if period_s is None else period_s
        self.action_buffer_length = int(env.config.act_buf_len) if env.config.act_in_obs else 0

    def reset(self, seed: int | None = None) -> tuple[Leaves, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def step(self, action: Any) -> StepResult:
        """Apply an action on the clock; in lock-step, where there is none, ``info`` has no ``timing``."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not self._real_time:
            del info["timing"]
        return observation, float(reward), terminated, truncated, info

    def stop_device(self) -> None:
        """Send the safe action now."""
        self.env.stop_device()

    def timing(self) -> TimingSummary | None:
        """Return the timing of the steps since the environment was made; None in lock-step."""
        return self.env.timing_summary() if self._real_time else None

    def close(self) -> None:
        """Make the device safe and let go of it."""
        self.env.close()


class LockStepEnvironment:
    """Any Gymnasium environment whose leaves have a fixed shape and dtype; it waits for each action.

    Args:
        env: the environment.
        name: what to call it in messages.
        stacks: leaves that are histories, newest frame last, by their length.

    Raises:
        ConfigError: if an observation or an action has no place in a row.
    """

    period_s = 0.0
    action_buffer_length = 0

    def __init__(
        self, env: gymnasium.Env[Any, Any], name: str, *, stacks: Mapping[str, int] | None = None
    ) -> None:
        self._env = env
        self.leaf_spaces: Mapping[str, spaces.Space[Any]] = trees.leaf_spaces(env.observation_space)
        self.action_space: spaces.Space[Any] = env.action_space
        self.stacks = dict(stacks or {})
        _recordable(self.leaf_spaces, self.action_space, name)

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


def action_fault(space: spaces.Space[Any]) -> str:
    """Return why a run cannot act in a space, in words; empty if it can."""
    if categories(space) is not None:
        return ""
    if not isinstance(space, spaces.Box):
        return (
            f"{space}, which is no single array: an action is a Box of floats, Discrete, MultiDiscrete or "
            "MultiBinary"
        )
    if not np.issubdtype(space.dtype, np.floating):
        return f"{space}, a Box of {space.dtype}: use a Box of floats, or MultiDiscrete for whole numbers"
    if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
        return f"{space}, which is unbounded: give finite low and high"
    return ""


def _recordable(
    leaf_spaces: Mapping[str, spaces.Space[Any]], action_space: spaces.Space[Any], name: str
) -> None:
    """Refuse spaces whose values have no place in a row.

    Raises:
        ConfigError: names the leaf.
    """
    if fault := action_fault(action_space):
        raise ConfigError(f"{name}: the action space is {fault}")
    for path, space in leaf_spaces.items():
        if not isinstance(space, spaces.Box) and categories(space) is None:
            raise ConfigError(
                f"{name}: observation leaf {path!r} is {space}, which has no fixed shape and dtype: use Box, "
                "Discrete, MultiDiscrete or MultiBinary"
            )


def open_environment(config: EnvironmentConfig, clock: Clock | None = None) -> Environment:
    """Make the environment of a run. Nothing is sent to a device and nothing is reset.

    Raises:
        ConfigError: if the id is unknown, or the spaces are of a kind that cannot be recorded.
    """
    if is_live(config):
        return _real_time(RealTimeEnv(realtime_config(config), clock=clock))
    if config.id in ENVIRONMENT_IDS:
        raise ConfigError(f"{config.id!r} runs on its own clock: name its interface, as 'module:Class'")
    env = _make(config)
    try:
        if config.stacks:
            _check_stacks(config, env)
            env = CheckedStacks(env, config.stacks, config.id)
        if not config.realtime and config.delays is None:
            return LockStepEnvironment(env, config.id, stacks=config.stacks)
        settings = simulated_config(config, GymnasiumInterface(env, config.stacks))
        return _real_time(RealTimeEnv(settings, clock=clock), config.id, period_s=0.0)
    except ConfigError:
        env.close()
        raise


def _real_time(env: RealTimeEnv, name: str | None = None, period_s: float | None = None) -> LiveEnvironment:
    try:
        return LiveEnvironment(env, name, period_s)
    except ConfigError:
        env.close()
        raise


def _make(config: EnvironmentConfig) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(config.id, **config.kwargs)
    except gymnasium.error.Error as error:
        live = ", ".join(sorted(registry.ENVIRONMENTS))
        raise ConfigError(
            f"environment {config.id!r} is neither a live one of tickrate ({live}), nor 'module:Class', "
            f"nor a Gymnasium id that can be made here: {error}.{suggest(config.id, registry.ENVIRONMENTS)}"
        ) from error
    except TypeError as error:
        raise ConfigError(f"environment {config.id!r} with kwargs {config.kwargs}: {error}") from error


def _check_stacks(config: EnvironmentConfig, env: gymnasium.Env[Any, Any]) -> None:
    leaves = trees.leaf_spaces(env.observation_space)
    for path, length in config.stacks.items():
        if path not in leaves:
            raise ConfigError(
                f"environment.stacks names {path!r}, the observation has {list(leaves)}."
                f"{suggest(path, leaves)}"
            )
        shape = leaves[path].shape or ()
        if shape[:1] != (length,):
            raise ConfigError(
                f"environment.stacks says that {path!r} holds {length} frames, but its shape is {shape}"
            )


def record_schema(
    leaf_spaces: Mapping[str, spaces.Space[Any]],
    action_space: spaces.Space[Any],
    *,
    stacks: Mapping[str, int] | None = None,
    checksum: bool = False,
) -> RecordSchema:
    """Return the schema of the records that a worker on such an environment writes (floats as float32).

    Args:
        leaf_spaces: canonical observation, path -> space.
        action_space: the action space.
        stacks: leaves whose first axis is a history, newest last, by its length: each frame is sent and
            stored once.
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
