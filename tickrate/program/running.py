"""Runs a checked program in numpy, on arrays that are made once for each batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import PolicyMismatch
from tickrate.program.compiled import Array, Compiled
from tickrate.program.kernels import KERNELS
from tickrate.program.shapes import Shapes
from tickrate.program.spec import Program


class Runner:
    """A program with its tensors, ready to run; one object serves one thread.

    Args:
        program: the operations.
        shapes: what `check_program` said about them.
        tensors: what `check_tensors` found good.
    """

    def __init__(self, program: Program, shapes: Shapes, tensors: Mapping[str, Array]) -> None:
        self.program, self.shapes, self._tensors = program, shapes, tensors
        self._first = next(iter(shapes.leaves))
        self._compiled = self._compile(1)
        self._output = self._compiled.values[program.output]

    def initial_state(self, batch: int) -> dict[str, Array]:
        """Return the state at the start of an episode: zeros, ``(batch, units)`` by name."""
        return {name: np.zeros((batch, *shape), np.float32) for name, shape in self.shapes.states.items()}

    def run(
        self, observation: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]
    ) -> tuple[Array, dict[str, Array]]:
        """Run all operations once.

        Args:
            observation: leaves by path, each ``(batch, *leaf)``, of any number type; more are left alone.
            state: every recurrent state, ``(batch, units)``; more are left alone.

        Returns:
            The program's output, ``(batch, *shape)``, overwritten by the next call; and the next recurrent
            states in arrays of their own.

        Raises:
            PolicyMismatch: if a leaf or a state is missing or has another shape, or a leaf that is read as
                one-hot holds what is none of its categories; names it.
        """
        made = self._compiled
        first = observation.get(self._first)
        if first is not None and first.ndim and len(first) != made.batch:
            made = self._compiled = self._compile(len(first))
            self._output = made.values[self.program.output]
        for path, shape, target in made.copies:
            leaf = observation.get(path)
            if leaf is None:
                raise PolicyMismatch(f"the policy reads leaf {path!r}, given are {list(observation)}")
            if leaf.shape != shape:
                raise PolicyMismatch(f"leaf {path!r} has shape {leaf.shape}, expected {shape}")
            target[...] = leaf
        if made.states:
            _enter(made, state)
        for step in made.steps:
            step()
        return self._output, {name: after.copy() for name, (_, after) in made.states.items()}

    def _compile(self, batch: int) -> Compiled:
        made = Compiled(self.program, self.shapes, self._tensors, batch)
        for op in self.program.ops:
            KERNELS[type(op)](made, op)
        return made


def _enter(made: Compiled, state: Mapping[str, NDArray[Any]]) -> None:
    for name, (before, _) in made.states.items():
        value = state.get(name)
        if value is None:
            raise PolicyMismatch(f"the policy carries the state {name!r}, given are {list(state)}")
        if value.shape != before.shape:
            raise PolicyMismatch(f"state {name!r} has shape {value.shape}, expected {before.shape}")
        before[...] = value
