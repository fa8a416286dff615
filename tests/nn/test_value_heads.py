"""Values as numbers and as distributions, worked by hand."""

import math

import torch

from tickrate.nn.value_heads import CategoricalValues, ScalarValues

CPU = torch.device("cpu")


def test_a_scalar_loss_is_half_the_squared_error():
    loss = ScalarValues().loss(torch.tensor([[[1.0], [3.0]], [[0.0], [2.0]]]), torch.zeros(2))
    torch.testing.assert_close(loss, torch.tensor([[0.5, 4.5], [0.0, 2.0]]))


def test_the_mean_of_a_distribution():
    head = CategoricalValues(3, 2.0, CPU)  # values -2, 0, 2
    output = torch.tensor([[0.2, 0.3, 0.5]]).log()[None]
    torch.testing.assert_close(head.mean(output), torch.tensor([[0.6]]))  # -0.4 + 1.0


def test_the_critic_with_the_smallest_mean_gives_the_distribution():
    head = CategoricalValues(3, 1.0, CPU)
    # Means of critic 0: 0.5, -0.1; of critic 1: 0.0, 0.2. So row 0 takes critic 1, row 1 critic 0.
    first = [[0.1, 0.3, 0.6], [0.4, 0.3, 0.3]]
    second = [[0.2, 0.6, 0.2], [0.3, 0.2, 0.5]]
    least = head.least(torch.tensor([first, second]).log())
    torch.testing.assert_close(least, torch.tensor([second[0], first[1]]))


def test_a_target_is_moved_scaled_and_split_between_neighbours():
    head = CategoricalValues(5, 2.0, CPU)  # values -2, -1, 0, 1, 2
    # r = 0.25, discount 0.5, bonus 1: the value v goes to 0.25 + 0.5 * (v + 1). v = 1 -> 1.25: a quarter of
    # its probability to 2, three quarters to 1. v = -2 -> -0.25: a quarter to -1, three quarters to 0.
    following = torch.tensor([[0.4, 0.0, 0.0, 0.6, 0.0]])
    target = head.target(torch.tensor([0.25]), torch.tensor([0.5]), following, torch.tensor([1.0]))
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.1, 0.3, 0.45, 0.15]]))
    # The mean of what lies inside is kept: 0.4 * -0.25 + 0.6 * 1.25.
    torch.testing.assert_close(head.target_mean(target), torch.tensor([0.65]))


def test_a_target_beyond_the_limit_is_clamped_and_a_terminated_one_is_the_reward():
    head = CategoricalValues(5, 2.0, CPU)
    following = torch.tensor([[0.0, 0.0, 0.5, 0.0, 0.5]]).repeat(2, 1)
    target = head.target(torch.tensor([9.0, -1.0]), torch.tensor([0.9, 0.0]), following, torch.zeros(2))
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0]]))


def test_a_bonus_that_is_no_number_makes_its_row_no_number_and_no_other():
    head = CategoricalValues(5, 2.0, CPU)
    following = torch.tensor([[0.0, 0.0, 0.5, 0.0, 0.5]]).repeat(2, 1)
    target = head.target(torch.zeros(2), torch.ones(2), following, torch.tensor([math.nan, 0.0]))
    assert target[0].isnan().any()
    torch.testing.assert_close(target[1], following[1])


def test_the_loss_is_the_cross_entropy():
    head = CategoricalValues(2, 1.0, CPU)
    output = torch.tensor([[[0.25, 0.75]]]).log() + 3.0  # logits may be shifted
    loss = head.loss(output, torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(loss, torch.tensor([[-0.5 * math.log(0.25) - 0.5 * math.log(0.75)]]))


def test_values_between_uneven_limits():
    head = CategoricalValues(3, 4.0, CPU, low=-2.0)  # values -2, 1, 4
    torch.testing.assert_close(head.mean(torch.tensor([[[0.2, 0.3, 0.5]]]).log()), torch.tensor([[1.9]]))
    # r = 1, discount 0.5: -2 -> 0, two thirds of the way from -2 to 1; 1 -> 1.5 and 4 -> 3, one sixth and two
    # thirds of the way from 1 to 4.
    following = torch.tensor([[0.3, 0.6, 0.1]])
    target = head.target(torch.tensor([1.0]), torch.tensor([0.5]), following, torch.zeros(1))
    expected = [0.3 / 3, 0.3 * 2 / 3 + 0.6 * 5 / 6 + 0.1 / 3, 0.6 / 6 + 0.1 * 2 / 3]
    torch.testing.assert_close(target, torch.tensor([expected]))
    torch.testing.assert_close(head.target_mean(target), torch.tensor([0.6 * 1.5 + 0.1 * 3.0]))
    # Beyond the limits, on either side.
    ends = head.target(torch.tensor([-9.0, 9.0]), torch.zeros(2), following.repeat(2, 1), torch.zeros(2))
    torch.testing.assert_close(ends, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))


def test_what_a_target_takes_and_how_far_outputs_are_from_it():
    scalar, head = ScalarValues(), CategoricalValues(2, 1.0, CPU)
    torch.testing.assert_close(scalar.belief(torch.tensor([[3.0], [4.0]])), torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(
        scalar.surprise(torch.tensor([[[3.0], [4.0]]]), torch.tensor([5.0, 4.0])), torch.tensor([[2.0, 0.0]])
    )
    output = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]).log() + 2.0
    torch.testing.assert_close(head.belief(output[0]), torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    divergence = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    target = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    torch.testing.assert_close(head.surprise(output, target), torch.tensor([[divergence, 0.0]]))
