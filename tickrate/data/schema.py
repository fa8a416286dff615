"""What one stored row holds: its fields, their bytes, and the digest that both ends of a run compare.

One row per observation. Row ``t`` of an episode holds the observation ``o_t`` and, unless it is the FINAL
row, the action chosen on ``o_t``, the reward and the end flags that came back from that step. The FINAL row
holds only the episode's true final observation, so an episode of N transitions is N + 1 rows.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from tickrate.data.fields import MAX_ROW_BYTES, Field, checked, described, field_of, parsed
from tickrate.errors import RecordError
from tickrate.trees import Leaves

__all__ = ["FIXED_FIELDS", "MAX_JSON_BYTES", "Field", "Flag", "RecordSchema", "Rows", "taken"]

Rows = NDArray[np.void]
"""A structured array of rows, dtype `RecordSchema.row_dtype`, shape (n,)."""

MAX_JSON_BYTES = 1 << 20
"""Longest header or schema that is read from a file."""

FIXED_FIELDS: tuple[tuple[str, str], ...] = (
    ("stream", "<u4"),
    ("episode", "<u4"),
    ("step", "<u4"),
    ("flags", "<u4"),
    ("policy_version", "<u4"),
    ("reward", "<f4"),
    ("start", "<f8"),
    ("lateness", "<f4"),
    ("observation_age", "<f4"),
)
"""The fields that every row begins with; times are in seconds."""


class Flag(IntFlag):
    """Bits of a row's ``flags`` field."""

    TERMINATED = 1
    """The step taken on this row's observation ended the episode for good: no bootstrapping."""
    TRUNCATED = 2
    """The step taken on this row's observation was the last by a limit: bootstrap from the FINAL row."""
    FINAL = 4
    """The row holds only the episode's final observation; its action and reward mean nothing."""
    EVALUATION = 8
    """The row belongs to an evaluation episode and is kept out of the training data."""
    TAKEOVER = 16
    """The action was chosen by a person or a script, not by the policy."""
    LATE = 32
    """The step ended after its deadline."""
    EXPERT = 64
    """The row comes from an expert worker: an actor of its own chose the action, which never learns."""
    FALLBACK = 128
    """Nobody chose the action in time (remote inference, an empty chunk): the declared fallback was sent."""
    ROUND_END = 256
    """Of a FINAL row: a synchronous worker acts no further before it has newer weights."""


@dataclass(frozen=True)
class RecordSchema:
    """The fields of a row, in order, and what follows from them.

    The row's dtype has the `FIXED_FIELDS`, then ``action``, ``x/<name>`` for each extra and ``o/<path>`` for
    each observation leaf. Fields that are stored apart (`Field.apart`) come last, so that the rest of a row
    is its first `head_bytes` bytes. Every field starts at a multiple of its item size.
    """

    observation: tuple[Field, ...]
    """Leaves of the canonical observation, in its order, the action buffer included."""
    action: Field
    """The action really applied, in environment units."""
    extras: tuple[Field, ...] = ()
    """What the actor hands out beside the action (log-probabilities, ...); none for SAC."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "observation", tuple(self.observation))
        object.__setattr__(self, "extras", tuple(self.extras))
        if not self.observation:
            raise RecordError("a schema needs at least one observation leaf")
        for kind, fields in (("observation", self.observation), ("extras", self.extras)):
            names = [field.name for field in fields]
            if len(set(names)) != len(names):
                raise RecordError(f"{kind}: the names {names} are not unique")
        stacked = [field.name for field in (self.action, *self.extras) if field.stack > 1]
        if stacked:
            raise RecordError(f"only observation leaves can be stacked, not {stacked}")
        size = sum(field.nbytes for field in self.columns.values())
        if size > MAX_ROW_BYTES or self.row_dtype.itemsize > MAX_ROW_BYTES:
            raise RecordError(f"a row of over {size} bytes is too large (at most {MAX_ROW_BYTES})")

    @classmethod
    def from_spaces(
        cls,
        observation: Mapping[str, spaces.Space[Any]],
        action: spaces.Space[Any],
        *,
        stacks: Mapping[str, int] | None = None,
        extras: tuple[Field, ...] = (),
    ) -> RecordSchema:
        """Make the schema of an environment from its leaf spaces.

        Args:
            observation: leaf space by path, in the canonical order (``env.leaf_spaces``).
            action: the action space.
            stacks: paths whose first axis is a history (newest last) of that length, stored once per frame.
            extras: fields of the actor's extras.

        Raises:
            RecordError: if a space has no fixed shape and dtype, or a stack does not fit its leaf.
        """
        stacks = dict(stacks or {})
        foreign = [path for path in stacks if path not in observation]
        if foreign:
            raise RecordError(
                f"stacks names {foreign}, which are no leaves; the leaves are {list(observation)}"
            )
        fields = [field_of(path, space, stacks.get(path, 1)) for path, space in observation.items()]
        return cls(tuple(fields), field_of("action", action, 1), extras)

    @cached_property
    def columns(self) -> dict[str, Field]:
        """The declared fields by their name in the row, in the row's order."""
        declared = {"action": self.action}
        declared |= {f"x/{field.name}": field for field in self.extras}
        declared |= {f"o/{field.name}": field for field in self.observation}
        return dict(sorted(declared.items(), key=lambda item: item[1].apart))

    @cached_property
    def apart(self) -> dict[str, Field]:
        """The fields stored apart, by their name in the row."""
        return {name: field for name, field in self.columns.items() if field.apart}

    @cached_property
    def row_dtype(self) -> np.dtype[np.void]:
        """Dtype of a whole row, as it travels."""
        return self._layout(apart=True)

    @cached_property
    def head_dtype(self) -> np.dtype[np.void]:
        """Dtype of a row without the fields that are stored apart: its first `head_bytes` bytes."""
        return self._layout(apart=False)

    @property
    def head_bytes(self) -> int:
        """Bytes of a row without the fields that are stored apart."""
        return self.head_dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes that one row takes in a store."""
        return self.head_bytes + sum(field.nbytes for field in self.apart.values())

    @property
    def history(self) -> int:
        """Earlier rows that the longest stack needs."""
        return max(field.stack for field in self.observation) - 1

    def _layout(self, *, apart: bool) -> np.dtype[np.void]:
        offset, names, formats, offsets = 0, [], [], []
        columns: list[tuple[str, np.dtype[Any], tuple[int, ...]]]
        columns = [(name, np.dtype(code), ()) for name, code in FIXED_FIELDS]
        columns += [(name, f.storage, f.shape) for name, f in self.columns.items() if not f.apart]
        aligned = [(name, dtype, shape, dtype.itemsize) for name, dtype, shape in columns]
        if apart:
            aligned += [(name, f.storage, f.shape, 8) for name, f in self.apart.items()]
        for name, dtype, shape, alignment in aligned:
            offset = -(-offset // alignment) * alignment
            names.append(name)
            formats.append((dtype, shape))
            offsets.append(offset)
            offset += dtype.itemsize * math.prod(shape)
        itemsize = -(-offset // 8) * 8
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})

    def to_json(self) -> str:
        """Return the schema as JSON: the same text for equal schemas."""

        def plain(field: Field) -> dict[str, Any]:
            return {
                "name": field.name,
                "dtype": field.dtype,
                "shape": list(field.shape),
                "stack": field.stack,
            }

        body = {
            "observation": [plain(field) for field in self.observation],
            "action": plain(self.action),
            "extras": [plain(field) for field in self.extras],
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordSchema:
        """Read what `to_json` wrote.

        Raises:
            RecordError: if the text is no schema; nothing else is raised for hostile input.
        """
        if len(text) > MAX_JSON_BYTES:
            raise RecordError(f"a schema of {len(text)} bytes is too long (at most {MAX_JSON_BYTES})")
        try:
            body = json.loads(text)
            fields = {key: tuple(parsed(item) for item in body[key]) for key in ("observation", "extras")}
            return cls(fields["observation"], parsed(body["action"]), fields["extras"])
        except RecordError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"this is no record schema: {type(error).__name__}: {error}") from error

    def digest(self) -> str:
        """Return the schema's identity: the first 16 hexadecimal digits of the SHA-256 of its JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def difference(self, other: RecordSchema) -> str:
        """Return one line that names the first field in which ``other`` differs, empty if none does."""
        mine, theirs = self._named(), other._named()
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                return f"{name!r} is {described(mine.get(name))} here and {described(theirs.get(name))} there"
        return (
            "" if list(mine) == list(theirs) else f"the order is {list(mine)} here and {list(theirs)} there"
        )

    def _named(self) -> dict[str, Field]:
        named = {f"o/{f.name}": f for f in self.observation} | {"action": self.action}
        return named | {f"x/{f.name}": f for f in self.extras}

    def empty(self, count: int) -> Rows:
        """Return ``count`` rows of zeros, to be filled with `pack`."""
        return np.zeros(count, self.row_dtype)

    def rows_from_bytes(self, data: bytes | memoryview) -> Rows:
        """Return the rows in ``data`` (read-only, not copied).

        Raises:
            RecordError: if the length is no whole number of rows.
        """
        count, rest = divmod(len(data), self.row_dtype.itemsize)
        if rest:
            raise RecordError(
                f"{len(data)} bytes are no whole number of rows of {self.row_dtype.itemsize} bytes"
            )
        return np.frombuffer(data, self.row_dtype, count)

    def encode_observation(
        self, leaves: Mapping[str, ArrayLike], *, batch: tuple[int, ...] = (), first: ArrayLike = False
    ) -> Leaves:
        """Return what is stored of an observation: each leaf, of a stacked one the newest frame.

        Args:
            leaves: arrays by path, each ``(*batch, *leaf_shape)``; further paths are not allowed.
            batch: leading shape, ``()`` for one observation or ``(n,)``.
            first: which (shape ``batch``) are the first observations of their episodes; their stacks are
                checked to hold one frame throughout, because a stack is rebuilt from the episode's own
                frames.

        Raises:
            RecordError: naming the leaf, on a missing or foreign path, a wrong shape or dtype, or a first
                stack that still holds frames of another episode.
        """
        foreign = [path for path in leaves if f"o/{path}" not in self.columns]
        if foreign:
            raise RecordError(f"observation leaves {foreign} are not in the schema")
        stored: Leaves = {}
        for field in self.observation:
            if field.name not in leaves:
                raise RecordError(f"observation leaf {field.name!r} is missing; got {list(leaves)}")
            value = checked(np.asarray(leaves[field.name]), field, batch)
            if field.stack > 1:
                value = np.moveaxis(value, len(batch), 0)
                begun = value[:, np.asarray(first)] if batch else value
                if np.any(first) and not (begun[:-1] == begun[-1]).all():
                    raise RecordError(
                        f"observation leaf {field.name!r}: its first stack of {field.stack} holds different "
                        "frames. Clone the first frame into the whole stack on reset "
                        "(tickrate.realtime.observations.History does), or store the leaf with stack=1"
                    )
                value = value[-1]
            stored[field.name] = value
        return stored

    def pack(
        self,
        out: Any,
        observation: Mapping[str, ArrayLike],
        *,
        stream: ArrayLike,
        episode: ArrayLike,
        step: ArrayLike,
        flags: ArrayLike = 0,
        action: ArrayLike | None = None,
        reward: ArrayLike = 0.0,
        policy_version: ArrayLike = 0,
        start: ArrayLike = 0.0,
        lateness: ArrayLike = 0.0,
        observation_age: ArrayLike = 0.0,
        extras: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Fill one row (``out = rows[i]``) or many (``out`` of shape (n,), every value batched alike).

        Args:
            out: where to write, of dtype `row_dtype`.
            observation: arrays by path, whole stacks; see `encode_observation`, which checks them; the row of
                step 0 is the first of its episode.
            stream: worker or environment index.
            episode: index of the episode within the stream, ever rising.
            step: index of the observation within the episode, from 0.
            flags: `Flag` bits.
            action: the applied action; zeros when omitted, as in a FINAL row.
            reward: reward of the step taken on this observation.
            policy_version: version of the weights that chose the action.
            start: planned start of the step, seconds on the machine's monotonic clock.
            lateness: how late the step ended, seconds.
            observation_age: age of the observation when the step began, seconds.
            extras: the actor's extras by name; zeros when omitted.

        Raises:
            RecordError: if a value does not fit the schema; names it.
        """
        batch: tuple[int, ...] = out.shape
        first = np.broadcast_to(np.equal(step, 0), batch)
        stored = self.encode_observation(observation, batch=batch, first=first)
        for name, value in zip(
            (name for name, _ in FIXED_FIELDS),
            (stream, episode, step, flags, policy_version, reward, start, lateness, observation_age),
            strict=True,
        ):
            out[name] = value
        out["action"] = 0 if action is None else checked(np.asarray(action), self.action, batch, cast=True)
        given = extras or {}
        foreign = [name for name in given if f"x/{name}" not in self.columns]
        if foreign:
            raise RecordError(
                f"extras {foreign} are not in the schema; it has {[f.name for f in self.extras]}"
            )
        for field in self.extras:
            extra = given.get(field.name)
            out[f"x/{field.name}"] = (
                0 if extra is None else checked(np.asarray(extra), field, batch, cast=True)
            )
        for path, array in stored.items():
            out[f"o/{path}"] = array


def taken(rows: Rows, which: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
    """Return a copy of some rows (contiguous, ``(n,)``), bytes between their fields included.

    numpy copies field by field and leaves what lies between them as it was in memory: two copies of equal
    rows would differ, and a file would hold bytes of something else.
    """
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    chosen = raw[which].copy() if isinstance(which, slice) else raw[which]
    return chosen.reshape(-1).view(rows.dtype)
