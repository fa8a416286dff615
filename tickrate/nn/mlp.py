"""Multi-layer perceptrons as batched ensembles, with batch or layer normalisation and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from tickrate.nn.ensemble import EnsembleBatchNorm, EnsembleLayerNorm, EnsembleLinear, dropout
from tickrate.nn.export import ProgramWriter


class EnsembleMLP(nn.Module):
    """Affine layers with ReLU between them, and perhaps a norm.

    Batch norm stands before every affine layer, on the input and after each ReLU, as in CrossQ. Layer norm
    stands before each ReLU, behind the dropout, as in DroQ.

    Args:
        members: number of networks.
        inputs: features in.
        hidden: widths of the hidden layers.
        outputs: features out.
        norm: the norm, if any.
        drop: share of each hidden layer's outputs that dropout sets to zero.
        unit_weights: `project` keeps the weights of each hidden unit at length 1.
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
        norm: Literal["none", "batch", "layer"] = "none",
        drop: float = 0.0,
        unit_weights: bool = False,
        generator: torch.Generator,
        last_gain: float = 1.0,
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        self.members, self.drop = members, drop
        widths = [inputs, *hidden, outputs]
        gains = [1.0] * len(hidden) + [last_gain]
        units = [unit_weights] * len(hidden) + [False]
        layers = [
            EnsembleLinear(members, a, b, generator=generator, gain=gain, unit=unit)
            for a, b, gain, unit in zip(widths[:-1], widths[1:], gains, units, strict=True)
        ]
        batch, layer = norm == "batch", norm == "layer"
        norms = [EnsembleBatchNorm(members, width, momentum=momentum) for width in widths[:-1] if batch]
        layer_norms = [EnsembleLayerNorm(members, width) for width in hidden if layer]
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        self.layer_norms = nn.ModuleList(layer_norms)
        before: list[EnsembleBatchNorm | None] = [*norms] if batch else [None] * len(layers)
        after: list[EnsembleLayerNorm | None] = [*layer_norms, None] if layer else [None] * len(layers)
        self.blocks = list(zip(before, layers, after, strict=True))
        """Each affine layer with the batch norm before it and the layer norm behind it, or None."""

    def forward(
        self, x: Tensor, batch_statistics: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Map ``(batch, inputs)``, shared by all members, to ``(members, batch, outputs)``.

        Args:
            x: the input, float32.
            batch_statistics: batch norm uses the batch's statistics and updates the running ones.
            generator: source of dropout's random numbers; without it nothing is dropped.
        """
        y = x.expand(self.members, *x.shape)
        last = len(self.layers) - 1
        for i, (norm, layer, layer_norm) in enumerate(self.blocks):
            if norm is not None:
                y = norm(y, batch_statistics)
            y = layer(y)
            if i == last:
                break
            if self.drop and generator is not None:
                y = dropout(y, self.drop, generator)
            if layer_norm is not None:
                y = layer_norm(y)
            y = torch.relu_(y)
        return y

    def project(self) -> None:
        """Bring the weights of unit layers back to length 1; call it after each step of the optimiser."""
        for _, layer, _ in self.blocks:
            layer.project()

    def write(self, writer: ProgramWriter, x: str, member: int = 0) -> str:
        """Write one member down, batch norm with its running statistics, without dropout."""
        for i, (norm, layer, layer_norm) in enumerate(self.blocks):
            if norm is not None:
                x = norm.write(writer, x, member)
            x = layer.write(writer, x, member)
            if layer_norm is not None:
                x = layer_norm.write(writer, x, member)
            if i != len(self.blocks) - 1:
                x = writer.activation(x, "relu")
        return x
