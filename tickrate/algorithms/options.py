"""Options that algorithms share: networks, optimisers, schedules. No torch: commands read them quickly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tickrate.errors import ConfigError


@dataclass(frozen=True)
class NetworkConfig:
    """The body of one network: layers between its inputs and its head."""

    kind: Literal["mlp", "residual"] = "mlp"
    """``mlp``: affine layers with ReLU between. ``residual``: an embedding, then blocks that add to it
    (FlashSAC, arXiv 2604.04539), batch norm before each ReLU, root mean square norm at the end."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers; of ``residual`` one entry a block, all the same. Usual: 64 to 512."""
    norm: Literal["none", "batch", "layer"] = "none"
    """Normalisation in an ``mlp``. ``batch``: on the input and after each ReLU (CrossQ). ``layer``: before
    each ReLU (DroQ)."""
    dropout: float = 0.0
    """Share of a layer's outputs set to zero while learning, before the layer norm. Usual: 0.01 (DroQ)."""
    expansion: int = 4
    """Width inside a residual block, in widths of the block. Usual: 2 to 4."""
    unit_weights: bool = False
    """Scale the weights of each hidden unit to length 1 after each step: effective step sizes stay what they
    were, however long the run. Needs batch norm behind the weights, which undoes the scale. ``residual``
    always does this; it has no switch for it."""
    batch_norm_momentum: float = 0.01
    """Weight of the newest batch in the running statistics of batch norm, with which the policy acts. Usual:
    0.01."""
    batch_norm_epsilon: float = 1e-5
    """Added to batch norm's variances: features that spread less than its root are taken for still. Larger
    where most of the observation hardly moves: running statistics that lag a little would be divided by next
    to nothing. Usual: 1e-5 to 1e-3."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option and its value.
        """
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden is {list(self.hidden)}: give one positive width or more")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout is {self.dropout}: it must be in [0, 1)")
        if not 0.0 < self.batch_norm_momentum <= 1.0:
            raise ConfigError(f"batch_norm_momentum is {self.batch_norm_momentum}: it must be in (0, 1]")
        if not (math.isfinite(self.batch_norm_epsilon) and self.batch_norm_epsilon > 0.0):
            raise ConfigError(f"batch_norm_epsilon is {self.batch_norm_epsilon}: it must be positive")
        if not self.has_batch_norm:
            for name, usual in (("batch_norm_momentum", 0.01), ("batch_norm_epsilon", 1e-5)):
                if getattr(self, name) != usual:
                    raise ConfigError(f"{name} is {getattr(self, name)}, but these layers have no batch norm")
        if self.expansion < 1:
            raise ConfigError(f"expansion is {self.expansion}: it must be 1 or more")
        if self.kind == "residual":
            self._check_residual()
        elif self.expansion != 4:
            raise ConfigError(f"expansion is {self.expansion}, but kind is 'mlp', which has none")
        if self.kind == "mlp" and self.unit_weights and self.norm != "batch":
            raise ConfigError("unit_weights is on: an mlp needs norm 'batch' behind its weights")

    def _check_residual(self) -> None:
        if len(set(self.hidden)) > 1:
            raise ConfigError(
                f"hidden is {list(self.hidden)}: residual blocks have one width, e.g. [256, 256]"
            )
        if self.norm != "none" or self.dropout or self.unit_weights:
            raise ConfigError(
                f"norm is {self.norm!r}, dropout {self.dropout}, unit_weights {self.unit_weights}: kind "
                "'residual' has its own norms and unit weights; leave them out"
            )

    @property
    def has_batch_norm(self) -> bool:
        """Whether running statistics have to be learned."""
        return self.norm == "batch" or self.kind == "residual"


@dataclass(frozen=True)
class OptimiserConfig:
    """How one network follows its gradient."""

    kind: Literal["adam", "adamw", "sgd"] = "adam"
    """``adam`` (arXiv 1412.6980; weight decay is added to the gradient), ``adamw`` (arXiv 1711.05101; weights
    shrink by themselves), ``sgd`` (with ``momentum``)."""
    learning_rate: float = 3e-4
    """Step size. Usual: 3e-4; 1e-3 with batch norm."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's means of gradient and squared gradient. Usual: (0.9, 0.999); (0.5, 0.999) in CrossQ."""
    momentum: float = 0.0
    """Decay of SGD's mean of gradients. Usual: 0.9."""
    weight_decay: float = 0.0
    """Pull of the weights towards zero, per unit of learning rate. Usual: 0 to 1e-2."""
    final_share: float = 1.0
    """Learning rate at the end of ``decay_updates``, as a share of the first; then it stays. Usual: 0.1 to
    1."""
    decay_updates: int = 0
    """Updates over which the learning rate falls, in half a cosine, to ``final_share``. 0: it stays.
    Usual: 0, or those of the whole run."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: naming the option and its value.
        """
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"learning_rate is {self.learning_rate}: it must be positive")
        for name, value in (("betas", self.betas[0]), ("betas", self.betas[1]), ("momentum", self.momentum)):
            if not 0.0 <= value < 1.0:
                raise ConfigError(f"{name}: {value} must be in [0, 1)")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay is {self.weight_decay}: it must not be negative")
        if not 0.0 <= self.final_share <= 1.0:
            raise ConfigError(f"final_share is {self.final_share}: it must be in [0, 1]")
        if self.decay_updates < 0 or (self.final_share != 1.0) != (self.decay_updates > 0):
            raise ConfigError(
                f"final_share is {self.final_share} and decay_updates {self.decay_updates}: give both or none"
            )
        if self.kind == "sgd" and self.betas != (0.9, 0.999):
            raise ConfigError(f"betas is {self.betas}, but kind is 'sgd', which has momentum instead")
        if self.kind != "sgd" and self.momentum:
            raise ConfigError(
                f"momentum is {self.momentum}, but kind is {self.kind!r}, which has betas instead"
            )

    def rate(self, updates: int) -> float:
        """Return the learning rate after so many updates."""
        if not self.decay_updates:
            return self.learning_rate
        progress = min(1.0, updates / self.decay_updates)
        share = self.final_share + (1.0 - self.final_share) * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.learning_rate * share


@dataclass(frozen=True)
class Schedule:
    """A number that moves in a straight line while learning, then stays."""

    start: float
    """Value at the first update. Usual: 1 (epsilon)."""
    end: float
    """Value after ``updates``. Usual: 0.01 to 0.1 (epsilon)."""
    updates: int = 0
    """Updates from start to end; 0: ``start`` throughout. Usual: a tenth to half of the run's."""

    def __call__(self, updates: int) -> float:
        """Return the value after so many updates."""
        if self.updates == 0:
            return self.start
        return self.start + (self.end - self.start) * min(1.0, updates / self.updates)
