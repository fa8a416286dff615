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


def taker(box: spaces.Box) -> Callable[[Any], Array | None]:
    """Return the cheapest function that copies a value which needs no correction, or returns None.

    It runs in every step, when the processor's caches are cold and each new piece of code or data costs
    about a microsecond. So up to `SMALL` elements of a vector are compared as Python floats, and the shape is
    not looked at: a list of so many numbers can only be one vector.
    """
    dtype, shape, ndarray = np.dtype(box.dtype), box.shape, np.ndarray
    low, high = finite_bounds(box)
    if len(shape) != 1 or not 0 < low.size <= SMALL or dtype.kind == "b":
        within = range_test(box)

        def take(value: Any) -> Array | None:
            fits = isinstance(value, ndarray) and value.dtype is dtype and value.shape == shape
            return value.copy() if fits and within(value) else None

        return take
    count, lows, highs = low.size, low.tolist(), high.tolist()
    lowest, highest = lows[0], highs[0]
    common = lows == [lowest] * count and highs == [highest] * count
    pairs = list(zip(lows, highs, strict=True))

    def take_small(value: Any) -> Array | None:
        if type(value) is not ndarray:
            return None
        array: Array = value.copy()
        items = array.tolist()
        try:
            if array.dtype is not dtype or len(items) != count:
                return None
            if common:  # usual, and a loop without zip is the cheaper one
                for item in items:
                    if not lowest <= item <= highest:
                        return None
            else:
                for item, (least, most) in zip(items, pairs):  # noqa: B905 (just compared)
                    if not least <= item <= most:
                        return None
        except TypeError:  # no vector
            return None
        return array

    return take_small


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
