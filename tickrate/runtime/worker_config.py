"""How a worker acts: what the section ``worker`` of an experiment says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tickrate.errors import ConfigError
from tickrate.runtime.chunks import ChunkConfig
from tickrate.runtime.outbox import OutboxConfig
from tickrate.runtime.remote import RemoteConfig
from tickrate.runtime.warmup import WarmupConfig
from tickrate.wire.arrays import Compression

Purpose = Literal["train", "expert", "test"]

ONNX_SUFFIX = ".onnx"
"""Ending of a policy that `tickrate export` wrote; acting with it needs the extra ``onnx``."""

POLICY_SUFFIXES = (".policy", ONNX_SUFFIX)
"""Endings that make ``worker.actor`` a saved policy rather than a class."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Deterministic episodes on the same device, between training episodes, kept out of the data."""

    every_steps: int = 1000
    """Training steps between evaluations; 0 switches them off. Usual: 1 to 5 minutes of acting."""
    episodes: int = 1
    """Episodes with the same frozen weights; the worst of them is the score. After one that does not beat the
    best score so far, the rest is skipped."""
    after_best: bool = True
    """Evaluate early, after a quarter of ``every_steps``, when a training episode beats the best evaluation:
    weights that do well even with exploration are worth keeping before they change again."""

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        if self.every_steps < 0 or self.episodes < 1:
            raise ConfigError(
                f"evaluation: every_steps {self.every_steps} (>= 0) and episodes {self.episodes} (>= 1)"
            )


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker acts."""

    purpose: Purpose = "train"
    """``train``: explores with the newest weights, records, evaluates. ``expert``: drives with an actor of
    its own (``actor``), records with the flag EXPERT, takes up no weights, never evaluates. ``test``: only
    evaluates, every episode deterministic, taking newer weights between episodes."""
    actor: str = ""
    """Empty: our own policy. ``module:Class``: another `Actor`, made with the keyword arguments
    ``leaf_spaces``, ``action_space``, ``period_s``, ``action_buffer_length`` and ``seed``; it gets weights
    by ``load``, except in an expert, which acts from the start. For an expert also the path of a saved policy
    (``best.policy``, ``best.onnx``); an expert with a ``takeover`` and no actor rests, with the device's
    default action, whenever the operator does not drive."""
    takeover: str = ""
    """``module:Class`` of an operator who may take over at any step (`tickrate.runtime.takeover.Operator`);
    empty: nobody. The row stores what was really applied, with the flag TAKEOVER."""
    takeover_max_step: float = 0.0
    """Largest change of the command per step after a handover, in either direction, in action units, until
    the new driver's command is reached; 0 is off. Usual: 5 to 20 % of the action's range."""
    synchronous_steps: int = 0
    """Synchronous mode: after so many training steps with the same weights (a *round*) the worker finishes
    its episode, makes the device safe and waits for newer weights; the warm-up is a round of
    ``trainer.start_steps`` steps more. The trainer, which has to be given the option too, makes the updates
    of a round when all its rows are there, saves a checkpoint, and only then hands the weights out: a run
    with one such worker whose environment can be repeated ends bit-equal (on the CPU) however often its
    trainer was killed. Each round costs one checkpoint: some tens of milliseconds, more where networks are
    large or the disk is slow. 0 is off: acting never waits for learning. Usual: 100 to 2000, a few episodes.
    """
    checksum: bool = False
    """Store a hash of each transition as it was seen, so that the trainer can prove that what it puts
    together is equal. 8 bytes a row, and a few microseconds per KB of observation."""
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    """How to play the chunks of an actor that answers with several future actions."""
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    """Inference on another machine."""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    """Actions until the first policy arrives."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """When and how to evaluate."""
    outbox: OutboxConfig = field(default_factory=OutboxConfig)
    """Where rows are kept until the trainer has them."""
    compression: Compression = "auto"
    """``auto``: rows that shrink by a fifth or more travel compressed (zlib, lossless), except on loopback.
    ``always`` and ``never`` do not ask."""
    device_patience_s: float = 60.0
    """How long to go on trying to reset a lost device before giving up, in seconds."""
    max_policy_age_s: float = 0.0
    """Make the device safe and wait when no weights have come for this long, in seconds; 0 is off: a lost
    trainer alone never stops acting."""

    def __post_init__(self) -> None:
        """Refuse times that cannot be waited for, and options that do not go together."""
        if self.compression not in get_args(Compression):
            raise ConfigError(
                f"compression is {self.compression!r}; it must be one of {get_args(Compression)}"
            )
        if not 0.0 <= self.device_patience_s < np.inf:
            raise ConfigError(f"device_patience_s is {self.device_patience_s}: give seconds, 0 or more")
        if not 0.0 <= self.max_policy_age_s < np.inf:
            raise ConfigError(f"max_policy_age_s is {self.max_policy_age_s}: give seconds, or 0 for no limit")
        if not 0.0 <= self.takeover_max_step < np.inf:
            raise ConfigError(
                f"takeover_max_step is {self.takeover_max_step}: give action units, or 0 for no limit"
            )
        if self.takeover_max_step and not self.takeover:
            raise ConfigError("takeover_max_step is set, but takeover names no operator")
        if self.synchronous_steps < 0:
            raise ConfigError(f"synchronous_steps is {self.synchronous_steps}: give steps, or 0 for off")
        if self.synchronous_steps and self.purpose != "train":
            raise ConfigError(
                f"synchronous_steps is set, but a worker of purpose {self.purpose!r} does not train"
            )
        if self.synchronous_steps and (self.max_policy_age_s or self.remote.enabled):
            other = "remote.enabled" if self.remote.enabled else "max_policy_age_s"
            raise ConfigError(
                f"synchronous_steps and {other} are both set: the trainer hands out weights only when a "
                "round of steps is complete, so that a worker that stops before waits for ever: leave one out"
            )
        self._check_actor()

    def _check_actor(self) -> None:
        if self.remote.enabled and self.actor:
            raise ConfigError(
                f"actor is {self.actor!r}, but with remote.enabled the remote side acts: name it there"
            )
        if self.purpose == "expert" and not (self.actor or self.remote.enabled or self.takeover):
            raise ConfigError(
                "an expert worker needs an actor of its own: actor as 'module:Class' or a saved policy "
                "('runs/mine/best.policy'), or remote.enabled, or takeover with somebody who drives"
            )
        if self.actor.endswith(POLICY_SUFFIXES) and self.purpose != "expert":
            raise ConfigError(
                f"actor is the saved policy {self.actor!r}: only a worker of purpose 'expert' drives with "
                f"one, this one has the purpose {self.purpose!r}"
            )
        if self.chunks.horizon > 1 and not (self.actor or self.remote.enabled):
            raise ConfigError(
                f"chunks.horizon is {self.chunks.horizon}, but our own policy answers with single actions: "
                "name an actor that answers with chunks"
            )
