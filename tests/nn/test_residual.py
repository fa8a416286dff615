"""Residual networks: the same as one written out with torch's layers, and bounded after each projection."""

import math

import torch
from torch import nn
from torch.nn import functional

from tickrate.nn.residual import EnsembleResidual


def make(members=2, blocks=2, momentum=0.5):
    generator = torch.Generator().manual_seed(0)
    return EnsembleResidual(members, 3, 4, blocks, 5, expansion=2, generator=generator, momentum=momentum)


def written_out(network, k, x):
    """Compute member k with torch's own layers in training mode."""

    def norm(layer, y):
        part = slice(k * layer.features, (k + 1) * layer.features)
        return functional.batch_norm(y, None, None, layer.weight[part], layer.bias[part], training=True)

    y = norm(network.input_norm, x) @ network.embedding.weight[k]
    for halves in network.blocks:
        inner = y
        for linear, batch_norm in halves:
            inner = torch.relu(norm(batch_norm, inner @ linear.weight[k]))
        y = y + inner
    rms = nn.RMSNorm(4, eps=1e-6)
    rms.weight.data = network.last_norm.weight[k, 0].detach()
    return rms(y) @ network.head.weight[k] + network.head.bias[k]


def test_equals_one_written_out():
    network = make()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
    out = network(x, batch_statistics=True)
    for k in range(2):
        torch.testing.assert_close(out[k], written_out(network, k, x), atol=1e-5, rtol=1e-4)


def test_projection_brings_weights_and_norms_back_to_their_lengths():
    network = make()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3.0).add_(0.01)
    network.project()
    for layer in (network.embedding, *network.linears, network.head):
        torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(2, layer.weight.shape[2]))
    for norm in (network.input_norm, *network.norms):
        length = (norm.weight.view(2, -1).square() + norm.bias.view(2, -1).square()).sum(1).sqrt()
        torch.testing.assert_close(length, torch.full((2,), math.sqrt(norm.features)))
    torch.testing.assert_close(network.last_norm.weight.norm(dim=2), torch.full((2, 1), 2.0))
