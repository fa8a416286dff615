"""The two guards: what may reach the device, and what may reach the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate import trees
from tickrate.errors import ActionError, ConfigError, ObservationError
from tickrate.trees import ROOT, Array

Space = spaces.Space[Any]

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


def _first(array: Array, bad: Array) -> str:
    """Return index and value of the first bad element, for a message."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"[{', '.join(map(str, index))}] = {array[index]!s}" if index else f" = {array!s}"


def _outside(array: Array, low: Array, high: Array) -> str:
    bad = (array < low) | (array > high)
    index = tuple(np.argwhere(bad)[0])
    return f"{_first(array, bad)} is outside the bounds [{low[index]!s}, {high[index]!s}]"


def _is_array(value: Any, dtype: np.dtype[Any]) -> bool:
    return isinstance(value, np.ndarray) and value.dtype is dtype


class ActionGuard:
    """Stands at the entry of ``step()``: nothing passes that the device must not be told.

    Args:
        space: the action space.
        nan_action: "hold" repeats the last command for a non-finite action, "refuse" raises.
        out_of_range_action: "clip" or "refuse".
        rate_limit: largest change of a Box action per step, a number or one per dimension; None: no limit.

    Attributes:
        held: non-finite actions replaced by the last command so far.
        clipped: actions clipped to their space so far.
        rate_limited: actions slowed down by ``rate_limit`` so far.
    """

    def __init__(
        self,
        space: Space,
        nan_action: str = "hold",
        out_of_range_action: str = "clip",
        rate_limit: Any = None,
    ) -> None:
        self._space = space
        self._leaf_spaces = trees.leaf_spaces(space)
        self._single = list(self._leaf_spaces) == [ROOT] and not isinstance(space, spaces.Tuple | spaces.Dict)
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
        # Nearly every action is a good one: this says so in one look, and the checks are for the others.
        quick = self._single and rate_limit is None and isinstance(space, spaces.Box)
        self._fits = _fits(space) if quick and isinstance(space, spaces.Box) else None

    def __call__(self, action: Any, last: Sequence[Any]) -> tuple[list[Any], bool]:
        """Return the leaves of the command to send, as fresh copies, and whether a value was changed.

        Args:
            action: what the policy chose, an element of the action space (or nearly).
            last: leaves of the command told to the device before.

        Raises:
            ActionError: for a wrong structure, shape or dtype, a category that does not exist, or (as
                declared) a value that is not finite or out of range.
        """
        if self._single:
            if self._fits is not None and self._fits(action):
                return [action.copy()], False
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
        if self._single:
            return leaves[0].copy()
        return self.build([leaf.copy() for leaf in leaves])

    def build(self, leaves: Sequence[Any]) -> Any:
        """Return the action that has these leaves, with the structure of the action space."""
        if self._single:
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
        if isinstance(leaf, spaces.Discrete):
            return self._categories(where, leaf, (), int(leaf.start), int(leaf.start + leaf.n) - 1)
        if isinstance(leaf, spaces.MultiDiscrete):
            return self._categories(where, leaf, leaf.nvec.shape, leaf.start, leaf.start + leaf.nvec - 1)
        if isinstance(leaf, spaces.MultiBinary):
            return self._categories(where, leaf, leaf.shape, 0, 1)
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
            array = value.copy() if _is_array(value, dtype) else _cast_action(where, value, dtype)
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
                    f"{where}{_first(array, ~np.isfinite(array))} is not finite; nothing was sent"
                )
            self.held += 1
            return np.array(last)
        if not self._clip:
            raise ActionError(f"{where}{_outside(array, low, high)} of its space; nothing was sent")
        self.clipped += 1
        clipped: Array = np.clip(array, low, high).astype(array.dtype, copy=False)
        return clipped

    def _categories(
        self, where: str, leaf: Space, shape: tuple[int, ...], low: Any, high: Any
    ) -> Callable[[Any, Any], tuple[Any, bool]]:
        dtype = np.dtype(leaf.dtype)

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


class Corrections:
    """What the guards of one environment's observations had to correct.

    Attributes:
        total: leaves clipped or held so far.
        clipped: leaves clipped so far, by path.
        held: leaves held so far, by path.
    """

    __slots__ = ("clipped", "held", "total")

    def __init__(self) -> None:
        self.total = 0
        self.clipped: dict[str, int] = {}
        self.held: dict[str, int] = {}


class ObservationGuard:
    """Checks every observation against its space and returns its leaves as copies of the declared dtype.

    A value whose dtype differs is cast when that keeps its kind, or from whole numbers to floats; Python
    numbers and lists are accepted, and a single number for a leaf of shape (1,).

    Args:
        space: space of the interface's observation.
        names: names of the elements of a Tuple, or None.
        out_of_bounds: "clip", "raise" or "pass". A category that does not exist always raises.
        nonfinite: "raise", or "hold" the leaf's last finite value.
        corrections: where to count them; a new counter when omitted.

    Attributes:
        corrections: what was clipped and held so far.
    """

    def __init__(
        self,
        space: Space,
        names: Sequence[str] | None = None,
        out_of_bounds: str = "clip",
        nonfinite: str = "raise",
        corrections: Corrections | None = None,
    ) -> None:
        self._space = space
        self._names = names if isinstance(space, spaces.Tuple) else None
        leaves = trees.leaf_spaces(space, self._names)
        self._out_of_bounds = out_of_bounds
        self._hold = nonfinite == "hold"
        self._held: dict[str, Array] = {}
        self.corrections = Corrections() if corrections is None else corrections
        self._checks = [self._check(path, leaf) for path, leaf in leaves.items()]
        inner = (
            list(space.spaces.values()) if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
        )
        flat = not any(isinstance(child, spaces.Tuple | spaces.Dict) for child in inner)
        self._flat_tuple = isinstance(space, spaces.Tuple) and flat
        self._flat_keys = list(space.spaces) if isinstance(space, spaces.Dict) and flat else None

    def __call__(self, observation: Any) -> list[Any]:
        """Return the checked leaves, in the order of the space.

        Raises:
            ObservationError: for a wrong structure, shape or dtype, or a bad value as declared; names the
            leaf.
        """
        checks = self._checks
        if self._flat_tuple and type(observation) in (list, tuple) and len(observation) == len(checks):
            if len(checks) == 1:
                return [checks[0](observation[0])]
            return [check(value) for check, value in zip(checks, observation)]  # noqa: B905 (just compared)
        keys = self._flat_keys
        if keys is not None and type(observation) is dict and len(observation) == len(keys):
            try:
                return [check(observation[key]) for check, key in zip(checks, keys, strict=True)]
            except KeyError:
                pass  # the general way below says which key is missing
        try:
            parts = trees.leaves(self._space, observation, self._names)
        except ValueError as error:
            raise ObservationError(
                f"obs {error}; the interface returned {trees.describe(observation)}"
            ) from error
        return [check(value) for check, value in zip(checks, parts.values(), strict=True)]

    def forget(self) -> None:
        """Forget the held values: at a reset, what was finite in the last episode is no substitute."""
        self._held.clear()

    def _check(self, path: str, leaf: Space) -> Callable[[Any], Any]:
        where = "obs" if path == ROOT else f"obs[{path!r}]"
        if isinstance(leaf, spaces.Box):
            return self._box(path, where, leaf)
        if isinstance(leaf, spaces.Discrete):
            return _category_check(where, leaf, (), int(leaf.start), int(leaf.start + leaf.n) - 1)
        if isinstance(leaf, spaces.MultiDiscrete):
            return _category_check(where, leaf, leaf.nvec.shape, leaf.start, leaf.start + leaf.nvec - 1)
        if isinstance(leaf, spaces.MultiBinary):
            return _category_check(where, leaf, leaf.shape, 0, 1)
        raise ConfigError(
            f"{where}: {type(leaf).__name__} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary"
        )

    def _box(self, path: str, where: str, box: spaces.Box) -> Callable[[Any], Array]:
        dtype, shape = np.dtype(box.dtype), box.shape
        low, high = finite_bounds(box)
        fits, within = _fits(box), _range_check(box)
        hold = self._hold

        def check(value: Any) -> Array:
            if fits(value):
                array: Array = value.copy()
            else:
                array = _fit(where, value, dtype, shape)
                if not within(array):
                    array = self._correct(path, where, array, low, high)
                with np.errstate(over="ignore"):
                    array = array.astype(dtype)  # a copy, whatever the dtype was
                if not within(array):  # a large float64 may have become infinite
                    array = self._correct(path, where, array, low, high)
            if hold:
                self._held[path] = array.copy()
            return array

        return check

    def _correct(self, path: str, where: str, array: Array, low: Array, high: Array) -> Array:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            held = self._held.get(path)
            if held is None:
                why = (
                    "no finite value came before"
                    if self._hold
                    else 'set nonfinite_observation to "hold" to bridge it'
                )
                raise ObservationError(f"{where}{_first(array, ~np.isfinite(array))} is not finite ({why})")
            self.corrections.held[path] = self.corrections.held.get(path, 0) + 1
            self.corrections.total += 1
            array = np.where(np.isfinite(array), array, held)
        if self._out_of_bounds == "pass":
            return array
        if self._out_of_bounds == "raise" and not ((array >= low).all() and (array <= high).all()):
            raise ObservationError(f"{where}{_outside(array, low, high)} of its space")
        clipped: Array = np.clip(array, low, high)
        if not np.array_equal(clipped, array):
            self.corrections.clipped[path] = self.corrections.clipped.get(path, 0) + 1
            self.corrections.total += 1
        return clipped.astype(array.dtype, copy=False)


def _fits(box: spaces.Box) -> Callable[[Any], bool]:
    """Return the cheapest test that is True for an array that needs no correction of any kind.

    Between two steps the processor's caches go cold, and then every numpy call costs microseconds: up to
    `SMALL` elements of a plain vector are compared as Python floats.
    """
    dtype, shape = np.dtype(box.dtype), box.shape
    low, high = finite_bounds(box)
    pairs = list(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))
    if len(shape) != 1 or low.size > SMALL or dtype.kind == "b":
        within = _range_check(box)
        return lambda value: _is_array(value, dtype) and value.shape == shape and within(value)
    if len(set(pairs)) == 1:
        lowest, highest = pairs[0]

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


def _range_check(box: spaces.Box) -> Callable[[Array], bool]:
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


def _fit(where: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return ``value`` as an array of the right shape whose dtype casts to ``dtype`` by the declared rule."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ObservationError(f"{where}: {type(value).__name__} is no array: {error}") from error
    whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    if not (whole or np.can_cast(array.dtype, dtype, "same_kind")):
        raise ObservationError(f"{where}: dtype {array.dtype}, expected {dtype}")
    if array.shape != shape:
        if array.shape != () or shape != (1,):
            raise ObservationError(f"{where}: shape {array.shape}, expected {shape}")
        array = array.reshape(shape)
    return array


def _category_check(
    where: str, leaf: Space, shape: tuple[int, ...], low: Any, high: Any
) -> Callable[[Any], Any]:
    dtype = np.dtype(leaf.dtype)

    def check(value: Any) -> Any:
        array = np.asarray(value)
        if array.dtype.kind not in "iub":
            raise ObservationError(f"{where}: dtype {array.dtype}, expected whole numbers")
        if array.shape != shape:
            if array.shape not in ((), (1,)) or shape not in ((), (1,)):
                raise ObservationError(f"{where}: shape {array.shape}, expected {shape}")
            array = array.reshape(shape)
        if not (np.all(array >= low) and np.all(array <= high)):
            raise ObservationError(f"{where}: {value!r} is no category of {leaf}")
        return dtype.type(array) if shape == () else array.astype(dtype)

    return check
