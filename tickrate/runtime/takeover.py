"""A person (or a script) takes the controls and gives them back, without a jump of the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate import registry
from tickrate.data.schema import Flag
from tickrate.errors import ActionError, ConfigError
from tickrate.realtime.action_guard import ActionGuard
from tickrate.trees import Leaves, categories


class Operator(Protocol):
    """Who may take over; a class of your own, named as ``worker.takeover``.

    It is made with the keyword arguments ``action_space`` and ``period_s``.
    """

    def command(self, observation: Leaves) -> Any | None:
        """Return the command for this step, or None to let the policy drive.

        Asked once a step, in the slack before the command is due: it must not wait. A key that was pressed
        and released between two steps should count in the next one, so keep it until you are asked.

        Args:
            observation: what the policy acts on, by path.
        """
        ...


class Takeover:
    """Decides each step who drives, and limits how far the command moves after the driver changed.

    After a handover, in either direction, each step moves the command by at most ``max_step`` in every
    dimension, until it has reached what the new driver wants; from then on the driver is free.

    Args:
        operator: who may take over.
        action_space: bounds, shape and dtype of a command.
        max_step: largest change per step after a handover, in action units; 0 is off. Only for Box actions.

    Raises:
        ConfigError: if ``max_step`` is set and the actions are categories.
    """

    def __init__(self, operator: Operator, action_space: spaces.Space[Any], max_step: float) -> None:
        if max_step and categories(action_space) is not None:
            raise ConfigError(
                f"worker.takeover_max_step is {max_step}, but the actions are {action_space}: there is "
                "nothing between two categories to approach in steps; leave it at 0"
            )
        self._operator = operator
        self._space = action_space
        self._guard = ActionGuard(action_space, "refuse", "clip")
        self._max_step = max_step
        self.begin()

    def begin(self) -> None:
        """Start an episode: there is no command to come from, so its first one is nobody's jump."""
        self._driving = self._settling = False
        self._last: NDArray[Any] | None = None

    def choose(self, observation: Leaves, action: NDArray[Any], flags: int) -> tuple[NDArray[Any], int]:
        """Return the command of this step and its `Flag` bits.

        Args:
            observation: what is acted on.
            action: what the policy would do.
            flags: its `Flag` bits.

        Raises:
            ActionError: if the operator's command has another shape, is not finite, or is no category.
        """
        wish = self._operator.command(observation)
        driving = wish is not None
        wanted = self._checked(wish) if driving else action
        if driving != self._driving:
            self._driving, self._settling = driving, self._last is not None and self._max_step > 0
        if self._settling:
            wanted = self._approach(wanted)
        return wanted, int(Flag.TAKEOVER) if driving else flags

    def applied(self, action: Any) -> None:
        """Take in the command that the device was really told."""
        self._last = np.array(action, self._space.dtype)

    def _approach(self, wanted: NDArray[Any]) -> NDArray[Any]:
        assert self._last is not None
        step = np.asarray(self._max_step, self._space.dtype)
        limited: NDArray[Any] = np.clip(wanted, self._last - step, self._last + step)
        self._settling = not np.array_equal(limited, wanted)
        return limited

    def _checked(self, wish: Any) -> NDArray[Any]:
        try:
            if np.shape(wish) != self._space.shape:  # the guard would take a number for an array of one
                raise ActionError(f"its shape is {np.shape(wish)}, expected {self._space.shape}")
            leaves, _ = self._guard(wish, [None])
        except (ActionError, ValueError) as error:
            raise ActionError(
                f"the operator's command is {wish!r}; expected an element of {self._space}, or None to let "
                f"the policy drive: {error}"
            ) from error
        return np.asarray(leaves[0])


def make_takeover(
    target: str, action_space: spaces.Space[Any], period_s: float, max_step: float
) -> Takeover | None:
    """Return the takeover that ``worker.takeover`` names (``module:Class``); None if it is empty.

    Raises:
        ConfigError: if there is no such class, it cannot be made, it has no ``command``, or ``max_step`` is
            set for actions that are categories.
    """
    if not target:
        return None
    build: Callable[..., Operator] = registry.resolve(target)
    try:
        operator = build(action_space=action_space, period_s=period_s)
    except TypeError as error:
        raise ConfigError(
            f"worker.takeover: {target} was called with action_space and period_s: {error}"
        ) from error
    if not callable(getattr(operator, "command", None)):
        raise ConfigError(f"worker.takeover: {target} has no method command(observation)")
    return Takeover(operator, action_space, max_step)
