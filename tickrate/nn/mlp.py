"""Multi-layer perceptrons as batched ensembles, with batch or layer normalisation, dropout and noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from tickrate.nn.ensemble import EnsembleBatchNorm, EnsembleLayerNorm, EnsembleLinear, dropout
from tickrate.nn.export import ProgramWriter
from tickrate.nn.noisy import NoisyLinear


class EnsembleMLP(nn.Module):
    """Affine layers with ReLU between them, and perhaps a norm.

    Batch norm stands before every affine layer, on the input and after each ReLU, as in CrossQ. Layer norm
    stands before each ReLU, behind the dropout, as in DroQ.

    Args:
        members: number of networks.
        inputs: features in.
        hidden: widths of the hidden layers.
        outputs: features out; None: the network ends with the ReLU of its last hidden layer.
        norm: the norm, if any.
        drop: share of each hidden layer's outputs that dropout sets to zero.
        unit_weights: `project` keeps the weights of each hidden unit at length 1.
        generator: source of the initial weights (CPU).
        last_gain: factor on the initial weights of the last layer.
        momentum: of the batch norm's running statistics.
        epsilon: added to the batch norm's variances.
        noise: scale of the noise on all weights (`NoisyLinear`); 0: plain weights.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int | None,
        *,
        norm: Literal["none", "batch", "layer"] = "none",
        drop: float = 0.0,
        unit_weights: bool = False,
        generator: torch.Generator,
        last_gain: float = 1.0,
        momentum: float = 0.01,
        epsilon: float = 1e-5,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.members, self.drop, self._hidden = members, drop, len(hidden)
        self.computed_in = torch.float32
        """What the first layer was computed in the last time: bfloat16 in mixed precision."""
        widths = [inputs, *hidden] if outputs is None else [inputs, *hidden, outputs]

        def linear(i: int) -> EnsembleLinear | NoisyLinear:
            inner, (a, b) = i < len(hidden), widths[i : i + 2]
            gain = 1.0 if inner else last_gain
            if noise:
                return NoisyLinear(members, a, b, generator=generator, scale=noise, gain=gain)
            unit = unit_weights and inner
            return EnsembleLinear(members, a, b, generator=generator, gain=gain, unit=unit)

        layers = [linear(i) for i in range(len(widths) - 1)]
        batch, layer = norm == "batch", norm == "layer"
        norms = [
            EnsembleBatchNorm(members, width, momentum=momentum, eps=epsilon)
            for width in widths[:-1]
            if batch
        ]
        layer_norms = [EnsembleLayerNorm(members, width) for width in hidden if layer]
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        self.layer_norms = nn.ModuleList(layer_norms)
        before: list[EnsembleBatchNorm | None] = [*norms] if batch else [None] * len(layers)
        after: list[EnsembleLayerNorm | None] = [*layer_norms, None] if layer else [None] * len(layers)
        after = after[: len(layers)]
        self.blocks = list(zip(before, layers, after, strict=True))
        """Each affine layer with the batch norm before it and the layer norm behind it, or None."""

    def forward(
        self, x: Tensor, batch_statistics: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Map ``(batch, inputs)``, shared by all members, to ``(members, batch, outputs)``.

        Args:
            x: the input, float32.
            batch_statistics: batch norm uses the batch's statistics and updates the running ones.
            generator: source of the random numbers of dropout and noise; without it there is neither.
        """
        y = x.expand(self.members, *x.shape)
        for i, (norm, layer, layer_norm) in enumerate(self.blocks):
            if norm is not None:
                y = norm(y, batch_statistics)
            y = layer(y, generator) if isinstance(layer, NoisyLinear) else layer(y)
            if i == 0:
                self.computed_in = y.dtype
            if i == self._hidden:
                break
            if self.drop and generator is not None:
                y = dropout(y, self.drop, generator)
            if layer_norm is not None:
                y = layer_norm(y)
            y = torch.relu_(y)
        return y

    @property
    def projects(self) -> bool:
        """Whether `project` has anything to do."""
        return any(layer.unit for _, layer, _ in self.blocks if isinstance(layer, EnsembleLinear))

    def project(self) -> None:
        """Bring the weights of unit layers back to length 1; call it after each step of the optimiser."""
        for _, layer, _ in self.blocks:
            layer.project()

    def write(self, writer: ProgramWriter, x: str, member: int = 0) -> str:
        """Write one member down, batch norm with its running statistics, without dropout and noise."""
        for i, (norm, layer, layer_norm) in enumerate(self.blocks):
            if norm is not None:
                x = norm.write(writer, x, member)
            x = layer.write(writer, x, member)
            if layer_norm is not None:
                x = layer_norm.write(writer, x, member)
            if i < self._hidden:
                x = writer.activation(x, "relu")
        return x
