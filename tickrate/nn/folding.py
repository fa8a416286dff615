"""Fold a trained network into plain affine layers, so that it can act without torch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickrate.nn.mlp import EnsembleMLP
from tickrate.nn.normaliser import RunningNormaliser

Affine = tuple[NDArray[np.float32], NDArray[np.float32]]


@torch.no_grad()
def fold(network: EnsembleMLP, normaliser: RunningNormaliser | None = None, member: int = 0) -> list[Affine]:
    """Return weight ``(in, out)`` and bias ``(out,)`` of each affine layer of one member; ReLU comes between.

    What stands before an affine layer is affine itself: batch norm with running statistics,
    ``y = s * x + t``, and the input normaliser. So ``(s * x + t) W + b = x (diag(s) W) + (t W + b)``,
    computed in float64. The result equals the network with running statistics up to float32 rounding.
    """
    layers: list[Affine] = []
    for i, (norm, layer, _) in enumerate(network.blocks):
        weight = layer.weight[member].double()
        bias = layer.bias[member, 0].double()  # type: ignore[index]
        if norm is not None:
            scale, shift = norm.affine()
            weight, bias = _absorb(weight, bias, scale[member, 0], shift[member, 0])
        if i == 0 and normaliser is not None:
            weight, bias = _absorb(weight, bias, *normaliser.affine())
        layers.append((_numpy(weight), _numpy(bias)))
    return layers


def _absorb(weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    return scale.unsqueeze(1) * weight, shift @ weight + bias


def _numpy(value: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = value.float().cpu().numpy()
    return np.ascontiguousarray(array)
