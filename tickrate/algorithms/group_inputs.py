"""One observation group's way to a network: vectors side by side, images and histories apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.errors import ConfigError, suggest
from tickrate.nn.encoders import is_image
from tickrate.nn.export import ProgramWriter
from tickrate.trees import categories

MAX_ONE_HOT = 4096
"""Most columns of a leaf of categories that a policy can be written down with."""
LARGEST_CATEGORY = 1 << 24
"""Whole numbers up to here are exact in float32, in which a policy reads them."""

Pictures = dict[str, NDArray[Any]]
"""Images and histories by path, ``(rows, *leaf)``."""


@dataclass(frozen=True)
class Inputs:
    """What a network reads of one observation group, batch first, on the device."""

    vector: Tensor | None
    """All leaves that are no pictures, side by side, categories as one-hot, ``(rows, columns)``, float32."""
    pictures: dict[str, Tensor]
    """Images and histories by path, ``(rows, *leaf)``, in their own dtypes."""

    def halves(self) -> tuple[Inputs, Inputs]:
        """Return the first half of the rows, and the second."""
        vectors = (None, None) if self.vector is None else self.vector.chunk(2)
        pairs = {path: leaf.chunk(2) for path, leaf in self.pictures.items()}
        first, second = ({path: pair[i] for path, pair in pairs.items()} for i in (0, 1))
        return Inputs(vectors[0], first), Inputs(vectors[1], second)


class GroupInputs:
    """Reads one observation group.

    Args:
        name: the group's name, for messages.
        paths: its leaves in order; all leaves when empty.
        observation_spaces: leaf space by path.
        histories: leaves that are histories: they are kept apart like images.
        device: where tensors go.

    Attributes:
        paths: the group's leaves.
        columns: width of the vector, 0 if there is none.
        picture_spaces: images and histories by path.

    Raises:
        ConfigError: for a leaf that does not exist or cannot be read; names it.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        observation_spaces: Mapping[str, spaces.Space[Any]],
        histories: Sequence[str],
        device: torch.device,
    ) -> None:
        self.paths, self._device = tuple(paths) or tuple(observation_spaces), device
        if len(set(self.paths)) != len(self.paths):
            raise ConfigError(f"observation group {name!r} names a leaf twice: {list(self.paths)}")
        for path in histories:
            if path not in self.paths:
                raise ConfigError(
                    f"history_leaves names {path!r}, the observation group {name!r} has {list(self.paths)}."
                    f"{suggest(path, self.paths)}"
                )
        pictures = {path for path, space in observation_spaces.items() if is_image(space)} | {*histories}
        vectors = [path for path in self.paths if path not in pictures]
        self._packer = GroupPacker(name, vectors, observation_spaces) if vectors else None
        self.columns = 0 if self._packer is None else self._packer.size
        self.picture_spaces = {path: observation_spaces[path] for path in self.paths if path in pictures}
        self._categories = {path: _categories(path, observation_spaces[path]) for path in vectors}

    def pack(
        self, observations: Sequence[Mapping[str, NDArray[Any]]]
    ) -> tuple[NDArray[np.float32] | None, Pictures]:
        """Return maps of leaves, one below the other: vector ``(rows, columns)`` and pictures by path."""
        paths = self.picture_spaces
        pictures = {path: np.concatenate([leaves[path] for leaves in observations]) for path in paths}
        if self._packer is None:
            return None, pictures
        rows = [len(leaves[self._packer.paths[0]]) for leaves in observations]
        vector = np.empty((sum(rows), self.columns), np.float32)
        for leaves, size, start in zip(
            observations, rows, itertools.accumulate(rows, initial=0), strict=False
        ):
            self._packer.pack(leaves, vector[start : start + size])
        return vector, pictures

    def inputs(self, vector: NDArray[np.float32] | None, pictures: Pictures) -> Inputs:
        """Return what `pack` made as tensors on the device."""
        tensors = {path: self._tensor(leaf) for path, leaf in pictures.items()}
        return Inputs(None if vector is None else self._tensor(vector), tensors)

    def vector_rows(self, observation: Mapping[str, NDArray[Any]]) -> Tensor:
        """Return vectors ``(rows, columns)`` on the device, without rows that are not finite.

        Raises:
            ValueError: if the group has no vector.
        """
        vector, _ = self.pack([observation])
        if vector is None:
            raise ValueError("this group has images and histories alone: there is no vector to observe")
        return self._tensor(vector[np.isfinite(vector).all(1)])

    def write(self, writer: ProgramWriter) -> str:
        """Write down how the vector is read; there has to be one."""
        if not any(self._categories.values()):
            return writer.read(tuple(self._categories))
        parts = [(writer.read((path,)), ends) for path, ends in self._categories.items()]
        return writer.concat([leaf if ends is None else writer.one_hot(leaf, *ends) for leaf, ends in parts])

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        return torch.from_numpy(value).to(self._device, non_blocking=True)


def _categories(path: str, space: spaces.Space[Any]) -> tuple[list[int], list[int]] | None:
    """Return lowest and highest category of each part of a leaf that is read as one-hot; None for others.

    Raises:
        ConfigError: if there are too many, or they are too large, for a policy.
    """
    ends = None if isinstance(space, spaces.MultiBinary) else categories(space)
    if ends is None:
        return None
    low, high = (end.ravel() for end in ends)
    columns, largest = int((high - low + 1).sum()), int(max(-low.min(), high.max()))
    if columns > MAX_ONE_HOT or largest >= LARGEST_CATEGORY:
        raise ConfigError(
            f"observation leaf {path!r} is {space}: a policy reads at most {MAX_ONE_HOT} columns of one-hot "
            f"categories, and none beyond {LARGEST_CATEGORY}; leave it out with groups, or observe it as a "
            "number (Box)"
        )
    return low.tolist(), high.tolist()
