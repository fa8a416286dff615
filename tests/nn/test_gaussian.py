"""The squashed Gaussian is a density in environment units, and its spread is positive whatever comes in."""

import math

import pytest
import torch

from tickrate.nn.gaussian import mean_and_log_std, squashed_sample


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.5), (0.2, -3.0)])
def test_log_density_integrates_to_one_on_a_box_of_two(mean, log_std):
    # u over the real line; a = 2 tanh(u) covers Box[-2, 2]; integrate exp(log p(a)) da by the trapezoid rule.
    noise = torch.linspace(-9, 9, 20001, dtype=torch.float64).unsqueeze(1)
    u = mean + math.exp(log_std) * noise
    action, log_prob = squashed_sample(
        torch.full_like(noise, mean), torch.full_like(noise, log_std), noise, log_scale=math.log(2.0)
    )
    a = (2.0 * action).squeeze(1)
    assert torch.trapezoid(log_prob.exp(), a).item() == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(action, torch.tanh(u))


def test_log_density_hand_worked():
    # mean 0, std 1, noise 0: u = 0, slope of tanh 1, scale 2: log N(0) - log 2.
    action, log_prob = squashed_sample(
        torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), log_scale=math.log(2.0)
    )
    assert action.item() == 0.0
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - math.log(2))


def test_log_density_of_two_components_is_the_sum_of_each():
    mean, log_std, noise = (
        torch.tensor([[0.3, -0.8]]),
        torch.tensor([[-1.0, 0.2]]),
        torch.tensor([[0.5, -1.2]]),
    )
    _, both = squashed_sample(mean, log_std, noise, log_scale=0.0)
    single = [
        squashed_sample(mean[:, i : i + 1], log_std[:, i : i + 1], noise[:, i : i + 1], 0.0)[1]
        for i in range(2)
    ]
    torch.testing.assert_close(both, single[0] + single[1])


def test_log_density_stays_finite_far_out():
    mean = torch.tensor([[60.0], [-60.0]], requires_grad=True)
    _, log_prob = squashed_sample(mean, torch.zeros(2, 1), torch.zeros(2, 1), 0.0)
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(mean.grad).all()


def test_std_is_positive_after_ten_thousand_adversarial_updates():
    output = torch.zeros(1, 2, requires_grad=True)
    optimiser = torch.optim.SGD([output], lr=1e3)
    for step in range(10_000):
        _, log_std = mean_and_log_std(output, offset=-0.5, low=-5.0, high=1.0)
        optimiser.zero_grad()
        (log_std.sum() * (1 if step % 3 else -1)).backward()
        optimiser.step()
    for raw in (-1e30, -1.0, 1e30, output[0, 1].item()):
        _, log_std = mean_and_log_std(torch.tensor([[0.0, raw]]), offset=-0.5, low=-5.0, high=1.0)
        assert math.exp(-5.0) * 0.999 <= log_std.exp().item() <= math.exp(1.0) * 1.001


def test_offset_comes_before_the_clamp():
    mean, log_std = mean_and_log_std(torch.tensor([[0.1, 0.2, 1.2, 9.0]]), offset=-0.5, low=-5.0, high=1.0)
    torch.testing.assert_close(mean, torch.tensor([[0.1, 0.2]]))
    torch.testing.assert_close(log_std, torch.tensor([[0.7, 1.0]]))
