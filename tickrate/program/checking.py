"""Checks a program before it runs: names, limits, and the shape of every value, tensor and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import PolicyError
from tickrate.program.rules import RULES
from tickrate.program.shapes import MAX_OPS, Checker, Shape, Shapes
from tickrate.program.spec import Program, op_inputs


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
        Checker(index, op, shapes, read).check(RULES[type(op)])
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
