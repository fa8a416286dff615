"""Builds the parts of an environment from its configuration: interface, spaces, guards, buffer, commander."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces

from tickrate.errors import ConfigError, InterfaceError
from tickrate.realtime.action_guard import ActionGuard
from tickrate.realtime.commander import Commander
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.intake import Intake
from tickrate.realtime.spaces import ActionBuffer, ObservationLayout
from tickrate.realtime.stepper import Stepper


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
    layout = ObservationLayout(
        intake.space, intake.names, action_space, length, config.obs_format, timing=config.timing_in_obs
    )
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
