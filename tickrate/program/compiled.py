"""What running a program needs, made once for a batch size: arrays, and the calls that fill them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.program.shapes import Shape, Shapes
from tickrate.program.spec import Op, Program, op_inputs

Array = NDArray[np.float32]
Step = Callable[[], Any]


class Compiled:
    """The arrays and calls of a program for one batch size, filled by its operations' kernels in order.

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
        self.copies: list[tuple[str, Shape, NDArray[Any]]] = []
        self.states: dict[str, tuple[Array, Array]] = {}
        self.steps: list[Step] = []
        self._readers = {program.output: 1}
        for op in program.ops:
            for name in op_inputs(op):
                self._readers[name] = self._readers.get(name, 0) + 1

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

    def copy_leaf(self, path: str, target: NDArray[Any]) -> None:
        """Let a leaf be copied into this array before each run."""
        self.copies.append((path, (self.batch, *self.shapes.leaves[path]), target))

    def new_state(self, name: str) -> tuple[Array, Array]:
        """Return arrays for a state before and after the run."""
        shape = (self.batch, *self.shapes.states[name])
        self.states[name] = np.empty(shape, np.float32), np.empty(shape, np.float32)
        return self.states[name]
