"""The settings of the learning half of a run: how the trainer spends its time, what the replay keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from tickrate.errors import ConfigError
from tickrate.runtime.supervision import Priority


@dataclass(frozen=True)
class TrainerConfig:
    """How the trainer spends its time."""

    total_steps: int | None = None
    """Training steps after which the run ends; None: no limit."""
    time_limit_s: float | None = None
    """Seconds of wall time, from the command on (also one that resumes), after which it ends; None: no
    limit."""
    start_steps: int = 500
    """Training steps before the first update (the warm-up). Usual: 500 to 10 000."""
    updates_per_step: float = 1.0
    """Updates per training step (UTD ratio); the limiter keeps it exactly. Usual: 1 to 4, 20 for REDQ."""
    publish_every: int = 10
    """Updates between two published policies. Usual: a few a second."""
    publish_every_s: float = 0.1
    """Least seconds between two published policies of a trainer process: one that catches up after an outage
    would publish its every policy, only to be overtaken. Not in a serial run, which knows no time."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints."""
    log_every_s: float = 5.0
    """Seconds between two rows of metrics."""
    threads: int = 1
    """Threads of the learner's process. More only where cores are free: on a shared core they slow it
    down."""
    priority: Priority = "idle"
    """How far the learner gives way. ``idle``: any process that wakes interrupts it at once (Linux's idle
    class; the lowest niceness elsewhere), so that a busy learner costs the control loop no scheduler slice of
    several milliseconds. Where a heavy game keeps every core busy, that starves the learner: watch
    ``learn/updates_per_s``, and use ``low`` there. ``normal``: no difference made."""

    policy_lag_alarm_s: float = 30.0
    """Age of the policy that a worker acts with, in seconds, from which on the views raise an alarm. Usual:
    some times ``publish_every`` updates."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        for name in (
            "updates_per_step",
            "checkpoint_every_s",
            "log_every_s",
            "time_limit_s",
            "policy_lag_alarm_s",
            "publish_every_s",
        ):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; it must be positive and finite")
        for name in ("start_steps", "publish_every", "threads", "total_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.priority not in get_args(Priority):
            raise ConfigError(f"priority is {self.priority!r}; it must be one of {get_args(Priority)}")


@dataclass(frozen=True)
class ReplayConfig:
    """What keeps the transitions."""

    capacity: int = 1_000_000
    """Most observations kept; the oldest go first. Memory that it needs is checked before the run."""
    gamma: float = 0.995
    """Discount per time-step, in (0, 1). 0.99 looks 5 s ahead at 20 Hz, 0.995 looks 10 s."""
    n_step: int = 3
    """Rewards summed before bootstrapping. Usual: 1 to 5."""
    storage: Literal["auto", "journal", "memory"] = "auto"
    """``journal``: in a file of the run folder, so that every acknowledged transition survives a killed
    trainer. ``memory``: in memory, saved with each checkpoint only. ``auto``: the journal wherever workers
    are
    processes of their own, memory in a serial run."""
    sync: bool = False
    """Force the journal to the disk before transitions are acknowledged, so that they survive a power cut as
    well. Costs milliseconds a batch of rows; `docs/benchmarks.md` has figures."""
    return_limit: float = 0.0
    """Divide rewards, as they are sampled, by a running scale of the returns seen (each step counted once),
    so that discounted returns have about unit spread and at most this size; 0: rewards stay as they are. For
    critics that say a distribution over fixed values (``algorithm.value_bins``). Usual: 0 or 5."""
    mirror: bool = True
    """Show half of each batch mirrored left to right, where the interface declares how (doubles what a
    steering device teaches per step); without effect elsewhere."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if not 0.0 < self.gamma < 1.0:
            raise ConfigError(f"gamma is {self.gamma}; it must be above 0 and below 1")
        if self.storage not in ("auto", "journal", "memory"):
            raise ConfigError(f"storage is {self.storage!r}; it must be auto, journal or memory")
        if self.sync and self.storage == "memory":
            raise ConfigError("sync is set, but storage is memory: there is no journal to force to the disk")
        if not 0.0 <= self.return_limit < math.inf:
            raise ConfigError(f"return_limit is {self.return_limit}; it must be 0 (off) or positive")
        if self.n_step < 1:
            raise ConfigError(f"n_step is {self.n_step}; it must be at least 1")
        if self.capacity < 100 + self.n_step:
            raise ConfigError(f"capacity is {self.capacity}; it must be at least {100 + self.n_step}")
