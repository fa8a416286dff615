"""The observation guard: what may reach the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate import trees
from tickrate.errors import ConfigError, ObservationError
from tickrate.realtime.bounds import finite_bounds, first_bad, outside, range_test, taker
from tickrate.trees import ROOT, Array, categories

Space = spaces.Space[Any]


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
        check: the cheapest way to do what a call does.
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
        # Nearly every value is a good one: these copy it after one look (None: it is for its check).
        self._takers = [
            taker(leaf) if isinstance(leaf, spaces.Box) and not self._hold else check
            for leaf, check in zip(leaves.values(), self._checks, strict=True)
        ]
        self._count = len(self._checks)
        inner = (
            list(space.spaces.values()) if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
        )
        flat = not any(isinstance(child, spaces.Tuple | spaces.Dict) for child in inner)
        self._flat_tuple = isinstance(space, spaces.Tuple) and flat
        one = self._flat_tuple and self._count == 1
        self.check = self._check_one(self._takers[0]) if one else self.__call__
        self._flat_keys = space.spaces.keys() if isinstance(space, spaces.Dict) and flat else None

    def __call__(self, observation: Any) -> list[Any]:
        """Return the checked leaves, in the order of the space.

        Raises:
            ObservationError: for a wrong structure, shape or dtype, or a bad value as declared; names the
            leaf.
        """
        keys, parts = self._flat_keys, observation
        if self._flat_tuple and type(observation) in (list, tuple) and len(observation) == self._count:
            pass
        elif keys is not None and type(observation) is dict and observation.keys() == keys:
            parts = [observation[key] for key in keys]
        else:
            parts = self._parts(observation)
        values = []
        for at, take in enumerate(self._takers):
            value = take(parts[at])
            values.append(self._checks[at](parts[at]) if value is None else value)
        return values

    def _check_one(self, take: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
        def check_one(observation: Any) -> list[Any]:
            if type(observation) in (list, tuple) and len(observation) == 1:
                value = take(observation[0])
                if value is not None:
                    return [value]
            return self(observation)

        return check_one

    def _parts(self, observation: Any) -> list[Any]:
        try:
            return list(trees.leaves(self._space, observation, self._names).values())
        except ValueError as error:
            raise ObservationError(
                f"obs {error}; the interface returned {trees.describe(observation)}"
            ) from error

    def forget(self) -> None:
        """Forget the held values: at a reset, what was finite in the last episode is no substitute."""
        self._held.clear()

    def _check(self, path: str, leaf: Space) -> Callable[[Any], Any]:
        where = "obs" if path == ROOT else f"obs[{path!r}]"
        if isinstance(leaf, spaces.Box):
            return self._box(path, where, leaf)
        if (bounds := categories(leaf)) is not None:
            return _category_check(where, leaf, *bounds)
        raise ConfigError(
            f"{where}: {type(leaf).__name__} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary"
        )

    def _box(self, path: str, where: str, box: spaces.Box) -> Callable[[Any], Array]:
        dtype, shape = np.dtype(box.dtype), box.shape
        low, high = finite_bounds(box)
        take, within = taker(box), range_test(box)
        hold = self._hold

        def check(value: Any) -> Array:
            array = take(value)
            if array is None:
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
                raise ObservationError(
                    f"{where}{first_bad(array, ~np.isfinite(array))} is not finite ({why})"
                )
            self.corrections.held[path] = self.corrections.held.get(path, 0) + 1
            self.corrections.total += 1
            array = np.where(np.isfinite(array), array, held)
        if self._out_of_bounds == "pass":
            return array
        if self._out_of_bounds == "raise" and not ((array >= low).all() and (array <= high).all()):
            raise ObservationError(f"{where}{outside(array, low, high)} of its space")
        clipped: Array = np.clip(array, low, high)
        if not np.array_equal(clipped, array):
            self.corrections.clipped[path] = self.corrections.clipped.get(path, 0) + 1
            self.corrections.total += 1
        return clipped.astype(array.dtype, copy=False)


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


def _category_check(where: str, leaf: Space, low: Array, high: Array) -> Callable[[Any], Any]:
    dtype, shape = np.dtype(leaf.dtype), low.shape

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
