"""A step that is not finite is skipped on the device, and the tensor is named later."""

import math

import pytest
import torch

from tickrate.nn.guard import Guard

CPU = torch.device("cpu")


def test_a_good_step_is_not_skipped():
    guard = Guard("loss", ["w", "b"], [], CPU)
    skip, length = guard.check(torch.tensor(1.0), [torch.tensor([3.0]), torch.tensor([4.0])])
    assert (skip.item(), length.item()) == (0.0, 5.0)
    assert guard.faults() == (0, "")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("loss", "gradients", "name"),
    [
        (None, (1.0, 1.0), "loss"),
        (1.0, (None, 1.0), "the gradient of w"),
        (1.0, (1.0, None), "the gradient of b"),
        (1.0, (None, None), "the gradient of w"),
    ],
)
def test_the_first_bad_tensor_is_named_once(bad, loss, gradients, name):
    guard = Guard("loss", ["w", "b"], [], CPU)
    good = [torch.ones(2), torch.ones(2)]
    guard.check(torch.tensor(1.0), good)
    values = [torch.tensor([1.0, bad if value is None else value]) for value in gradients]
    skip, _ = guard.check(torch.tensor(bad if loss is None else loss), values)
    assert skip.item() == 1.0
    assert guard.check(torch.tensor(1.0), good)[0].item() == 0.0
    assert guard.faults() == (1, name)
    assert guard.faults() == (0, "")


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2e19])
def test_a_statistic_is_looked_at_too_and_is_no_part_of_the_gradients_length(bad):
    guard = Guard("loss", ["w", "b"], ["mean", "var"], CPU)
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    skip, length = guard.check(torch.tensor(1.0), gradients, [torch.ones(2), torch.tensor([1e18])])
    assert (skip.item(), length.item()) == (0.0, 5.0)
    skip, _ = guard.check(torch.tensor(1.0), gradients, [torch.ones(2), torch.tensor([bad])])
    assert skip.item() == 1.0
    assert guard.faults() == (1, "the statistic var")


def test_a_gradient_whose_square_is_not_finite_is_bad_though_it_is():
    guard = Guard("loss", ["w", "b"], [], CPU)  # 2e19 squared is 4e38, more than float32 holds
    skip, _ = guard.check(torch.tensor(1.0), [torch.ones(2), torch.tensor(2e19)])
    assert skip.item() == 1.0
    assert guard.faults() == (1, "the gradient of b")
    assert guard.check(torch.tensor(1e30), [torch.ones(2), torch.tensor(1e19)])[0].item() == 0.0


def test_a_long_gradient_is_cut_to_the_limit():
    guard = Guard("loss", ["w", "b"], [], CPU, largest_norm=1.0)
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    _, length = guard.check(torch.tensor(1.0), gradients)
    assert length.item() == 5.0
    torch.testing.assert_close(torch.cat(gradients), torch.tensor([0.6, 0.8]), atol=1e-5, rtol=0)
    short = [torch.tensor([0.3]), torch.tensor([0.4])]
    guard.check(torch.tensor(1.0), short)
    torch.testing.assert_close(torch.cat(short), torch.tensor([0.3, 0.4]))
