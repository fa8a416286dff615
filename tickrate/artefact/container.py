"""Writes and reads artefacts: one safetensors blob whose metadata is the contract as JSON.

Bytes come from files and networks, so everything is checked before it is used: sizes first, then the
header, then a hash of the contract, its types, the program, every tensor's name, dtype and shape, then a hash
of the weights. The hashes are there to find damage; whoever edits a file can compute them anew.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tickrate.artefact.contract import FORMAT, PolicyContract, check_contract
from tickrate.artefact.first_format import FIRST_FORMAT, FirstContract, converted
from tickrate.errors import PolicyError
from tickrate.program.checking import check_tensors
from tickrate.program.shapes import Shapes

MAX_BYTES = 1 << 28
"""Largest artefact that is read: 256 MiB."""

MAX_HEADER_BYTES = 1 << 20
"""Largest safetensors header that is read: 1 MiB."""

CONTRACT = "contract"
"""Key of the contract in the metadata."""

CONTRACT_HASH = "contract_sha256"
"""Key of its hash; files from before there was one are read without."""

Weights = dict[str, NDArray[np.float32]]


class _Format(msgspec.Struct):
    """The one part of a contract that tells how to read the rest."""

    format: str = ""


def weights_sha256(weights: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash that ties a contract to its tensors: names, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name}:{weights[name].dtype.str}:{weights[name].shape};".encode())
        digest.update(np.ascontiguousarray(weights[name]).data)
    return digest.hexdigest()


def pack(contract: PolicyContract, weights: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the artefact for a contract and its tensors; the hash in the contract is computed here.

    Raises:
        PolicyError: if contract and tensors do not fit each other, or a weight is not finite.
    """
    shapes = check_contract(contract)
    exact = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in weights.items()}
    check_tensors(shapes, exact)
    signed = msgspec.structs.replace(contract, weights_sha256=weights_sha256(exact))
    text = msgspec.json.encode(signed).decode()
    blob = _with_metadata(safetensors.numpy.save(exact), {CONTRACT: text, CONTRACT_HASH: text_sha256(text)})
    if len(blob) > MAX_BYTES:
        raise PolicyError(f"the policy has {len(blob)} bytes, possible are {MAX_BYTES}")
    if struct.unpack_from("<Q", blob)[0] > MAX_HEADER_BYTES:
        raise PolicyError(f"the policy's contract has {len(text)} bytes, possible are {MAX_HEADER_BYTES}")
    return blob


def _with_metadata(blob: bytes, metadata: dict[str, str]) -> bytes:
    """Return a safetensors blob with metadata. The library writes several keys in an order of chance."""
    (length,) = struct.unpack_from("<Q", blob)
    header = {"__metadata__": metadata, **msgspec.json.decode(blob[8 : 8 + length], type=dict[str, Any])}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text + blob[8 + length :]


def unpack(blob: bytes, *, check_hash: bool = True) -> tuple[PolicyContract, Weights]:
    """Return contract and tensors of an artefact, every part of it checked; earlier formats are converted.

    Args:
        blob: the artefact.
        check_hash: compute the hash of the weights, 1 to 2 ms a MB. False for bytes that other checksums have
            brought here from who made them.

    Raises:
        PolicyError: if the bytes are no artefact of a known format, or are damaged, truncated or edited.
    """
    contract, weights, _ = unpack_with_shapes(blob, check_hash=check_hash)
    return contract, weights


def unpack_with_shapes(blob: bytes, *, check_hash: bool) -> tuple[PolicyContract, Weights, Shapes]:
    """Return what `unpack` does, and what the checks found out about the program."""
    contract = _decode(blob)
    shapes = check_contract(contract)
    try:
        weights = safetensors.numpy.load(blob)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"policy of {len(blob)} bytes: its tensors cannot be read ({error})") from error
    check_tensors(shapes, weights)
    if check_hash and (found := weights_sha256(weights)) != contract.weights_sha256:
        raise PolicyError(
            f"the weights have SHA-256 {found[:16]}..., the contract says {contract.weights_sha256[:16]}...: "
            "the file is damaged or was edited; save it again"
        )
    return contract, weights, shapes


def read_contract(blob: bytes) -> PolicyContract:
    """Return the checked contract of an artefact without reading its tensors.

    Raises:
        PolicyError: if the bytes are no artefact of a known format.
    """
    contract = _decode(blob)
    check_contract(contract)
    return contract


def text_sha256(text: str) -> str:
    """Return the hash that stands beside a contract's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def contract_from_json(text: str, sha256: str | None) -> PolicyContract:
    """Return the contract that a text says, of any known format; its types are checked, not yet its sense.

    Args:
        text: JSON.
        sha256: what its hash should be; None where none was said.

    Raises:
        PolicyError: if the text is no contract, or not the one that was hashed.
    """
    if sha256 is not None and (found := text_sha256(text)) != sha256:
        raise PolicyError(
            f"the contract has SHA-256 {found[:16]}..., the file says {sha256[:16]}...: it is damaged or was "
            "edited; save it again"
        )
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found == FORMAT:
            return msgspec.json.decode(text, type=PolicyContract)
        if found == FIRST_FORMAT:
            return converted(msgspec.json.decode(text, type=FirstContract))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise PolicyError(f"the policy's contract cannot be read: {error}") from error
    raise PolicyError(
        f"policy format {found[:80]!r}: this version of tickrate reads {FIRST_FORMAT!r} and {FORMAT!r}"
    )


def _decode(blob: bytes) -> PolicyContract:
    try:
        tensors = msgspec.json.decode(_header(blob), type=dict[str, dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise PolicyError(f"the policy's header cannot be read: {error}") from error
    metadata = tensors.get("__metadata__", {})
    text, sha256 = metadata.get(CONTRACT), metadata.get(CONTRACT_HASH)
    if not isinstance(text, str):
        raise PolicyError("no 'contract' in the safetensors metadata: this is no tickrate policy")
    return contract_from_json(text, None if sha256 is None else str(sha256))


def _header(blob: bytes) -> bytes:
    if not 8 < len(blob) <= MAX_BYTES:
        raise PolicyError(f"a policy of {len(blob)} bytes: between 9 and {MAX_BYTES} are possible")
    (length,) = struct.unpack_from("<Q", blob)
    if length > MAX_HEADER_BYTES or length > len(blob) - 8:
        raise PolicyError(
            f"the first 8 bytes announce a header of {length} bytes in {len(blob)} bytes: "
            "this is no safetensors file, or it is truncated"
        )
    return bytes(blob[8 : 8 + length])
