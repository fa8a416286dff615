"""Rows of a structured array to a `RowBatch` and back, all sizes checked against the receiver's dtype."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import MessageError
from tickrate.wire.messages import MAX_ROW_BYTES, RowBatch


def pack_rows(
    rows: NDArray[Any],
    *,
    run: str,
    worker: str,
    boot: int,
    sequence: int,
    schema_digest: str,
    dropped: int = 0,
) -> RowBatch:
    """Return the message for consecutive rows, numbered from ``sequence``.

    Args:
        rows: ``(n,)`` structured array, ``n`` may be 0.
        run: name of the run.
        worker: name of the sender.
        boot: the sender's `messages.new_boot`.
        sequence: number of ``rows[0]`` in this boot.
        schema_digest: digest of the record schema that the dtype belongs to.
        dropped: rows this boot has dropped unsent so far.

    Raises:
        MessageError: if ``rows`` is not one-dimensional, holds Python objects, or is over ``MAX_ROW_BYTES``.
    """
    if rows.ndim != 1 or rows.dtype.hasobject:
        raise MessageError(f"rows must be one-dimensional without objects, got {rows.dtype} {rows.shape}")
    if rows.nbytes > MAX_ROW_BYTES:
        raise MessageError(
            f"{len(rows)} rows of {rows.itemsize} bytes are over {MAX_ROW_BYTES}: send fewer at a time"
        )
    data = rows.tobytes()
    return RowBatch(
        run=run,
        worker=worker,
        boot=boot,
        sequence=sequence,
        count=len(rows),
        schema_digest=schema_digest,
        crc32=zlib.crc32(data),
        dropped=dropped,
        rows=data,
    )


def unpack_rows(batch: RowBatch, dtype: np.dtype[Any], schema_digest: str) -> NDArray[Any]:
    """Return the rows of a decoded batch, ``(count,)`` of ``dtype``, as a read-only view of its bytes.

    Args:
        batch: a message that `messages.decode` returned, so that its check sum has been verified.
        dtype: the receiver's row dtype; nothing about the layout is taken from the message.
        schema_digest: digest of the receiver's record schema.

    Raises:
        MessageError: if the batch follows another schema or its size is not ``count`` rows.
    """
    who = f"rows {batch.sequence}.. of worker {batch.worker!r}"
    if batch.schema_digest != schema_digest:
        raise MessageError(
            f"{who} follow the record schema {batch.schema_digest!r}, expected {schema_digest!r}: "
            "worker and trainer must be started from the same experiment"
        )
    if len(batch.rows) != batch.count * dtype.itemsize:
        raise MessageError(
            f"{who}: {len(batch.rows)} bytes are not {batch.count} rows of {dtype.itemsize} bytes"
        )
    return np.frombuffer(batch.rows, dtype=dtype)
