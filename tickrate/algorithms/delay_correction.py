"""On-policy returns over the steps that a delay leaves open: partial trajectory resampling (DCAC).

What an action does shows only when its delay is over. Until then, rewards and sensor readings that were
recorded are those of any other action too. So the actions after the first one are drawn anew from the present
policy and written into the action buffers that the recorded observations carry; with them the recorded
rewards are a sample of the present policy's, and a return over several steps is on-policy ("Reinforcement
Learning with Random Delays", ICLR 2021). How many steps that are is recorded with each observation: the leaf
``timing`` says how many steps old the command in force was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from gymnasium import spaces
from torch import Tensor

from tickrate.algorithms.group_inputs import GroupInputs
from tickrate.algorithms.sac_functions import Transition
from tickrate.algorithms.sac_networks import SACNetworks
from tickrate.errors import ConfigError
from tickrate.nn.features import VECTOR, Inputs

TIMING = "timing"
"""Leaf that says how old observation and command are (``timing_in_obs``); its third number is the
command's."""


class Rewritten(Protocol):
    """Says what stands in an action buffer for an action as networks see it."""

    def buffered(self, action: Tensor) -> Tensor:
        """Return actions ``(rows, size)`` as the buffer's columns hold one of them."""
        ...


class DelayCorrection:
    """Makes n-step transitions of fragments of trajectories, n as the recorded delays allow.

    Args:
        steps: steps of each fragment, the largest n.
        coding: how an action stands in the buffer.
        actor_buffer: columns of the leaf ``actions`` in the actor's vectors; None if it does not read it.
        critic_buffer: the same for the critics.
    """

    def __init__(
        self, steps: int, coding: Rewritten, actor_buffer: slice | None, critic_buffer: slice | None
    ) -> None:
        self._steps, self._coding = steps, coding
        self._actor_buffer, self._critic_buffer = actor_buffer, critic_buffer

    def counts(self, delays: Tensor, real: Tensor) -> Tensor:
        """Return how many steps each fragment's return may have, ``(fragments,)``, from 1 to ``steps``.

        The reward of step i (counted from 1) is that of the command in force, which is ``delays[:, i]`` steps
        older than the newest: command ``i - 1 - delay``. Up to there it must be no later than command 0, the
            first and only one that is kept.

        Args:
            delays: of the command in force when each observation was made, in steps, ``(fragments, steps +
                1)``.
            real: which steps exist, ``(fragments, steps)``.
        """
        index = torch.arange(1, self._steps + 1, device=delays.device)
        allowed = (delays[:, 1:] >= index - 1) & real
        allowed[:, 0] = True  # one step is always right
        return allowed.long().cumprod(1).sum(1)

    @torch.no_grad()
    def __call__(
        self, networks: SACNetworks, fragments: Transition, delays: Tensor, noises: Tensor, alpha: Tensor
    ) -> tuple[Transition, Tensor, Tensor]:
        """Return transitions, and the next action with its log-probability.

        Args:
            networks: the present policy.
            fragments: sequences of ``steps`` steps.
            delays: see `counts`.
            noises: for the policy head, ``(steps, fragments, size)``.
            alpha: entropy coefficient, scalar: the entropies of the steps in between belong to the return.

        Returns:
            Transitions, one a fragment: o_0, the action really applied, the return over n steps with the
                entropies of the actions drawn in between, o_n with its buffer rewritten. The action drawn on
                o_n, ``(fragments, size)``, and its log-probability ``(fragments,)``.
        """
        count, steps = fragments.sequences, self._steps
        assert fragments.mask is not None
        reward, discount = fragments.reward.view(count, steps), fragments.discount.view(count, steps)
        n = self.counts(delays, fragments.mask.view(count, steps) > 0)
        actor, critic = _by_step(fragments.actor, count), _by_step(fragments.critic, count)
        total, weight = torch.zeros_like(reward[:, 0]), torch.ones_like(reward[:, 0])
        drawn: list[Tensor] = []
        action, log_prob = fragments.action.new_zeros(0), total
        now_actor, now_critic = _at(actor, 0), _at(critic, 0)
        later_actor, later_critic = now_actor, now_critic
        for i in range(1, steps + 1):
            here = self._rewritten(_at(actor, i), self._actor_buffer, drawn)
            new_action, new_log_prob = networks.act(networks.actor_features(here), noises[i - 1])
            total = total + weight * reward[:, i - 1] * (n >= i)
            weight = torch.where(n >= i, weight * discount[:, i - 1], weight)
            total = total - alpha * weight * new_log_prob * (n > i)
            last = n == i
            there = self._rewritten(_at(critic, i), self._critic_buffer, drawn)
            later_actor, later_critic = _where(last, here, later_actor), _where(last, there, later_critic)
            action = new_action if i == 1 else torch.where(last[:, None], new_action, action)
            log_prob = new_log_prob if i == 1 else torch.where(last, new_log_prob, log_prob)
            drawn.append(self._coding.buffered(new_action))
        transition = dataclasses.replace(
            fragments,
            actor=_both(now_actor, later_actor),
            critic=_both(now_critic, later_critic),
            action=fragments.action.view(count, steps, -1)[:, 0],
            reward=total,
            discount=weight,
            weights=None if fragments.weights is None else _first(fragments.weights / fragments.mask, count),
            mask=None,
            judged=None,
            taught=None if fragments.taught is None else fragments.taught.view(count, steps)[:, 0],
            sequences=0,
        )
        return transition, action, log_prob

    def _rewritten(self, inputs: Inputs, columns: slice | None, drawn: list[Tensor]) -> Inputs:
        """Return inputs whose action buffer ends with the actions drawn so far."""
        if columns is None or not drawn:
            return inputs
        vector, new = inputs[VECTOR].clone(), torch.cat(drawn, 1)
        vector[:, columns.stop - new.shape[1] : columns.stop] = new
        return {**inputs, VECTOR: vector}


def make_correction(
    steps: int,
    coding: Rewritten,
    actor: GroupInputs,
    critic: GroupInputs,
    observation_spaces: Mapping[str, spaces.Space[Any]],
    buffer_length: int,
) -> DelayCorrection | None:
    """Return the correction over so many steps; None for 0.

    Args:
        steps: see `DelayCorrection`.
        coding: see `DelayCorrection`.
        actor: the actor's observation group.
        critic: the critics' observation group.
        observation_spaces: leaf space by path.
        buffer_length: actions that the observation's action buffer holds; 0: there is none.

    Raises:
        ConfigError: if the observations do not tell what the correction needs.
    """
    if not steps:
        return None
    if TIMING not in observation_spaces or not buffer_length:
        raise ConfigError(
            f"sac.delay_correction is {steps}: it needs the leaves 'timing' and 'actions', there are "
            f"{list(observation_spaces)}. Set environment.realtime.timing_in_obs and act_buf_len, "
            "or environment.delays"
        )
    if steps > buffer_length + 1:
        raise ConfigError(
            f"sac.delay_correction is {steps}: the action buffer of {buffer_length} can hold the actions "
            f"of at most {buffer_length + 1} steps; make act_buf_len longer"
        )
    if any("actions" in group.pictures for group in (actor, critic)):
        raise ConfigError(
            f"sac.delay_correction is {steps}: it rewrites the leaf 'actions', which must be a vector; take "
            "it out of encoder.history_leaves"
        )
    if actor.columns("actions") is None and critic.columns("actions") is None:
        raise ConfigError(
            f"sac.delay_correction is {steps}: neither group reads the leaf 'actions' that it rewrites; add "
            "it to sac.groups"
        )
    return DelayCorrection(steps, coding, actor.columns("actions"), critic.columns("actions"))


def _first(values: Tensor, count: int) -> Tensor:
    return values.view(count, -1)[:, 0]


def _by_step(inputs: Inputs, count: int) -> Inputs:
    return {name: value.view(count, -1, *value.shape[1:]) for name, value in inputs.items()}


def _at(inputs: Inputs, step: int) -> Inputs:
    return {name: value[:, step] for name, value in inputs.items()}


def _both(now: Inputs, later: Inputs) -> Inputs:
    return {name: torch.cat((now[name], later[name])) for name in now}


def _where(which: Tensor, new: Inputs, old: Inputs) -> Inputs:
    return {
        name: torch.where(which.view(-1, *[1] * (new[name].dim() - 1)), new[name], old[name]) for name in new
    }
