"""Builds the parts of an environment from its configuration: interface, spaces, guards, buffer, commander."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces

from tickrate import trees
from tickrate.errors import ConfigError, InterfaceError
from tickrate.realtime.commander import Commander
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.safety import ActionGuard, Corrections, ObservationGuard
from tickrate.realtime.spaces import ActionBuffer, ObservationLayout
from tickrate.realtime.stepper import Stepper


class Intake:
    """What comes in: checks an observation, applies ``obs_prepro_func``, checks what that returns.

    Args:
        config: the configuration.
        space: space of the interface's observation.
        names: names of the elements of a Tuple, or None.

    Attributes:
        check: returns the checked leaves of an observation as fresh arrays, or raises `ObservationError`.
        corrections: what was clipped and held so far.
        space: space of the leaves that come out.
        names: names of its elements, or None.
    """

    def __init__(self, config: RealTimeConfig, space: spaces.Space[Any], names: Sequence[str] | None) -> None:
        self._raw_space, self._raw_names = space, names
        self._raw_paths = list(trees.leaf_spaces(space, names if isinstance(space, spaces.Tuple) else None))
        self._prepro = config.obs_prepro_func
        if self._prepro is not None and config.obs_prepro_space is not None:
            space = config.obs_prepro_space
            names = names if names is not None and len(names) == len(getattr(space, "spaces", ())) else None
        self.space, self.names = space, names
        self.corrections = Corrections()
        how = (config.out_of_bounds_observation, config.nonfinite_observation, self.corrections)
        self._raw = ObservationGuard(self._raw_space, self._raw_names, *how)
        self._guard = self._raw
        self.check: Callable[[Any], list[Any]] = self._raw
        if self._prepro is not None:
            self._guard = ObservationGuard(space, names, *how)
            self.check = self._prepare

    def _prepare(self, observation: Any) -> list[Any]:
        assert self._prepro is not None
        leaves = dict(zip(self._raw_paths, self._raw(observation), strict=True))
        clean = trees.rebuild(self._raw_space, leaves, self._raw_names)
        return self._guard(self._prepro(list(clean) if isinstance(clean, tuple) else clean))

    def begin_episode(self) -> None:
        """Forget the values held for bridging: those of the last episode are no substitute."""
        self._raw.forget()
        self._guard.forget()


@dataclass(frozen=True)
class Parts:
    """The parts of one environment."""

    interface: Any
    """The user's interface."""
    action_space: spaces.Space[Any]
    """Its action space."""
    intake: Intake
    """Checks what comes in."""
    layout: ObservationLayout
    """Builds what is handed out."""
    action_guard: ActionGuard
    """Checks what goes out."""
    default: list[Any]
    """Leaves of the default action."""
    safe: list[Any]
    """Leaves of the safe action."""
    buffer: ActionBuffer
    """The actions told to the device."""
    commander: Commander
    """Sends them."""


def build_parts(config: RealTimeConfig, stepper: Stepper) -> Parts:
    """Construct the interface and everything that depends on its spaces. Sends nothing, resets nothing.

    Raises:
        ConfigError: if the configuration does not fit the interface.
        InterfaceError: if the interface returns no spaces, or hangs.
    """
    limit = config.reset_timeout_s
    interface = stepper.call(
        "the interface's constructor",
        limit,
        config.interface,
        *config.interface_args,
        **config.interface_kwargs,
    )
    observation_space = stepper.call("get_observation_space()", limit, interface.get_observation_space)
    action_space = stepper.call("get_action_space()", limit, interface.get_action_space)
    default_action = stepper.call("get_default_action()", limit, interface.get_default_action)
    name_them = getattr(interface, "observation_names", None)
    names = stepper.call("observation_names()", limit, name_them) if callable(name_them) else None
    for method, space in (("get_observation_space", observation_space), ("get_action_space", action_space)):
        if not isinstance(space, gymnasium.Space):
            raise InterfaceError(f"{method}() returned {space!r}: it must return a Gymnasium space")
    size = len(observation_space.spaces) if isinstance(observation_space, spaces.Tuple) else 0
    if size and names is not None and (len(names) != size or len(set(names)) != size):
        raise ConfigError(
            f"observation_names() returned {list(names)} for a Tuple of {size}: give one name each, all "
            "different"
        )
    intake = Intake(config, observation_space, names)
    length = config.act_buf_len if config.act_in_obs else 0
    layout = ObservationLayout(intake.space, intake.names, action_space, length, config.obs_format)
    guard = ActionGuard(action_space, config.nan_action, config.out_of_range_action, config.rate_limit)
    default = guard.strict(default_action, "default action")
    safe = default if config.safe_action is None else guard.strict(config.safe_action, "safe_action")
    commander = Commander(
        interface,
        stepper,
        guard.build(safe),
        config.safe_on,
        config.act_prepro_func,
        config.interface_timeout_s,
    )
    buffer = ActionBuffer(action_space, config.act_buf_len, default)
    return Parts(interface, action_space, intake, layout, guard, default, safe, buffer, commander)


def unpack_step(result: Any) -> tuple[Any, float, bool, dict[str, Any]]:
    """Return what ``get_obs_rew_terminated_info`` returned, with the declared types and a copy of the info.

    Raises:
        InterfaceError: for anything but four values, or a reward that is not finite.
    """
    try:
        observation, reward, terminated, info = result
        reward, terminated, info = float(reward), bool(terminated), dict(info)
    except (TypeError, ValueError) as error:
        raise InterfaceError(
            "get_obs_rew_terminated_info() must return (observation, reward, terminated, info), got "
            f"{trees.describe(result)}: {error}"
        ) from error
    if not -float("inf") < reward < float("inf"):
        raise InterfaceError(f"get_obs_rew_terminated_info() returned the reward {reward}: it must be finite")
    return observation, reward, terminated, info


def unpack_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """Return what ``reset`` returned, with a copy of the info.

    Raises:
        InterfaceError: for anything but an observation and an info dictionary.
    """
    if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise InterfaceError(f"reset() must return (observation, info), got {trees.describe(result)}")
    return result[0], dict(result[1])
