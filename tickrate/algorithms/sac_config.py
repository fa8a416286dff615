"""The options of SAC and its named presets. No torch, so that commands can show them quickly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tickrate.errors import ConfigError, suggest


@dataclass(frozen=True)
class SACConfig:
    """Options of SAC; the presets `plain` and `crossq` are the two recipes to start from.

    Discounting and n-step returns are not here: they come with each batch from the replay.
    """

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics; wider learns finer, costs time. Usual: 64 to 512."""

    critics: int = 2
    """Number of critics, of which the smallest value counts. Usual: 2."""

    batch_norm: bool = False
    """Batch norm in critics and actor, on the input and after each ReLU."""

    batch_norm_momentum: float = 0.01
    """Weight of the newest batch in the running statistics that the policy acts with. Usual: 0.01."""

    target_network: bool = True
    """Bootstrap from a slowly moving copy of the critics. Without it, batch norm has to be on (CrossQ)."""

    target_rate: float = 0.005
    """Share of the critics that enters the target copy at each update (Polyak). Usual: 0.005 to 0.02."""

    policy_delay: int = 1
    """The actor and the temperature are updated at every n-th critic update. Usual: 1 (SAC), 3 (CrossQ)."""

    batch_size: int = 256
    """Transitions a batch; used by the trainer that samples them. Usual: 128 to 512."""

    learning_rate: float = 3e-4
    """Step size of Adam for actor, critics and temperature. Usual: 3e-4; 1e-3 with batch norm."""

    adam_beta1: float = 0.9
    """Decay of Adam's mean of gradients. Usual: 0.9; 0.5 with batch norm (CrossQ)."""

    adam_beta2: float = 0.999
    """Decay of Adam's mean of squared gradients. Usual: 0.999."""

    initial_temperature: float = 1.0
    """Entropy coefficient alpha at the start, in units of reward. Small rewards a step want about 0.01."""

    learn_temperature: bool = True
    """Adjust alpha so that the policy's entropy meets the target; False keeps the initial value."""

    target_entropy_per_dim: float = -1.0
    """Target entropy a component of the action, for actions scaled to [-1, 1], in nats. Usual: -1 to -0.5."""

    log_std_offset: float = 0.0
    """Added to the network's log_std before it is clamped: where exploration starts. Usual: -0.5 to 0."""

    log_std_min: float = -5.0
    """Lower clamp of log_std; keeps some noise for ever. Usual: -5 (the least allowed is -20)."""

    log_std_max: float = 2.0
    """Upper clamp of log_std. Usual: 1 to 2."""

    actor_last_gain: float = 1.0
    """Factor on the actor's initial last layer; 0.1 starts near the middle of the action range."""

    noise_correlation: float = 0.0
    """Correlation rho of the exploration noise from step to step (AR(1), unit variance), in [0, 1). Live
    systems with mass want about 0.8; 0 is SAC's white noise."""

    normalise_observations: bool = False
    """Scale inputs by running mean and variance of all observations; for spaces with unlike units."""

    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Leaves that ``actor`` and ``critic`` read, by path; a group left out reads all leaves, so a critic may
    see what the actor will not have when it acts."""

    @classmethod
    def plain(cls, **changes: Any) -> SACConfig:
        """Return SAC as published (arXiv 1812.05905): target network, no batch norm, no delay."""
        return _changed(cls(), changes)

    @classmethod
    def crossq(cls, **changes: Any) -> SACConfig:
        """Return the CrossQ-style recipe for live systems (ICLR 2024): batch norm, no target network."""
        recipe = cls(
            hidden=(128, 128),
            batch_norm=True,
            target_network=False,
            policy_delay=3,
            batch_size=128,
            learning_rate=1e-3,
            adam_beta1=0.5,
            initial_temperature=0.01,
            log_std_offset=-0.5,
            log_std_max=1.0,
            actor_last_gain=0.1,
            noise_correlation=0.8,
        )
        return _changed(recipe, changes)

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option, its value and what is possible.
        """
        positive = ("critics", "policy_delay", "batch_size", "learning_rate", "initial_temperature")
        for name in positive:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"sac.{name} is {value}: it must be positive")
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ConfigError(f"sac.hidden is {list(self.hidden)}: give one positive width or more")
        for name in ("adam_beta1", "adam_beta2", "noise_correlation"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"sac.{name} is {getattr(self, name)}: it must be in [0, 1)")
        for name in ("target_rate", "batch_norm_momentum"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"sac.{name} is {getattr(self, name)}: it must be in (0, 1]")
        if not -20.0 <= self.log_std_min <= self.log_std_max <= 5.0:
            raise ConfigError(
                f"sac.log_std_min {self.log_std_min} and log_std_max {self.log_std_max}: "
                "they must be ordered and inside [-20, 5]"
            )
        if not (self.target_network or self.batch_norm):
            raise ConfigError(
                "sac.target_network is False: critics without a target need sac.batch_norm = True"
            )
        if self.batch_norm and self.batch_size < 2:
            raise ConfigError(f"sac.batch_size is {self.batch_size}: batch norm needs 2 transitions or more")
        for name in self.groups:
            if name not in ("actor", "critic"):
                raise ConfigError(
                    f"sac.groups has {name!r}: SAC reads 'actor' and 'critic'."
                    f"{suggest(name, ('actor', 'critic'))}"
                )


def _changed(config: SACConfig, changes: Mapping[str, Any]) -> SACConfig:
    known = [item.name for item in fields(SACConfig)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"SAC has no option {name!r}.{suggest(name, known)}")
    return replace(config, **changes)
