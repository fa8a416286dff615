"""What a scripted device can be told to do wrong, one small value each."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stall:
    """The call takes this long: on a `FakeClock` by advancing it, else by a real wait."""

    seconds: float
    """Length of the stall in seconds."""


@dataclass(frozen=True)
class Raise:
    """The call raises this exception."""

    error: BaseException
    """The exception, raised as it is; the same object each time the behaviour comes up."""


@dataclass(frozen=True)
class Silent:
    """The device is gone: the call raises `DeviceLost`."""

    reason: str = "the fake device went silent"
    """The message of the `DeviceLost`."""


@dataclass(frozen=True)
class Stale:
    """A frozen sensor: the last observation and its ``info["observation_time"]`` once more."""


@dataclass(frozen=True)
class Block:
    """The call blocks for real until `release` is set, as a driver that hangs does."""

    limit_s: float = 30.0
    """The block ends by itself after this time, so that a failing test does not hang."""
    release: threading.Event = field(default_factory=threading.Event)
    """Set it to let the call go on."""


@dataclass(frozen=True)
class NotFinite:
    """Every floating-point leaf of the observation is filled with this value."""

    value: float = math.nan
    """NaN (default) or an infinity."""


@dataclass(frozen=True)
class Return:
    """The observation is replaced by this object, whatever it is: a wrong structure, shape or dtype."""

    observation: Any
    """Returned as it is."""


@dataclass(frozen=True)
class End:
    """The episode ends with this observation."""

    truncated: bool = False
    """False: terminated. True: truncated by the interface itself, with a reason in ``info``."""
    reason: str = "the fake device ended the episode"
    """``info["truncation_reason"]`` of a truncation."""


Behaviour = Stall | Raise | Silent | Stale | Block | NotFinite | Return | End
Script = Mapping[int, Behaviour]
"""Behaviours by the number of the call, counted from 1."""
