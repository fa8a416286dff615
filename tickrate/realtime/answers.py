"""What an interface's methods answer, unpacked, with the declared types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tickrate import trees
from tickrate.errors import InterfaceError


def unpack_step(result: Any) -> tuple[Any, float, bool, dict[str, Any]]:
    """Return what ``get_obs_rew_terminated_info`` returned, with the declared types and a copy of the info.

    Raises:
        InterfaceError: for anything but four values, or a reward that is not finite.
    """
    try:
        observation, reward, terminated, info = result
        if type(info) is dict and type(reward) is float and type(terminated) is bool:
            info = {**info}  # in a tick every call counts
        else:
            reward, terminated, info = float(reward), bool(terminated), dict(info)
    except (TypeError, ValueError) as error:
        raise InterfaceError(
            "get_obs_rew_terminated_info() must return (observation, reward, terminated, info), got "
            f"{trees.describe(result)}: {error}"
        ) from error
    if reward - reward != 0.0:  # infinite or NaN, without a call to isfinite
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


def observation_time(info: Mapping[str, Any], capture: float) -> float:
    """Return when an observation's newest data were taken: as the interface says, or at its capture."""
    return float(info["observation_time"]) if "observation_time" in info else capture
