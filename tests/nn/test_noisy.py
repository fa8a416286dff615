"""Noise of the published form on the weights: its statistics, its draws, and none without a generator."""

import pytest
import torch
from torch import nn

from tickrate.nn.mlp import EnsembleMLP
from tickrate.nn.noisy import NoisyLinear


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def layer_of(members=1, inputs=16, outputs=4, **options):
    return NoisyLinear(members, inputs, outputs, generator=generator(), **options)


def test_it_starts_as_the_paper_says():
    layer = layer_of(inputs=100, outputs=200, scale=0.5)
    # Uniform in +-1/sqrt(100): the standard deviation is 0.1/sqrt(3). Sigma is 0.5/sqrt(100).
    assert layer.weight.abs().max().item() == pytest.approx(0.1, rel=0.01)
    assert layer.weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.02)
    assert torch.equal(layer.weight_scale, torch.full((1, 100, 200), 0.05))
    assert torch.equal(layer.bias_scale, torch.full((1, 1, 200), 0.05))


def test_without_a_generator_the_mean_weights_act():
    layer, x = layer_of(members=2), torch.randn(2, 5, 16, generator=generator(1))
    torch.testing.assert_close(layer(x), torch.bmm(x, layer.weight) + layer.bias)


def draws(layer, count):
    """Return weights and biases of many draws, without the means, in units of their scale."""
    inputs = layer.weight.shape[1]
    source, found = generator(3), []
    unit = torch.eye(inputs)[None]
    for _ in range(count):
        # Bias from an input of zeros, weights from unit vectors, both under the same noise.
        found.append(layer(torch.cat([torch.zeros(1, 1, inputs), unit], 1), source)[0].detach())
    out = torch.stack(found)
    bias = out[:, 0]
    weight = out[:, 1:] - bias[:, None]
    return (weight - layer.weight[0]) / layer.weight_scale[0], (bias - layer.bias[0, 0]) / layer.bias_scale[
        0, 0
    ]


def test_the_noise_has_the_moments_of_the_factorised_form():
    weight, bias = (noise.detach() for noise in draws(layer_of(inputs=3, outputs=2), 5_000))
    # f(x) = sign(x) sqrt|x|: mean 0, variance E|x| = sqrt(2/pi). A product of two has the variance 2/pi.
    half = (2 / torch.pi) ** 0.5
    torch.testing.assert_close(bias.mean(0), torch.zeros(2), atol=0.04, rtol=0.0)
    torch.testing.assert_close(bias.var(0), torch.full((2,), half), atol=0.03, rtol=0.0)
    torch.testing.assert_close(weight.mean(0), torch.zeros(3, 2), atol=0.04, rtol=0.0)
    torch.testing.assert_close(weight.var(0), torch.full((3, 2), half**2), atol=0.04, rtol=0.0)


def test_the_noise_of_the_weights_is_a_product_of_inputs_and_outputs():
    weight, bias = draws(layer_of(inputs=3, outputs=2), 1)
    torch.testing.assert_close(weight[0, 0, 0] * weight[0, 1, 1], weight[0, 0, 1] * weight[0, 1, 0])
    # The same draw of each output stands in bias and weights.
    torch.testing.assert_close(weight[0, :, 0] * bias[0, 1], weight[0, :, 1] * bias[0, 0])


def test_one_draw_serves_a_batch_and_the_next_pass_draws_anew():
    layer, source = layer_of(), generator(1)
    x = torch.ones(1, 2, 16)
    first, second = layer(x, source)[0], layer(x, source)[0]
    torch.testing.assert_close(first[0], first[1], rtol=0.0, atol=0.0)
    assert not torch.equal(first, second)
    torch.testing.assert_close(layer(x, generator(1))[0], first, rtol=0.0, atol=0.0)


def test_members_have_noise_of_their_own():
    layer = layer_of(members=2)
    with torch.no_grad():
        layer.weight[1] = layer.weight[0]
    out = layer(torch.ones(1, 1, 16).expand(2, 1, 16), generator(1))
    assert not torch.allclose(out[0], out[1])


def test_noise_that_is_kept_acts_without_a_generator():
    layer, x = layer_of(), torch.randn(1, 5, 16, generator=generator(1))
    noisy = layer(x, generator(2))
    layer.keep_noise(generator(2))
    torch.testing.assert_close(layer(x), noisy)


def test_the_scales_learn():
    layer = layer_of()
    loss = layer(torch.ones(1, 2, 16), generator(1)).square().sum()
    gradients = torch.autograd.grad(loss, [layer.weight, layer.weight_scale, layer.bias, layer.bias_scale])
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_an_mlp_may_have_noise_on_all_layers_and_end_with_its_last_relu():
    net = EnsembleMLP(1, 3, (8, 5), None, norm="layer", generator=generator(), noise=0.5)
    assert all(isinstance(layer, NoisyLinear) for layer in net.layers)
    x = torch.randn(6, 3, generator=generator(1))
    first, second = net.layers
    inner = torch.relu(nn.functional.layer_norm(x @ first.weight[0] + first.bias[0], (8,)))
    expected = torch.relu(nn.functional.layer_norm(inner @ second.weight[0] + second.bias[0], (5,)))
    torch.testing.assert_close(net(x)[0], expected)
    assert not torch.allclose(net(x, generator=generator(2))[0], expected)
