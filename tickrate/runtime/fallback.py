"""What is sent when nobody chose an action in time, and how an actor tells the recorder that it happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tickrate.data.schema import Flag
from tickrate.realtime.spaces import neutral_action
from tickrate.runtime.environments import Environment, LiveEnvironment

FallbackKind = Literal["hold", "safe", "default"]
"""``hold``: the last command again. ``safe``: the device's safe action. ``default``: its default action."""

FALLBACK = "fallback"
"""Extra of an actor, ``(batch,)`` bools: this action is the fallback. It becomes `Flag.FALLBACK`."""
POLICY_VERSION = "policy_version"
"""Extra of an actor, ``(batch,)``: version of the weights that chose this action, if not the newest."""


class Fallback:
    """Gives the declared fallback action.

    Args:
        kind: which one.
        environment: whose safe and default actions they are.
    """

    def __init__(self, kind: FallbackKind, environment: Environment) -> None:
        self._hold = kind == "hold"
        # A device that was told nothing yet is under its default action, which is what to hold.
        self._action = resting_action(environment, safe=kind == "safe")
        self._first = self._action

    def begin(self) -> None:
        """Start an episode: there is nothing to hold but the default action."""
        self._action = self._first

    def chosen(self, action: NDArray[Any]) -> None:
        """Remember an action that was chosen in time."""
        if self._hold:
            self._action = action

    def action(self) -> NDArray[Any]:
        """Return the action to send now, ``(*action,)``."""
        return self._action.copy()


def resting_action(environment: Environment, *, safe: bool) -> NDArray[Any]:
    """Return the device's default or safe action; of a simulation zeros, or the first category."""
    space = environment.action_space
    if not isinstance(environment, LiveEnvironment):
        return np.asarray(neutral_action(space))
    value = environment.env.default_action
    if safe and environment.env.config.safe_action is not None:
        value = environment.env.config.safe_action
    # Both were checked against the space when the environment was made.
    return np.asarray(value, dtype=space.dtype).reshape(space.shape or ())


def marks(version: int, *, fallback: bool) -> dict[str, NDArray[Any]]:
    """Return the extras of one action that say which weights chose it, or that nobody did."""
    return {FALLBACK: np.array([fallback]), POLICY_VERSION: np.array([version])}


def read_marks(extras: Mapping[str, NDArray[Any]], version: int) -> tuple[int, int, dict[str, Any]]:
    """Return (policy version, `Flag` bits, what is left to be recorded) of the extras of one action.

    Args:
        extras: what `Actor.act` gave for a batch of one.
        version: the version that holds where the extras name none.
    """
    rest = {name: value[0] for name, value in extras.items() if name not in (FALLBACK, POLICY_VERSION)}
    flags = int(Flag.FALLBACK) if FALLBACK in extras and bool(extras[FALLBACK][0]) else 0
    if POLICY_VERSION in extras:
        version = int(extras[POLICY_VERSION][0])
    return version, flags, rest
