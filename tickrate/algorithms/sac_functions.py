"""The formulas of SAC as replaceable functions: values, target, losses. Each variant is another function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tickrate.algorithms.sac_networks import SACNetworks


@dataclass(frozen=True)
class Transition:
    """A batch on the device. Both times of an observation lie in one array, first now, then next."""

    actor_observation: Tensor
    """``(2 * batch, actor inputs)``, float32: rows of o_t, then of o_{t+n}."""
    critic_observation: Tensor
    """``(2 * batch, critic inputs)``, float32, as above."""
    action: Tensor
    """``(batch, size)``, scaled to [-1, 1]: what the device was really told."""
    reward: Tensor
    """``(batch,)``: sum of the n rewards, discounted."""
    discount: Tensor
    """``(batch,)``: gamma^n, 0 where the episode terminated (not where it was truncated)."""


def target_network_values(
    networks: SACNetworks, transition: Transition, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Q(s, a) with gradients and the target network's Q(s', a'), ``(critics, batch)`` each (SAC)."""
    now, later = transition.critic_observation.chunk(2)
    with torch.no_grad():
        next_values = networks.target_values(later, next_action)
    return networks.values(now, transition.action, batch_statistics=True), next_values


def joint_batch_values(
    networks: SACNetworks, transition: Transition, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Q(s, a) and Q(s', a') from one pass over both, ``(critics, batch)`` each (CrossQ, ICLR 2024).

    One batch, one set of batch norm statistics: that of the mixture of (s, a) and (s', a'). This is what
    lets the target network go.
    """
    both = networks.values(
        transition.critic_observation, torch.cat((transition.action, next_action)), batch_statistics=True
    )
    values, next_values = both.chunk(2, dim=1)
    return values, next_values.detach()


def soft_target(
    reward: Tensor, discount: Tensor, next_values: Tensor, next_log_prob: Tensor, alpha: Tensor
) -> Tensor:
    """Return ``r + discount * (min_i Q_i(s', a') - alpha * log pi(a'|s'))``, ``(batch,)``."""
    return reward + discount * (next_values.amin(0) - alpha * next_log_prob)


def half_squared_error(values: Tensor, target: Tensor) -> Tensor:
    """Return half the mean squared error of each critic, summed over the critics."""
    return 0.5 * (values - target).square().mean(1).sum()


def soft_actor_loss(values: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Return the mean of ``alpha * log pi(a|s) - min_i Q_i(s, a)``."""
    return (alpha * log_prob - values.amin(0)).mean()


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return ``-log_alpha * (log pi + target entropy)``: alpha rises below the target."""
    return -log_alpha * (log_prob.mean() + target_entropy)


@dataclass(frozen=True)
class SACFunctions:
    """The replaceable steps of one SAC update."""

    values: Callable[[SACNetworks, Transition, Tensor], tuple[Tensor, Tensor]] = target_network_values
    """(networks, transition, next action) -> Q(s, a) with gradients, Q(s', a') without."""
    target: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = soft_target
    """(reward, discount, Q(s', a'), log pi(a'|s'), alpha) -> target of the critics."""
    critic_loss: Callable[[Tensor, Tensor], Tensor] = half_squared_error
    """(Q(s, a), target) -> scalar."""
    actor_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = soft_actor_loss
    """(Q(s, pi(s)), log pi, alpha) -> scalar."""
    temperature_loss: Callable[[Tensor, Tensor, float], Tensor] = temperature_loss
    """(log alpha, log pi, target entropy) -> scalar."""
