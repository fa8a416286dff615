"""Acts from an ONNX file alone, with ONNX Runtime and numpy; needs the package ``onnxruntime``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.artefact import MAX_BYTES, PolicyContract, check_contract, check_environment, make_head
from tickrate.artefact.container import contract_from_json
from tickrate.artefact.matching import check_successor
from tickrate.errors import MissingExtra, PolicyError, PolicyMismatch
from tickrate.onnx.names import (
    ACTION,
    CONTRACT,
    CONTRACT_HASH,
    OUTPUTS,
    leaf_input,
    state_input,
    state_output,
)
from tickrate.program.one_hot import check_categories
from tickrate.program.shapes import Shapes
from tickrate.program.spec import ReadOneHot

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors
except ImportError as error:
    raise MissingExtra(
        "acting from an ONNX file needs the package onnxruntime: pip install 'tickrate[onnx]'"
    ) from error

Array = NDArray[Any]
State = Mapping[str, Array]

_NOWHERE = str(Path(os.devnull) / "nowhere")

_REFUSALS = (
    RuntimeError,
    ValueError,
    *(
        getattr(runtime_errors, name)
        for name in ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile")
    ),
    *(getattr(runtime_errors, name) for name in ("NotImplemented", "RuntimeException")),
)
"""What ONNX Runtime raises for a file that it cannot run."""


class OnnxPolicy:
    """An `Actor` whose network runs in ONNX Runtime, on one thread.

    The contract is read from the file's metadata. Without exploration the action is the file's own output;
    with it, the contract's head turns the file's raw outputs into actions, as in `tickrate.policy.Policy`.
    """

    def __init__(self, blob: bytes, *, seed: int | None = None) -> None:
        """Load a policy.

        Args:
            blob: an ONNX file that `tickrate export` wrote.
            seed: seed of the exploration; from the system's entropy when omitted.

        Raises:
            PolicyError: if the bytes are no such file.
        """
        self._set(*_opened(blob))
        self._rng = np.random.default_rng(seed)

    @classmethod
    def load_file(cls, path: str | os.PathLike[str], *, seed: int | None = None) -> OnnxPolicy:
        """Load a policy from a file.

        Raises:
            FileNotFoundError: if there is no such file.
            PolicyError: if it is no policy; the message names the file.
        """
        file = Path(path)
        size = file.stat().st_size
        if size > 2 * MAX_BYTES:
            raise PolicyError(f"{file}: {size} bytes are more than a policy may have ({2 * MAX_BYTES})")
        try:
            return cls(file.read_bytes(), seed=seed)
        except PolicyError as error:
            raise PolicyError(f"{file}: {error}") from error

    @property
    def contract(self) -> PolicyContract:
        """What this policy was trained for."""
        return self._contract

    def _set(self, session: Any, contract: PolicyContract, shapes: Shapes) -> None:
        self._session, self._contract, self._states = session, contract, dict(shapes.states)
        self._head = make_head(contract)
        leaves = [(path, contract.leaf(path)) for path in shapes.leaves]
        self._leaves = [(path, leaf_input(path), np.dtype(leaf.dtype), leaf.shape) for path, leaf in leaves]
        self._one_hot = {op.leaf: op for op in contract.program.ops if isinstance(op, ReadOneHot)}
        next_states = [state_output(name) for name in self._states]
        self._best, self._raw = [ACTION, *next_states], [OUTPUTS, *next_states]

    def load(self, weights: bytes) -> None:
        """Take a newer ONNX file from the next `act` on; state and noise go on as they are.

        Raises:
            PolicyError: if the bytes are no such file.
            PolicyMismatch: if it is for other spaces, groups, states or timing; the old one stays.
        """
        session, contract, shapes = _opened(weights)
        check_successor(self._contract, contract)
        self._set(session, contract, shapes)

    def initial_state(self, batch: int) -> State:
        """Return the state at the start of an episode, as `tickrate.policy.Policy.initial_state` does."""
        zeros = {name: np.zeros((batch, *shape), np.float32) for name, shape in self._states.items()}
        return {**self._head.initial_state(batch, self._rng), **zeros}

    def act(
        self, observation: Mapping[str, Array], state: State, *, deterministic: bool = False
    ) -> tuple[Array, State, dict[str, Array]]:
        """Choose actions, ``(batch, *action)``, in the environment's units; see `tickrate.policy.Actor.act`.

        Raises:
            PolicyMismatch: if a leaf or a state is missing or has another shape, or a leaf that is read as
                one-hot holds what is none of its categories; names it.
            PolicyError: if the file cannot be run.
        """
        if deterministic:
            action, carried = self._run(self._best, observation, state)
            return action, {**state, **carried} if carried else state, {}
        outputs, carried = self._run(self._raw, observation, state)
        action, explored = self._head.explore(outputs, state, self._rng)
        return action, {**explored, **carried}, {}

    def outputs(self, observation: Mapping[str, Array], state: State) -> tuple[NDArray[np.float32], State]:
        """Return what the network says, ``(batch, outputs)``, before the head, and the next state.

        Raises:
            PolicyMismatch: if a leaf or a state is missing or has another shape, or a leaf that is read as
                one-hot holds what is none of its categories; names it.
        """
        outputs, carried = self._run(self._raw, observation, state)
        return outputs, {**state, **carried}

    def check(
        self,
        observation: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Space[Any],
        *,
        period_s: float | None = None,
        action_buffer_length: int | None = None,
    ) -> None:
        """Check that this policy was made for an environment; see `tickrate.policy.Policy.check`.

        Raises:
            PolicyMismatch: naming the leaf or property, with both values.
        """
        check_environment(
            self._contract,
            observation,
            action_space,
            period_s=period_s,
            action_buffer_length=action_buffer_length,
        )

    def _run(
        self, wanted: Sequence[str], observation: Mapping[str, Array], state: State
    ) -> tuple[Array, dict[str, Array]]:
        feeds: dict[str, Array] = {}
        batch = -1
        for path, name, dtype, shape in self._leaves:
            leaf = observation.get(path)
            if leaf is None:
                raise PolicyMismatch(f"the policy reads leaf {path!r}, given are {list(observation)}")
            if batch < 0:
                batch = len(leaf) if leaf.ndim else 0
            if leaf.shape != (batch, *shape):
                raise PolicyMismatch(f"leaf {path!r} has shape {leaf.shape}, expected {(batch, *shape)}")
            if path in self._one_hot:
                check_categories(self._one_hot[path], leaf)
            feeds[name] = np.ascontiguousarray(leaf, dtype)
        for name, units in self._states.items():
            value = state.get(name)
            if value is None or value.shape != (batch, *units):
                found = "missing" if value is None else f"of shape {value.shape}"
                raise PolicyMismatch(f"state {name!r} is {found}, expected is {(batch, *units)}")
            feeds[state_input(name)] = np.ascontiguousarray(value, np.float32)
        try:
            result, *states = self._session.run(wanted, feeds)
        except _REFUSALS as error:
            raise PolicyError(f"ONNX Runtime could not run the policy: {error}") from error
        return result, dict(zip(self._states, states, strict=True))

    def __repr__(self) -> str:
        contract = self._contract
        return f"OnnxPolicy({contract.algorithm}, version {contract.policy_version}, {contract.period_s} s)"


def _opened(blob: bytes) -> tuple[Any, PolicyContract, Shapes]:
    """Return the session, the contract and its shapes; inputs and outputs are as the contract says."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4  # what goes wrong is said in the error
    # A file may name other files as its weights; there is no such folder, so that none is ever
    # opened (ONNX Runtime 1.21 and later).
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    try:
        session = onnxruntime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
        metadata = session.get_modelmeta().custom_metadata_map
    except _REFUSALS as error:
        raise PolicyError(f"{len(blob)} bytes are no ONNX file that can be run: {error}") from error
    if CONTRACT not in metadata:
        raise PolicyError(
            f"the ONNX file has no {CONTRACT!r} in its metadata: write it with `tickrate export`"
        )
    contract = contract_from_json(metadata[CONTRACT], metadata.get(CONTRACT_HASH))
    shapes = check_contract(contract)
    _check_ends(session, contract, shapes)
    return session, contract, shapes


def _check_ends(session: Any, contract: PolicyContract, shapes: Shapes) -> None:
    """Check names, types and shapes of inputs and outputs against the contract."""
    leaves = {leaf_input(path): (contract.leaf(path).dtype, shape) for path, shape in shapes.leaves.items()}
    inputs = leaves | {state_input(name): ("float32", shape) for name, shape in shapes.states.items()}
    outputs = {
        ACTION: (contract.action.dtype, contract.action.shape),
        OUTPUTS: ("float32", shapes.values[contract.program.output]),
    }
    outputs |= {state_output(name): ("float32", shape) for name, shape in shapes.states.items()}
    for what, found, expected in (
        ("input", session.get_inputs(), inputs),
        ("output", session.get_outputs(), outputs),
    ):
        ends = {end.name: (_TYPES.get(end.type, end.type), tuple(end.shape[1:])) for end in found}
        if ends != expected:
            raise PolicyError(f"the ONNX file has the {what}s {ends}, its contract says {expected}")


_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    **{f"tensor({name})": name for name in ("int8", "int16", "int32", "int64")},
    **{f"tensor({name})": name for name in ("uint8", "uint16", "uint32", "uint64", "bool")},
}
"""ONNX Runtime's names of types, as numpy calls them."""
