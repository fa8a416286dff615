"""Which leaves a network reads, in which columns of its input, and how a batch gets there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.errors import ConfigError, suggest
from tickrate.nn.export import ProgramWriter
from tickrate.program.shapes import MAX_COLUMNS
from tickrate.trees import categories

_Write = Callable[[NDArray[Any], NDArray[np.float32]], None]
"""Writes a batch of a leaf, ``(batch, *leaf)``, into its columns, ``(batch, columns)``."""


class GroupPacker:
    """Flattens the leaves of one observation group side by side into float32 rows.

    Numbers and switches (Box, MultiBinary) are copied. Categories (Discrete, MultiDiscrete, and arrays of
    them, such as an action buffer of shape (length,) or (length, parts)) become one-hot, the columns of each
    part side by side in the leaf's order.

    Args:
        name: the group's name, for messages.
        paths: the group's leaves in order; all leaves when empty.
        observation_spaces: leaf space by path.

    Attributes:
        size: columns of the group.

    Raises:
        ConfigError: for a path that does not exist, or a leaf that a flat network cannot read; names it.
    """

    def __init__(
        self, name: str, paths: Sequence[str], observation_spaces: Mapping[str, spaces.Space[Any]]
    ) -> None:
        self.name = name
        self.paths = tuple(paths) or tuple(observation_spaces)
        if len(set(self.paths)) != len(self.paths):
            raise ConfigError(f"observation group {name!r} names a leaf twice: {list(self.paths)}")
        self._spaces = observation_spaces
        self._columns: list[tuple[str, slice, _Write]] = []
        start = 0
        for path in self.paths:
            if path not in observation_spaces:
                raise ConfigError(
                    f"observation group {name!r} names the leaf {path!r}, the observation has "
                    f"{list(observation_spaces)}.{suggest(path, observation_spaces)}"
                )
            size, write = _writer(path, observation_spaces[path])
            self._columns.append((path, slice(start, start + size), write))
            start += size
        self.size = start

    def pack(self, observation: Mapping[str, NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write a batch of leaves, ``(batch, *leaf)`` each, into ``out``, ``(batch, size)``.

        The columns of a leaf with a category that does not exist are NaN: such a row is to be left out.
        """
        for path, columns, write in self._columns:
            write(observation[path], out[:, columns])

    def columns(self, path: str) -> slice | None:
        """Return the columns of a leaf, None if it is not in the group."""
        return next((columns for name, columns, _ in self._columns if name == path), None)

    def write(self, writer: ProgramWriter) -> str:
        """Write down how `pack` reads an observation; return the name of the value, ``(size,)``.

        An acting policy refuses a category that does not exist, where `pack` marks the row with NaN.
        """
        parts: list[str] = []
        plain: list[str] = []
        for path in self.paths:
            space = self._spaces[path]
            if isinstance(space, spaces.Box | spaces.MultiBinary):
                plain.append(path)
                continue
            if plain:
                parts.append(writer.read(plain))
                plain = []
            bounds = categories(space)
            assert bounds is not None  # or the leaf was refused
            lowest, highest = (bound.ravel() for bound in bounds)
            parts.append(writer.read_one_hot(path, lowest.tolist(), (highest - lowest + 1).tolist()))
        if plain:
            parts.append(writer.read(plain))
        return writer.concat(parts)


def _writer(path: str, space: spaces.Space[Any]) -> tuple[int, _Write]:
    """Return a leaf's number of columns, and what writes them."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        if space.dtype == np.uint8 and len(space.shape) >= 2:
            raise ConfigError(
                f"observation leaf {path!r} is an image (uint8 {list(space.shape)}): "
                "give it to an image encoder, or leave it out with observation groups"
            )
        return math.prod(space.shape), _copy
    bounds = categories(space)
    if bounds is None:
        raise ConfigError(
            f"observation leaf {path!r} is a {type(space).__name__}: this algorithm reads Box, Discrete, "
            "MultiDiscrete and MultiBinary leaves; leave it out with observation groups"
        )
    low, high = (bound.ravel() for bound in bounds)
    counts = high - low + 1
    if (columns := sum(counts.tolist())) > MAX_COLUMNS:
        raise ConfigError(
            f"observation leaf {path!r} is {space}: its categories would take {columns} columns, at most "
            f"{MAX_COLUMNS} are made; leave it out with observation groups, or observe it as a number (Box)"
        )
    return columns, _one_hot(low, high, np.cumsum(counts) - counts)


def _copy(leaf: NDArray[Any], out: NDArray[np.float32]) -> None:
    out[...] = leaf.reshape(len(leaf), -1)


def _one_hot(low: NDArray[np.int64], high: NDArray[np.int64], starts: NDArray[np.int64]) -> _Write:
    """Return what writes parts from ``low`` to ``high`` as one-hot, each from its column in ``starts`` on."""

    def write(leaf: NDArray[Any], out: NDArray[np.float32]) -> None:
        parts = leaf.reshape(len(leaf), -1)
        bad = ((parts < low) | (parts > high)).any(axis=1)
        out[...] = 0.0
        np.put_along_axis(out, np.clip(parts, low, high) - low + starts, 1.0, axis=1)
        if bad.any():
            out[bad] = np.nan

    return write
