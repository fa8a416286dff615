"""Folds scales (normalisers, batch norm with running statistics) into the affine operations around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tickrate.program.spec import (
    Add,
    Affine,
    Concat,
    Conv1d,
    Conv2d,
    GruCell,
    LstmCell,
    Op,
    Program,
    Scale,
    op_inputs,
)

Tensors = dict[str, NDArray[Any]]


def fold_scales(ops: Sequence[Op], tensors: Tensors) -> tuple[Program, Tensors]:
    """Return the same network with as few `Scale` operations as possible.

    A scale ``y = s x + t`` becomes part of the affine, convolution or scale whose value it alone reads
    (``s (x W + b) + t``), or of every one that reads it (``(s x + t) W + b``). Where something else is on
    both sides, as a residual connection before a ReLU, it stays.

    Args:
        ops: operations in order; the last one's value is the output.
        tensors: their tensors; in float64 nothing is lost by the folding.
    """
    remaining, folded = list(ops), dict(tensors)
    for index in reversed(range(len(remaining))):  # backwards, so that of two scales in a row one is left
        op = remaining[index]
        if not isinstance(op, Scale):
            continue
        if _into_producer(op, remaining, folded) or _into_readers(op, remaining, folded):
            del remaining[index], folded[f"{op.output}.weight"], folded[f"{op.output}.bias"]
            remaining = [_renamed(each, op.output, op.input) for each in remaining]
    return Program(ops=tuple(remaining)), folded


def _into_producer(op: Scale, ops: Sequence[Op], tensors: Tensors) -> bool:
    (producer,) = (each for each in ops if each.output == op.input)
    alone = sum(op.input in op_inputs(each) for each in ops) == 1
    if not alone or not isinstance(producer, Affine | Conv1d | Conv2d | Scale):
        return False
    scale, shift = tensors[f"{op.output}.weight"], tensors[f"{op.output}.bias"]
    weight, bias = f"{producer.output}.weight", f"{producer.output}.bias"
    outputs_first = isinstance(producer, Conv1d | Conv2d)
    factor = scale.reshape(-1, *[1] * (tensors[weight].ndim - 1)) if outputs_first else scale
    tensors[weight] = tensors[weight] * factor
    tensors[bias] = tensors[bias] * scale + shift
    return True


def _into_readers(op: Scale, ops: Sequence[Op], tensors: Tensors) -> bool:
    readers = [each for each in ops if op.output in op_inputs(each)]
    scale, shift = tensors[f"{op.output}.weight"], tensors[f"{op.output}.bias"]
    if not readers or not all(_takes(reader, bool(np.any(shift))) for reader in readers):
        return False
    for reader in readers:
        weight, bias = f"{reader.output}.weight", f"{reader.output}.bias"
        kernel = tensors[weight]
        if isinstance(reader, Conv1d | Conv2d):
            per_channel = (1, -1, *[1] * (kernel.ndim - 2))
            added = (kernel * shift.reshape(per_channel)).sum(axis=tuple(range(1, kernel.ndim)))
            tensors[weight] = kernel * scale.reshape(per_channel)
        else:
            added = shift @ kernel
            tensors[weight] = kernel * scale[:, None]
        tensors[bias] = tensors[bias] + added
    return True


def _takes(reader: Op, shifted: bool) -> bool:
    """Return whether a scale before this operation can be folded into it.

    The zeros around a padded picture are not scaled, so a shift cannot be folded into a padded convolution.
    """
    if isinstance(reader, Conv1d | Conv2d):
        padding = reader.padding if isinstance(reader, Conv2d) else (reader.padding,)
        return not (shifted and any(padding))
    return isinstance(reader, Affine | GruCell | LstmCell)


def _renamed(op: Op, old: str, new: str) -> Op:
    if old not in op_inputs(op):
        return op
    if isinstance(op, Add | Concat):
        return msgspec.structs.replace(op, inputs=tuple(new if name == old else name for name in op.inputs))
    return msgspec.structs.replace(op, input=new)
