"""Histories of frames and values for an interface's observations: what nearly every live task writes again.

Where things are done, once and for all:

- **Normalisation** (scaling, running mean and variance) happens in one place: the first layers of the
  policy's network, whose statistics are saved with the policy. An interface returns plain sensor values, in
  the units of its space, and never normalises.
- **Images stay uint8** from the interface through the replay to the network, which divides by 255. A history
  of frames therefore keeps the dtype of its frame and refuses a float image.
- **History** is kept by the interface (this class) when the sensor's own rate or its reset matters, and needs
  one line: a method ``stacks()`` that returns ``{"image": 4}`` says which leaves are histories of how many
  frames, and each frame is then sent and stored once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate.errors import ConfigError
from tickrate.realtime.spaces import buffer_space
from tickrate.trees import Array


class History:
    """The last ``length`` values of one leaf, oldest first and newest last.

    The storage is allocated once. Every array that goes in is copied and every array that comes out is fresh,
    so a sensor that reuses its buffer cannot rewrite the past and a caller cannot either::

        frames = History(4, spaces.Box(0, 255, (64, 64), np.uint8))

        def reset(self, seed=None, options=None):
            return (self.frames.reset(self.camera.read()),), {}      # four copies of the first frame

        def get_obs_rew_terminated_info(self):
            return (self.frames.push(self.camera.read()),), reward, False, {}

    Args:
        length: how many values are kept, 1 or more.
        space: the space of one value: Box, Discrete, MultiDiscrete or MultiBinary.

    Attributes:
        space: the space of the history, ``(length, *space.shape)``, for `get_observation_space`.

    Raises:
        ConfigError: if ``length`` is below 1, or the space is no leaf of numbers (a Tuple, Dict, Text, ...).
    """

    def __init__(self, length: int, space: spaces.Space[Any]) -> None:
        if length < 1:
            raise ConfigError(f"a history of length {length}: give 1 or more")
        self.space = buffer_space(space, length)
        assert space.dtype is not None  # every space that can be stacked has both
        assert space.shape is not None
        self._dtype = np.dtype(space.dtype)
        self._shape = space.shape
        self._ring = np.zeros((length, *self._shape), self._dtype)
        self._oldest = 0
        self._filled = False

    def __len__(self) -> int:
        return int(self._ring.shape[0])

    def reset(self, value: Any) -> Array:
        """Start an episode: fill the whole history with copies of ``value``; return it as `value` does.

        Raises:
            ValueError: if the shape differs from the space's, or the dtype cannot be cast without loss of
            kind.
        """
        self._ring[...] = self._checked(value)
        self._oldest = 0
        self._filled = True
        return self.value()

    def push(self, value: Any) -> Array:
        """Forget the oldest value, add ``value`` as the newest, and return the history as `value` does.

        Raises:
            ValueError: as `reset`.
            RuntimeError: before the first `reset`.
        """
        if not self._filled:
            raise RuntimeError(
                "History.push before History.reset: fill it with the episode's first value first"
            )
        self._ring[self._oldest] = self._checked(value)
        self._oldest = (self._oldest + 1) % len(self)
        return self.value()

    def value(self) -> Array:
        """Return a fresh array of shape (length, *shape), oldest first, in the dtype of the leaf space."""
        out = np.empty_like(self._ring)
        tail = len(self) - self._oldest
        out[:tail] = self._ring[self._oldest :]
        out[tail:] = self._ring[: self._oldest]
        return out

    def _checked(self, value: Any) -> Array:
        array = np.asarray(value)
        if array.shape != self._shape:
            raise ValueError(f"a value of shape {array.shape} in a history of {self._shape}")
        if array.dtype != self._dtype and not np.can_cast(array.dtype, self._dtype, "same_kind"):
            hint = " (keep images uint8: the network scales them)" if self._dtype == np.uint8 else ""
            raise ValueError(f"a {array.dtype} value in a history of {self._dtype}{hint}")
        return array
