"""tickrate: train neural policies on systems that do not wait.

Importing the package loads no torch, opens nothing, reads no file and starts no thread.
"""

from typing import Any

from tickrate.realtime import (
    DummyRCDrone,
    RealTimeConfig,
    RealTimeEnv,
    RealTimeGymInterface,
    default_config_dict,
)
from tickrate.registry import resolve

__version__ = "0.1.0"

DEFAULT_CONFIG_DICT: dict[str, Any]
"""Every key of a real-time environment at its default; each access gives a fresh copy."""

__all__ = [
    "DEFAULT_CONFIG_DICT",
    "DummyRCDrone",
    "RealTimeConfig",
    "RealTimeEnv",
    "RealTimeGymInterface",
    "__version__",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "DEFAULT_CONFIG_DICT":
        return default_config_dict()
    if name == "train":  # found when asked for: the commands behind it are not needed to drive an environment
        return resolve("tickrate.api:train")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
