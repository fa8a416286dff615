"""The one class a user writes for a live system: send a command, read an observation, reset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces


class RealTimeGymInterface:
    """What `RealTimeEnv` needs to know about a device.

    Subclass it and write the methods that raise `NotImplementedError`; the others have useful defaults.
    Two optional methods are called when they exist: ``close()`` when the environment closes, and
    ``observation_names()`` (a list with one name for each element of a Tuple observation).

    Constructing an interface should be cheap and move nothing: connect in `reset`. A call that finds the
    device gone raises `tickrate.errors.DeviceLost`; the episode is then truncated and the next `reset`
    should reconnect.
    """

    def send_control(self, control: Any) -> None:
        """Send a command to the device and return at once.

        Args:
            control: an element of the action space (after ``act_prepro_func``, if one is set).
                ``None`` means: do nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} must define send_control(control)")

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: the seed given to the environment's ``reset``, or None.
            options: the options given to the environment's ``reset``, or None.

        Returns:
            The first observation (without the action buffer) and an info dictionary.
        """
        raise NotImplementedError(f"{type(self).__name__} must define reset(seed, options)")

    def wait(self) -> None:
        """Pause the device until the next `reset` or step. Does nothing unless overridden."""

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        """Read the newest observation.

        Returns:
            The observation (without the action buffer), its reward, whether the episode has terminated, and
            an info dictionary. Some of its keys mean something: ``observation_time`` is the moment
            (`tickrate.clock.now`, seconds) at which the newest sensor data were taken; ``truncated``, if
            true, ends the episode without terminating it, and ``truncation_reason`` may say why.
            ``observation_delay`` and ``action_delay`` tell, in steps, how old the observation is, and how
            long before its capture the command that was in force then could have been: `timing_in_obs` hands
            them to the policy. A device that knows neither leaves them out.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get_obs_rew_terminated_info()")

    def get_observation_space(self) -> spaces.Space[Any]:
        """Return the space of the observation, without the action buffer."""
        raise NotImplementedError(f"{type(self).__name__} must define get_observation_space()")

    def get_action_space(self) -> spaces.Space[Any]:
        """Return the space of the commands that a policy chooses from."""
        raise NotImplementedError(f"{type(self).__name__} must define get_action_space()")

    def get_default_action(self) -> Any:
        """Return the action sent by ``reset``, which is also the safe action unless one is configured."""
        raise NotImplementedError(f"{type(self).__name__} must define get_default_action()")

    def observation_names(self) -> Sequence[str] | None:
        """Return one name for each element of a Tuple observation, or None to number them."""
        return None

    def render(self) -> Any:
        """Show the device, or return what is to be shown. Does nothing unless overridden."""
        return None
