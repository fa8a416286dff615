"""Which leaves a network reads, in which columns of its input, and how a batch gets there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.errors import ConfigError, suggest


class GroupPacker:
    """Flattens the leaves of one observation group side by side into float32 rows.

    Args:
        name: the group's name, for messages.
        paths: the group's leaves in order; all leaves when empty.
        observation_spaces: leaf space by path.

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
        self._columns: list[tuple[str, slice]] = []
        start = 0
        for path in self.paths:
            if path not in observation_spaces:
                raise ConfigError(
                    f"observation group {name!r} names the leaf {path!r}, the observation has "
                    f"{list(observation_spaces)}.{suggest(path, observation_spaces)}"
                )
            size = _flat_size(path, observation_spaces[path])
            self._columns.append((path, slice(start, start + size)))
            start += size
        self.size = start

    def pack(self, observation: Mapping[str, NDArray[Any]], out: NDArray[np.float32]) -> None:
        """Write a batch of leaves, ``(batch, *leaf)`` each, into ``out``, ``(batch, size)``."""
        for path, columns in self._columns:
            leaf = observation[path]
            out[:, columns] = leaf.reshape(len(leaf), -1)


def _flat_size(path: str, space: spaces.Space[Any]) -> int:
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or space.shape is None:
        raise ConfigError(
            f"observation leaf {path!r} is a {type(space).__name__}: this algorithm reads Box and "
            "MultiBinary leaves; leave it out with groups, or give it as a Box (categories one-hot)"
        )
    if space.dtype == np.uint8 and len(space.shape) >= 2:
        raise ConfigError(
            f"observation leaf {path!r} is an image (uint8 {list(space.shape)}): "
            "no encoder for images exists yet; leave it out with observation groups"
        )
    return math.prod(space.shape)
