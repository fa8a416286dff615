"""The formulas of DQN as replaceable functions: values, target, loss. Each variant is another function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tickrate.algorithms.dqn_config import DQNConfig
from tickrate.algorithms.dqn_networks import DQNNetworks
from tickrate.nn.features import Inputs
from tickrate.nn.value_heads import ValueHead


@dataclass(frozen=True)
class Transition:
    """A batch on the device."""

    inputs: Inputs
    """What the network reads, ``2 * batch`` rows: of o_t, then of o_{t+n}; normalised before the functions
    see it, if so wished."""
    action: Tensor
    """Which output was chosen in each part, counted over the choices of all parts, ``(batch, parts)``,
    int64."""
    reward: Tensor
    """``(batch,)``: sum of the n rewards, discounted."""
    discount: Tensor
    """``(batch,)``: gamma^n, 0 where the episode terminated (not where it was truncated)."""
    weights: Tensor | None = None
    """``(batch,)``: weight of each row's loss; None: all 1."""

    def halves(self) -> tuple[Inputs, Inputs]:
        """Return what the network reads of o_t, and of o_{t+n}."""
        pairs = {name: leaf.chunk(2) for name, leaf in self.inputs.items()}
        first, second = ({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))
        return first, second


@dataclass(frozen=True)
class Outputs:
    """What the networks say of a transition, ``(batch, choices of all parts, atoms)`` each."""

    now: Tensor
    """The network of s, with gradients."""
    choosing: Tensor
    """What the next action is chosen by, of s', without gradients."""
    valuing: Tensor
    """The target copy of s', without gradients."""


def double_outputs(networks: DQNNetworks, transition: Transition) -> Outputs:
    """Let the network choose the next action and the target copy value it (arXiv 1509.06461).

    Each pass draws noise of its own (arXiv 1706.10295).
    """
    now, later = transition.halves()
    with torch.no_grad():
        valuing = networks.target(later, False, networks.generator)
        choosing = networks.online(later, False, networks.generator)
    return Outputs(networks.online(now, True, networks.generator), choosing, valuing)


def single_outputs(networks: DQNNetworks, transition: Transition) -> Outputs:
    """Let the target copy choose the next action and value it (Mnih et al. 2015)."""
    now, later = transition.halves()
    with torch.no_grad():
        valuing = networks.target(later, False, networks.generator)
    return Outputs(networks.online(now, True, networks.generator), valuing, valuing)


def double_joint_outputs(networks: DQNNetworks, transition: Transition) -> Outputs:
    """Do as `double_outputs`, each network with s and s' in one batch, so that batch norm sees both."""
    with torch.no_grad():
        valuing = networks.target(transition.inputs, True, networks.generator).chunk(2)[1]
    now, choosing = networks.online(transition.inputs, True, networks.generator).chunk(2)
    return Outputs(now, choosing.detach(), valuing)


def single_joint_outputs(networks: DQNNetworks, transition: Transition) -> Outputs:
    """Do as `single_outputs`, each network with s and s' in one batch, so that batch norm sees both."""
    outputs = double_joint_outputs(networks, transition)
    return Outputs(outputs.now, outputs.valuing, outputs.valuing)


def greedy_target(
    head: ValueHead,
    choices: tuple[int, ...],
    reward: Tensor,
    discount: Tensor,
    choosing: Tensor,
    valuing: Tensor,
) -> Tensor:
    """Return the target of ``r + discount * Q'(s', argmax_a Q(s', a))``, one row each.

    An action of several parts is worth the mean of its parts (arXiv 1711.08946): of their values, or the
    mixture of their distributions.
    """
    best = best_outputs(head.mean(choosing), choices)
    following = head.belief(pick(valuing, best)).mean(0)
    return head.target(reward, discount, following, torch.zeros_like(reward))


def best_outputs(values: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Return which output is the largest of each part, ``(rows, parts)``, of ``(rows, choices of all)``."""
    best, start = [], 0
    for part in torch.split(values, list(choices), 1):
        best.append(part.argmax(1) + start)
        start += part.shape[1]
    return torch.stack(best, 1)


def pick(output: Tensor, chosen: Tensor) -> Tensor:
    """Return the outputs that were chosen, ``(parts, rows, atoms)``; ``chosen`` is ``(rows, parts)``."""
    return output.gather(1, chosen[:, :, None].expand(-1, -1, output.shape[2])).transpose(0, 1)


def head_loss(head: ValueHead, output: Tensor, target: Tensor) -> Tensor:
    """Return the head's own loss, ``(parts, batch)``: half the squared error, or the cross-entropy."""
    return head.loss(output, target)


def huber_loss(head: ValueHead, output: Tensor, target: Tensor) -> Tensor:
    """Return half the squared error up to 1, the error less a half beyond it, ``(parts, batch)``."""
    values = head.mean(output)
    return functional.huber_loss(values, target.expand_as(values), reduction="none")


@dataclass(frozen=True)
class DQNFunctions:
    """The replaceable steps of one DQN update."""

    outputs: Callable[[DQNNetworks, Transition], Outputs] = double_outputs
    """(networks, transition) -> what they say of it."""
    target: Callable[[ValueHead, tuple[int, ...], Tensor, Tensor, Tensor, Tensor], Tensor] = greedy_target
    """(value head, choices of each part, reward, discount, outputs to choose by, outputs to value by) ->
    target, one row each."""
    loss: Callable[[ValueHead, Tensor, Tensor], Tensor] = huber_loss
    """(value head, outputs of the chosen, target) -> loss, ``(parts, batch)``."""


def functions_of(config: DQNConfig) -> DQNFunctions:
    """Return the steps that a configuration asks for."""
    if config.network.has_batch_norm:
        outputs = double_joint_outputs if config.double else single_joint_outputs
    else:
        outputs = double_outputs if config.double else single_outputs
    own = config.value_bins > 0 or config.loss == "squared"
    return DQNFunctions(outputs=outputs, loss=head_loss if own else huber_loss)
