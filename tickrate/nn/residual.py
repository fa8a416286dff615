"""Residual networks as batched ensembles whose weights, features and norms stay bounded (FlashSAC)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tickrate.nn.ensemble import EnsembleBatchNorm, EnsembleLinear, EnsembleRMSNorm
from tickrate.nn.export import ProgramWriter


class EnsembleResidual(nn.Module):
    """An embedding, inverted residual blocks, a norm and a head (arXiv 2604.04539).

    Batch norm on the input and before each ReLU, root mean square norm before the head. `project` keeps the
    weights of each unit at length 1, and scale and shift of each norm at length ``sqrt(features)``.

    Args:
        members: number of networks.
        inputs: features in.
        width: features between the blocks.
        blocks: number of blocks.
        outputs: features out.
        expansion: width inside a block, in widths between them.
        generator: source of the initial weights (CPU).
        momentum: of the batch norm's running statistics.
        epsilon: added to the batch norm's variances.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        width: int,
        blocks: int,
        outputs: int,
        *,
        expansion: int = 4,
        generator: torch.Generator,
        momentum: float = 0.01,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.members = members
        self.computed_in = torch.float32
        """What the embedding was computed in the last time: bfloat16 in mixed precision."""
        inner = expansion * width

        def linear(a: int, b: int) -> EnsembleLinear:
            return EnsembleLinear(members, a, b, generator=generator, unit=True, bias=False)

        def norm(features: int) -> EnsembleBatchNorm:
            return EnsembleBatchNorm(members, features, momentum=momentum, eps=epsilon)

        self.input_norm, self.embedding = norm(inputs), linear(inputs, width)
        halves = [(linear(a, b), norm(b)) for _ in range(blocks) for a, b in ((width, inner), (inner, width))]
        self.linears = nn.ModuleList([half[0] for half in halves])
        self.norms = nn.ModuleList([half[1] for half in halves])
        self.blocks = list(zip(halves[::2], halves[1::2], strict=True))
        """Each block's two halves, each an affine layer and the batch norm behind it."""
        self.last_norm = EnsembleRMSNorm(members, width)
        self.head = EnsembleLinear(members, width, outputs, generator=generator, unit=True)

    def forward(
        self, x: Tensor, batch_statistics: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Map ``(batch, inputs)``, shared by all members, to ``(members, batch, outputs)``.

        Args:
            x: the input, float32.
            batch_statistics: batch norm uses the batch's statistics and updates the running ones.
            generator: not used; there is no dropout here.
        """
        y = self.embedding(self.input_norm(x.expand(self.members, *x.shape), batch_statistics))
        self.computed_in = y.dtype
        for halves in self.blocks:
            inner = y
            for linear, norm in halves:
                inner = torch.relu(norm(linear(inner), batch_statistics))
            y = y + inner
        result: Tensor = self.head(self.last_norm(y))
        return result

    def write(self, writer: ProgramWriter, x: str, member: int = 0) -> str:
        """Write one member down, batch norm with its running statistics."""
        x = self.embedding.write(writer, self.input_norm.write(writer, x, member), member)
        for halves in self.blocks:
            inner = x
            for linear, norm in halves:
                inner = norm.write(writer, linear.write(writer, inner, member), member)
                inner = writer.activation(inner, "relu")
            x = writer.add(x, inner)
        return self.head.write(writer, self.last_norm.write(writer, x, member), member)

    @property
    def projects(self) -> bool:
        """Whether `project` has anything to do: it always has."""
        return True

    @torch.no_grad()
    def project(self) -> None:
        """Bring weights and norms back to their lengths; to be called after each step of the optimiser."""
        for module in (self.embedding, *self.linears, self.head):
            module.project()
        for norm in (self.input_norm, *self.norms):
            scale, shift = norm.weight.view(self.members, -1), norm.bias.view(self.members, -1)
            length = (scale.square() + shift.square()).sum(1, keepdim=True).clamp_min_(1e-8).sqrt_()
            factor = math.sqrt(scale.shape[1]) / length
            scale.mul_(factor)
            shift.mul_(factor)
        weight = self.last_norm.weight
        weight.mul_(math.sqrt(weight.shape[2]) / torch.linalg.vector_norm(weight, dim=2, keepdim=True))
