"""The formulas of SAC as replaceable functions: values, target, losses. Each variant is another function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tickrate.algorithms.sac_config import SACConfig
from tickrate.algorithms.sac_networks import SACNetworks
from tickrate.nn.features import Inputs
from tickrate.nn.value_heads import ValueHead


@dataclass(frozen=True)
class Transition:
    """A batch on the device. Both times of an observation lie in one array, first now, then next.

    Of sequences, every step is a row of the batch; their observations are still as they came, sequence by
    sequence, and become now and next behind the memory (`tickrate.nn.features.FeatureNetwork`).
    """

    actor: Inputs
    """What the actor reads, by name, ``(2 * batch, ...)``: rows of o_t, then of o_{t+n}."""
    critic: Inputs
    """What the critics read, as above."""
    action: Tensor
    """``(batch, size)``, as networks see it: scaled to [-1, 1], or one-hot; what the device was really
    told."""
    reward: Tensor
    """``(batch,)``: sum of the n rewards, discounted."""
    discount: Tensor
    """``(batch,)``: gamma^n, 0 where the episode terminated (not where it was truncated)."""
    weights: Tensor | None = None
    """``(batch,)``: weight of each row's loss in the critics' step; None: all 1."""
    mask: Tensor | None = None
    """``(batch,)``: weight of each row's loss in the actor's step, 0 where there is no real step; None: all
    1."""
    judged: Tensor | None = None
    """``(batch,)``: 1 for the rows that the priority of their sequence is the mean of, else 0; NaN in one
    that cannot be judged yet; None: each row has its own."""
    taught: Tensor | None = None
    """``(batch,)`` bool: which rows are demonstrations; None where that does not matter."""
    sequences: int = 0
    """Number of sequences that the rows belong to; 0: each is by itself."""


def target_network_values(
    networks: SACNetworks, transition: Transition, features: Tensor, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what critics say of (s, a), with gradients, and the target network of (s', a') (SAC)."""
    later = networks.target_features(transition.critic, transition.sequences, features).chunk(2)[1]
    with torch.no_grad():
        following = networks.target_values(later, next_action)
    return networks.values(features.chunk(2)[0], transition.action, learning=True), following


def joint_batch_values(
    networks: SACNetworks, transition: Transition, features: Tensor, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what critics say of (s, a) and of (s', a'), from one pass over both (CrossQ, ICLR 2024).

    One batch, one set of batch norm statistics: that of the mixture of (s, a) and (s', a'). This is what
    lets the target network go.
    """
    both = networks.values(features, torch.cat((transition.action, next_action)), learning=True)
    output, following = both.chunk(2, dim=1)
    return output, following.detach()


def joint_target_values(
    networks: SACNetworks, transition: Transition, features: Tensor, next_action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what critics say of (s, a), the target network of (s', a'), by joint batches (FlashSAC)."""
    actions = torch.cat((transition.action, next_action))
    with torch.no_grad():
        slow = networks.target_features(transition.critic, transition.sequences, features)
        slow = networks.target_values(slow, actions, learning=True)
    output = networks.values(features, actions, learning=True).chunk(2, dim=1)[0]
    return output, slow.chunk(2, dim=1)[1]


def soft_target(
    head: ValueHead,
    reward: Tensor,
    discount: Tensor,
    following: Tensor,
    next_log_prob: Tensor,
    alpha: Tensor,
) -> Tensor:
    """Return the target of ``r + discount * (min_i Q_i(s', a') - alpha * log pi(a'|s'))``, one row each.

    The smallest is taken over the critics that ``following``, ``(critics, batch, outputs)``, holds: all of
    them, or a random few (REDQ, arXiv 2101.05982). A head that gives distributions moves the one with the
    smallest mean.
    """
    return head.target(reward, discount, head.least(following), -alpha * next_log_prob)


def least_value_loss(values: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Return ``alpha * log pi(a|s) - min_i Q_i(s, a)``, ``(batch,)`` (SAC)."""
    return alpha * log_prob - values.amin(0)


def mean_value_loss(values: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Return ``alpha * log pi(a|s) - mean_i Q_i(s, a)``, ``(batch,)`` (REDQ, DroQ)."""
    return alpha * log_prob - values.mean(0)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: Tensor) -> Tensor:
    """Return ``-log_alpha * (log pi + target entropy)``: alpha rises below the target."""
    return -log_alpha * (log_prob.mean() + target_entropy)


@dataclass(frozen=True)
class SACFunctions:
    """The replaceable steps of one SAC update."""

    values: Callable[[SACNetworks, Transition, Tensor, Tensor], tuple[Tensor, Tensor]] = target_network_values
    """(networks, transition, critics' features of both times, next action) -> outputs for (s, a) with
    gradients, outputs for (s', a') without, ``(critics, batch, outputs)`` each."""
    target: Callable[[ValueHead, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = soft_target
    """(value head, reward, discount, outputs for (s', a'), log pi(a'|s'), alpha) -> target of the critics."""
    critic_loss: Callable[[ValueHead, Tensor, Tensor], Tensor] = lambda head, output, target: head.loss(
        output, target
    )
    """(value head, outputs for (s, a), target) -> loss, ``(critics, batch)``."""
    actor_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = least_value_loss
    """(Q(s, pi(s)), log pi, alpha) -> loss, ``(batch,)``."""
    temperature_loss: Callable[[Tensor, Tensor, Tensor], Tensor] = temperature_loss
    """(log alpha, log pi, target entropy) -> scalar."""


def functions_of(config: SACConfig) -> SACFunctions:
    """Return the steps that a configuration asks for."""
    values = target_network_values
    if config.joint_batch:
        values = joint_target_values if config.target_network else joint_batch_values
    return SACFunctions(
        values=values, actor_loss=mean_value_loss if config.actor_value == "mean" else least_value_loss
    )
