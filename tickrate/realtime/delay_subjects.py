"""What a delay probe steps: an interface or an environment behind one protocol, and how it is excited."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from tickrate.clock import Clock
from tickrate.errors import ConfigError
from tickrate.realtime.env import RealTimeEnv
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.spaces import ACTIONS
from tickrate.realtime.timing_leaf import TIMING
from tickrate.trees import Array, leaf_spaces, leaves, rebuild


class Reading(NamedTuple):
    """One step of a subject."""

    sensors: dict[str, Any]
    """The observation's leaves by path, without the action buffer, which shows every command at once."""
    sent: float | None
    """When the step's command went out, in seconds; None if unknown."""
    captured: float | None
    """When the observation was captured, in seconds; None if unknown."""
    ended: bool
    """Whether the episode ended."""


class Subject(Protocol):
    """What the probe needs of an interface or an environment."""

    space: spaces.Space[Any]
    quiet: Any
    buffer_length: int | None

    def reset(self) -> None:
        """Start an episode."""

    def step(self, action: Any) -> Reading:
        """Give one command; return what was observed with it."""

    def stop(self) -> None:
        """Tell the device the quiet command, if it was told anything."""


class InterfaceSubject:
    """Steps an interface as the real-time environment does: wait, capture, send.

    Raises:
        ConfigError: if the period is not positive.
    """

    def __init__(self, interface: RealTimeGymInterface, quiet: Any, period_s: float, clock: Clock) -> None:
        if not period_s > 0.0:
            raise ConfigError(f"period_s={period_s}: give a positive number of seconds")
        self._interface = interface
        self._period_s = period_s
        self._clock = clock
        self._deadline = 0.0
        self._commanded = False
        self._observation_space = interface.get_observation_space()
        self._names = interface.observation_names()
        self.space = interface.get_action_space()
        self.quiet = interface.get_default_action() if quiet is None else quiet
        self.buffer_length: int | None = None

    def reset(self) -> None:
        """Reset the interface and send the quiet command."""
        self._interface.reset()
        self._commanded = True
        self._interface.send_control(self.quiet)
        self._deadline = self._clock.now() + self._period_s

    def step(self, action: Any) -> Reading:
        """Wait for the end of the period, capture, send."""
        captured = self._clock.sleep_until(self._deadline)
        observation, _, ended, info = self._interface.get_obs_rew_terminated_info()
        sent = self._clock.now()
        self._interface.send_control(action)
        self._deadline = max(self._deadline, sent) + self._period_s
        sensors = leaves(self._observation_space, observation, self._names)
        return Reading(sensors, sent, captured, bool(ended or info.get("truncated", False)))

    def stop(self) -> None:
        """Send the quiet command, if a reset has been tried."""
        if self._commanded:
            self._interface.send_control(self.quiet)


class EnvSubject:
    """Steps an environment; a `RealTimeEnv` is unwrapped and its action buffer taken out of what it observes.

    Raises:
        ConfigError: if a foreign environment is given without a quiet action.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], quiet: Any) -> None:
        self._real_time = env.unwrapped if isinstance(env.unwrapped, RealTimeEnv) else None
        self._env: gymnasium.Env[Any, Any] = env if self._real_time is None else self._real_time
        self.space = self._env.action_space
        self.buffer_length: int | None = None
        if self._real_time is not None:
            config = self._real_time.config
            self.buffer_length = config.act_buf_len if config.act_in_obs else 0
            quiet = self._real_time.default_action if quiet is None else quiet
        elif quiet is None:
            raise ConfigError(
                "this environment declares no default action: give quiet=, an action at which it rests"
            )
        self.quiet = quiet

    def reset(self) -> None:
        """Reset the environment."""
        self._env.reset()

    def step(self, action: Any) -> Reading:
        """Play one step."""
        observation, _, terminated, truncated, info = self._env.step(action)
        timing = info.get("timing", {})
        sensors = self._sensors(observation)
        return Reading(sensors, timing.get("start"), timing.get("capture"), bool(terminated or truncated))

    def stop(self) -> None:
        """Send a real-time environment's safe action; a foreign one waits anyway."""
        if self._real_time is not None:
            self._real_time.stop_device()

    def _sensors(self, observation: Any) -> dict[str, Any]:
        env = self._real_time
        if env is None:
            return leaves(self._env.observation_space, observation)
        timing = TIMING if env.config.timing_in_obs else None
        watched = {
            path: leaf for path, leaf in env.leaf_spaces.items() if not (_is_buffer(path) or path == timing)
        }
        if env.config.obs_format == "dict":
            return {path: observation[path] for path in watched}
        if env.config.obs_format == "flat":
            ends = np.cumsum([spaces.flatdim(leaf) for leaf in watched.values()])
            return dict(zip(watched, np.split(observation[: ends[-1]], ends[:-1]), strict=True))
        assert isinstance(env.observation_space, spaces.Tuple)
        own = spaces.Tuple(env.observation_space.spaces[: len(observation) - (self.buffer_length or 0)])
        values = leaves(own, observation[: len(own.spaces)]).values()
        return dict(zip(watched, values, strict=True))


def _is_buffer(path: str) -> bool:
    return path == ACTIONS or path.startswith(f"{ACTIONS}/")


def excitations(space: spaces.Space[Any], quiet: Any, amplitude: float) -> list[Any]:
    """Return commands that differ from ``quiet`` in every part that can: one upwards, one downwards.

    A Box moves by ``amplitude`` of the way to its bound (by 1 where it has none), a discrete part to a
    neighbour.

    Raises:
        ConfigError: if no command differs, or the space has a part that is no Box or discrete space.
    """
    quiet_leaves = leaves(space, quiet)
    commands = []
    for up in (True, False):
        parts = {
            path: _moved(leaf, np.asarray(quiet_leaves[path]), amplitude, up)
            for path, leaf in leaf_spaces(space).items()
        }
        if any(not np.array_equal(parts[path], quiet_leaves[path]) for path in parts):
            commands.append(rebuild(space, parts))
    if not commands:
        raise ConfigError(
            f"no command in {space} differs from the default action {quiet}: give excitation=[...]"
        )
    return commands


def _moved(space: spaces.Space[Any], quiet: Array, amplitude: float, up: bool) -> Array:
    if isinstance(space, spaces.Box):
        bound = (space.high if up else space.low).astype(np.float64)
        way = np.where(np.isfinite(bound), (bound - quiet) * amplitude, 1.0 if up else -1.0)
        if space.dtype.kind != "f":
            way = np.where(up, np.ceil(way), np.floor(way))
        return (quiet + way).astype(space.dtype)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        start = np.asarray(space.start)
        return np.asarray((quiet - start + (1 if up else -1)) % count + start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.asarray(1 - quiet, space.dtype)
    raise ConfigError(f"no automatic excitation in {space}: give excitation=[...]")
