"""DQN's formulas, worked by hand: who chooses and who values, the duel, distributions, several parts."""

import math

import pytest
import torch
from dqn_kit import make, preset
from torch.nn import functional

from tickrate.algorithms.dqn_functions import (
    Transition,
    best_outputs,
    double_joint_outputs,
    double_outputs,
    greedy_target,
    head_loss,
    huber_loss,
    pick,
    single_joint_outputs,
    single_outputs,
)
from tickrate.algorithms.dqn_networks import duel
from tickrate.nn.features import VECTOR
from tickrate.nn.value_heads import CategoricalValues, ScalarValues

SCALAR = ScalarValues()
CPU = torch.device("cpu")


def outputs(*rows):
    return torch.tensor(rows)[:, :, None]


def test_double_q_values_the_networks_choice_and_plain_q_its_own_largest():
    online, target = outputs([1.0, 3.0, 2.0]), outputs([5.0, 0.5, 9.0])
    reward, discount = torch.tensor([1.0]), torch.tensor([0.9])
    double = greedy_target(SCALAR, (3,), reward, discount, online, target)
    plain = greedy_target(SCALAR, (3,), reward, discount, target, target)
    torch.testing.assert_close(double, torch.tensor([1.0 + 0.9 * 0.5]))
    torch.testing.assert_close(plain, torch.tensor([1.0 + 0.9 * 9.0]))


def test_an_n_step_discount_and_a_termination():
    values = outputs([2.0, 4.0], [2.0, 4.0])
    # Three rewards of 1 and gamma 0.5: 1 + 0.5 + 0.25, then gamma^3 times the value; and an end: no value.
    target = greedy_target(
        SCALAR, (2,), torch.tensor([1.75, 1.75]), torch.tensor([0.125, 0.0]), values, values
    )
    torch.testing.assert_close(target, torch.tensor([1.75 + 0.125 * 4.0, 1.75]))


def test_several_parts_choose_each_for_itself_and_share_the_mean():
    online = outputs([1.0, 2.0, 0.0, 7.0, 5.0])
    target = outputs([10.0, 20.0, 30.0, 40.0, 50.0])
    best = best_outputs(SCALAR.mean(online), (2, 3))
    assert best.tolist() == [[1, 3]]
    found = greedy_target(SCALAR, (2, 3), torch.tensor([1.0]), torch.tensor([0.5]), online, target)
    torch.testing.assert_close(found, torch.tensor([1.0 + 0.5 * (20.0 + 40.0) / 2]))


def test_a_distribution_is_the_target_copys_of_the_action_with_the_networks_largest_mean():
    head = CategoricalValues(3, 3.0, CPU, low=0.0)  # values 0, 1.5, 3
    # Means by the network: 1.5 and 1.65, so the second action; of that the target copy's distribution.
    online = torch.tensor([[[0.25, 0.5, 0.25], [0.2, 0.5, 0.3]]]).log()
    target = torch.tensor([[[0.0, 0.0, 1.0], [0.6, 0.4, 0.0]]]).clamp_min(1e-30).log()
    found = greedy_target(head, (2,), torch.tensor([0.75]), torch.tensor([0.5]), online, target)
    # 0 -> 0.75, half way from 0 to 1.5; 1.5 -> 1.5.
    torch.testing.assert_close(found, torch.tensor([[0.3, 0.3 + 0.4, 0.0]]))


def test_distributions_of_several_parts_are_mixed():
    head = CategoricalValues(3, 2.0, CPU, low=0.0)  # values 0, 1, 2
    parts = (
        torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]]]).clamp_min(1e-30).log()
    )  # two parts of one choice
    found = greedy_target(head, (1, 1), torch.tensor([0.0]), torch.tensor([1.0]), parts, parts)
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.35, 0.4]]))


def test_the_duel_takes_the_mean_off_the_advantages_of_each_part():
    values = torch.tensor([[[10.0]], [[0.0]]])
    advantages = outputs([1.0, 3.0, 0.0, 0.0, 6.0], [-1.0, 1.0, 2.0, 2.0, 2.0])
    # Row 0: mean 2 of the first part, 2 of the second. Row 1: 0 and 2.
    expected = outputs([9.0, 11.0, 8.0, 8.0, 14.0], [-1.0, 1.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(duel(values, advantages, (2, 3)), expected)


def test_the_duel_is_one_of_each_atom():
    values = torch.tensor([[[1.0, 2.0]]])
    advantages = torch.tensor([[[0.0, 4.0], [2.0, 0.0]]])
    torch.testing.assert_close(
        duel(values, advantages, (2,)), torch.tensor([[[0.0, 4.0], [2.0, 0.0]]])
    )  # means 1 and 2 taken off, 1 and 2 added


def test_outputs_are_picked_by_row_and_part():
    table = torch.arange(20.0).view(2, 5, 2)
    picked = pick(table, torch.tensor([[0, 4], [1, 2]]))
    torch.testing.assert_close(picked, torch.tensor([[[0.0, 1.0], [12.0, 13.0]], [[8.0, 9.0], [14.0, 15.0]]]))


def test_losses():
    output, target = torch.tensor([[[1.0], [5.0]]]), torch.tensor([1.5, 2.0])
    torch.testing.assert_close(huber_loss(SCALAR, output, target), torch.tensor([[0.125, 2.5]]))
    torch.testing.assert_close(head_loss(SCALAR, output, target), torch.tensor([[0.125, 4.5]]))
    head = CategoricalValues(2, 1.0, CPU)
    loss = head_loss(head, torch.tensor([[[0.25, 0.75]]]).log(), torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(loss, torch.tensor([[math.log(4.0)]]))


@pytest.fixture
def networks():
    dqn = make(preset(target_every=1000, network={"hidden": [8]}))
    with torch.no_grad():
        for parameter in dqn.networks.target.parameters():
            parameter.add_(0.3)
    return dqn.networks


def transition_of(rows=8):
    vector = torch.randn(2 * rows, 4, generator=torch.Generator().manual_seed(1))
    zeros = torch.zeros(rows)
    return Transition({VECTOR: vector}, torch.zeros(rows, 1, dtype=torch.int64), zeros, zeros)


@pytest.mark.parametrize(
    ("function", "chooses"),
    [
        (double_outputs, "online"),
        (double_joint_outputs, "online"),
        (single_outputs, "target"),
        (single_joint_outputs, "target"),
    ],
)
def test_who_says_what_of_a_transition(networks, function, chooses):
    transition = transition_of()
    said = function(networks, transition)
    now, later = transition.halves()
    torch.testing.assert_close(said.now, networks.online(now))
    torch.testing.assert_close(said.valuing, networks.target(later))
    torch.testing.assert_close(said.choosing, getattr(networks, chooses)(later))
    assert said.now.requires_grad
    assert not said.choosing.requires_grad
    assert not said.valuing.requires_grad


def test_noise_is_drawn_anew_for_each_pass():
    networks = make(preset("rainbow")).networks
    transition = transition_of()
    source, drawn = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    networks.generator = source
    said = double_outputs(networks, transition)
    now, later = transition.halves()
    torch.testing.assert_close(said.valuing, networks.target(later, False, drawn))
    torch.testing.assert_close(said.choosing, networks.online(later, False, drawn))
    torch.testing.assert_close(said.now, networks.online(now, True, drawn))
    assert not torch.allclose(said.choosing, said.valuing), "two draws"


def test_batch_norm_sees_both_observations_in_one_batch():
    dqn = make(preset(network={"hidden": [8], "norm": "batch"}))
    transition = transition_of()
    seen = transition.inputs[VECTOR]
    said = dqn.functions.outputs(dqn.networks, transition)
    normed = (seen - seen.mean(0)) / torch.sqrt(seen.var(0, correction=0) + 1e-5)
    first, last = dqn.networks.online.advantages.layers
    inner = torch.relu(normed @ first.weight[0] + first.bias[0])
    inner = functional.batch_norm(inner, None, None, training=True)
    expected = inner @ last.weight[0] + last.bias[0]
    torch.testing.assert_close(torch.cat([said.now, said.choosing])[:, :, 0], expected)
