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


def test_a_choice_has_the_gradient_of_the_softmax():
    head = CategoricalHead((2,))
    logits = torch.zeros(1, 2, requires_grad=True)
    action, _ = head.sample(logits, torch.tensor([[1.0, 0.0]]))
    assert action.tolist() == [[1.0, 0.0]]
    action[0, 0].backward()
    p = 1.0 / (1.0 + math.exp(-1.0))  # softmax of (0 + 1, 0 + 0)
    torch.testing.assert_close(logits.grad, torch.tensor([[p * (1 - p), -p * (1 - p)]]))


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
