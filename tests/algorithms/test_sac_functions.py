"""The formulas of SAC, worked by hand."""

import math

import numpy as np
import pytest
import torch

from tickrate.algorithms.sac_config import SACConfig
from tickrate.algorithms.sac_functions import (
    Transition,
    half_squared_error,
    joint_batch_values,
    soft_actor_loss,
    soft_target,
    target_network_values,
    temperature_loss,
)
from tickrate.algorithms.sac_networks import SACNetworks


def test_target_by_kind_of_ending():
    # r = 1, gamma = 0.9. Rows: going on with V(s') = 10; truncated with 0, the value of the true final
    # observation (not V(s) = 10: the target is 1.0, not 10.0); truncated with V(s') = 10; terminated
    # (discount 0: V(s') = 10 must not count); 3 steps on, discount 0.729.
    target = soft_target(
        reward=torch.ones(5),
        discount=torch.tensor([0.9, 0.9, 0.9, 0.0, 0.729]),
        next_values=torch.tensor([[10.0, 0.0, 10.0, 10.0, 10.0], [12.0, 3.0, 11.0, 10.0, 10.0]]),
        next_log_prob=torch.zeros(5),
        alpha=torch.tensor(0.1),
    )
    torch.testing.assert_close(target, torch.tensor([10.0, 1.0, 10.0, 1.0, 8.29]))


def test_target_takes_the_smaller_critic_and_adds_entropy():
    # 2 + 0.5 * (min(4, 3) - 0.1 * (-2)) = 3.6
    target = soft_target(
        torch.tensor([2.0]),
        torch.tensor([0.5]),
        torch.tensor([[4.0], [3.0]]),
        torch.tensor([-2.0]),
        torch.tensor(0.1),
    )
    assert target.item() == pytest.approx(3.6)


def test_critic_loss_is_half_the_mean_square_summed_over_critics():
    # critic 1: errors 1, 3 -> 0.5 * (1 + 9) / 2 = 2.5; critic 2: errors 0, 2 -> 0.5 * 4 / 2 = 1
    loss = half_squared_error(torch.tensor([[1.0, 3.0], [0.0, 2.0]]), torch.zeros(2))
    assert loss.item() == pytest.approx(3.5)


def test_actor_loss_takes_the_smaller_critic():
    # rows: 0.5 * -1 - 2 = -2.5; 0.5 * 3 - 1 = 0.5; mean -1
    loss = soft_actor_loss(
        torch.tensor([[2.0, 5.0], [4.0, 1.0]]), torch.tensor([-1.0, 3.0]), torch.tensor(0.5)
    )
    assert loss.item() == pytest.approx(-1.0)


@pytest.mark.parametrize(("entropy", "sign"), [(-3.0, 1), (-1.0, -1)])
def test_temperature_rises_below_the_target_entropy_and_falls_above(entropy, sign):
    log_alpha = torch.tensor(0.0, requires_grad=True)
    temperature_loss(log_alpha, torch.full((4,), -entropy), target_entropy=-2.0).backward()
    step = -log_alpha.grad.item()
    assert math.copysign(1, step) == sign
    assert abs(step) == pytest.approx(1.0)


def tiny(config, seed=0):
    return SACNetworks(config, 1, 1, 1, 0.0, torch.Generator().manual_seed(seed))


def tiny_transition():
    observation = torch.tensor([[0.0], [1.0], [5.0], [-2.0]])  # two rows now, two rows later
    return Transition(
        actor_observation=observation,
        critic_observation=observation,
        action=torch.tensor([[0.5], [-0.5]]),
        reward=torch.zeros(2),
        discount=torch.ones(2),
    )


def test_joint_batch_equals_a_hand_computation():
    networks = tiny(SACConfig.crossq(hidden=(2,)))
    values, next_values = joint_batch_values(networks, tiny_transition(), torch.tensor([[0.1], [0.9]]))

    rows = np.array([[0.0, 0.5], [1.0, -0.5], [5.0, 0.1], [-2.0, 0.9]])  # (s, a) twice, then (s', a') twice

    def normalise(x):  # over all four rows: now and later share one set of statistics
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    for k in range(2):
        first, second = networks.critics.layers
        w1, b1 = first.weight[k].detach().numpy(), first.bias[k].detach().numpy()
        w2, b2 = second.weight[k].detach().numpy(), second.bias[k].detach().numpy()
        hidden = normalise(np.maximum(normalise(rows) @ w1 + b1, 0.0))
        q = (hidden @ w2 + b2)[:, 0]
        np.testing.assert_allclose(values[k].detach().numpy(), q[:2], atol=1e-5)
        np.testing.assert_allclose(next_values[k].numpy(), q[2:], atol=1e-5)
    assert values.requires_grad
    assert not next_values.requires_grad
    # Running statistics of the input: mean of the joint batch (1.0, 0.25), 1 % of it.
    np.testing.assert_allclose(networks.critics.norms[0].running_mean[:2], [0.01, 0.0025], rtol=1e-5)


def test_target_network_values_come_from_the_slow_copy():
    networks = tiny(SACConfig.plain(hidden=(2,), target_rate=0.1))
    transition, next_action = tiny_transition(), torch.tensor([[0.1], [0.9]])
    with torch.no_grad():
        before = networks.values(transition.critic_observation[2:], next_action)
        for parameter in networks.critics.parameters():
            parameter.add_(1.0)
    values, next_values = target_network_values(networks, transition, next_action)
    torch.testing.assert_close(next_values, before)
    torch.testing.assert_close(values, networks.values(transition.critic_observation[:2], transition.action))
    assert values.requires_grad
    assert not next_values.requires_grad


def test_target_moves_by_the_rate_statistics_included():
    networks = tiny(SACConfig.plain(hidden=(2,), target_rate=0.1, batch_norm=True))
    target = {name: value.clone() for name, value in networks.target_critics.state_dict().items()}
    with torch.no_grad():
        for value in networks.critics.state_dict().values():
            value.add_(1.0)
    networks.move_target()
    for name, value in networks.target_critics.state_dict().items():
        torch.testing.assert_close(value, target[name] + 0.1)
