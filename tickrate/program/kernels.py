"""Each operation in numpy: makes its arrays once and adds the call that fills them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tickrate.program.checking import Shape, Shapes
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
    Op,
    Program,
    Read,
    ReadLeaf,
    Reshape,
    RmsNorm,
    Scale,
    op_inputs,
)

Array = NDArray[np.float32]
Step = Callable[[], Any]

# Arrays without axes: numpy takes them faster than Python's numbers.
_ZERO, _HALF, _ONE = (np.array(value, np.float32) for value in (0.0, 0.5, 1.0))


class Compiled:
    """The arrays and calls of a program for one batch size.

    Args:
        program: the operations, checked.
        shapes: what `check_program` said about them.
        tensors: their tensors, checked.
        batch: the batch size.

    Attributes:
        values: the array of each value, ``(batch, *shape)``.
        copies: path, shape and place of each leaf that is read.
        states: by name, the arrays for the state before the run and for the one after it.
        steps: the calls in their order.
    """

    def __init__(self, program: Program, shapes: Shapes, tensors: Mapping[str, Array], batch: int) -> None:
        self.batch, self.shapes, self._tensors = batch, shapes, tensors
        self.values: dict[str, Array] = {}
        self.copies: list[tuple[str, Shape, Array]] = []
        self.states: dict[str, tuple[Array, Array]] = {}
        self.steps: list[Step] = []
        self._readers = {program.output: 1}
        for op in program.ops:
            for name in op_inputs(op):
                self._readers[name] = self._readers.get(name, 0) + 1
        for op in program.ops:
            _KERNELS[type(op)](self, op)

    def new(self, op: Op) -> Array:
        """Return a fresh array for an operation's value."""
        array = np.empty((self.batch, *self.shapes.values[op.output]), np.float32)
        self.values[op.output] = array
        return array

    def in_place(self, op: Op, name: str) -> Array:
        """Return an array for a value shaped like ``name``: the same one if it may be overwritten."""
        array = self.values[name]
        if not self.may_overwrite(name):
            array = np.empty_like(array)
        self.values[op.output] = array
        return array

    def may_overwrite(self, name: str) -> bool:
        """Return whether a value has one reader and is no recurrent state."""
        array = self.values[name]
        return self._readers[name] == 1 and not any(array is after for _, after in self.states.values())

    def tensor(self, op: Op, name: str) -> Array:
        """Return a tensor of an operation."""
        return self._tensors[f"{op.output}.{name}"]

    def copy_leaf(self, path: str, target: Array) -> None:
        """Let a leaf be copied into this array before each run."""
        self.copies.append((path, (self.batch, *self.shapes.leaves[path]), target))

    def new_state(self, name: str) -> tuple[Array, Array]:
        """Return arrays for a state before and after the run."""
        shape = (self.batch, *self.shapes.states[name])
        self.states[name] = np.empty(shape, np.float32), np.empty(shape, np.float32)
        return self.states[name]


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
    space = range(1, 1 + len(kernel))
    x = np.moveaxis(made.values[op.input], 1, -1)
    if any(padding):
        size = [n + 2 * p for n, p in zip(x.shape[1:-1], padding, strict=True)]
        padded = np.zeros((made.batch, *size, x.shape[-1]), np.float32)
        inside = padded[:, *(slice(p, n - p) for n, p in zip(size, padding, strict=True))]
        made.steps.append(functools.partial(np.copyto, inside, x))
        x = padded
    windows = sliding_window_view(x, kernel, axis=tuple(space))[:, *(slice(None, None, s) for s in stride)]
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
        _sigmoid(gate)
        np.multiply(x, gate, out=out)

    return step


def _sigmoid(x: Array) -> None:
    """Replace x by ``1 / (1 + exp(-x)) = (tanh(x / 2) + 1) / 2``, which overflows nowhere."""
    np.multiply(x, _HALF, out=x)
    np.tanh(x, out=x)
    np.add(x, _ONE, out=x)
    np.multiply(x, _HALF, out=x)


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


def _gru(made: Compiled, op: GruCell) -> None:
    x, units = made.values[op.input], op.units
    before, after = made.new_state(op.state)
    made.values[op.output] = after
    weight, bias = made.tensor(op, "weight"), made.tensor(op, "bias")
    state_weight, state_bias = made.tensor(op, "state_weight"), made.tensor(op, "state_bias")
    new, old = (np.empty((made.batch, 3 * units), np.float32) for _ in range(2))
    reset, keep = new[:, :units], new[:, units : 2 * units]
    gates, candidate, recurrent = new[:, : 2 * units], new[:, 2 * units :], old[:, 2 * units :]
    old_gates = old[:, : 2 * units]

    def step() -> None:
        np.dot(x, weight, out=new)
        np.add(new, bias, out=new)
        np.dot(before, state_weight, out=old)
        np.add(old, state_bias, out=old)
        np.add(gates, old_gates, out=gates)
        _sigmoid(gates)
        np.multiply(recurrent, reset, out=recurrent)
        np.add(candidate, recurrent, out=candidate)
        np.tanh(candidate, out=candidate)
        np.subtract(before, candidate, out=after)
        np.multiply(after, keep, out=after)
        np.add(after, candidate, out=after)

    made.steps.append(step)


def _lstm(made: Compiled, op: LstmCell) -> None:
    x, units = made.values[op.input], op.units
    before, after = made.new_state(op.state)
    cell_before, cell_after = made.new_state(op.cell)
    made.values[op.output] = after
    weight, state_weight, bias = (made.tensor(op, name) for name in ("weight", "state_weight", "bias"))
    gates, recurrent = (np.empty((made.batch, 4 * units), np.float32) for _ in range(2))
    enter, forget, candidate, leave = (gates[:, i * units : (i + 1) * units] for i in range(4))

    def step() -> None:
        np.dot(x, weight, out=gates)
        np.dot(before, state_weight, out=recurrent)
        np.add(gates, recurrent, out=gates)
        np.add(gates, bias, out=gates)
        for gate in (enter, forget, leave):
            _sigmoid(gate)
        np.tanh(candidate, out=candidate)
        np.multiply(cell_before, forget, out=cell_after)
        np.multiply(enter, candidate, out=candidate)
        np.add(cell_after, candidate, out=cell_after)
        np.tanh(cell_after, out=after)
        np.multiply(after, leave, out=after)

    made.steps.append(step)


_KERNELS: dict[type, Callable[[Compiled, Any], None]] = {
    Read: _read,
    ReadLeaf: _read_leaf,
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
