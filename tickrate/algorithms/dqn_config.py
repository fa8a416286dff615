"""Options of the DQN family. No torch: commands that only read a configuration load them quickly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tickrate.algorithms.options import NetworkConfig, OptimiserConfig, Schedule
from tickrate.algorithms.protocol import Traits
from tickrate.errors import ConfigError, suggest
from tickrate.nn.encoder_config import EncoderConfig


@dataclass(frozen=True)
class DQNConfig:
    """Options of DQN. The defaults are DQN with double Q; presets are in ``tickrate/config/presets``.

    Discounting, n-step returns, priorities and updates per step are not here: they belong to replay and
    trainer.
    """

    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers behind the encoder. With ``duelling`` the last hidden layer of an ``mlp`` is one of each stream,
    those before it are shared; a ``residual`` network is one of each stream. Batch norm sees s and s' in one
    batch, as in CrossQ."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """What images and histories go through first."""

    double: bool = True
    """The network chooses the next action and its target copy values it (arXiv 1509.06461); off: the target
    copy does both (Mnih et al. 2015), and overestimates."""
    duelling: bool = False
    """Add the value of a state and the advantages of its actions, each from a stream of its own (arXiv
    1511.06581). For many actions of which few matter in most states."""
    value_bins: int = 0
    """0: the network says a number for each action. More: a distribution over so many values (C51, arXiv
    1707.06887). Usual: 0 or 51."""
    value_low: float = -10.0
    """Smallest value of the distribution, in units of reward: no smaller return may be possible.
    Usual: the least return, -10 where rewards are clipped to 1."""
    value_high: float = 10.0
    """Largest value of the distribution, in units of reward: no larger return may be possible. Usual:
    the largest return, 10 where rewards are clipped to 1."""
    noisy: bool = False
    """Learned noise on the weights of all layers behind the encoder, drawn anew for each pass of each update
    (arXiv 1706.10295)."""
    noise_scale: float = 0.5
    """Standard deviation of the noise at the start, in units of 1 / sqrt(inputs). Usual: 0.1 to 0.5."""
    noisy_policies: bool = False
    """Each published policy carries one draw of the noise, kept until the next: it explores by that, in
    evaluations and saved policies too. Off: the mean weights act, with ``epsilon`` alone to explore."""
    loss: Literal["huber", "squared"] = "huber"
    """Of numbers. ``huber``: half the squared error up to 1, beyond it the error less a half (Mnih's clipped
    error). ``squared``: half the squared error. A distribution's loss is the cross-entropy."""

    target_every: int = 1000
    """Updates between two moves of the target copy. Usual: 100 to 10 000 with a ``target_rate`` of 1; 1 with
    a small one."""
    target_rate: float = 1.0
    """Share of the network that enters the target copy at each move: 1 is a hard copy. Usual: 1, or 0.005 at
    every update."""
    batch_size: int = 32
    """Transitions a batch; used by the trainer that samples them. Usual: 32 to 256."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How the network follows its gradient."""
    gradient_limit: float = 0.0
    """Length to which longer gradients are cut; 0: they are left alone. Usual: 10."""

    epsilon: Schedule = field(default_factory=lambda: Schedule(1.0, 0.05, 10_000))
    """Probability of a random action while exploring, over the updates; never in evaluations. Usual: from 1
    to 0.01 or 0.05 within a tenth of the run; 0 with ``noisy_policies``."""
    normalise_observations: bool = False
    """Scale vectors by running mean and variance of all observations, each counted once when it arrives; for
    spaces with unlike units. Images are scaled anyway."""
    compile: Literal["off", "default", "reduce-overhead"] = "off"
    """Compile the update with torch: ``default``, or ``reduce-overhead``, which on CUDA replays graphs.
    Slower than ``off`` on most CPUs. Noise, dropout and shifts of images break the graph."""
    mixed_precision: bool = False
    """Compute the networks in bfloat16 (discounts, targets and losses stay float32). For GPUs."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Leaves that the network reads, by path, as ``actor``; left out: all."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option, its value and what is possible.
        """
        self._check_numbers()
        self._check_values()
        epsilon = self.epsilon
        if not (0.0 <= epsilon.start <= 1.0 and 0.0 <= epsilon.end <= 1.0 and epsilon.updates >= 0):
            raise ConfigError(f"dqn.epsilon is {epsilon}: start and end are probabilities, updates 0 or more")
        if epsilon.updates == 0 and epsilon.start != epsilon.end:
            raise ConfigError(
                f"dqn.epsilon is {epsilon}: with 0 updates it stays at start; give end the same"
            )
        for name in self.groups:
            if name != "actor":
                raise ConfigError(f"dqn.groups has {name!r}: DQN reads 'actor'.{suggest(name, ('actor',))}")

    @property
    def traits(self) -> Traits:
        """What a run has to know of these settings."""
        return Traits(
            value_range=(self.value_low, self.value_high) if self.value_bins else None,
            explores=self.noisy_policies or max(self.epsilon.start, self.epsilon.end) > 0.0,
        )

    def _check_numbers(self) -> None:
        for name in ("target_every", "batch_size", "noise_scale"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"dqn.{name} is {value}: it must be positive")
        if not 0.0 < self.target_rate <= 1.0:
            raise ConfigError(f"dqn.target_rate is {self.target_rate}: it must be in (0, 1]")
        if not (math.isfinite(self.gradient_limit) and self.gradient_limit >= 0.0):
            raise ConfigError(f"dqn.gradient_limit is {self.gradient_limit}: it must not be negative")
        if self.network.has_batch_norm and self.batch_size < 2:
            raise ConfigError(f"dqn.batch_size is {self.batch_size}: batch norm needs 2 transitions or more")
        if self.noisy and (self.network.kind == "residual" or self.network.unit_weights):
            raise ConfigError(
                "dqn.noisy is on, but dqn.network keeps its weights at length 1: choose kind 'mlp' without "
                "unit_weights"
            )
        if self.noisy_policies and not self.noisy:
            raise ConfigError("dqn.noisy_policies is on, but dqn.noisy is off: there is no noise to draw")

    def _check_values(self) -> None:
        low, high = self.value_low, self.value_high
        if self.value_bins < 0 or self.value_bins == 1:
            raise ConfigError(
                f"dqn.value_bins is {self.value_bins}: give 0 (a number) or at least 2, usually 51"
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"dqn.value_low is {low} and value_high {high}: they must be finite and ordered"
            )
        if self.value_bins and self.loss != "huber":
            raise ConfigError(
                f"dqn.loss is {self.loss!r}, but dqn.value_bins is {self.value_bins}: the loss of a "
                "distribution is the cross-entropy; leave it out"
            )
