"""The limits of programs, and the checker of one operation that infers shapes and counts against them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tickrate.errors import PolicyError
from tickrate.program.spec import Op

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

MAX_COLUMNS = 1 << 16
"""Most columns that the categories of one leaf may take as one-hot."""

MAX_CATEGORY = 1 << 52
"""Largest absolute value of a lowest category: all categories are then exact in float64."""

NOISE, NOISE_LEFT = "noise", "noise_left"
"""States of these names belong to the exploration; no cell may take them."""


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


class Checker:
    """Checks one operation and writes down what it makes.

    Args:
        index: its place in the program, for messages.
        op: the operation.
        shapes: what was found out before it; added to.
        read: the leaves that were read; added to.
    """

    def __init__(self, index: int, op: Op, shapes: Shapes, read: dict[str, Shape]) -> None:
        self.index, self.op, self.shapes, self.read = index, op, shapes, read

    def refuse(self, why: str) -> NoReturn:
        """Raise the error that names the operation."""
        tag = type(self.op).__struct_config__.tag
        raise PolicyError(f"program, operation {self.index} ({tag} -> {self.op.output[:80]!r}): {why}")

    def check(self, rule: Callable[[Checker, Any], Shape]) -> None:
        """Infer the shape of the operation's value by the rule of its kind; check it and the totals."""
        op, shapes = self.op, self.shapes
        self.name(op.output, "value")
        if op.output in shapes.values:
            self.refuse("a value of this name is made already")
        shape = rule(self, op)
        if not 1 <= len(shape) <= MAX_AXES or any(n < 1 for n in shape) or math.prod(shape) > MAX_SIZE:
            self.refuse(f"its value has the impossible shape {list(shape)[:MAX_AXES]}")
        size = math.prod(shape)
        shapes.values[op.output] = shape
        self.spend(work=size, memory=size)

    def spend(self, *, work: int, memory: int) -> None:
        """Count work and memory; refuse what is too much."""
        self.shapes.work += work
        self.shapes.memory += memory
        if self.shapes.work > MAX_WORK:
            self.refuse(
                f"with it the program makes {self.shapes.work} multiply-adds, possible are {MAX_WORK}"
            )
        if self.shapes.memory > MAX_MEMORY:
            self.refuse(f"with it the values are {self.shapes.memory} numbers, possible are {MAX_MEMORY}")

    def name(self, name: str, what: str) -> None:
        """Check that a name is one."""
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
        """Check sizes, given by name."""
        for name, number in numbers.items():
            if not 1 <= number <= MAX_SIZE:
                self.refuse(f"{name} is {number}: possible are 1 to {MAX_SIZE}")

    def tensors(self, **shapes: Shape) -> None:
        """Note the operation's tensors."""
        for name, shape in shapes.items():
            self.shapes.tensors[f"{self.op.output}.{name}"] = shape
        total = sum(math.prod(shape) for shape in shapes.values())
        if total > MAX_WEIGHTS:
            self.refuse(f"its tensors have {total} numbers, possible are {MAX_WEIGHTS}")

    def state(self, name: str, units: int) -> None:
        """Note a recurrent state."""
        self.name(name, "state")
        if name in (NOISE, NOISE_LEFT) or name in self.shapes.states:
            self.refuse(f"a state named {name!r} is there already")
        self.shapes.states[name] = (units,)

    def leaf(self, path: str) -> Shape:
        """Note that a leaf is read; return its shape."""
        if path not in self.shapes.leaves:
            self.refuse(f"it reads the leaf {path[:80]!r}, it may read {list(self.shapes.leaves)}")
        self.read[path] = self.shapes.leaves[path]
        return self.shapes.leaves[path]

    def number(self, name: str, value: float) -> None:
        """Check a number that enters the arithmetic."""
        if not (math.isfinite(value) and abs(value) < 1e30):
            self.refuse(f"{name} is {value}: it must be finite in float32")
