"""Any Gymnasium environment as an interface: delays, action buffer and timing are those of live systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tickrate import trees
from tickrate.errors import ObservationError
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.spaces import neutral_action
from tickrate.trees import Leaves


class GymnasiumInterface(RealTimeGymInterface):
    """Steps a Gymnasium environment at each capture, with the command in force then.

    For ``real_time=False`` alone: the environment stands still between two captures. Until a command arrives,
    and after each reset, the command in force is the default action: zeros (or the nearest bound), or the
    first category.

    Args:
        env: the environment, which is closed with this interface.
        stacks: leaves that are histories, by their length, as they are stored (`check_stacks`).
    """

    def __init__(self, env: gymnasium.Env[Any, Any], stacks: Mapping[str, int] | None = None) -> None:
        self.env = env
        self._stacks = dict(stacks or {})
        self._command = self.get_default_action()

    def send_control(self, control: Any) -> None:
        """Put a command in force; ``None`` leaves the one before."""
        if control is not None:
            self._command = control

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the default action is in force."""
        self._command = self.get_default_action()
        return self.env.reset(seed=seed, options=options)

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        """Step the environment with the command in force."""
        observation, reward, terminated, truncated, info = self.env.step(self._command)
        if truncated:
            info = {"truncation_reason": "truncated", **info, "truncated": True}
        return observation, float(reward), bool(terminated), info

    def get_observation_space(self) -> spaces.Space[Any]:
        """Return the environment's observation space."""
        return self.env.observation_space

    def get_action_space(self) -> spaces.Space[Any]:
        """Return the environment's action space."""
        return self.env.action_space

    def get_default_action(self) -> Any:
        """Return the action of zeros (or the nearest bound), the first category of a discrete one."""
        return neutral_action(self.env.action_space)

    def stacks(self) -> dict[str, int]:
        """Return the leaves that are histories, by their length."""
        return dict(self._stacks)

    def render(self) -> Any:
        """Render the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class CheckedStacks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes sure that leaves which are stored frame by frame are what can be put together again.

    A history begins with copies of its first frame, and each step moves it on by one frame, newest last
    (`gymnasium.wrappers.FrameStackObservation` does so). That is looked at in every reset and in the first
    step after it.

    Args:
        env: the environment.
        stacks: its leaves that are histories, by their length.
        name: the environment's name, for messages.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], stacks: Mapping[str, int], name: str) -> None:
        super().__init__(env)
        self._stacks, self._name = dict(stacks), name
        self._first: Leaves | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment.

        Raises:
            ObservationError: if a history does not begin with copies of one frame.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._first = self._histories(observation)
        for path, history in self._first.items():
            if not np.array_equal(history, np.broadcast_to(history[-1], history.shape)):
                raise ObservationError(
                    f"{self._name}: environment.stacks names {path!r}, but its first history holds different "
                    "frames: let a reset fill it with copies of the first frame (padding_type='reset'), or "
                    "leave it out of environment.stacks"
                )
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment.

        Raises:
            ObservationError: if a history did not move on by one frame, newest last.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._first is not None:
            first, self._first = self._first, None
            for path, history in self._histories(observation).items():
                if not np.array_equal(history[:-1], first[path][1:]):
                    raise ObservationError(
                        f"{self._name}: environment.stacks names {path!r}, but a step did not move it on by "
                        "one frame, newest last: leave it out of environment.stacks"
                    )
        return observation, reward, terminated, truncated, info

    def _histories(self, observation: Any) -> Leaves:
        leaves = trees.leaves(self.env.observation_space, observation)
        return {path: np.array(leaves[path]) for path in self._stacks}
