"""Checks a program before it runs: names, limits, and the shape of every value, tensor and state."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import PolicyError
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

Shape = tuple[int, ...]

MAX_OPS = 1024
"""Most operations of a program."""

MAX_SIZE = 1 << 22
"""Most numbers of one value, for one observation."""

MAX_AXES = 16
"""Most axes of a value."""

MAX_MEMORY = 1 << 26
"""Most numbers in all values and patches of a program together, for one observation: 256 MiB."""

MAX_WEIGHTS = 1 << 26
"""Most numbers in the tensors of one operation: 256 MiB."""

MAX_WORK = 1 << 33
"""Most multiply-adds of a forward pass for one observation: a second or so of one core."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")

NOISE = "noise"
"""A state of this name belongs to the exploration; no cell may take it."""


@dataclass
class Shapes:
    """What a checked program consists of; shapes are without the batch axis.

    Attributes:
        values: each value.
        tensors: each tensor, in the order of the operations; all are float32.
        states: each recurrent state.
        leaves: each leaf that is read.
        memory: numbers in all values, and in the patches that convolutions gather.
        work: multiply-adds, and one for each number that any other operation makes.
    """

    values: dict[str, Shape] = field(default_factory=dict)
    tensors: dict[str, Shape] = field(default_factory=dict)
    states: dict[str, Shape] = field(default_factory=dict)
    leaves: dict[str, Shape] = field(default_factory=dict)
    memory: int = 0
    work: int = 0


def check_program(program: Program, leaves: Mapping[str, Shape]) -> Shapes:
    """Return the shapes of a program, each operation checked with the ones before it.

    Args:
        program: the operations.
        leaves: shape of every leaf of the observation that it may read.

    Raises:
        PolicyError: naming the operation that cannot be, and why.
    """
    if not 1 <= len(program.ops) <= MAX_OPS:
        raise PolicyError(f"a program of {len(program.ops)} operations: possible are 1 to {MAX_OPS}")
    shapes, unread = Shapes(leaves=dict(leaves)), set[str]()
    read: dict[str, Shape] = {}
    for index, op in enumerate(program.ops):
        checker = _Checker(index, op, shapes, read)
        checker.check()
        unread.difference_update(op_inputs(op))
        unread.add(op.output)
    unread.discard(program.output)
    if unread:
        raise PolicyError(f"program values {sorted(unread)}: made, but nothing reads them")
    shapes.leaves = read
    return shapes


def check_tensors(shapes: Shapes, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Check that tensors have exactly the names, dtypes and shapes of a program, and are finite.

    Raises:
        PolicyError: naming the tensor.
    """
    expected = shapes.tensors
    if tensors.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
        raise PolicyError(f"policy tensors: missing {missing}, unexpected {extra}")
    for name, shape in expected.items():
        value = tensors[name]
        if value.shape != shape or value.dtype != np.float32:
            raise PolicyError(
                f"tensor {name!r} is {value.dtype}{list(value.shape)}, expected float32{list(shape)}"
            )
        if not np.isfinite(value).all():
            raise PolicyError(f"tensor {name!r} holds values that are not finite: training has diverged")


class _Checker:
    """Checks one operation and writes down what it makes."""

    def __init__(self, index: int, op: Op, shapes: Shapes, read: dict[str, Shape]) -> None:
        self.index, self.op, self.shapes, self.read = index, op, shapes, read

    def refuse(self, why: str) -> NoReturn:
        tag = type(self.op).__struct_config__.tag
        raise PolicyError(f"program, operation {self.index} ({tag} -> {self.op.output[:80]!r}): {why}")

    def check(self) -> None:
        """Infer the shape of the operation's value; check it and the totals."""
        op, shapes = self.op, self.shapes
        self.name(op.output, "value")
        if op.output in shapes.values:
            self.refuse("a value of this name is made already")
        shape = _RULES[type(op)](self, op)
        if not 1 <= len(shape) <= MAX_AXES or any(n < 1 for n in shape) or math.prod(shape) > MAX_SIZE:
            self.refuse(f"its value has the impossible shape {list(shape)[:MAX_AXES]}")
        size = math.prod(shape)
        shapes.values[op.output] = shape
        self.spend(work=size, memory=size)

    def spend(self, *, work: int, memory: int) -> None:
        self.shapes.work += work
        self.shapes.memory += memory
        if self.shapes.work > MAX_WORK:
            self.refuse(
                f"with it the program makes {self.shapes.work} multiply-adds, possible are {MAX_WORK}"
            )
        if self.shapes.memory > MAX_MEMORY:
            self.refuse(f"with it the values are {self.shapes.memory} numbers, possible are {MAX_MEMORY}")

    def name(self, name: str, what: str) -> None:
        if not _NAME.fullmatch(name):
            self.refuse(f"{name[:80]!r} is no name for a {what}: letters, digits, _ . and -, at most 64")

    def value(self, name: str, axes: int | None = None) -> Shape:
        """Return the shape of a value that was made before, with this number of axes if given."""
        if name not in self.shapes.values:
            self.refuse(f"it reads {name[:80]!r}, which no operation before it makes")
        shape = self.shapes.values[name]
        if axes is not None and len(shape) != axes:
            self.refuse(f"it reads {name!r} of shape {list(shape)}, it needs {axes} axes")
        return shape

    def positive(self, **numbers: int) -> None:
        for name, number in numbers.items():
            if not 1 <= number <= MAX_SIZE:
                self.refuse(f"{name} is {number}: possible are 1 to {MAX_SIZE}")

    def tensors(self, **shapes: Shape) -> None:
        for name, shape in shapes.items():
            self.shapes.tensors[f"{self.op.output}.{name}"] = shape
        total = sum(math.prod(shape) for shape in shapes.values())
        if total > MAX_WEIGHTS:
            self.refuse(f"its tensors have {total} numbers, possible are {MAX_WEIGHTS}")

    def state(self, name: str, units: int) -> None:
        self.name(name, "state")
        if name == NOISE or name in self.shapes.states:
            self.refuse(f"a state named {name!r} is there already")
        self.shapes.states[name] = (units,)

    def leaf(self, path: str) -> Shape:
        if path not in self.shapes.leaves:
            self.refuse(f"it reads the leaf {path[:80]!r}, it may read {list(self.shapes.leaves)}")
        self.read[path] = self.shapes.leaves[path]
        return self.shapes.leaves[path]

    def number(self, name: str, value: float) -> None:
        if not (math.isfinite(value) and abs(value) < 1e30):
            self.refuse(f"{name} is {value}: it must be finite in float32")


def _read(check: _Checker, op: Read) -> Shape:
    if not 1 <= len(op.leaves) <= MAX_OPS or len(set(op.leaves)) != len(op.leaves):
        check.refuse(f"it must read at least one leaf, and each once; it reads {list(op.leaves)[:16]}")
    return (sum(math.prod(check.leaf(path)) for path in op.leaves),)


def _read_leaf(check: _Checker, op: ReadLeaf) -> Shape:
    shape = check.leaf(op.leaf)
    check.number("scale", op.scale)
    check.number("shift", op.shift)
    if not op.axes:
        return shape
    if sorted(op.axes) != list(range(len(shape))):
        check.refuse(f"axes {list(op.axes)[:MAX_AXES]} are no order of the {len(shape)} axes of {op.leaf!r}")
    return tuple(shape[axis] for axis in op.axes)


def _affine(check: _Checker, op: Affine) -> Shape:
    (inputs,) = check.value(op.input, 1)
    check.positive(units=op.units)
    check.tensors(weight=(inputs, op.units), bias=(op.units,))
    check.spend(work=inputs * op.units, memory=0)
    return (op.units,)


def _scale(check: _Checker, op: Scale) -> Shape:
    shape = check.value(op.input)
    check.tensors(weight=shape[:1], bias=shape[:1])
    return shape


def _conv2d(check: _Checker, op: Conv2d) -> Shape:
    channels, *size = check.value(op.input, 3)
    return _convolve(check, op.channels, channels, tuple(size), op.kernel, op.stride, op.padding)


def _conv1d(check: _Checker, op: Conv1d) -> Shape:
    channels, length = check.value(op.input, 2)
    return _convolve(check, op.channels, channels, (length,), (op.kernel,), (op.stride,), (op.padding,))


def _convolve(
    check: _Checker, channels: int, inputs: int, size: Shape, kernel: Shape, stride: Shape, padding: Shape
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


def _layer_norm(check: _Checker, op: LayerNorm) -> Shape:
    shape = check.value(op.input, 1)
    _positive_eps(check, op.eps)
    check.tensors(weight=shape, bias=shape)
    return shape


def _rms_norm(check: _Checker, op: RmsNorm) -> Shape:
    shape = check.value(op.input, 1)
    _positive_eps(check, op.eps)
    check.tensors(weight=shape)
    return shape


def _positive_eps(check: _Checker, eps: float) -> None:
    if not 1e-12 <= eps <= 1.0:
        check.refuse(f"eps is {eps}: possible are 1e-12 to 1")


def _activation(check: _Checker, op: Activation) -> Shape:
    return check.value(op.input)


def _add(check: _Checker, op: Add) -> Shape:
    left, right = (check.value(name) for name in op.inputs)
    if left != right:
        check.refuse(f"it adds the shapes {list(left)} and {list(right)}")
    return left


def _concat(check: _Checker, op: Concat) -> Shape:
    if not 1 <= len(op.inputs) <= MAX_OPS:
        check.refuse(f"it joins {len(op.inputs)} values")
    return (sum(check.value(name, 1)[0] for name in op.inputs),)


def _reshape(check: _Checker, op: Reshape) -> Shape:
    shape = check.value(op.input)
    possible = len(op.shape) <= MAX_AXES and all(1 <= n <= MAX_SIZE for n in op.shape)
    if not possible or math.prod(op.shape) != math.prod(shape):
        check.refuse(f"{list(shape)} cannot take the shape {list(op.shape)[:MAX_AXES]}")
    return op.shape


def _expected(check: _Checker, op: ExpectedValue) -> Shape:
    (size,) = check.value(op.input, 1)
    check.number("low", op.low)
    check.number("high", op.high)
    if op.low >= op.high:
        check.refuse(f"the values go from {op.low} to {op.high}: low must be below high")
    if not 2 <= op.atoms <= size or size % op.atoms:
        check.refuse(f"{size} logits are no distributions of {op.atoms} atoms (at least 2)")
    check.spend(work=4 * size, memory=size)
    return (size // op.atoms,)


def _gru(check: _Checker, op: GruCell) -> Shape:
    (inputs,) = check.value(op.input, 1)
    _cell(check, inputs, op.units, gates=3)
    gates = 3 * op.units
    check.tensors(weight=(inputs, gates), bias=(gates,), state_weight=(op.units, gates), state_bias=(gates,))
    check.state(op.state, op.units)
    return (op.units,)


def _lstm(check: _Checker, op: LstmCell) -> Shape:
    (inputs,) = check.value(op.input, 1)
    _cell(check, inputs, op.units, gates=4)
    gates = 4 * op.units
    check.tensors(weight=(inputs, gates), state_weight=(op.units, gates), bias=(gates,))
    check.state(op.state, op.units)
    check.state(op.cell, op.units)
    return (op.units,)


def _cell(check: _Checker, inputs: int, units: int, gates: int) -> None:
    check.positive(units=units)
    check.spend(work=(inputs + units) * gates * units, memory=2 * gates * units)


_RULES: dict[type, Callable[[_Checker, Any], Shape]] = {
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
