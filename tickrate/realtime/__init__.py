"""Gymnasium environments for systems that do not wait.

Importing it registers the ids ``tickrate/RealTime-v0``, ``real-time-gym-v1`` and ``real-time-gym-ts-v1`` (one
implementation); an id that is already registered is left alone. It loads no torch and starts nothing.
"""

from typing import Any

import gymnasium

from tickrate.realtime.config import RealTimeConfig, default_config_dict
from tickrate.realtime.dummy_drone import DummyRCDrone
from tickrate.realtime.env import RealTimeEnv
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.timing import TimingSummary

DEFAULT_CONFIG_DICT: dict[str, Any]
"""Every configuration key at its default; each access gives a fresh copy."""

ENVIRONMENT_IDS = ("tickrate/RealTime-v0", "real-time-gym-v1", "real-time-gym-ts-v1")

__all__ = [
    "DEFAULT_CONFIG_DICT",
    "ENVIRONMENT_IDS",
    "DummyRCDrone",
    "RealTimeConfig",
    "RealTimeEnv",
    "RealTimeGymInterface",
    "TimingSummary",
    "default_config_dict",
]


def __getattr__(name: str) -> Any:
    if name == "DEFAULT_CONFIG_DICT":
        return default_config_dict()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register() -> None:
    for env_id in ENVIRONMENT_IDS:
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point="tickrate.realtime.env:RealTimeEnv", nondeterministic=True)


_register()
