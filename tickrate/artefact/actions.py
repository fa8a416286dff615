"""The action spaces that a policy can have, as they stand in its contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from gymnasium import spaces

from tickrate.errors import PolicyError

MAX_SIZE = 1 << 20
"""Most numbers of a leaf and of an action, and most choices of a discrete one."""

MAX_AXES = 16
"""Most axes of a leaf and of an action."""


class BoxAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="box"):
    """A finite box of floats, its bounds flattened in C order."""

    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of values in an action."""
        return math.prod(self.shape)


class DiscreteAction(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="discrete"
):
    """One of ``n`` choices: the whole numbers from ``start``."""

    dtype: str
    n: int
    start: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """A single number has no axes."""
        return ()

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each part; there is one part."""
        return (self.n,)

    @property
    def starts(self) -> tuple[int, ...]:
        """First choice of each part."""
        return (self.start,)


class MultiDiscreteAction(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="multi_discrete"
):
    """One choice for each part, the parts flattened in C order."""

    dtype: str
    shape: tuple[int, ...]
    choices: tuple[int, ...]
    """Number of choices of each part (``nvec``)."""
    starts: tuple[int, ...]
    """First choice of each part."""


ActionSpec = BoxAction | DiscreteAction | MultiDiscreteAction


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """Return the contract's description of an action space.

    Raises:
        PolicyError: if it is no Box, Discrete or MultiDiscrete.
    """
    if isinstance(space, spaces.Box):
        return BoxAction(
            dtype=np.dtype(space.dtype).name,
            shape=_ints(space.shape),
            low=tuple(float(x) for x in space.low.reshape(-1)),
            high=tuple(float(x) for x in space.high.reshape(-1)),
        )
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(dtype=np.dtype(space.dtype).name, n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteAction(
            dtype=np.dtype(space.dtype).name,
            shape=_ints(space.shape),
            choices=_ints(space.nvec.reshape(-1)),
            starts=_ints(space.start.reshape(-1)),
        )
    raise PolicyError(
        f"the action space is a {type(space).__name__}: a policy acts in a Box, a Discrete or a MultiDiscrete"
    )


def check_action(action: ActionSpec) -> None:
    """Check that an action space is possible.

    Raises:
        PolicyError: naming the part that cannot be.
    """
    if not possible_shape(action.shape):
        raise PolicyError(f"action has the impossible shape {action.shape[:MAX_AXES]}")
    dtype = number_dtype(action.dtype, "action")
    if isinstance(action, BoxAction):
        if dtype.kind != "f":
            raise PolicyError(f"action dtype {action.dtype}: a Box of floating point numbers is possible")
        _check_bounds(action)
    else:
        if dtype.kind not in "iu":
            raise PolicyError(f"action dtype {action.dtype}: choices are whole numbers")
        _check_choices(action, dtype)


def possible_shape(shape: tuple[int, ...]) -> bool:
    """Return whether a leaf or an action may have this shape."""
    return len(shape) <= MAX_AXES and all(n >= 1 for n in shape) and math.prod(shape) <= MAX_SIZE


def number_dtype(name: str, what: str) -> np.dtype[Any]:
    """Return the dtype of this name.

    Raises:
        PolicyError: if there is none, or it holds something other than numbers and booleans.
    """
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise PolicyError(f"{what} has the unknown dtype {name!r}") from error
    if dtype.kind not in "fiub":
        raise PolicyError(f"{what} has dtype {name!r}: only numbers and booleans are possible")
    return dtype


def check_ranges(what: str, starts: Sequence[int], counts: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Check that the whole numbers of each part, ``count`` of them from ``start`` on, fit dtype and int64.

    Raises:
        PolicyError: naming the part that does not.
    """
    limits = np.iinfo(np.int64 if dtype == np.uint64 else dtype)  # indices are int64 until the end
    for i, (start, n) in enumerate(zip(starts, counts, strict=True)):
        if not limits.min <= start <= start + n - 1 <= limits.max:
            raise PolicyError(f"{what} from {start} to {start + n - 1} at index {i} do not fit {dtype}")


def _check_bounds(action: BoxAction) -> None:
    if not len(action.low) == len(action.high) == action.size:
        raise PolicyError(
            f"action of shape {action.shape} needs {action.size} bounds, "
            f"got {len(action.low)} and {len(action.high)}"
        )
    # Actions are scaled in float32: half of its range, so that high - low is finite too.
    largest = min(float(np.finfo(action.dtype).max), 0.5 * float(np.finfo(np.float32).max))
    for i, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if not -largest <= low < high <= largest:
            raise PolicyError(
                f"action bounds [{low}, {high}] at index {i}: they must be finite and low below high"
            )


def _check_choices(action: DiscreteAction | MultiDiscreteAction, dtype: np.dtype[Any]) -> None:
    parts = math.prod(action.shape)
    if not len(action.choices) == len(action.starts) == parts:
        raise PolicyError(
            f"action of shape {action.shape} needs {parts} numbers of choices and starts, "
            f"got {len(action.choices)} and {len(action.starts)}"
        )
    if any(n < 1 for n in action.choices) or sum(action.choices) > MAX_SIZE:
        raise PolicyError(f"action choices {action.choices[:16]}: at least 1 each, at most {MAX_SIZE} in all")
    check_ranges("action choices", action.starts, action.choices, dtype)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in values)
