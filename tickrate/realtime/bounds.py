"""How a value is compared with the bounds of its space: in the cheapest way, and named when it is outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate.trees import Array

SMALL = 16
"""Up to this many elements, comparing plain floats is faster than calling numpy."""


def finite_bounds(box: spaces.Box) -> tuple[Array, Array]:
    """Return the bounds of a Box with infinite ones replaced by the largest finite values of its dtype.

    A value that is not finite is then outside, as is NaN for every comparison, so one range check finds all.
    """
    dtype: np.dtype[Any] = np.dtype(box.dtype)
    if dtype.kind != "f":
        return box.low, box.high
    limit = float(np.finfo(dtype).max)
    return np.maximum(box.low, -limit), np.minimum(box.high, limit)


def first_bad(array: Array, bad: Array) -> str:
    """Return index and value of the first bad element, for a message."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"[{', '.join(map(str, index))}] = {array[index]!s}" if index else f" = {array!s}"


def outside(array: Array, low: Array, high: Array) -> str:
    """Return index and value of the first element out of bounds, with these, for a message."""
    bad = (array < low) | (array > high)
    index = tuple(np.argwhere(bad)[0])
    return f"{first_bad(array, bad)} is outside the bounds [{low[index]!s}, {high[index]!s}]"


def is_array(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a value is an array of exactly this dtype."""
    return isinstance(value, np.ndarray) and value.dtype is dtype


def common_bounds(box: spaces.Box) -> tuple[float, float] | None:
    """Return the bounds that all elements of a small vector share; None for any other Box."""
    low, high = finite_bounds(box)
    if len(box.shape) != 1 or not 0 < low.size <= SMALL or np.dtype(box.dtype).kind == "b":
        return None
    lowest, highest = low.min().item(), high.max().item()
    return (lowest, highest) if (low == lowest).all() and (high == highest).all() else None


def fit_test(box: spaces.Box) -> Callable[[Any], bool]:
    """Return the cheapest test that is True for an array that needs no correction of any kind.

    Between two steps the processor's caches go cold, and then every numpy call costs microseconds: up to
    `SMALL` elements of a plain vector are compared as Python floats.
    """
    dtype, shape = np.dtype(box.dtype), box.shape
    low, high = finite_bounds(box)
    pairs = list(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))
    if len(shape) != 1 or low.size > SMALL or dtype.kind == "b":
        within = range_test(box)
        return lambda value: is_array(value, dtype) and value.shape == shape and within(value)
    if (common := common_bounds(box)) is not None:
        lowest, highest = common

        def uniform(value: Any) -> bool:
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return False
            for item in value.tolist():  # noqa: SIM110 (a generator costs more)
                if not lowest <= item <= highest:
                    return False
            return True

        return uniform

    def each(value: Any) -> bool:
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            return False
        for item, (lowest, highest) in zip(value.tolist(), pairs):  # noqa: B905, SIM110 (same length; a generator costs more)
            if not lowest <= item <= highest:
                return False
        return True

    return each


def range_test(box: spaces.Box) -> Callable[[Array], bool]:
    """Return the cheapest test that is True exactly when all values are finite and within the bounds."""
    dtype: np.dtype[Any] = np.dtype(box.dtype)
    low, high = finite_bounds(box)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if (low <= info.min).all() and (high >= info.max).all():
            return lambda array: array.dtype is dtype or bool((array >= low).all() and (array <= high).all())
    if low.size == 0 or dtype.kind == "b":
        return lambda array: True
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        lowest, highest = low.flat[0], high.flat[0]
        return lambda array: bool(lowest <= array.min() and array.max() <= highest)
    return lambda array: bool((array >= low).all() and (array <= high).all())
