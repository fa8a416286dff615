"""Layers for several networks at once: one batched matrix product instead of one product per member.

Activations are ``(members, batch, features)``. A single network is an ensemble of one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tickrate.nn.export import ProgramWriter


class EnsembleLinear(nn.Module):
    """``members`` independent affine layers, computed as one batched product.

    Weights start as in `torch.nn.Linear`, uniform in +-1/sqrt(inputs); in a unit layer as orthogonal
    matrices.

    Args:
        members: number of networks.
        inputs: features in.
        outputs: features out.
        generator: source of the initial values (CPU).
        gain: factor on the initial weights and biases.
        unit: `project` keeps the weights of each output at length 1.
        bias: whether there is one; a norm behind the layer makes it pointless.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        *,
        generator: torch.Generator,
        gain: float = 1.0,
        unit: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        bound = gain / math.sqrt(inputs)
        self.unit = unit
        weight = _uniform((members, inputs, outputs), bound, generator)
        if unit:
            for member in weight:
                nn.init.orthogonal_(member, generator=generator)
        self.weight = nn.Parameter(weight)
        """``(members, inputs, outputs)``, float32."""
        self.bias: Tensor | None = None
        """``(members, 1, outputs)``, float32, or None."""
        if bias:
            start = (
                torch.zeros(members, 1, outputs)
                if unit
                else _uniform((members, 1, outputs), bound, generator)
            )
            self.bias = nn.Parameter(start)
        self.project()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(members, batch, inputs)`` to ``(members, batch, outputs)``."""
        if self.bias is None:
            return torch.bmm(x, self.weight)
        if self.weight.shape[2] == 1:
            # A single output is a value. It stays in float32 in mixed precision: its last digits count. As a
            # batched product a column takes several times as long.
            return (x.to(self.weight.dtype) * self.weight.transpose(1, 2)).sum(2, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x, self.weight)

    def write(self, writer: ProgramWriter, x: str, member: int) -> str:
        """Write one member down."""
        return writer.affine(x, self.weight[member], None if self.bias is None else self.bias[member, 0])

    @torch.no_grad()
    def project(self) -> None:
        """Scale the weights of each output to length 1, if this is a unit layer."""
        if self.unit:
            self.weight.div_(torch.linalg.vector_norm(self.weight, dim=1, keepdim=True).clamp_min_(1e-8))


class EnsembleBatchNorm(nn.Module):
    """Batch normalisation per member and feature (arXiv 1502.03167), with learned scale and shift.

    Args:
        members: number of networks.
        features: features of each.
        momentum: weight of the newest batch in the running statistics.
        eps: added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, members: int, features: int, *, momentum: float = 0.01, eps: float = 1e-5) -> None:
        super().__init__()
        self.members, self.features = members, features
        self.momentum, self.eps = momentum, eps
        channels = members * features
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor, batch_statistics: bool) -> Tensor:
        """Normalise ``(members, batch, features)``.

        With ``batch_statistics`` the batch's own mean and variance are used and the running ones move
        towards them (the variance without bias, as in torch); otherwise the running ones are used.
        """
        batch = x.shape[1]
        channels = x.transpose(0, 1).reshape(batch, self.members * self.features)
        y = functional.batch_norm(
            channels,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=batch_statistics,
            momentum=self.momentum,
            eps=self.eps,
        )
        return y.view(batch, self.members, self.features).transpose(0, 1)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return this layer with running statistics: scale and shift, ``(members, 1, features)``."""
        scale = self.weight.double() / torch.sqrt(self.running_var.double() + self.eps)
        shift = self.bias.double() - self.running_mean.double() * scale
        shape = (self.members, 1, self.features)
        return scale.view(shape), shift.view(shape)

    def write(self, writer: ProgramWriter, x: str, member: int) -> str:
        """Write one member down, with its running statistics."""
        scale, shift = self.affine()
        return writer.scale(x, scale[member, 0], shift[member, 0])


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation per member (arXiv 1607.06450), with learned scale and shift.

    Args:
        members: number of networks.
        features: features of each.
        eps: added to the variance.
    """

    def __init__(self, members: int, features: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.features, self.eps = features, eps
        self.weight = nn.Parameter(torch.ones(members, 1, features))
        self.bias = nn.Parameter(torch.zeros(members, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row of ``(members, batch, features)``."""
        return torch.addcmul(self.bias, functional.layer_norm(x, (self.features,), eps=self.eps), self.weight)

    def write(self, writer: ProgramWriter, x: str, member: int) -> str:
        """Write one member down."""
        return writer.layer_norm(x, self.weight[member, 0], self.bias[member, 0], self.eps)


class EnsembleRMSNorm(nn.Module):
    """Root mean square normalisation per member (arXiv 1910.07467), with a learned scale.

    Args:
        members: number of networks.
        features: features of each.
        eps: added to the mean square.
    """

    def __init__(self, members: int, features: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.features, self.eps = features, eps
        self.weight = nn.Parameter(torch.ones(members, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row of ``(members, batch, features)``."""
        return functional.rms_norm(x, (self.features,), eps=self.eps) * self.weight

    def write(self, writer: ProgramWriter, x: str, member: int) -> str:
        """Write one member down."""
        return writer.rms_norm(x, self.weight[member, 0], self.eps)


def dropout(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Set a share of the values to zero and scale the rest up; a resume brings the random numbers back."""
    kept = torch.empty_like(x).bernoulli_(1.0 - share, generator=generator)
    return x * kept.div_(1.0 - share)


def _uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
