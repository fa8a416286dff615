"""Rows of a structured array to a `RowBatch` and back, all sizes checked against the receiver's dtype."""

from __future__ import annotations

import zlib
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import MessageError
from tickrate.wire.messages import MAX_ROW_BYTES, RowBatch

Compression = Literal["auto", "never", "always"]

_TRIAL_BYTES = 1 << 16
_WORTH_IT = 0.8
"""Compression is used where a trial piece shrinks at least to this share."""


def pack_rows(
    rows: NDArray[Any],
    *,
    run: str,
    worker: str,
    boot: int,
    outbox: int,
    sequence: int,
    schema_digest: str,
    oldest: int = 0,
    compress: Compression = "never",
) -> RowBatch:
    """Return the message for consecutive rows, numbered from ``sequence``.

    Args:
        rows: ``(n,)`` structured array, ``n`` may be 0.
        run: name of the run.
        worker: name of the sender.
        boot: the sender's `messages.new_boot`.
        outbox: the outbox that the numbers belong to.
        sequence: number of ``rows[0]`` in the outbox.
        schema_digest: digest of the record schema that the dtype belongs to.
        oldest: the lowest row number that the outbox still holds.
        compress: ``auto`` compresses (zlib, level 1) where the first 64 KiB show that it pays.

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
    packing: Literal["raw", "zlib"] = "raw"
    if compress == "always" or (compress == "auto" and _pays(data)):
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            data, packing = packed, "zlib"
    return RowBatch(
        run=run,
        worker=worker,
        boot=boot,
        outbox=outbox,
        sequence=sequence,
        count=len(rows),
        oldest=oldest,
        schema_digest=schema_digest,
        packing=packing,
        crc32=zlib.crc32(data),
        rows=data,
    )


def _pays(data: bytes) -> bool:
    piece = data[:_TRIAL_BYTES]
    return len(zlib.compress(piece, 1)) < _WORTH_IT * len(piece)


def unpack_rows(batch: RowBatch, dtype: np.dtype[Any], schema_digest: str) -> NDArray[Any]:
    """Return the rows of a decoded batch, ``(count,)`` of ``dtype``, read-only; unpacked ones are not copied.

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
    size = batch.count * dtype.itemsize
    if size > MAX_ROW_BYTES:
        raise MessageError(f"{who}: {batch.count} rows of {dtype.itemsize} bytes are over {MAX_ROW_BYTES}")
    data = batch.rows if batch.packing == "raw" else _inflated(batch.rows, size, who)
    if len(data) != size:
        raise MessageError(f"{who}: {len(data)} bytes are not {batch.count} rows of {dtype.itemsize} bytes")
    return np.frombuffer(data, dtype=dtype)


def _inflated(data: bytes, size: int, who: str) -> bytes:
    """Return unpacked bytes, at most one more than ``size``: a bomb of zeros never gets further."""
    inflate = zlib.decompressobj()
    try:
        return inflate.decompress(data, size + 1)
    except zlib.error as error:
        raise MessageError(f"{who} cannot be unpacked: {error}") from error
