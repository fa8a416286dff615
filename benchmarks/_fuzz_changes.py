"""Reads a few bytes as changes to a valid description, so that a fuzzer gets past the parser to the checks.

Bytes changed at random are rarely JSON or MessagePack; a description with two odd values in it always is.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

TREE = 0xFF
"""An input that begins with this byte, which begins no text, says how to change a valid description: four
bytes a change."""
TREE_SEED = bytes([TREE, 0, 0, 0, 0])
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 255, 4097, 1 << 24, 1 << 31, 1 << 53, 1 << 63, 10**30, -(10**30)),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf"), [], {}, [[]], [None], {"": {}}),
    *("", "x", "0", "*", "box", "discrete", "multibinary", "multidiscrete", "bool", "int64", "float64"),
    *("object", "f4,f4", "(3,)f8", "V9", "O", "x" * 5000, "\ud800", "a/b", "\0", b"", b"\x80", [0] * 3000),
    *([1 << 12] * 2, [0, 1 << 40], [-1], [1] * 40, [2, 2, 2], [1e400], {"shape": [9]}),
)


MOST_CHANGES = 8


def changed(plain: Any, data: bytes) -> Any:
    """Return a copy of nested plain values, each four bytes changing one place of it."""
    plain = copy.deepcopy(plain)
    for at in range(1, min(len(data) - 3, 1 + 4 * MOST_CHANGES), 4):
        place, action, first, second = data[at : at + 4]
        spots = [*places(plain)]
        if not spots:
            break
        node, key = spots[(place + 256 * (action >> 3)) % len(spots)]
        odd = copy.deepcopy(ODD[first % len(ODD)])
        match action & 7:
            case 0 | 1 | 2:
                node[key] = odd
            case 3:
                node[key] = first + 256 * second
            case 4:
                del node[key]
            case 5 if isinstance(node[key], list):
                flat = not any(isinstance(each, list | dict) for each in node[key])
                node[key] = (node[key] * (second + 1))[: 2000 if flat else 20]
            case 6:
                other, where = spots[(first + 256 * second) % len(spots)]
                node[key] = copy.deepcopy(other[where])
            case 7 if isinstance(node, dict):
                node[str(ODD[second % len(ODD)])[:50]] = odd
            case _:
                node[key] = [node[key]]
    return plain


def places(plain: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything inside, of a long list only the first few."""
    keys: list[Any] = [*plain] if isinstance(plain, dict) else []
    if isinstance(plain, list):
        keys = [*range(min(len(plain), 12))]
    for key in keys:
        yield plain, key
        if depth < 12:
            yield from places(plain[key], depth + 1)


def text_of(data: bytes, valid: Any) -> bytes:
    """Return the bytes as they are, or the JSON of the changed description."""
    return as_json(changed(valid, data)) if data[:1] == bytes([TREE]) else data


def as_json(plain: Any) -> bytes:
    return json.dumps(plain, default=repr).encode()
