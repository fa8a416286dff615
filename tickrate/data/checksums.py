"""A hash of every transition, made by who saw it and again by who stored it: equal means nothing changed.

A row holds one observation, and of a stack only the newest frame; a transition is put together again from
rows that came over a network. The recorder therefore hashes the transition as it saw it, whole stacks
included, in the dtypes that are stored, and the replay hashes what it would hand out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tickrate.data.batch import Batch
from tickrate.data.fields import Field
from tickrate.data.schema import Flag, RecordSchema, Rows

CHECKSUM = "checksum"
"""Name of the extra that holds the hash."""
CHECKSUM_FIELD = Field(CHECKSUM, "uint64", ())
"""The extra itself: present in a schema, it makes recorder and replay hash; 0 in rows without an action."""


class Verdict(IntEnum):
    """What comparing a stored row's hash with its transition gave."""

    UNKNOWN = 0
    """There is no transition to compare: a FINAL row, a row whose successor has not arrived, or one whose
    earlier frames were overwritten."""
    EQUAL = 1
    """The transition is bit for bit the one that the worker saw."""
    DIFFERENT = 2
    """It is not: a value, an order or a frame was changed between the two."""


def has_checksum(schema: RecordSchema) -> bool:
    """Tell whether rows of this schema carry a hash."""
    return CHECKSUM_FIELD in schema.extras


def observation_bytes(schema: RecordSchema, leaves: Mapping[str, ArrayLike]) -> bytes:
    """Return a whole observation (full stacks) as the bytes that are hashed, each leaf as it is stored."""
    return b"".join(
        _stored(leaves[field.name], field, (field.stack, *field.shape) if field.stack > 1 else field.shape)
        for field in schema.observation
    )


def transition_checksum(
    schema: RecordSchema,
    before: bytes,
    action: ArrayLike,
    reward: float,
    terminated: bool,
    truncated: bool,
    after: bytes,
) -> int:
    """Return the 64-bit hash of one transition (BLAKE2b).

    Args:
        schema: what a row holds.
        before: `observation_bytes` of the observation that was acted on.
        action: the action that was applied.
        reward: reward of the step; hashed as the float32 that is stored.
        terminated: the episode ended for good.
        truncated: the episode was cut off by a limit; means nothing where ``terminated`` is set.
        after: `observation_bytes` of the observation that came back.
    """
    digest = hashlib.blake2b(before, digest_size=8)
    digest.update(_stored(action, schema.action, schema.action.shape))
    digest.update(np.asarray(reward, "<f4").tobytes())
    digest.update(bytes((1 if terminated else 2 if truncated else 0,)))
    digest.update(after)
    return int.from_bytes(digest.digest(), "little")


def compare(schema: RecordSchema, rows: Rows, batch: Batch) -> NDArray[np.uint8]:
    """Return `Verdict.EQUAL` or `Verdict.DIFFERENT` for each transition of a batch of single steps.

    Args:
        schema: what a row holds, the hash included.
        rows: heads of the rows that the transitions begin with, ``(n,)``.
        batch: the transitions; its returns are not looked at.
    """
    verdicts = np.empty(len(rows), np.uint8)
    given = batch.extras[CHECKSUM]
    for i, row in enumerate(rows):
        made = transition_checksum(
            schema,
            observation_bytes(schema, {path: leaf[i] for path, leaf in batch.observation.items()}),
            batch.action[i],
            row["reward"],
            bool(row["flags"] & Flag.TERMINATED),
            bool(row["flags"] & Flag.TRUNCATED),
            observation_bytes(schema, {path: leaf[i] for path, leaf in batch.next_observation.items()}),
        )
        verdicts[i] = Verdict.EQUAL if made == int(given[i]) else Verdict.DIFFERENT
    return verdicts


def _stored(value: ArrayLike, field: Field, shape: tuple[int, ...]) -> bytes:
    array: NDArray[Any] = np.asarray(value).astype(field.storage, copy=False)
    return np.broadcast_to(array, shape).tobytes()
