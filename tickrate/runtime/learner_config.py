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
    offline_updates: int | None = None
    """Learn from ``replay.demonstrations`` alone: no environment is driven, and the run ends after so many
    updates. None: learn by acting."""
    offline_contract: str = ""
    """Run folder (or its ``contract.json``) to take the spaces from instead of opening the environment; with
    ``offline_updates`` only. Demonstrations have shapes, but no bounds."""
    start_steps: int = 500
    """Training steps before the first update (the warm-up). Usual: 500 to 10 000."""
    updates_per_step: float = 1.0
    """Updates per training step (UTD ratio); the limiter keeps it exactly. Usual: 1 to 4, 20 for REDQ."""
    publish_every: int = 10
    """Updates between two published policies. Usual: a few a second."""
    publish_every_s: float = 0.1
    """Least seconds between two published policies of a trainer process: one that catches up after an outage
    would publish its every policy, only to be overtaken. Not in a serial run, which knows no time.
    Usual: 0.1 to 1."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints. Usual: 30 to 600."""
    log_every_s: float = 5.0
    """Seconds between two rows of metrics. Usual: 1 to 60."""
    device: str = "cpu"
    """Where the networks are and updates are computed, as torch names it: ``cpu``, ``cuda``, ``cuda:1``.
    Small networks of a live system are as fast on the CPU. For algorithms that take a device."""
    threads: int = 1
    """Threads of the learner's process. More only where cores are free: on a shared core they slow it
    down. Usual: 1 to 4."""
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
        for name in ("start_steps", "publish_every", "threads", "total_steps", "offline_updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.offline_contract and self.offline_updates is None:
            raise ConfigError("offline_contract is set, but does nothing without offline_updates")
        if self.offline_updates is not None and self.total_steps is not None:
            raise ConfigError(
                f"total_steps is {self.total_steps}, but with offline_updates no step is made: set one of "
                "them to null"
            )
        if not self.device:
            raise ConfigError("device is empty; give cpu, cuda, or what else torch names a device")
        if self.priority not in get_args(Priority):
            raise ConfigError(f"priority is {self.priority!r}; it must be one of {get_args(Priority)}")


PRIORITY_OPTIONS = ("priority_exponent", "importance_exponent")
"""Options of the replay that do nothing without ``sampling: prioritised``."""


@dataclass(frozen=True)
class ReplayConfig:
    """What keeps the transitions."""

    capacity: int = 1_000_000
    """Most observations kept; the oldest go first. Memory that it needs is checked before the run.
    Usual: 100,000 to 1,000,000."""
    gamma: float = 0.995
    """Discount per time-step, in (0, 1). 0.99 looks 5 s ahead at 20 Hz, 0.995 looks 10 s. Usual:
    0.97 to 0.998."""
    n_step: int = 3
    """Rewards summed before bootstrapping. Usual: 1 to 5."""
    storage: Literal["auto", "journal", "memory"] = "auto"
    """``journal``: in a file of the run folder, so that every acknowledged transition survives a killed
    trainer. ``memory``: in memory, saved with each checkpoint only. ``auto``: the journal wherever workers
    are processes of their own, memory in a serial run."""
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

    sampling: Literal["uniform", "prioritised"] = "uniform"
    """``uniform``: every transition is drawn alike. ``prioritised``: in proportion to a power of what the
    algorithm says there is left to learn from it (arXiv 1511.05952); only with an algorithm that says so."""
    priority_exponent: float = 0.6
    """``prioritised`` only: power of the priorities, in (0, 1]; near 0 all are drawn alike. Usual: 0.4 to
    0.7."""
    importance_exponent: float = 0.4
    """``prioritised`` only: how far the weights of the losses correct for the uneven drawing at the
    beginning, in [0, 1]; it grows in a straight line to 1 (in full) at ``trainer.total_steps`` or
    ``trainer.offline_updates``, and stays where neither is set. Usual: 0.4 to 0.6."""
    demonstrations: tuple[str, ...] = ()
    """Segment files of demonstrations (`tickrate record`, `tickrate data export`) to learn from as well. They
    are kept beside the run's own rows, in memory, and never overwritten by them."""
    demonstration_share: float = 0.5
    """Share of each batch that is drawn from the ``demonstrations``, in (0, 1). One half is RLPD's symmetric
    sampling (arXiv 2302.02948); less, once the run's own data are better. Rows of expert workers and of
    takeovers do not count towards it: they are the run's own, and drawn like the rest of them.
    Usual: 0.1 to 0.5."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        self._check_sampling()
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

    def _check_sampling(self) -> None:
        if self.sampling not in ("uniform", "prioritised"):
            raise ConfigError(f"sampling is {self.sampling!r}; it must be uniform or prioritised")
        if not 0.0 < self.priority_exponent <= 1.0:
            raise ConfigError(
                f"priority_exponent is {self.priority_exponent}; it must be above 0 and at most 1"
            )
        if not 0.0 <= self.importance_exponent <= 1.0:
            raise ConfigError(f"importance_exponent is {self.importance_exponent}; it must be in 0 to 1")
        if not 0.0 < self.demonstration_share < 1.0:
            raise ConfigError(
                f"demonstration_share is {self.demonstration_share}; it must be above 0 and below 1 (to "
                "learn from demonstrations alone, set trainer.offline_updates)"
            )
        unused = (
            dict.fromkeys(PRIORITY_OPTIONS, "sampling: prioritised") if self.sampling == "uniform" else {}
        )
        unused |= {} if self.demonstrations else {"demonstration_share": "demonstrations"}
        for name, needs in unused.items():
            if getattr(self, name) != getattr(ReplayConfig, name):
                raise ConfigError(f"{name} is set, but does nothing without {needs}")
