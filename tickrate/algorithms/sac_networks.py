"""The networks of SAC: an actor, an ensemble of critics, their target, the temperature."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from tickrate.algorithms.options import NetworkConfig
from tickrate.algorithms.sac_config import SACConfig
from tickrate.nn.mlp import EnsembleMLP
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.nn.policy_heads import PolicyHead
from tickrate.nn.residual import EnsembleResidual
from tickrate.nn.value_heads import ValueHead

Inputs = dict[str, Tensor]
"""What a network reads, by name: the leaves that are vectors side by side as `VECTOR`, others by their
path."""

VECTOR = "vector"

Body = EnsembleMLP | EnsembleResidual


def make_body(
    config: NetworkConfig,
    members: int,
    inputs: int,
    outputs: int,
    generator: torch.Generator,
    last_gain: float = 1.0,
) -> Body:
    """Return the networks that a configuration describes."""
    if config.kind == "residual":
        return EnsembleResidual(
            members,
            inputs,
            config.hidden[0],
            len(config.hidden),
            outputs,
            expansion=config.expansion,
            generator=generator,
            momentum=config.batch_norm_momentum,
        )
    return EnsembleMLP(
        members,
        inputs,
        config.hidden,
        outputs,
        norm=config.norm,
        drop=config.dropout,
        unit_weights=config.unit_weights,
        generator=generator,
        last_gain=last_gain,
        momentum=config.batch_norm_momentum,
    )


class SACNetworks(nn.Module):
    """Everything that SAC learns. Actions in here are scaled to [-1, 1], or one-hot.

    Args:
        config: SAC's options.
        actor_inputs: width of the actor's observation group.
        critic_inputs: width of the critics' observation group.
        policy_head: turns the actor's outputs into actions.
        value_head: turns the critics' outputs into values.
        generator: source of the initial weights (CPU).
    """

    def __init__(
        self,
        config: SACConfig,
        actor_inputs: int,
        critic_inputs: int,
        policy_head: PolicyHead,
        value_head: ValueHead,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        self.policy_head, self.value_head = policy_head, value_head
        self.actor = make_body(
            config.actor, 1, actor_inputs, policy_head.outputs, generator, config.actor_last_gain
        )
        width = critic_inputs + policy_head.size
        self.critics = make_body(config.critic, config.critics, width, value_head.outputs, generator)
        self.target_critics: Body | None = None
        if config.target_network:
            self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self._target_pairs: tuple[list[Tensor], list[Tensor]] | None = (
            None  # listed once, after any .to(device)
        )
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_temperature)))
        self.actor_normaliser: RunningNormaliser | None = None
        self.critic_normaliser: RunningNormaliser | None = None
        if config.normalise_observations:
            self.actor_normaliser = RunningNormaliser(actor_inputs)
            self.critic_normaliser = RunningNormaliser(critic_inputs)
        self.dropout: torch.Generator | None = None
        """Source of dropout's random numbers while learning."""

    def actor_features(self, inputs: Inputs) -> Tensor:
        """Return what the actor's body reads, ``(rows, features)``."""
        vector = inputs[VECTOR]
        return vector if self.actor_normaliser is None else self.actor_normaliser(vector)

    def critic_features(self, inputs: Inputs) -> Tensor:
        """Return what the critics' bodies read beside the action, ``(rows, features)``."""
        vector = inputs[VECTOR]
        return vector if self.critic_normaliser is None else self.critic_normaliser(vector)

    def target_features(self, inputs: Inputs, features: Tensor) -> Tensor:
        """Return what the target critics read: ``features``, the critics' own: nothing in them is learned."""
        return features

    def act(self, features: Tensor, noise: Tensor, *, learning: bool = False) -> tuple[Tensor, Tensor]:
        """Sample actions ``(rows, size)``; their log-probabilities in environment units ``(rows,)``."""
        output = self.actor(features, learning, self.dropout if learning else None)[0]
        return self.policy_head.sample(output.float(), noise)

    def values(self, features: Tensor, action: Tensor, *, learning: bool = False) -> Tensor:
        """Return the critics' outputs, ``(critics, rows, outputs)``; dropout, if any, drops (DroQ).

        Args:
            features: of the observations, ``(rows, features)``.
            action: ``(rows, size)``.
            learning: batch norm takes the batch's statistics and updates the running ones.
        """
        return self._values(self.critics, features, action, learning)

    def target_values(self, features: Tensor, action: Tensor, *, learning: bool = False) -> Tensor:
        """Return the target critics' outputs, ``(critics, rows, outputs)``; see `values`."""
        if self.target_critics is None:
            raise RuntimeError("these networks have no target critics: config.target_network is False")
        return self._values(self.target_critics, features, action, learning)

    def _values(self, critics: Body, features: Tensor, action: Tensor, learning: bool) -> Tensor:
        output: Tensor = critics(torch.cat((features, action), 1), learning, self.dropout)
        return output.float()

    @torch.no_grad()
    def move_target(self) -> None:
        """Move the target critics, batch norm statistics included, towards the critics by ``target_rate``."""
        if self.target_critics is None:
            return
        if self._target_pairs is None:
            self._target_pairs = (
                [*self.target_critics.parameters(), *self.target_critics.buffers()],
                [*self.critics.parameters(), *self.critics.buffers()],
            )
        torch._foreach_lerp_(*self._target_pairs, self.config.target_rate)
        self.target_critics.project()
