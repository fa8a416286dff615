"""What one observation group gives to a network: vectors side by side, images and histories by path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.errors import ConfigError, suggest
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.nn.encoders import is_image
from tickrate.nn.export import ProgramWriter
from tickrate.nn.features import VECTOR
from tickrate.trees import Leaves


class GroupInputs:
    """Sorts the leaves of a group by what reads them, and brings observations into that form.

    Args:
        name: the group's name, for messages.
        paths: the group's leaves in order; all leaves when empty.
        observation_spaces: leaf space by path.
        encoder: which leaves are histories; leaves of uint8 with two axes or more are images.

    Attributes:
        paths: every leaf of the group, in order.
        vector: packs the leaves that are vectors; None if there are none.
        pictures: spaces of the leaves that an encoder reads, by path.
        vector_size: numbers in the vectors.

    Raises:
        ConfigError: for a leaf that does not exist or cannot be read; names it.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        observation_spaces: Mapping[str, spaces.Space[Any]],
        encoder: EncoderConfig,
    ) -> None:
        self.paths = tuple(paths) or tuple(observation_spaces)
        for path in (*self.paths, *encoder.history_leaves):
            if path not in observation_spaces:
                raise ConfigError(
                    f"observation group {name!r} or encoder.history_leaves names the leaf {path!r}, the "
                    f"observation has {list(observation_spaces)}.{suggest(path, observation_spaces)}"
                )
        self.pictures = {
            path: observation_spaces[path]
            for path in self.paths
            if path in encoder.history_leaves or is_image(observation_spaces[path])
        }
        vectors = [path for path in self.paths if path not in self.pictures]
        self.vector = GroupPacker(name, vectors, observation_spaces) if vectors else None
        self.vector_size = self.vector.size if self.vector else 0

    def arrays(self, observations: Sequence[Leaves]) -> dict[str, NDArray[Any]]:
        """Return what the network reads, by name: the rows of all these observations, one after the other.

        Args:
            observations: each with leaves ``(rows, *leaf)``.

        Returns:
            `VECTOR`: ``(all rows, size)`` float32; pictures by path in their own dtypes.
        """
        counts = [len(observation[self.paths[0]]) for observation in observations]
        arrays: dict[str, NDArray[Any]] = {}
        if self.vector is not None:
            values = np.empty((sum(counts), self.vector.size), np.float32)
            begin = 0
            for observation, count in zip(observations, counts, strict=True):
                self.vector.pack(observation, values[begin : begin + count])
                begin += count
            arrays[VECTOR] = values
        for path in self.pictures:
            leaves = [observation[path] for observation in observations]
            arrays[path] = leaves[0] if len(leaves) == 1 else np.concatenate(leaves)
        return arrays

    def write(self, writer: ProgramWriter) -> str | None:
        """Write down how the vectors are read; return their value's name, None if there are none."""
        return None if self.vector is None else self.vector.write(writer)

    def columns(self, path: str) -> slice | None:
        """Return the columns of a leaf in the vectors, None if it is not there."""
        return self.vector.columns(path) if self.vector is not None else None


def check_encoder(encoder: EncoderConfig, *groups: GroupInputs) -> None:
    """Refuse options for images where no group has one, and histories that no group reads.

    Raises:
        ConfigError: naming the options.
    """
    read = {path for group in groups for path in group.paths}
    if unread := [path for path in encoder.history_leaves if path not in read]:
        raise ConfigError(f"encoder.history_leaves names {unread}, which no observation group reads")
    images = (is_image(space) for group in groups for space in group.pictures.values())
    if (changed := encoder.changed("image_")) and not any(images):
        raise ConfigError(f"encoder.{', encoder.'.join(changed)}: set, but no leaf that is read is an image")
