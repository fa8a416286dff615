"""The networks of SAC: a squashed Gaussian actor, an ensemble of critics, their target, the temperature."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from tickrate.algorithms.sac_config import SACConfig
from tickrate.nn.gaussian import mean_and_log_std, squashed_sample
from tickrate.nn.mlp import EnsembleMLP
from tickrate.nn.normaliser import RunningNormaliser


class SACNetworks(nn.Module):
    """Everything that SAC learns. Actions in here are scaled to [-1, 1].

    Args:
        config: SAC's options.
        actor_inputs: width of the actor's observation group.
        critic_inputs: width of the critics' observation group.
        action_size: number of values in an action.
        log_scale: sum over the action of ``log((high - low) / 2)``.
        generator: source of the initial weights (CPU).
    """

    def __init__(
        self,
        config: SACConfig,
        actor_inputs: int,
        critic_inputs: int,
        action_size: int,
        log_scale: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        self.log_scale = log_scale
        self.actor = EnsembleMLP(
            1,
            actor_inputs,
            config.hidden,
            2 * action_size,
            batch_norm=config.batch_norm,
            generator=generator,
            last_gain=config.actor_last_gain,
            momentum=config.batch_norm_momentum,
        )
        self.critics = EnsembleMLP(
            config.critics,
            critic_inputs + action_size,
            config.hidden,
            1,
            batch_norm=config.batch_norm,
            generator=generator,
            momentum=config.batch_norm_momentum,
        )
        self.target_critics: EnsembleMLP | None = None
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

    def act(
        self, observation: Tensor, noise: Tensor, batch_statistics: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Sample actions in [-1, 1] ``(batch, size)``; log-densities in environment units ``(batch,)``."""
        if self.actor_normaliser is not None:
            observation = self.actor_normaliser(observation)
        output = self.actor(observation, batch_statistics)[0]
        config = self.config
        mean, log_std = mean_and_log_std(
            output, offset=config.log_std_offset, low=config.log_std_min, high=config.log_std_max
        )
        return squashed_sample(mean, log_std, noise, self.log_scale)

    def values(self, observation: Tensor, action: Tensor, batch_statistics: bool = False) -> Tensor:
        """Return the critics' values, ``(critics, batch)``."""
        return self._values(self.critics, observation, action, batch_statistics)

    def target_values(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return the target critics' values, ``(critics, batch)``."""
        if self.target_critics is None:
            raise RuntimeError("these networks have no target critics: config.target_network is False")
        return self._values(self.target_critics, observation, action, False)

    def _values(
        self, critics: EnsembleMLP, observation: Tensor, action: Tensor, batch_statistics: bool
    ) -> Tensor:
        if self.critic_normaliser is not None:
            observation = self.critic_normaliser(observation)
        values: Tensor = critics(torch.cat((observation, action), 1), batch_statistics)
        return values.squeeze(2)

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
