"""The bytes of a saved policy: one safetensors blob whose metadata is a JSON contract. Numpy only.

Bytes come from files and networks, so everything is checked before it is used: sizes first, then the
header, then the contract's types, then every tensor's name, dtype and shape, then a hash of the weights.
This module knows the format; `tickrate.policy` acts with it, algorithms write it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.errors import PolicyError

FORMAT: Literal["tickrate-policy/1"] = "tickrate-policy/1"
"""Name and version of the format; another version is refused, never guessed at."""

MAX_BYTES = 1 << 28
"""Largest artefact that is read: 256 MiB."""

MAX_HEADER_BYTES = 1 << 20
"""Largest safetensors header that is read: 1 MiB."""

MAX_WIDTH = 1 << 20
"""Largest layer width, leaf size and action size that is accepted."""

MAX_AXES = 16
"""Most axes of a leaf and of an action."""

Weights = dict[str, NDArray[np.float32]]


class LeafSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One leaf of the observation, without its batch axis."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values in the leaf."""
        return math.prod(self.shape)


class ActionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The action space: a finite box, its bounds flattened in C order."""

    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of values in an action."""
        return math.prod(self.shape)


class NetworkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folded network: affine layers with one activation between them."""

    widths: tuple[int, ...]
    """Values in, hidden widths, values out; out is twice the action size: mean, then log_std."""
    activation: Literal["relu", "tanh", "none"] = "relu"


class Exploration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the stochastic policy draws its noise."""

    noise_correlation: float = 0.0
    """rho of the AR(1) noise between neighbouring steps, in [0, 1); 0 is white noise."""
    log_std_min: float = -5.0
    """Lower clamp of the network's log_std output."""
    log_std_max: float = 2.0
    """Upper clamp of the network's log_std output."""


class PolicyContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a policy was trained for: it travels with the weights and is checked before they are used."""

    algorithm: str
    """Name of the algorithm that trained it, for people."""
    observation: tuple[LeafSpec, ...]
    """Every leaf of the canonical observation, in its order."""
    action: ActionSpec
    groups: dict[str, tuple[str, ...]]
    """Observation groups; the network reads the leaves of ``actor``, flattened, in this order."""
    network: NetworkSpec
    exploration: Exploration
    period_s: float
    """Nominal step in seconds; 0 means lock-step (no clock)."""
    action_buffer_length: int
    """Number of past actions in the observation's leaf ``actions``."""
    policy_version: int = 0
    """Counts up with each set of weights in a run."""
    tickrate: str = ""
    """Version of tickrate that wrote it, for people."""
    weights_sha256: str = ""
    """Hash of names, shapes and bytes of all tensors; filled in by `pack`."""
    format: str = FORMAT

    def leaf(self, path: str) -> LeafSpec:
        """Return the leaf with this path.

        Raises:
            PolicyError: if the contract has no such leaf.
        """
        for leaf in self.observation:
            if leaf.path == path:
                return leaf
        raise PolicyError(
            f"group names the leaf {path!r}, the observation has {[x.path for x in self.observation]}"
        )


def leaf_spec(path: str, space: spaces.Space[Any]) -> LeafSpec:
    """Return the contract's description of a leaf space.

    Raises:
        PolicyError: if the space has no dtype and shape, as Text or Graph.
    """
    if space.shape is None or space.dtype is None:
        raise PolicyError(f"leaf {path!r} is a {type(space).__name__}: it has no shape and dtype")
    return LeafSpec(path=path, dtype=np.dtype(space.dtype).name, shape=tuple(int(n) for n in space.shape))


def action_spec(space: spaces.Box) -> ActionSpec:
    """Return the contract's description of a box of actions."""
    return ActionSpec(
        dtype=np.dtype(space.dtype).name,
        shape=tuple(int(n) for n in space.shape),
        low=tuple(float(x) for x in space.low.reshape(-1)),
        high=tuple(float(x) for x in space.high.reshape(-1)),
    )


def weights_sha256(weights: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash that ties a contract to its tensors: names, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name}:{weights[name].dtype.str}:{weights[name].shape};".encode())
        digest.update(np.ascontiguousarray(weights[name]).data)
    return digest.hexdigest()


def layer_shapes(network: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor the network consists of; weights are ``(in, out)``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (rows, columns) in enumerate(zip(network.widths[:-1], network.widths[1:], strict=True)):
        shapes[f"layer.{i}.weight"] = (rows, columns)
        shapes[f"layer.{i}.bias"] = (columns,)
    return shapes


def check_contract(contract: PolicyContract) -> None:
    """Check that a contract is possible and agrees with itself.

    Raises:
        PolicyError: naming the part that cannot be.
    """
    if contract.format != FORMAT:
        raise PolicyError(f"policy format {contract.format!r}: this version of tickrate reads {FORMAT!r}")
    paths = [leaf.path for leaf in contract.observation]
    if len(set(paths)) != len(paths):
        raise PolicyError(f"observation leaves {paths}: a path occurs twice")
    for leaf in contract.observation:
        if not _possible(leaf.shape):
            raise PolicyError(f"observation leaf {leaf.path!r} has the impossible shape {leaf.shape}")
        _dtype(leaf.dtype, f"observation leaf {leaf.path!r}")
    _check_action(contract.action)
    _check_exploration(contract.exploration)
    if not (math.isfinite(contract.period_s) and contract.period_s >= 0.0):
        raise PolicyError(f"period_s is {contract.period_s}: it must be 0 (lock-step) or positive (seconds)")
    if contract.action_buffer_length < 0 or contract.policy_version < 0:
        raise PolicyError(
            f"action_buffer_length {contract.action_buffer_length} and policy_version "
            f"{contract.policy_version} must not be negative"
        )
    for group, members in contract.groups.items():
        if len(set(members)) != len(members):
            raise PolicyError(f"observation group {group!r} names a leaf twice: {list(members)}")
        for path in members:
            contract.leaf(path)
    _check_network(contract)


def _possible(shape: tuple[int, ...]) -> bool:
    return len(shape) <= MAX_AXES and all(n >= 1 for n in shape) and math.prod(shape) <= MAX_WIDTH


def _check_network(contract: PolicyContract) -> None:
    if not contract.groups.get("actor"):
        raise PolicyError(f"the contract has no observation group 'actor', only {list(contract.groups)}")
    widths = contract.network.widths
    if not 2 <= len(widths) <= 64 or any(not 1 <= width <= MAX_WIDTH for width in widths):
        raise PolicyError(f"network widths {list(widths)}: possible are 2 to 64 widths of 1 to {MAX_WIDTH}")
    inputs = sum(contract.leaf(path).size for path in contract.groups["actor"])
    if widths[0] != inputs or widths[-1] != 2 * contract.action.size:
        raise PolicyError(
            f"network widths {list(widths)} do not fit: group 'actor' has {inputs} values and an action of "
            f"{contract.action.size} needs {2 * contract.action.size} outputs (mean and log_std)"
        )


def _check_action(action: ActionSpec) -> None:
    if not _possible(action.shape):
        raise PolicyError(f"action has the impossible shape {action.shape}")
    if np.dtype(_dtype(action.dtype, "action")).kind != "f":
        raise PolicyError(f"action dtype {action.dtype}: only floating point actions are possible")
    if not len(action.low) == len(action.high) == action.size:
        raise PolicyError(
            f"action of shape {action.shape} needs {action.size} bounds, "
            f"got {len(action.low)} and {len(action.high)}"
        )
    for i, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise PolicyError(
                f"action bounds [{low}, {high}] at index {i}: they must be finite and low below high"
            )


def _check_exploration(exploration: Exploration) -> None:
    low, high = exploration.log_std_min, exploration.log_std_max
    if not 0.0 <= exploration.noise_correlation < 1.0:
        raise PolicyError(f"noise_correlation is {exploration.noise_correlation}: it must be in [0, 1)")
    if not -20.0 <= low <= high <= 5.0:
        raise PolicyError(f"log_std clamp [{low}, {high}]: it must be ordered and inside [-20, 5]")


def _dtype(name: str, what: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise PolicyError(f"{what} has the unknown dtype {name!r}") from error
    if dtype.kind not in "fiub":
        raise PolicyError(f"{what} has dtype {name!r}: only numbers and booleans are possible")
    return dtype


def pack(contract: PolicyContract, weights: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the artefact for a contract and its tensors; the hash in the contract is computed here.

    Raises:
        PolicyError: if contract and tensors do not fit each other, or a weight is not finite.
    """
    check_contract(contract)
    exact = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in weights.items()}
    _check_weights(contract, exact)
    signed = msgspec.structs.replace(contract, weights_sha256=weights_sha256(exact))
    return safetensors.numpy.save(exact, metadata={"contract": msgspec.json.encode(signed).decode()})


def unpack(blob: bytes, *, check_hash: bool = True) -> tuple[PolicyContract, Weights]:
    """Return contract and tensors of an artefact, every part of it checked.

    Args:
        blob: the artefact.
        check_hash: compute the hash of the weights, 1 to 2 ms a MB. False for bytes that other checksums have
            brought here from who made them.

    Raises:
        PolicyError: if the bytes are no artefact of this format, or are damaged, truncated or edited.
    """
    contract = read_contract(blob)
    try:
        weights = safetensors.numpy.load(blob)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PolicyError(f"policy of {len(blob)} bytes: its tensors cannot be read ({error})") from error
    _check_weights(contract, weights)
    if check_hash and (found := weights_sha256(weights)) != contract.weights_sha256:
        raise PolicyError(
            f"the weights have SHA-256 {found[:16]}..., the contract says {contract.weights_sha256[:16]}...: "
            "the file is damaged or was edited; save it again"
        )
    return contract, weights


def read_contract(blob: bytes) -> PolicyContract:
    """Return the checked contract of an artefact without reading its tensors.

    Raises:
        PolicyError: if the bytes are no artefact of this format.
    """
    header = _header(blob)
    try:
        tensors = msgspec.json.decode(header, type=dict[str, dict[str, Any]])
        text = tensors.get("__metadata__", {}).get("contract")
        if not isinstance(text, str):
            raise PolicyError("no 'contract' in the safetensors metadata: this is no tickrate policy")
        contract = msgspec.json.decode(text, type=PolicyContract)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyError(f"the policy's header or contract cannot be read: {error}") from error
    check_contract(contract)
    return contract


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


def _check_weights(contract: PolicyContract, weights: Mapping[str, NDArray[Any]]) -> None:
    expected = layer_shapes(contract.network)
    if weights.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        raise PolicyError(f"policy tensors: missing {missing}, unexpected {extra}")
    for name, shape in expected.items():
        value = weights[name]
        if value.shape != shape or value.dtype != np.float32:
            raise PolicyError(
                f"tensor {name!r} is {value.dtype}{list(value.shape)}, expected float32{list(shape)}"
            )
        if not np.isfinite(value).all():
            raise PolicyError(f"tensor {name!r} holds values that are not finite: training has diverged")
