"""Data options that act on a batch: left-right mirroring for systems whose two sides are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tickrate.data.batch import AnyBatch
from tickrate.errors import ConfigError

LeafMirror = tuple[Sequence[int] | None, ArrayLike | None]


class Mirror:
    """Mirrors the first half of each batch left to right: observation, next observation and action together.

    Batches are drawn in random order, so the first half is a random half. A leaf is mirrored along its last
    axis: ``mirrored[..., i] = sign[i] * leaf[..., permutation[i]]``. Leaves that are not named stay as they
        are.

    Args:
        observation: for each leaf that changes, by path: the permutation of its last axis (None: none; e.g.
            ``range(18, -1, -1)`` for 19 beams) and the signs (None: all +1; a scalar or one per component).
        action: sign of each action component (a scalar or one each), e.g. ``[1, 1, -1]`` for gas, brake,
            steer.

    Raises:
        ConfigError: if a permutation is none, a sign is neither +1 nor -1, or mirroring twice is not the
            identity.
    """

    def __init__(self, observation: Mapping[str, LeafMirror], action: ArrayLike) -> None:
        self._leaves = {path: _leaf(path, *mirror) for path, mirror in observation.items()}
        self._action = _signs("action", action)

    def __call__(self, batch: AnyBatch) -> AnyBatch:
        """Mirror the first half of ``batch`` (of sequences: whole ones) in place and return it.

        Raises:
            ConfigError: if the batch has no such leaf, or its last axis has another length.
        """
        half = len(batch) // 2
        for path, (permutation, sign) in self._leaves.items():
            for leaves in batch.observations:
                if path not in leaves:
                    raise ConfigError(f"mirror: no observation leaf {path!r}; the leaves are {list(leaves)}")
                _apply(path, leaves[path][:half], permutation, sign)
        _apply("action", batch.action[:half], None, self._action)
        return batch


def _apply(
    path: str, values: NDArray[Any], permutation: NDArray[np.int64] | None, sign: NDArray[np.int8] | None
) -> None:
    """Mirror ``values`` in place along its last axis."""
    given = permutation if permutation is not None else sign
    if given is not None and given.ndim and given.shape != values.shape[-1:]:
        raise ConfigError(
            f"mirror: {path!r} has a last axis of {values.shape[-1:]}, the mirror is for {given.shape}"
        )
    if permutation is not None:
        values[...] = values.take(permutation, axis=-1, mode="wrap")  # in range, as checked
    if sign is not None:
        if values.dtype.kind not in "fi":
            raise ConfigError(f"mirror: {path!r} is {values.dtype}, whose sign cannot be changed")
        np.multiply(values, sign.astype(values.dtype), out=values)


def _leaf(
    path: str, permutation: Sequence[int] | None, sign: ArrayLike | None
) -> tuple[NDArray[np.int64] | None, NDArray[np.int8] | None]:
    order = None if permutation is None else np.asarray(list(permutation), np.int64)
    signs = _signs(path, sign)
    if order is not None:
        if sorted(order.tolist()) != list(range(len(order))):
            raise ConfigError(
                f"mirror: {path!r}: {order.tolist()} is no permutation of 0 to {len(order) - 1}"
            )
        if signs is not None and signs.ndim and signs.shape != order.shape:
            raise ConfigError(f"mirror: {path!r} has {len(signs)} signs for {len(order)} components")
        twice = signs is None or not signs.ndim or np.all(signs * signs[order] == 1)
        if not np.array_equal(order[order], np.arange(len(order))) or not twice:
            raise ConfigError(f"mirror: {path!r}: mirroring twice must give the leaf back; it does not")
    return order, signs


def _signs(path: str, sign: ArrayLike | None) -> NDArray[np.int8] | None:
    """Return signs as an array; None where nothing changes, which costs nothing then."""
    if sign is None:
        return None
    given = np.asarray(sign)
    if not np.all(np.abs(given) == 1) or given.ndim > 1:
        raise ConfigError(f"mirror: {path!r}: the signs {given.tolist()} must each be +1 or -1")
    return given.astype(np.int8) if given.ndim or given != 1 else None
