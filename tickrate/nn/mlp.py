"""Multi-layer perceptrons as batched ensembles, with or without batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tickrate.nn.ensemble import EnsembleBatchNorm, EnsembleLinear
from tickrate.nn.export import ProgramWriter


class EnsembleMLP(nn.Module):
    """Affine layers with ReLU between them; batch norm, if any, on the input and after each ReLU.

    Args:
        members: number of networks.
        inputs: features in.
        hidden: widths of the hidden layers.
        outputs: features out.
        batch_norm: normalise every affine layer's input, as CrossQ does.
        generator: source of the initial weights (CPU).
        last_gain: factor on the initial weights of the last layer.
        momentum: of the batch norm's running statistics.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        batch_norm: bool,
        generator: torch.Generator,
        last_gain: float = 1.0,
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        self.members = members
        widths = [inputs, *hidden, outputs]
        gains = [1.0] * len(hidden) + [last_gain]
        layers = [
            EnsembleLinear(members, a, b, generator=generator, gain=gain)
            for a, b, gain in zip(widths[:-1], widths[1:], gains, strict=True)
        ]
        norms = [EnsembleBatchNorm(members, width, momentum=momentum) for width in widths[:-1] if batch_norm]
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        before: list[EnsembleBatchNorm | None] = [*norms] if batch_norm else [None] * len(layers)
        self.blocks = list(zip(before, layers, strict=True))
        """Each affine layer with the batch norm before it, or None."""

    def forward(self, x: Tensor, batch_statistics: bool = False) -> Tensor:
        """Map ``(batch, inputs)``, shared by all members, to ``(members, batch, outputs)``.

        Args:
            x: the input, float32.
            batch_statistics: batch norm uses the batch's statistics and updates the running ones.
        """
        y = x.expand(self.members, *x.shape)
        last = len(self.layers) - 1
        for i, (norm, layer) in enumerate(self.blocks):
            if norm is not None:
                y = norm(y, batch_statistics)
            y = layer(y)
            if i != last:
                y = torch.relu_(y)
        return y

    def write(self, writer: ProgramWriter, x: str, member: int = 0) -> str:
        """Write one member down, batch norm with its running statistics."""
        for i, (norm, layer) in enumerate(self.blocks):
            if norm is not None:
                scale, shift = norm.affine()
                x = writer.scale(x, scale[member, 0], shift[member, 0])
            x = writer.affine(x, layer.weight[member], layer.bias[member, 0])
            if i != len(self.blocks) - 1:
                x = writer.activation(x, "relu")
        return x
