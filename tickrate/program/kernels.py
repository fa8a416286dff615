"""Each operation in numpy: makes its arrays once and adds the call that fills them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tickrate.program.cells import gru, lstm, sigmoid
from tickrate.program.compiled import Array, Compiled, Step
from tickrate.program.one_hot import read_one_hot
from tickrate.program.shapes import Shape
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

_ZERO = np.array(0.0, np.float32)
"""An array without axes: numpy takes it faster than Python's number."""


def _channels_last(batch: int, shape: Shape) -> Array:
    """Return an array ``(batch, C, ...)`` in which the channels of one place lie side by side in memory.

    A convolution can then gather whole rows of a patch at once.
    """
    return np.moveaxis(np.empty((batch, *shape[1:], shape[0]), np.float32), -1, 1)


def _read(made: Compiled, op: Read) -> None:
    values, start = made.new(op), 0
    for path in op.leaves:
        shape = made.shapes.leaves[path]
        end = start + math.prod(shape)
        made.copy_leaf(path, values[:, start:end].reshape(made.batch, *shape))
        start = end


def _read_leaf(made: Compiled, op: ReadLeaf) -> None:
    shape = made.shapes.values[op.output]
    value = _channels_last(made.batch, shape)
    made.values[op.output] = value
    axes = op.axes or tuple(range(len(shape)))
    made.copy_leaf(op.leaf, value.transpose(0, *(1 + axes.index(i) for i in range(len(axes)))))
    scale, shift = np.array(op.scale, np.float32), np.array(op.shift, np.float32)
    if op.scale != 1.0:
        made.steps.append(lambda: np.multiply(value, scale, out=value))
    if op.shift != 0.0:
        made.steps.append(lambda: np.add(value, shift, out=value))


def _affine(made: Compiled, op: Affine) -> None:
    x, weight, bias, out = (
        made.values[op.input],
        made.tensor(op, "weight"),
        made.tensor(op, "bias"),
        made.new(op),
    )
    dot, add = np.dot, np.add

    def step() -> None:
        dot(x, weight, out=out)
        add(out, bias, out=out)

    made.steps.append(step)


def _scale(made: Compiled, op: Scale) -> None:
    x, out = made.values[op.input], made.in_place(op, op.input)
    per_channel = (-1, *[1] * (x.ndim - 2))
    weight, bias = (made.tensor(op, name).reshape(per_channel) for name in ("weight", "bias"))

    def step() -> None:
        np.multiply(x, weight, out=out)
        np.add(out, bias, out=out)

    made.steps.append(step)


def _conv2d(made: Compiled, op: Conv2d) -> None:
    _convolve(made, op, op.kernel, op.stride, op.padding)


def _conv1d(made: Compiled, op: Conv1d) -> None:
    _convolve(made, op, (op.kernel,), (op.stride,), (op.padding,))


def _convolve(made: Compiled, op: Conv1d | Conv2d, kernel: Shape, stride: Shape, padding: Shape) -> None:
    """Gather every patch into a row, then do one matrix product; channels are the last axis in here."""
    x = np.moveaxis(made.values[op.input], 1, -1)
    if any(padding):
        size = [n + 2 * p for n, p in zip(x.shape[1:-1], padding, strict=True)]
        padded = np.zeros((made.batch, *size, x.shape[-1]), np.float32)
        inside = padded[:, *(slice(p, n - p) for n, p in zip(size, padding, strict=True))]
        made.steps.append(functools.partial(np.copyto, inside, x))
        x = padded
    windows = sliding_window_view(x, kernel, axis=tuple(range(1, 1 + len(kernel))))[
        :, *(slice(None, None, s) for s in stride)
    ]
    windows = np.moveaxis(windows, 1 + len(kernel), -1)
    patches = np.empty(windows.shape, np.float32)
    out = _channels_last(made.batch, made.shapes.values[op.output])
    made.values[op.output] = out
    weight, bias = made.tensor(op, "weight"), made.tensor(op, "bias")
    matrix = np.ascontiguousarray(np.moveaxis(weight, (0, 1), (-1, -2)).reshape(-1, op.channels))
    rows = patches.reshape(-1, len(matrix))
    products = np.moveaxis(out, 1, -1).reshape(-1, op.channels)

    def step() -> None:
        np.copyto(patches, windows)
        np.dot(rows, matrix, out=products)
        np.add(products, bias, out=products)

    made.steps.append(step)


def _layer_norm(made: Compiled, op: LayerNorm) -> None:
    x, out = made.values[op.input], made.in_place(op, op.input)
    weight, bias = made.tensor(op, "weight"), made.tensor(op, "bias")
    share, eps = np.array(1.0 / x.shape[1], np.float32), np.array(op.eps, np.float32)
    squares, moment = np.empty(x.shape, np.float32), np.empty((made.batch, 1), np.float32)

    def step() -> None:
        np.add.reduce(x, axis=1, keepdims=True, out=moment)
        np.multiply(moment, share, out=moment)
        np.subtract(x, moment, out=out)
        _divide_by_root_mean_square(out, out, squares, moment, share, eps)
        np.multiply(out, weight, out=out)
        np.add(out, bias, out=out)

    made.steps.append(step)


def _rms_norm(made: Compiled, op: RmsNorm) -> None:
    x, out, weight = made.values[op.input], made.in_place(op, op.input), made.tensor(op, "weight")
    share, eps = np.array(1.0 / x.shape[1], np.float32), np.array(op.eps, np.float32)
    squares, moment = np.empty(x.shape, np.float32), np.empty((made.batch, 1), np.float32)

    def step() -> None:
        _divide_by_root_mean_square(x, out, squares, moment, share, eps)
        np.multiply(out, weight, out=out)

    made.steps.append(step)


def _divide_by_root_mean_square(
    x: Array, out: Array, squares: Array, moment: Array, share: NDArray[Any], eps: NDArray[Any]
) -> None:
    np.multiply(x, x, out=squares)
    np.add.reduce(squares, axis=1, keepdims=True, out=moment)
    np.multiply(moment, share, out=moment)
    np.add(moment, eps, out=moment)
    np.sqrt(moment, out=moment)
    np.divide(x, moment, out=out)


def _activation(made: Compiled, op: Activation) -> None:
    x, out = made.values[op.input], made.in_place(op, op.input)
    if op.function == "relu":
        maximum = np.maximum
        made.steps.append(lambda: maximum(x, _ZERO, out=out))
    elif op.function == "tanh":
        tanh = np.tanh
        made.steps.append(lambda: tanh(x, out=out))
    elif op.function == "elu":
        made.steps.append(_elu(x, out))
    else:
        made.steps.append(_silu(x, out))


def _elu(x: Array, out: Array) -> Step:
    below = np.empty_like(x)

    def step() -> None:
        np.minimum(x, _ZERO, out=below)
        np.expm1(below, out=below)
        np.maximum(x, _ZERO, out=out)
        np.add(out, below, out=out)

    return step


def _silu(x: Array, out: Array) -> Step:
    gate = np.empty_like(x)

    def step() -> None:
        np.copyto(gate, x)
        sigmoid(gate)
        np.multiply(x, gate, out=out)

    return step


def _add(made: Compiled, op: Add) -> None:
    left, right = (made.values[name] for name in op.inputs)
    out = made.in_place(op, op.inputs[0])
    made.steps.append(lambda: np.add(left, right, out=out))


def _concat(made: Compiled, op: Concat) -> None:
    parts, out = [made.values[name] for name in op.inputs], made.new(op)
    made.steps.append(lambda: np.concatenate(parts, axis=1, out=out))


def _reshape(made: Compiled, op: Reshape) -> None:
    x = made.values[op.input]
    if x.flags.c_contiguous and made.may_overwrite(op.input):
        made.values[op.output] = x.reshape(made.batch, *op.shape)
        return
    target = made.new(op).reshape(x.shape)
    made.steps.append(lambda: np.copyto(target, x))


def _expected(made: Compiled, op: ExpectedValue) -> None:
    out = made.new(op)
    logits = made.values[op.input].reshape(made.batch, -1, op.atoms)
    support = np.linspace(op.low, op.high, op.atoms, dtype=np.float64).astype(np.float32)
    weights = np.empty(logits.shape, np.float32)
    top = np.empty((*out.shape, 1), np.float32)
    total = top[..., 0]

    def step() -> None:
        np.maximum.reduce(logits, axis=2, keepdims=True, out=top)
        np.subtract(logits, top, out=weights)
        np.exp(weights, out=weights)
        np.add.reduce(weights, axis=2, out=total)
        np.dot(weights, support, out=out)
        np.divide(out, total, out=out)

    made.steps.append(step)


KERNELS: dict[type, Callable[[Compiled, Any], None]] = {
    Read: _read,
    ReadLeaf: _read_leaf,
    ReadOneHot: read_one_hot,
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
    GruCell: gru,
    LstmCell: lstm,
}
