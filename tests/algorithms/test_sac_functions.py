"""The formulas of SAC, worked by hand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sac_kit import preset

from tickrate.algorithms.group_inputs import GroupInputs
from tickrate.algorithms.sac_functions import (
    Transition,
    joint_batch_values,
    joint_target_values,
    least_value_loss,
    mean_value_loss,
    soft_target,
    target_network_values,
    temperature_loss,
)
from tickrate.algorithms.sac_networks import SACNetworks
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.nn.features import VECTOR
from tickrate.nn.policy_heads import GaussianHead
from tickrate.nn.value_heads import ScalarValues


def outputs(values):
    return torch.tensor(values).unsqueeze(2)


def test_target_by_kind_of_ending():
    # r = 1, gamma = 0.9. Rows: going on with V(s') = 10; truncated with 0, the value of the true final
    # observation (not V(s) = 10: the target is 1.0, not 10.0); truncated with V(s') = 10; terminated
    # (discount 0: V(s') = 10 must not count); 3 steps on, discount 0.729.
    target = soft_target(
        ScalarValues(),
        reward=torch.ones(5),
        discount=torch.tensor([0.9, 0.9, 0.9, 0.0, 0.729]),
        following=outputs([[10.0, 0.0, 10.0, 10.0, 10.0], [12.0, 3.0, 11.0, 10.0, 10.0]]),
        next_log_prob=torch.zeros(5),
        alpha=torch.tensor(0.1),
    )
    torch.testing.assert_close(target, torch.tensor([10.0, 1.0, 10.0, 1.0, 8.29]))


def test_target_takes_the_smaller_critic_and_adds_entropy():
    # 2 + 0.5 * (min(4, 3) - 0.1 * (-2)) = 3.6
    target = soft_target(
        ScalarValues(),
        torch.tensor([2.0]),
        torch.tensor([0.5]),
        outputs([[4.0], [3.0]]),
        torch.tensor([-2.0]),
        torch.tensor(0.1),
    )
    assert target.item() == pytest.approx(3.6)


def test_actor_losses_of_the_smallest_and_of_the_mean_critic():
    values, log_prob, alpha = (
        torch.tensor([[2.0, 5.0], [4.0, 1.0]]),
        torch.tensor([-1.0, 3.0]),
        torch.tensor(0.5),
    )
    # rows: 0.5 * -1 - 2 = -2.5; 0.5 * 3 - 1 = 0.5. With the means 3 and 3: -3.5 and -1.5.
    torch.testing.assert_close(least_value_loss(values, log_prob, alpha), torch.tensor([-2.5, 0.5]))
    torch.testing.assert_close(mean_value_loss(values, log_prob, alpha), torch.tensor([-3.5, -1.5]))


@pytest.mark.parametrize(("entropy", "sign"), [(-3.0, 1), (-1.0, -1)])
def test_temperature_rises_below_the_target_entropy_and_falls_above(entropy, sign):
    log_alpha = torch.tensor(0.0, requires_grad=True)
    temperature_loss(log_alpha, torch.full((4,), -entropy), torch.tensor(-2.0)).backward()
    step = -log_alpha.grad.item()
    assert math.copysign(1, step) == sign
    assert abs(step) == pytest.approx(1.0)


TINY = {"actor": {"hidden": [2]}, "critic": {"hidden": [2]}}


def tiny(config, seed=0):
    head = GaussianHead(1, 0.0, (0.0, -5.0, 2.0))
    group = GroupInputs("actor", (), {"x": spaces.Box(-9, 9, (1,))}, EncoderConfig())
    return SACNetworks(config, group, group, head, ScalarValues(), torch.Generator().manual_seed(seed))


def tiny_transition():
    observation = torch.tensor([[0.0], [1.0], [5.0], [-2.0]])  # two rows now, two rows later
    return Transition(
        actor={VECTOR: observation},
        critic={VECTOR: observation},
        action=torch.tensor([[0.5], [-0.5]]),
        reward=torch.zeros(2),
        discount=torch.ones(2),
    )


NEXT_ACTION = torch.tensor([[0.1], [0.9]])


def by_hand(critics, k):
    """Return Q of the joint batch: every affine layer's input normalised over all four rows."""
    rows = np.array([[0.0, 0.5], [1.0, -0.5], [5.0, 0.1], [-2.0, 0.9]])  # (s, a) twice, then (s', a') twice

    def normalise(x):  # now and later share one set of statistics
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    first, second = critics.layers
    w1, b1 = first.weight[k].detach().numpy(), first.bias[k].detach().numpy()
    w2, b2 = second.weight[k].detach().numpy(), second.bias[k].detach().numpy()
    hidden = normalise(np.maximum(normalise(rows) @ w1 + b1, 0.0))
    return (hidden @ w2 + b2)[:, 0]


def test_joint_batch_equals_a_hand_computation():
    networks, transition = tiny(preset("crossq", **TINY)), tiny_transition()
    values, following = joint_batch_values(networks, transition, transition.critic[VECTOR], NEXT_ACTION)
    for k in range(2):
        q = by_hand(networks.critics.body, k)
        np.testing.assert_allclose(values[k, :, 0].detach().numpy(), q[:2], atol=1e-5)
        np.testing.assert_allclose(following[k, :, 0].numpy(), q[2:], atol=1e-5)
    assert values.requires_grad
    assert not following.requires_grad
    # Running statistics of the input: mean of the joint batch (1.0, 0.25), 1 % of it.
    np.testing.assert_allclose(networks.critics.body.norms[0].running_mean[:2], [0.01, 0.0025], rtol=1e-5)


def test_joint_target_takes_the_slow_copy_on_the_joint_batch():
    config = preset("crossq", **TINY, target_network=True, target_rate=0.1)
    networks, transition = tiny(config), tiny_transition()
    with torch.no_grad():
        networks.target_critics.body.layers[1].weight.mul_(2.0)
    values, following = joint_target_values(networks, transition, transition.critic[VECTOR], NEXT_ACTION)
    for k in range(2):
        np.testing.assert_allclose(
            values[k, :, 0].detach().numpy(), by_hand(networks.critics.body, k)[:2], atol=1e-5
        )
        slow = by_hand(networks.target_critics.body, k)[2:]
        np.testing.assert_allclose(following[k, :, 0].numpy(), slow, atol=1e-5)
    assert values.requires_grad
    assert not following.requires_grad


def test_target_network_values_come_from_the_slow_copy():
    networks, transition = tiny(preset("sac", **TINY, target_rate=0.1)), tiny_transition()
    features = transition.critic[VECTOR]
    with torch.no_grad():
        before = networks.values(features[2:], NEXT_ACTION)
        for parameter in networks.critics.parameters():
            parameter.add_(1.0)
    values, following = target_network_values(networks, transition, features, NEXT_ACTION)
    torch.testing.assert_close(following, before)
    torch.testing.assert_close(values, networks.values(features[:2], transition.action))
    assert values.requires_grad
    assert not following.requires_grad


def test_target_moves_by_the_rate_statistics_included():
    config = preset("sac", actor={"hidden": [2]}, critic={"hidden": [2], "norm": "batch"}, target_rate=0.1)
    networks = tiny(config)
    target = {name: value.clone() for name, value in networks.target_critics.state_dict().items()}
    with torch.no_grad():
        for value in networks.critics.state_dict().values():
            value.add_(1.0)
    networks.move_target()
    for name, value in networks.target_critics.state_dict().items():
        torch.testing.assert_close(value, target[name] + 0.1)
