"""Ensembles equal their members computed one by one with torch's own layers."""

import pytest
import torch
from torch import nn

from tickrate.nn.ensemble import EnsembleBatchNorm, EnsembleLinear
from tickrate.nn.mlp import EnsembleMLP


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_linear_equals_each_member_alone():
    layer = EnsembleLinear(3, 5, 4, generator=generator())
    x = torch.randn(3, 7, 5, generator=generator(1))
    out = layer(x)
    for k in range(3):
        torch.testing.assert_close(out[k], x[k] @ layer.weight[k] + layer.bias[k, 0])


def test_one_output_stays_in_float32_in_mixed_precision():
    layer, wide = (EnsembleLinear(3, 5, n, generator=generator()) for n in (1, 2))
    x = torch.randn(3, 7, 5, generator=generator(1), requires_grad=True)
    inputs = (x, layer.weight, layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
        assert wide(x).dtype == torch.bfloat16
    expected = torch.baddbmm(layer.bias, x, layer.weight)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(layer(x), expected)
    direction = torch.randn(out.shape, generator=generator(2))
    for mine, other in zip(
        torch.autograd.grad(out, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_linear_starts_like_torch_linear_and_scales_with_gain():
    layer = EnsembleLinear(2, 100, 200, generator=generator())
    assert layer.weight.abs().max().item() == pytest.approx(0.1, rel=0.01)
    assert layer.weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.02)
    small = EnsembleLinear(2, 100, 200, generator=generator(), gain=0.1)
    torch.testing.assert_close(small.weight, layer.weight * 0.1)


def test_batch_norm_equals_torch_in_training_and_acting_per_member():
    torch.manual_seed(0)
    ours = EnsembleBatchNorm(2, 3, momentum=0.01)
    with torch.no_grad():
        ours.weight.uniform_(0.5, 1.5)
        ours.bias.uniform_(-1, 1)
    theirs = [nn.BatchNorm1d(3, momentum=0.01) for _ in range(2)]
    for k, norm in enumerate(theirs):
        norm.load_state_dict(
            {"weight": ours.weight.view(2, 3)[k], "bias": ours.bias.view(2, 3)[k]}, strict=False
        )
    for _ in range(5):
        x = torch.randn(2, 16, 3) * 3 + 1
        out = ours(x, batch_statistics=True)
        for k, norm in enumerate(theirs):
            torch.testing.assert_close(out[k], norm(x[k]))
    x = torch.randn(2, 4, 3)
    out = ours(x, batch_statistics=False)
    for k, norm in enumerate(theirs):
        torch.testing.assert_close(ours.running_var.view(2, 3)[k], norm.running_var)
        torch.testing.assert_close(out[k], norm.eval()(x[k]))


def test_batch_norm_running_statistics_hand_worked():
    norm = EnsembleBatchNorm(1, 1, momentum=0.01)
    norm(torch.tensor([[[1.0], [3.0]]]), batch_statistics=True)
    assert norm.running_mean.item() == pytest.approx(0.02)  # 0.99 * 0 + 0.01 * 2
    assert norm.running_var.item() == pytest.approx(1.01)  # 0.99 * 1 + 0.01 * 2, the unbiased variance
    before = norm.running_mean.clone()
    norm(torch.tensor([[[9.0], [9.0]]]), batch_statistics=False)
    assert torch.equal(norm.running_mean, before), "acting must not move the statistics"


def test_mlp_shares_its_input_between_members():
    network = EnsembleMLP(2, 3, (4,), 1, generator=generator())
    x = torch.randn(6, 3, generator=generator(1))
    first, second = network.layers
    for k in range(2):
        hidden = torch.relu(x @ first.weight[k] + first.bias[k])
        torch.testing.assert_close(network(x)[k], hidden @ second.weight[k] + second.bias[k])
    assert not torch.allclose(network(x)[0], network(x)[1]), "members must start differently"


def test_mlp_normalises_the_input_and_after_each_relu():
    network = EnsembleMLP(2, 3, (4, 5), 1, norm="batch", generator=generator())
    assert [norm.features for norm in network.norms] == [3, 4, 5]
    assert not list(EnsembleMLP(2, 3, (4, 5), 1, generator=generator()).norms)


def test_same_seed_same_weights():
    a, b = (EnsembleMLP(2, 3, (4,), 1, norm="batch", generator=generator(7)) for _ in range(2))
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
