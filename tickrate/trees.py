"""Nested observations and actions: leaf paths, ordered maps from path to array, stacking, description.

The one canonical form inside tickrate is an ordered ``dict[str, np.ndarray]`` from path to array.
A Dict's leaves are named by their keys, a Tuple's by their index (or by names the caller gives),
a space that is itself a leaf has the path ``value``. Nested paths are joined with ``/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Array = NDArray[Any]
Leaves = dict[str, Array]

ROOT = "value"
"""Path of the single leaf of a space that is not nested."""


def _children(
    space: spaces.Space[Any], names: Sequence[str] | None
) -> list[tuple[str, spaces.Space[Any]]] | None:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple):
        count = len(space.spaces)
        keys = names if names is not None else [str(i) for i in range(count)]
        if len(keys) != count:
            raise ValueError(
                f"{len(keys)} leaf names {list(keys)} for a Tuple of {count} spaces: give one name each"
            )
        return list(zip(keys, space.spaces, strict=True))
    return None


def leaf_spaces(space: spaces.Space[Any], names: Sequence[str] | None = None) -> dict[str, spaces.Space[Any]]:
    """Return the leaf spaces of a nested space, by path, in order.

    Args:
        space: any Gymnasium space; Dict and Tuple are opened, everything else is a leaf.
        names: names for the elements of a top-level Tuple; their indices when omitted.

    Raises:
        ValueError: if the number of names differs from the number of elements.
    """

    def walk(
        node: spaces.Space[Any], prefix: str, node_names: Sequence[str] | None
    ) -> Iterator[tuple[str, Any]]:
        children = _children(node, node_names)
        if children is None:
            yield prefix or ROOT, node
            return
        for key, child in children:
            yield from walk(child, f"{prefix}/{key}" if prefix else key, None)

    return dict(walk(space, "", names))


def categories(space: spaces.Space[Any]) -> tuple[Array, Array] | None:
    """Return the lowest and highest category of each part, int64 of ``space.shape`` each; None for a Box.

    A Discrete, MultiDiscrete or MultiBinary space is made of categories, any other space is not.
    """
    if isinstance(space, spaces.Discrete):
        return np.asarray(int(space.start)), np.asarray(int(space.start) + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.astype(np.int64), (space.start + space.nvec - 1).astype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int64), np.ones(space.shape, np.int64)
    return None


def leaves(space: spaces.Space[Any], value: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the leaves of ``value``, which has the structure of ``space``, by path, in the space's order.

    Values are returned as they are: nothing is cast, copied or checked beyond the structure.

    Raises:
        ValueError: if a key is missing or foreign, or the number of elements differs; names the path.
    """
    out: dict[str, Any] = {}

    def walk(node: spaces.Space[Any], item: Any, prefix: str, node_names: Sequence[str] | None) -> None:
        children = _children(node, node_names)
        if children is None:
            out[prefix or ROOT] = item
            return
        for (key, child), part in zip(children, _parts(node, item, prefix), strict=True):
            walk(child, part, f"{prefix}/{key}" if prefix else key, None)

    walk(space, value, "", names)
    return out


def _parts(node: spaces.Space[Any], item: Any, prefix: str) -> list[Any]:
    where = f"{prefix!r}" if prefix else "the top level"
    if isinstance(node, spaces.Dict):
        if not isinstance(item, Mapping):
            raise ValueError(
                f"at {where}: expected a mapping with keys {list(node.spaces)}, got {type(item).__name__}"
            )
        missing = [k for k in node.spaces if k not in item]
        foreign = [k for k in item if k not in node.spaces]
        if missing or foreign:
            raise ValueError(f"at {where}: missing keys {missing}, unexpected keys {foreign}")
        return [item[k] for k in node.spaces]
    assert isinstance(node, spaces.Tuple)
    if (
        isinstance(item, Mapping | str | bytes)
        or not hasattr(item, "__len__")
        or not hasattr(item, "__getitem__")
    ):
        raise ValueError(f"at {where}: expected a sequence of {len(node.spaces)}, got {type(item).__name__}")
    if len(item) != len(node.spaces):
        raise ValueError(f"at {where}: expected {len(node.spaces)} elements, got {len(item)}")
    return list(item)


def rebuild(space: spaces.Space[Any], by_path: Mapping[str, Any], names: Sequence[str] | None = None) -> Any:
    """Return the nested value (dicts and tuples as ``space`` has them) whose leaves are given by path."""

    def walk(node: spaces.Space[Any], prefix: str, node_names: Sequence[str] | None) -> Any:
        children = _children(node, node_names)
        if children is None:
            return by_path[prefix or ROOT]
        parts = {key: walk(child, f"{prefix}/{key}" if prefix else key, None) for key, child in children}
        return parts if isinstance(node, spaces.Dict) else tuple(parts.values())

    return walk(space, "", names)


def stack(trees: Sequence[Mapping[str, Array]]) -> Leaves:
    """Stack maps with the same paths along a new first axis: ``(n, *leaf_shape)`` each."""
    first = trees[0]
    for i, tree in enumerate(trees):
        if tree.keys() != first.keys():
            raise ValueError(f"tree {i} has the paths {list(tree)}, tree 0 has {list(first)}")
    return {path: np.stack([tree[path] for tree in trees]) for path in first}


def copy(by_path: Mapping[str, Array]) -> Leaves:
    """Return a map with a copy of each array."""
    return {path: np.array(value) for path, value in by_path.items()}


def describe(value: Any) -> str:
    """Return one line that tells the structure, shapes and dtypes of any nested value, for messages."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        inner = ", ".join(describe(v) for v in value[:8]) + (", ..." if len(value) > 8 else "")
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
