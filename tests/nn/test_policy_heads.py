"""Actions from outputs: the right frequencies, log-probabilities and gradients."""

import math

import numpy as np
import torch

from tickrate.nn.policy_heads import CategoricalHead, GaussianHead


def test_categories_come_with_their_probabilities():
    head = CategoricalHead((2, 3))
    generator = torch.Generator().manual_seed(0)
    output = torch.tensor([[0.2, 0.8, 0.1, 0.3, 0.6]]).log().repeat(20_000, 1)
    action, log_prob = head.sample(output, head.noise(20_000, generator))
    assert set(action.unique().tolist()) <= {0.0, 1.0}
    np.testing.assert_allclose(action.mean(0).numpy(), [0.2, 0.8, 0.1, 0.3, 0.6], atol=0.012)
    entropy = -sum(p * math.log(p) for p in (0.2, 0.8, 0.1, 0.3, 0.6))
    torch.testing.assert_close(log_prob[:2], torch.full((2,), -entropy))


def test_expected_values_and_their_gradients_by_hand():
    # Two choices of 2 and 3 categories; the value of (i, j) is 10 i + j. Sampled: (1, 2). The first choice is
    # averaged with the second at 2: 0.25 * 2 + 0.75 * 12 = 9.5. The gradient of each logit is p (q - mean).
    head = CategoricalHead((2, 3))
    logits = torch.tensor([[0.25, 0.75, 0.2, 0.3, 0.5]]).log().requires_grad_()
    sampled = torch.tensor([[0.0, 1.0, 0.0, 0.0, 1.0]])

    def judge(actions, times):
        assert times == 5
        return (actions @ torch.tensor([0.0, 10.0, 0.0, 1.0, 2.0]))[None]

    value = head.value(logits, sampled, judge)
    torch.testing.assert_close(value, torch.tensor([[9.5]]))
    value.sum().backward()
    mean = 0.2 * 10 + 0.3 * 11 + 0.5 * 12
    expected = [0.25 * (2 - 9.5), 0.75 * (12 - 9.5), 0.2 * (10 - mean), 0.3 * (11 - mean), 0.5 * (12 - mean)]
    torch.testing.assert_close(logits.grad, torch.tensor([expected]))


def test_a_continuous_action_is_judged_as_it_is():
    head = GaussianHead(1, 0.0, (0.0, -5.0, 2.0))
    output = torch.zeros(2, 2, requires_grad=True)
    action, _ = head.sample(output, torch.tensor([[0.5], [-0.5]]))
    value = head.value(output, action, lambda actions, times: 3.0 * actions.T)
    torch.testing.assert_close(value, 3.0 * action.T)
    value.sum().backward()
    assert output.grad[:, 0].abs().min() > 0


def test_the_likelihood_of_given_choices():
    head = CategoricalHead((2, 2))
    output = torch.tensor([[0.25, 0.75, 0.5, 0.5]]).log()
    loss = head.negative_log_likelihood(output, torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    torch.testing.assert_close(loss, torch.tensor([-math.log(0.25 * 0.5)]))


def test_the_likelihood_of_given_continuous_actions_is_that_of_their_sample():
    head = GaussianHead(2, 0.7, (0.1, -5.0, 2.0))
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(50, 4, generator=generator) * 0.5
    action, log_prob = head.sample(output, head.noise(50, generator))
    inside = action.abs().amax(1) < 0.999
    assert inside.sum() > 30
    torch.testing.assert_close(
        head.negative_log_likelihood(output, action)[inside], -log_prob[inside], atol=1e-3, rtol=1e-3
    )
