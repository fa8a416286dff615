"""Recordings as plain numpy arrays in one npz file, to exchange with other programs; ``docs/data.md`` has it.

One entry an observation, in all arrays alike: an episode of N steps takes N + 1 entries, of which the last
(``final``) holds its true final observation alone. Nothing is ever unpickled, and nothing in a file is relied
on before it is checked.
"""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data import capacity as limits
from tickrate.data.fields import DTYPES, Field
from tickrate.data.recordings import check_order, require_memory
from tickrate.data.schema import FIXED_FIELDS, MAX_JSON_BYTES, Flag, RecordSchema, Rows
from tickrate.errors import ConfigError, RecordError

MAX_ARRAYS = 4096
_ENDS = {"terminated": Flag.TERMINATED, "truncated": Flag.TRUNCATED, "final": Flag.FINAL}
_REQUIRED = ("action", "reward", "episode", "step", *_ENDS)
_FIXED = {name: np.dtype(code) for name, code in FIXED_FIELDS}
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, ValueError)
"""What `zipfile` raises for bytes that it cannot make sense of."""
_NO_HEADER = (
    *(KeyError, ValueError, TypeError, RecursionError, MemoryError),
    *(SyntaxError, tokenize.TokenError),  # the header is parsed as Python's literals
)
"""What numpy's reader of array headers raises for such."""
_ENDING = int(Flag.TERMINATED | Flag.TRUNCATED | Flag.FINAL)


def write_npz(path: Path, schema: RecordSchema, rows: Rows) -> None:
    """Write rows as an npz file, which stands at ``path`` once all of it is on the disk."""
    arrays: dict[str, NDArray[Any]] = {"schema": np.array(schema.to_json())}
    arrays |= {name: rows[name] for name in _FIXED}
    arrays |= {name: (rows["flags"] & flag) != 0 for name, flag in _ENDS.items()}
    arrays["action"] = rows["action"]
    arrays |= {f"observation/{field.name}": rows[f"o/{field.name}"] for field in schema.observation}
    arrays |= {f"extra/{field.name}": rows[f"x/{field.name}"] for field in schema.extras}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_npz(path: Path) -> tuple[RecordSchema, Rows]:
    """Return (schema, rows) of an npz file.

    Floats of a file without a ``schema`` become float32, as runs record them.

    Raises:
        RecordError: if it is no such file, an array is missing, foreign, or of another shape or dtype, a
            number is out of range or not finite, or steps are not in order; names the array.
        ConfigError: if it does not fit into memory.
    """
    arrays = _read_arrays(path)
    try:
        return _rows(arrays)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


# --- the file -------------------------------------------------------------------------------------------


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
                raise RecordError(f"{path} is compressed in another way than numpy's")
            if len(members) > MAX_ARRAYS or len({m.filename for m in members}) < len(members):
                raise RecordError(f"{path} has {len(members)} members, or two of one name: it is damaged")
            size, free = sum(member.file_size for member in members), limits.available_memory()
            if free is not None and size > free:
                raise ConfigError(
                    f"{path} holds {size / 1e9:.2f} GB, but {free / 1e9:.2f} GB of memory are free"
                )
            return {m.filename.removesuffix(".npy"): _read_array(path, archive, m) for m in members}
    except (RecordError, ConfigError):
        raise
    except _DAMAGE as error:
        raise RecordError(f"{path} is no npz file, or is damaged: {error}") from error


def _read_array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array; its header is compared with its size before memory is taken for it."""
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(file)
        except _NO_HEADER as error:
            raise RecordError(f"{path}: {member.filename[:200]!r} is no plain array: {error}") from error
        plain = dtype.name in DTYPES or dtype.kind == "U"
        count = math.prod(shape) if all(n >= 0 for n in shape) else -1
        if not plain or dtype.hasobject or count * dtype.itemsize != member.file_size - file.tell():
            raise RecordError(
                f"{path}: {member.filename[:200]!r} is {dtype}{list(shape)}, which does not fit its "
                f"{member.file_size} bytes or cannot be used"
            )
        flat: NDArray[Any] = np.frombuffer(file.read(), dtype, count)
    return flat.reshape(shape, order="F" if fortran else "C")


# --- what is in it --------------------------------------------------------------------------------------


def _rows(arrays: dict[str, NDArray[Any]]) -> tuple[RecordSchema, Rows]:
    given = arrays.pop("schema", None)
    schema = _derived(arrays) if given is None else _declared(given)
    columns = {f"observation/{f.name}": (f"o/{f.name}", f) for f in schema.observation}
    columns |= {f"extra/{f.name}": (f"x/{f.name}", f) for f in schema.extras}
    columns["action"] = ("action", schema.action)
    missing = [name for name in (*_REQUIRED, *columns) if name not in arrays]
    foreign = [name for name in arrays if name not in {*_REQUIRED, *columns, *_FIXED}]
    if missing or foreign:
        raise RecordError(f"the arrays {missing} are missing, and {foreign[:10]} mean nothing here")
    count = len(arrays["step"]) if arrays["step"].ndim else 0
    require_memory(schema, count)
    rows = schema.empty(count)
    for name, (column, field) in columns.items():
        rows[column] = _values(name, arrays[name], field, count, cast=given is None)
    for name, dtype in _FIXED.items():
        if name in arrays:
            rows[name] = _numbers(name, arrays[name], dtype, count)
    ends = {flag: _bools(name, arrays[name], count) for name, flag in _ENDS.items()}
    bits = sum((ends[flag] * np.uint32(flag) for flag in ends), np.zeros(count, np.uint32))
    if "flags" in arrays and ((rows["flags"] & _ENDING) != bits).any():
        raise RecordError("'flags' and the arrays terminated, truncated and final contradict each other")
    rows["flags"] = rows["flags"] & ~np.uint32(_ENDING) | bits
    check_order(rows)
    return schema, rows


def _declared(text: NDArray[Any]) -> RecordSchema:
    if text.shape or text.dtype.kind != "U" or text.dtype.itemsize > 4 * MAX_JSON_BYTES:
        raise RecordError("'schema' is no text")
    return RecordSchema.from_json(str(text))


def _derived(arrays: Mapping[str, NDArray[Any]]) -> RecordSchema:
    """Return the schema that arrays without one have: each leaf whole, floats as float32."""

    def field(name: str, array: NDArray[Any]) -> Field:
        dtype = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype
        return Field(name, dtype.name, array.shape[1:])

    leaves = {n.partition("/")[2]: a for n, a in arrays.items() if n.startswith("observation/")}
    extras = {n.partition("/")[2]: a for n, a in arrays.items() if n.startswith("extra/")}
    if "action" not in arrays:
        raise RecordError("the array 'action' is missing")
    return RecordSchema(
        tuple(field(*item) for item in leaves.items()),
        field("action", arrays["action"]),
        tuple(field(*item) for item in extras.items()),
    )


def _values(name: str, array: NDArray[Any], field: Field, count: int, *, cast: bool) -> NDArray[Any]:
    wanted = field.storage
    same = array.dtype.newbyteorder("<") == wanted or (cast and array.dtype.kind == "f" == wanted.kind)
    if array.shape != (count, *field.shape) or not same:
        raise RecordError(
            f"{name!r} is {array.dtype}{list(array.shape)}, expected {wanted.name}{[count, *field.shape]}"
        )
    return _finite(name, array.astype(wanted, copy=False))


def _numbers(name: str, array: NDArray[Any], dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return an array of one number an entry, in the dtype in which it is stored."""
    kinds = "f" if dtype.kind == "f" else "iu"
    if array.shape != (count,) or array.dtype.kind not in kinds:
        raise RecordError(f"{name!r} is {array.dtype}{list(array.shape)}, expected one number for each step")
    if dtype.kind != "f" and count and not 0 <= int(array.min()) <= int(array.max()) < 2**32:
        raise RecordError(f"{name!r} has {array.min()} to {array.max()}: give 0 to 2^32 - 1")
    return _finite(name, array.astype(dtype, copy=False))


def _finite(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RecordError(f"{name!r} holds a number that is not finite (as {array.dtype.name})")
    return array


def _bools(name: str, array: NDArray[Any], count: int) -> NDArray[np.bool_]:
    if array.shape != (count,) or array.dtype != np.bool_:
        raise RecordError(f"{name!r} is {array.dtype}{list(array.shape)}, expected bool[{count}]")
    return array
