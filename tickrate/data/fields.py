"""One array of a row: its name, dtype and shape, what fits it, and how it is read from a space or JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.errors import RecordError

APART_BYTES = 1024
"""From this size on a field is kept in an array of its own, so that gathering it is one contiguous copy."""

MAX_ROW_BYTES = 1 << 28
MAX_STACK = 256

_INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
DTYPES = frozenset(("bool", *_INTEGERS, "float16", "float32", "float64"))
"""Names of the dtypes that can be stored, and so be observed and acted with."""


@dataclass(frozen=True)
class Field:
    """One array of a row: an observation leaf, the action or an extra of the actor."""

    name: str
    """Path of the leaf, e.g. ``speed`` or ``camera/front``."""
    dtype: str
    """Native dtype, e.g. ``float32`` or ``uint8``: stored as it is, never widened."""
    shape: tuple[int, ...]
    """Shape of one value, for a stacked leaf of one frame, e.g. ``(3,)`` or ``(64, 64)``."""
    stack: int = 1
    """Frames in the leaf. Above 1 it is ``(stack, *shape)``, newest last, and only the newest is stored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if not self.name or not self.name.isprintable():
            raise RecordError(f"field name {self.name[:200]!r}: give a printable, non-empty name")
        if self.dtype not in DTYPES:
            raise RecordError(
                f"field {self.name!r}: dtype {self.dtype!r} cannot be stored; use one of {sorted(DTYPES)}"
            )
        if (
            any(not 0 <= n <= MAX_ROW_BYTES for n in self.shape)
            or len(self.shape) > 16
            or self.nbytes > MAX_ROW_BYTES
        ):
            raise RecordError(
                f"field {self.name!r}: shape {self.shape} cannot be stored (at most {MAX_ROW_BYTES} bytes)"
            )
        if not 1 <= self.stack <= MAX_STACK:
            raise RecordError(f"field {self.name!r}: stack {self.stack} is not in 1 to {MAX_STACK}")

    @property
    def storage(self) -> np.dtype[Any]:
        """Dtype of the stored value, little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def nbytes(self) -> int:
        """Bytes of one stored value (one frame)."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def apart(self) -> bool:
        """Whether the store keeps this field in an array of its own."""
        return self.stack > 1 or self.nbytes >= APART_BYTES

    @property
    def leaf_shape(self) -> tuple[int, ...]:
        """Shape of the value as the actor sees it, the stack included."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape


def checked(value: NDArray[Any], field: Field, batch: tuple[int, ...], *, cast: bool = False) -> NDArray[Any]:
    """Return ``value`` if shape and dtype fit; floats may be of another width, with ``cast`` integers too."""
    if value.shape != batch + field.leaf_shape:
        raise RecordError(f"{field.name!r}: shape {value.shape}, the schema has {batch + field.leaf_shape}")
    floats = value.dtype.kind == "f" and field.storage.kind == "f"
    if (
        value.dtype != field.storage
        and not floats
        and not (cast and np.can_cast(value.dtype, field.storage, "same_kind"))
    ):
        raise RecordError(f"{field.name!r}: dtype {value.dtype}, the schema has {field.dtype}")
    return value


def field_of(name: str, space: spaces.Space[Any], stack: int) -> Field:
    """Return the field for the values of a leaf space, whose first axis is the stack if there is one.

    Raises:
        RecordError: if the space has no fixed shape and dtype, or the stack does not fit it.
    """
    shape, dtype = space.shape, space.dtype
    if shape is None or dtype is None:
        raise RecordError(
            f"{name!r}: a {type(space).__name__} space has no fixed shape and dtype and cannot be stored"
        )
    if stack > 1:
        if not shape or shape[0] != stack:
            raise RecordError(f"{name!r}: shape {shape} has no first axis of the stack's length {stack}")
        shape = shape[1:]
    return Field(name, np.dtype(dtype).name, tuple(shape), stack)


def parsed(item: Any) -> Field:
    """Return the field that a schema's JSON describes; KeyError, TypeError or RecordError if it is none."""
    name, dtype, shape, stack = item["name"], item["dtype"], item["shape"], item["stack"]
    plain = (
        isinstance(name, str)
        and isinstance(dtype, str)
        and isinstance(stack, int)
        and isinstance(shape, list)
    )
    if (
        not plain
        or not all(isinstance(n, int) for n in shape)
        or set(item) != {"name", "dtype", "shape", "stack"}
    ):
        raise RecordError(f"this is no field of a record schema: {str(item)[:200]}")
    return Field(name, dtype, tuple(shape), stack)


def described(field: Field | None) -> str:
    """Return a field's dtype, shape and stack in a few characters, for messages."""
    if field is None:
        return "absent"
    stacked = f" x{field.stack}" if field.stack > 1 else ""
    return f"{field.dtype}{list(field.shape)}{stacked}"
