"""Options of soft actor-critic. No torch: commands that only read a configuration load them quickly."""

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
class SACConfig:
    """Options of SAC. The defaults are SAC as published; the presets are in ``tickrate/config/presets``.

    Discounting, n-step returns and updates per step are not here: they belong to replay and trainer.
    """

    actor: NetworkConfig = field(default_factory=NetworkConfig)
    """Body of the actor."""
    critic: NetworkConfig = field(default_factory=NetworkConfig)
    """Body of each critic."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """How images and histories become features, for actor and critics each by themselves."""
    shared_encoder: bool = False
    """The actor reads what the critics' encoder (and memory) makes of the observation, and leaves its
    learning to the critics (DrQ, arXiv 2004.13649): one encoder instead of two."""
    memory: Literal["none", "gru", "lstm"] = "none"
    """A recurrent layer behind the encoder, learned over sequences; for what one observation does not
    show."""
    memory_units: int = 128
    """Width of the memory. Usual: 64 to 256."""
    sequence_length: int = 16
    """Steps of the sequences that a memory learns from. Usual: 16 to 64."""
    burn_in: int = 4
    """First steps of a sequence that only fill the memory and are not learned from, unless it begins with its
    episode. Usual: 0 to 16."""

    critics: int = 2
    """Number of critics. Usual: 2; 10 (REDQ)."""
    target_critics: int = 0
    """Critics drawn anew for each update whose smallest value is the target (REDQ's M); 0: all. Usual: 0; 2
    (REDQ)."""
    actor_value: Literal["least", "mean"] = "least"
    """What the actor climbs: the smallest critic's value (SAC), or the mean of all (REDQ, DroQ)."""
    value_bins: int = 0
    """0: critics say a number. More: a distribution over so many values (FlashSAC, XQC). Usual: 0 or 101."""
    value_limit: float = 5.0
    """Largest value of the distribution; ``replay.return_limit`` scales rewards so that returns fit. Usual:
    5."""

    target_network: bool = True
    """Bootstrap from a slowly moving copy of the critics. Without it, batch norm has to be on (CrossQ)."""
    target_rate: float = 0.005
    """Share of the critics that enters the target copy at each update (Polyak). Usual: 0.005 to 0.02."""
    joint_batch: bool = False
    """Pass (s, a) and (s', a') through the critics in one batch, so that batch norm sees both (CrossQ,
    FlashSAC)."""
    policy_delay: int = 1
    """The actor and the temperature are updated at every n-th critic update. Usual: 1 (SAC), 3 (CrossQ), 20
    (REDQ)."""
    batch_size: int = 256
    """Transitions a batch; used by the trainer that samples them. Usual: 128 to 512."""

    actor_optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How the actor follows its gradient."""
    critic_optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How the critics follow theirs."""
    temperature_optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How the temperature follows its own."""
    gradient_limit: float = 0.0
    """Length to which longer gradients of a network are cut; 0: they are left alone. Usual: 0 or 10."""

    initial_temperature: float = 1.0
    """Entropy coefficient alpha at the start, in units of reward. Small rewards a step want
    about 0.01. Usual: 0.01 to 1."""
    learn_temperature: bool = True
    """Adjust alpha so that the policy's entropy meets the target; False keeps it, or follows the schedule."""
    final_temperature: float | None = None
    """Alpha after ``schedule_updates``, in a straight line; only where it is not learned. Usual: a tenth of
    the first."""
    target_entropy_per_dim: float = -1.0
    """Target entropy a component of a continuous action, scaled to [-1, 1], in nats. Usual: -1 to -0.5."""
    final_target_entropy_per_dim: float | None = None
    """The same after ``schedule_updates``, in a straight line; None: it stays. Usual: -2 to -1."""
    target_entropy_share: float = 0.3
    """Target entropy of discrete choices, as a share of the largest possible. Usual: 0.1 to 0.7."""
    schedule_updates: int = 0
    """Updates that the two schedules above take, of alpha or of the target entropy. Usual: those of half the
    run."""

    log_std_offset: float = 0.0
    """Added to the network's log_std before it is clamped: where exploration starts. Usual: -0.5 to 0."""
    log_std_min: float = -5.0
    """Lower clamp of log_std; keeps some noise for ever. Usual: -5 (the least allowed is -20)."""
    log_std_max: float = 2.0
    """Upper clamp of log_std. Usual: 1 to 2."""
    actor_last_gain: float = 1.0
    """Factor on an ``mlp`` actor's initial last layer; 0.1 starts near the middle of the action range.
    Usual: 0.1 or 1."""
    noise_correlation: float = 0.0
    """Correlation rho of the exploration noise from step to step (AR(1), unit variance), in [0, 1). 0 is
    SAC's white noise. Usual: 0; about 0.8 for live systems with mass."""
    noise_hold: int = 1
    """Most steps for which exploration noise is held; the number is drawn anew, n with a weight of 1/n^2
    (FlashSAC). 1: new noise at every step. Usual: 1 or 16."""

    delay_correction: int = 0
    """Most steps of returns whose later actions are drawn anew from the present policy, as far as the
    recorded delays say that those actions had no effect yet (DCAC, ICLR 2021). Needs the leaves ``actions``
    and ``timing``; 0: off.
    Usual: the longest delay plus 1."""
    cloning_updates: int = 0
    """Updates at the beginning in which the actor imitates the demonstrations of each batch instead of
    climbing the critics. Usual: 0, or 1,000 to 10,000 with ``replay.demonstrations``."""
    cloning_fade: int = 0
    """Updates after those in which the actor turns from the demonstrations to the critics, little by little;
    0: at once. Keeps a good start from being unlearned. Usual: 0, or as many as ``cloning_updates``."""

    compile: Literal["off", "default", "reduce-overhead"] = "off"
    """Compile the update with torch: ``default``, or ``reduce-overhead``, which on CUDA replays graphs.
    Slower than ``off`` on most CPUs."""
    mixed_precision: bool = False
    """Compute the networks in bfloat16 (discounts, targets and losses stay float32). For GPUs."""

    normalise_observations: bool = False
    """Scale inputs by running mean and variance of all observations, each counted once when it arrives; for
    spaces with unlike units. Batch norm on the inputs does the same with less memory of the past."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Leaves that ``actor`` and ``critic`` read, by path; a group left out reads all leaves, so a critic may
    see what the actor will not have when it acts."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option, its value and what is possible.
        """
        self._check_numbers()
        self._check_critics()
        self._check_temperature()
        self._check_sequences()
        for name in self.groups:
            if name not in ("actor", "critic"):
                raise ConfigError(
                    f"sac.groups has {name!r}: SAC reads 'actor' and 'critic'."
                    f"{suggest(name, ('actor', 'critic'))}"
                )

    def _check_numbers(self) -> None:
        positive = (
            "critics",
            "policy_delay",
            "batch_size",
            "initial_temperature",
            "value_limit",
            "noise_hold",
            "actor_last_gain",
        )
        for name in positive:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"sac.{name} is {value}: it must be positive")
        for name in ("target_critics", "value_bins", "gradient_limit", "schedule_updates"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"sac.{name} is {value}: it must not be negative")
        for name in ("log_std_offset", "target_entropy_per_dim", "final_target_entropy_per_dim"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"sac.{name} is {value}: it must be finite")
        if not 0.0 <= self.target_entropy_share <= 1.0:
            raise ConfigError(
                f"sac.target_entropy_share is {self.target_entropy_share}: it must be in [0, 1]"
            )
        if self.actor_last_gain != 1.0 and self.actor.kind == "residual":
            raise ConfigError(
                f"sac.actor_last_gain is {self.actor_last_gain}, but a residual actor has no such layer: set "
                "it to 1"
            )
        if self.noise_hold > 65_536:
            raise ConfigError(f"sac.noise_hold is {self.noise_hold}: at most 65,536 are possible")
        if not 0.0 <= self.noise_correlation < 1.0:
            raise ConfigError(f"sac.noise_correlation is {self.noise_correlation}: it must be in [0, 1)")
        if not 0.0 < self.target_rate <= 1.0:
            raise ConfigError(f"sac.target_rate is {self.target_rate}: it must be in (0, 1]")
        if not -20.0 <= self.log_std_min <= self.log_std_max <= 5.0:
            raise ConfigError(
                f"sac.log_std_min {self.log_std_min} and log_std_max {self.log_std_max}: "
                "they must be ordered and inside [-20, 5]"
            )
        if self.noise_correlation and self.noise_hold > 1:
            raise ConfigError(
                f"sac.noise_correlation is {self.noise_correlation} and noise_hold {self.noise_hold}: "
                "choose one"
            )

    def _check_critics(self) -> None:
        if not self.target_network and not (self.critic.has_batch_norm and self.joint_batch):
            raise ConfigError(
                "sac.target_network is False: critics without a target need batch norm "
                "(sac.critic.norm: batch) and sac.joint_batch: true"
            )
        if self.joint_batch and not self.critic.has_batch_norm:
            raise ConfigError("sac.joint_batch is on: it does nothing for critics without batch norm")
        if self.target_critics > self.critics:
            raise ConfigError(
                f"sac.target_critics is {self.target_critics}, but there are {self.critics} critics"
            )
        if self.value_bins == 1:
            raise ConfigError("sac.value_bins is 1: give 0 (a number) or at least 2, usually 101")
        batch_norm = self.critic.has_batch_norm or self.actor.has_batch_norm
        if batch_norm and self.batch_size < 2:
            raise ConfigError(f"sac.batch_size is {self.batch_size}: batch norm needs 2 transitions or more")

    def _check_temperature(self) -> None:
        if self.final_temperature is not None and not self.final_temperature > 0:
            raise ConfigError(f"sac.final_temperature is {self.final_temperature}: it must be positive")
        if self.final_temperature is not None and self.learn_temperature:
            raise ConfigError(
                "sac.final_temperature is set, but sac.learn_temperature is on: a learned one has none"
            )
        if self.final_target_entropy_per_dim is not None and not self.learn_temperature:
            raise ConfigError("sac.final_target_entropy_per_dim is set, but sac.learn_temperature is off")
        scheduled = (self.final_temperature, self.final_target_entropy_per_dim) != (None, None)
        if scheduled != (self.schedule_updates > 0):
            raise ConfigError(
                f"sac.schedule_updates is {self.schedule_updates}: give it together with "
                "sac.final_temperature or sac.final_target_entropy_per_dim, or give none of them"
            )

    def _check_sequences(self) -> None:
        for name, least in (
            ("memory_units", 1),
            ("sequence_length", 2),
            ("burn_in", 0),
            ("cloning_updates", 0),
            ("cloning_fade", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"sac.{name} is {getattr(self, name)}: it must be at least {least}")
        if self.memory == "none":
            for name in ("memory_units", "sequence_length", "burn_in"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ConfigError(f"sac.{name} is {getattr(self, name)}, but sac.memory is 'none'")
        if self.memory != "none" and self.burn_in >= self.sequence_length:
            raise ConfigError(
                f"sac.burn_in is {self.burn_in} of sequences of {self.sequence_length}: "
                "nothing is left to learn from"
            )
        if self.delay_correction == 1 or self.delay_correction < 0:
            raise ConfigError(
                f"sac.delay_correction is {self.delay_correction}: give 0 (off), or 2 steps or more"
            )
        if self.delay_correction and self.memory != "none":
            raise ConfigError("sac.delay_correction and sac.memory cannot be used together: choose one")
        if self.shared_encoder and self.groups.get("actor", ()) != self.groups.get("critic", ()):
            raise ConfigError(
                "sac.shared_encoder is on: actor and critic must read the same leaves (sac.groups)"
            )

    @property
    def traits(self) -> Traits:
        """What a run has to know of these settings."""
        return Traits(
            sequence_length=self.delay_correction or (self.sequence_length if self.memory != "none" else 0),
            value_range=(-self.value_limit, self.value_limit) if self.value_bins else None,
            corrects_delays=self.delay_correction > 0,
        )

    @property
    def clones(self) -> bool:
        """Whether the actor follows demonstrations at any time."""
        return self.cloning_updates > 0 or self.cloning_fade > 0

    def cloning_share(self, update: int) -> float:
        """Return how much of the actor's loss is imitation at an update, counted from 1: 1 is all of it."""
        late = update - self.cloning_updates
        if late <= 0:
            return 1.0
        return max(0.0, 1.0 - late / self.cloning_fade) if self.cloning_fade else 0.0

    @property
    def temperature(self) -> Schedule:
        """Alpha, where it is not learned."""
        end = self.initial_temperature if self.final_temperature is None else self.final_temperature
        return Schedule(self.initial_temperature, end, self.schedule_updates)

    @property
    def entropy_per_dim(self) -> Schedule:
        """Target entropy a component of a continuous action, nats."""
        final = self.final_target_entropy_per_dim
        end = self.target_entropy_per_dim if final is None else final
        return Schedule(self.target_entropy_per_dim, end, self.schedule_updates)
