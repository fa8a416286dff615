"""The rule of each operation: what it needs, and the shape of the value and tensors that follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tickrate.program.shapes import (
    MAX_AXES,
    MAX_CATEGORY,
    MAX_COLUMNS,
    MAX_OPS,
    MAX_SIZE,
    Checker,
    Shape,
)
from tickrate.program.spec import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv1d,
    Conv2d,
    ExpectedValue,
    GruCell,
    LayerNorm,
    LstmCell,
    Read,
    ReadLeaf,
    ReadOneHot,
    Reshape,
    RmsNorm,
    Scale,
)


def _read(check: Checker, op: Read) -> Shape:
    if not 1 <= len(op.leaves) <= MAX_OPS or len(set(op.leaves)) != len(op.leaves):
        check.refuse(f"it must read at least one leaf, and each once; it reads {list(op.leaves)[:16]}")
    return (sum(math.prod(check.leaf(path)) for path in op.leaves),)


def _read_leaf(check: Checker, op: ReadLeaf) -> Shape:
    shape = check.leaf(op.leaf)
    check.number("scale", op.scale)
    check.number("shift", op.shift)
    if not op.axes:
        return shape
    if sorted(op.axes) != list(range(len(shape))):
        check.refuse(f"axes {list(op.axes)[:MAX_AXES]} are no order of the {len(shape)} axes of {op.leaf!r}")
    return tuple(shape[axis] for axis in op.axes)


def _read_one_hot(check: Checker, op: ReadOneHot) -> Shape:
    parts = math.prod(check.leaf(op.leaf))
    if not len(op.lowest) == len(op.counts) == parts:
        check.refuse(
            f"the leaf {op.leaf!r} has {parts} parts, there are {len(op.lowest)} lowest categories "
            f"and {len(op.counts)} counts"
        )
    columns = sum(op.counts)
    if any(n < 1 for n in op.counts) or columns > MAX_COLUMNS:
        check.refuse(
            f"counts {list(op.counts[:MAX_AXES])}: at least 1 each, at most {MAX_COLUMNS} columns in all"
        )
    if any(abs(low) > MAX_CATEGORY for low in op.lowest):
        check.refuse(f"lowest {list(op.lowest[:MAX_AXES])}: possible are -{MAX_CATEGORY} to {MAX_CATEGORY}")
    check.spend(work=columns, memory=2 * (parts + columns))
    return (columns,)


def _affine(check: Checker, op: Affine) -> Shape:
    (inputs,) = check.value(op.input, 1)
    check.positive(units=op.units)
    check.tensors(weight=(inputs, op.units), bias=(op.units,))
    check.spend(work=inputs * op.units, memory=0)
    return (op.units,)


def _scale(check: Checker, op: Scale) -> Shape:
    shape = check.value(op.input)
    check.tensors(weight=shape[:1], bias=shape[:1])
    return shape


def _conv2d(check: Checker, op: Conv2d) -> Shape:
    channels, *size = check.value(op.input, 3)
    return _convolve(check, op.channels, channels, tuple(size), op.kernel, op.stride, op.padding)


def _conv1d(check: Checker, op: Conv1d) -> Shape:
    channels, length = check.value(op.input, 2)
    return _convolve(check, op.channels, channels, (length,), (op.kernel,), (op.stride,), (op.padding,))


def _convolve(
    check: Checker, channels: int, inputs: int, size: Shape, kernel: Shape, stride: Shape, padding: Shape
) -> Shape:
    check.positive(channels=channels)
    out = []
    for n, k, s, p in zip(size, kernel, stride, padding, strict=True):
        check.positive(kernel=k, stride=s)
        if not 0 <= p < k:
            check.refuse(f"padding {p} with a kernel of {k}: possible are 0 to {k - 1}")
        if n + 2 * p < k:
            check.refuse(f"a kernel of {k} does not fit into {n} with a padding of {p}")
        out.append((n + 2 * p - k) // s + 1)
    check.tensors(weight=(channels, inputs, *kernel), bias=(channels,))
    patch = inputs * math.prod(kernel)
    padded = inputs * math.prod(n + 2 * p for n, p in zip(size, padding, strict=True)) if any(padding) else 0
    check.spend(work=channels * patch * math.prod(out), memory=patch * math.prod(out) + padded)
    return (channels, *out)


def _layer_norm(check: Checker, op: LayerNorm) -> Shape:
    shape = check.value(op.input, 1)
    _positive_eps(check, op.eps)
    check.tensors(weight=shape, bias=shape)
    return shape


def _rms_norm(check: Checker, op: RmsNorm) -> Shape:
    shape = check.value(op.input, 1)
    _positive_eps(check, op.eps)
    check.tensors(weight=shape)
    return shape


def _positive_eps(check: Checker, eps: float) -> None:
    if not 1e-12 <= eps <= 1.0:
        check.refuse(f"eps is {eps}: possible are 1e-12 to 1")


def _activation(check: Checker, op: Activation) -> Shape:
    return check.value(op.input)


def _add(check: Checker, op: Add) -> Shape:
    left, right = (check.value(name) for name in op.inputs)
    if left != right:
        check.refuse(f"it adds the shapes {list(left)} and {list(right)}")
    return left


def _concat(check: Checker, op: Concat) -> Shape:
    if not 1 <= len(op.inputs) <= MAX_OPS:
        check.refuse(f"it joins {len(op.inputs)} values")
    return (sum(check.value(name, 1)[0] for name in op.inputs),)


def _reshape(check: Checker, op: Reshape) -> Shape:
    shape = check.value(op.input)
    possible = len(op.shape) <= MAX_AXES and all(1 <= n <= MAX_SIZE for n in op.shape)
    if not possible or math.prod(op.shape) != math.prod(shape):
        check.refuse(f"{list(shape)} cannot take the shape {list(op.shape)[:MAX_AXES]}")
    return op.shape


def _expected(check: Checker, op: ExpectedValue) -> Shape:
    (size,) = check.value(op.input, 1)
    check.number("low", op.low)
    check.number("high", op.high)
    if op.low >= op.high:
        check.refuse(f"the values go from {op.low} to {op.high}: low must be below high")
    if not 2 <= op.atoms <= size or size % op.atoms:
        check.refuse(f"{size} logits are no distributions of {op.atoms} atoms (at least 2)")
    check.spend(work=4 * size, memory=size)
    return (size // op.atoms,)


def _gru(check: Checker, op: GruCell) -> Shape:
    (inputs,) = check.value(op.input, 1)
    _cell(check, inputs, op.units, gates=3)
    gates = 3 * op.units
    check.tensors(weight=(inputs, gates), bias=(gates,), state_weight=(op.units, gates), state_bias=(gates,))
    check.state(op.state, op.units)
    return (op.units,)


def _lstm(check: Checker, op: LstmCell) -> Shape:
    (inputs,) = check.value(op.input, 1)
    _cell(check, inputs, op.units, gates=4)
    gates = 4 * op.units
    check.tensors(weight=(inputs, gates), state_weight=(op.units, gates), bias=(gates,))
    check.state(op.state, op.units)
    check.state(op.cell, op.units)
    return (op.units,)


def _cell(check: Checker, inputs: int, units: int, gates: int) -> None:
    check.positive(units=units)
    check.spend(work=(inputs + units) * gates * units, memory=2 * gates * units)


RULES: dict[type, Callable[[Checker, Any], Shape]] = {
    Read: _read,
    ReadLeaf: _read_leaf,
    ReadOneHot: _read_one_hot,
    Affine: _affine,
    Scale: _scale,
    Conv2d: _conv2d,
    Conv1d: _conv1d,
    LayerNorm: _layer_norm,
    RmsNorm: _rms_norm,
    Activation: _activation,
    Add: _add,
    Concat: _concat,
    Reshape: _reshape,
    ExpectedValue: _expected,
    GruCell: _gru,
    LstmCell: _lstm,
}
