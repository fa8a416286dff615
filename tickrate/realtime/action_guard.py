"""The action guard: what may reach the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate import trees
from tickrate.errors import ActionError, ConfigError
from tickrate.realtime.bounds import SMALL, finite_bounds, first_bad, outside, taker
from tickrate.trees import ROOT, Array, categories

Space = spaces.Space[Any]


class ActionGuard:
    """Stands at the entry of ``step()``: nothing passes that the device must not be told.

    Args:
        space: the action space.
        nan_action: "hold" repeats the last command for a non-finite action, "refuse" raises.
        out_of_range_action: "clip" or "refuse".
        rate_limit: largest change of a Box action per step, a number or one per dimension; None: no limit.

    Attributes:
        single: whether an action is its one leaf.
        take: returns a copy of an action that needs no correction, or None: for the call.
        held: non-finite actions replaced by the last command so far.
        clipped: actions clipped to their space so far.
        rate_limited: actions slowed down by ``rate_limit`` so far.
    """

    __slots__ = (
        "_checks",
        "_clip",
        "_hold",
        "_leaf_spaces",
        "_rate_limit",
        "_space",
        "clipped",
        "held",
        "rate_limited",
        "single",
        "take",
    )

    def __init__(
        self,
        space: Space,
        nan_action: str = "hold",
        out_of_range_action: str = "clip",
        rate_limit: Any = None,
    ) -> None:
        self._space = space
        self._leaf_spaces = trees.leaf_spaces(space)
        self.single = list(self._leaf_spaces) == [ROOT] and not isinstance(space, spaces.Tuple | spaces.Dict)
        self._hold = nan_action == "hold"
        self._clip = out_of_range_action == "clip"
        self.held = self.clipped = self.rate_limited = 0
        boxes = [leaf for leaf in self._leaf_spaces.values() if isinstance(leaf, spaces.Box)]
        if rate_limit is not None and (not boxes or not np.all(np.asarray(rate_limit, dtype=float) > 0)):
            raise ConfigError(
                f"rate_limit is {rate_limit!r}: give positive numbers, and only for Box actions"
            )
        self._rate_limit = rate_limit
        self._checks = [self._check(path, leaf) for path, leaf in self._leaf_spaces.items()]
        # Nearly every action is a good one: this copies it after one look, and the checks are for the others.
        self.take: Callable[[Any], Array | None] = lambda action: None
        if self.single and rate_limit is None and isinstance(space, spaces.Box):
            self.take = taker(space)

    def __call__(self, action: Any, last: Sequence[Any]) -> tuple[list[Any], bool]:
        """Return the leaves of the command to send, as fresh copies, and whether a value was changed.

        Args:
            action: what the policy chose, an element of the action space (or nearly).
            last: leaves of the command told to the device before.

        Raises:
            ActionError: for a wrong structure, shape or dtype, a category that does not exist, or (as
                declared) a value that is not finite or out of range.
        """
        if (array := self.take(action)) is not None:
            return [array], False
        if self.single:
            value, changed = self._checks[0](action, last[0])
            return [value], changed
        try:
            parts = trees.leaves(self._space, action)
        except ValueError as error:
            raise ActionError(f"action {error}") from error
        done = [check(part, old) for check, part, old in zip(self._checks, parts.values(), last, strict=True)]
        return [value for value, _ in done], any(changed for _, changed in done)

    def copy(self, leaves: Sequence[Any]) -> Any:
        """Return the action that has these leaves and shares no memory with them."""
        if self.single:
            return leaves[0].copy()
        return self.build([leaf.copy() for leaf in leaves])

    def build(self, leaves: Sequence[Any]) -> Any:
        """Return the action that has these leaves, with the structure of the action space."""
        if self.single:
            return leaves[0]
        return trees.rebuild(self._space, dict(zip(self._leaf_spaces, leaves, strict=True)))

    def strict(self, action: Any, name: str) -> list[Any]:
        """Return the leaves of an action that the configuration or the interface gives.

        Raises:
            ConfigError: if it is not an element of the action space.
        """
        guard = ActionGuard(self._space, "refuse", "refuse")
        try:
            return guard(action, [None] * len(self._checks))[0]
        except ActionError as error:
            raise ConfigError(f"the {name} {action!r} cannot be used: {error}") from error

    def _check(self, path: str, leaf: Space) -> Callable[[Any, Any], tuple[Any, bool]]:
        where = "action" if path == ROOT else f"action[{path!r}]"
        if isinstance(leaf, spaces.Box):
            return self._box(where, leaf)
        if (bounds := categories(leaf)) is not None:
            return self._categories(where, leaf, *bounds)
        raise ConfigError(
            f"{where}: {type(leaf).__name__} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary"
        )

    def _box(self, where: str, box: spaces.Box) -> Callable[[Any, Any], tuple[Array, bool]]:
        dtype, shape = np.dtype(box.dtype), box.shape
        low, high = finite_bounds(box)
        small = low.size <= SMALL
        pairs = list(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))
        limit = None if self._rate_limit is None else np.asarray(self._rate_limit, dtype=dtype)
        if limit is not None and limit.shape not in ((), shape):
            raise ConfigError(
                f"rate_limit has shape {limit.shape}: give one number, or one per dimension {shape}"
            )

        def check(value: Any, last: Any) -> tuple[Array, bool]:
            ready = isinstance(value, np.ndarray) and value.dtype is dtype
            array = value.copy() if ready else _cast_action(where, value, dtype)
            if array.shape != shape:
                if array.size != 1 or len(pairs) != 1 or array.ndim:
                    raise ActionError(f"{where}: shape {array.shape}, expected {shape}")
                array = array.reshape(shape)
            changed = False
            if small:
                for item, (lowest, highest) in zip(array.ravel().tolist(), pairs, strict=True):
                    if not lowest <= item <= highest:
                        array, changed = self._correct(where, array, last, low, high), True
                        break
            elif not ((array >= low).all() and (array <= high).all()):
                array, changed = self._correct(where, array, last, low, high), True
            if limit is not None and last is not None:
                slowed = np.clip(array, last - limit, last + limit)
                if not np.array_equal(slowed, array):
                    array, changed = slowed, True
                    self.rate_limited += 1
            return array, changed

        return check

    def _correct(self, where: str, array: Array, last: Any, low: Array, high: Array) -> Array:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            if not self._hold:
                raise ActionError(
                    f"{where}{first_bad(array, ~np.isfinite(array))} is not finite; nothing was sent"
                )
            self.held += 1
            return np.array(last)
        if not self._clip:
            raise ActionError(f"{where}{outside(array, low, high)} of its space; nothing was sent")
        self.clipped += 1
        clipped: Array = np.clip(array, low, high).astype(array.dtype, copy=False)
        return clipped

    def _categories(
        self, where: str, leaf: Space, low: Array, high: Array
    ) -> Callable[[Any, Any], tuple[Any, bool]]:
        dtype, shape = np.dtype(leaf.dtype), low.shape

        def check(value: Any, last: Any) -> tuple[Any, bool]:
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                if not self._hold:
                    raise ActionError(f"{where}: {value!r} is not finite; nothing was sent")
                self.held += 1
                return last, True
            if array.dtype.kind not in "iub":
                raise ActionError(f"{where}: {value!r} has dtype {array.dtype}, expected whole numbers")
            if array.shape != shape:
                if array.size != 1 or math.prod(shape) != 1:
                    raise ActionError(f"{where}: shape {array.shape}, expected {shape}")
                array = array.reshape(shape)
            if not (np.all(array >= low) and np.all(array <= high)):
                raise ActionError(f"{where}: {value!r} is no category of {leaf}; nothing was sent")
            return (dtype.type(array) if shape == () else array.astype(dtype)), False

        return check


def _cast_action(where: str, value: Any, dtype: np.dtype[Any]) -> Array:
    try:
        raw = np.asarray(value)
        if not np.can_cast(raw.dtype, dtype, "same_kind") and not (
            raw.dtype.kind in "iub" and dtype.kind in "iu"
        ):
            raise TypeError(f"dtype {raw.dtype} does not cast to {dtype}")
        if dtype.kind in "iu" and raw.dtype != dtype:
            fitting: Array = np.clip(raw, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
            return fitting
        with np.errstate(over="ignore"):
            return np.array(raw, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ActionError(f"{where}: {value!r} is no array of {dtype}: {error}") from error
