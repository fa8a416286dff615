"""Policies that act: the Actor protocol, and Policy, which runs a saved artefact in numpy without torch."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.artefact import (
    MAX_BYTES,
    ActionSpec,
    Exploration,
    LeafSpec,
    NetworkSpec,
    PolicyContract,
    Weights,
    leaf_spec,
    pack,
    unpack,
)
from tickrate.errors import PolicyError, PolicyMismatch

__all__ = [
    "ActionSpec",
    "Actor",
    "Exploration",
    "LeafSpec",
    "NetworkSpec",
    "Policy",
    "PolicyContract",
]

Array = NDArray[Any]
State = Mapping[str, Array]


class Actor(Protocol):
    """What a worker asks of whatever acts; any framework can be behind it, weights are opaque bytes."""

    def initial_state(self, batch: int) -> State:
        """Return the state at the start of an episode, arrays of ``(batch, ...)``, or an empty map."""
        ...

    def act(
        self, observation: Mapping[str, Array], state: State, *, deterministic: bool = False
    ) -> tuple[Array, State, dict[str, Array]]:
        """Choose actions.

        Args:
            observation: canonical leaves, each ``(batch, *leaf)``.
            state: what `initial_state` or the last call returned.
            deterministic: act without exploration, as in evaluation.

        Returns:
            Actions in the environment's units, ``(batch, *action)``, or a chunk of them,
            ``(batch, horizon, *action)``; the next state; and extras to be recorded with the step, by name.
        """
        ...

    def load(self, weights: bytes) -> None:
        """Take newer weights of the same contract, from the next `act` on."""
        ...


class _Network:
    """The folded layers and their scratch arrays for one batch size; replaced as a whole by `Policy.load`."""

    def __init__(self, contract: PolicyContract, weights: Weights) -> None:
        self.activation = contract.network.activation
        depth = len(contract.network.widths) - 1
        self.layers = [(weights[f"layer.{i}.weight"], weights[f"layer.{i}.bias"]) for i in range(depth)]
        self._scratch: list[NDArray[np.float32]] = []
        self._batch = -1

    def input(self, batch: int) -> NDArray[np.float32]:
        """Return the input array ``(batch, inputs)`` to fill before `forward`."""
        if batch != self._batch:
            widths = [self.layers[0][0].shape[0], *(weight.shape[1] for weight, _ in self.layers)]
            self._scratch = [np.empty((batch, width), np.float32) for width in widths]
            self._batch = batch
        return self._scratch[0]

    def forward(self) -> NDArray[np.float32]:
        """Run the layers on the filled input; the result is overwritten by the next call."""
        last = len(self.layers) - 1
        for i, (weight, bias) in enumerate(self.layers):
            out = self._scratch[i + 1]
            np.dot(self._scratch[i], weight, out=out)
            out += bias
            if i == last or self.activation == "none":
                continue
            if self.activation == "relu":
                np.maximum(out, 0.0, out=out)
            else:
                np.tanh(out, out=out)
        return self._scratch[-1]


class Policy:
    """A saved policy: contract and folded weights, acting in numpy (float32).

    The network maps the flattened leaves of the group ``actor`` to a mean and a log_std; an action is
    ``low + (tanh(mean + std * eps) + 1) / 2 * (high - low)``. In exploration ``eps`` is AR(1) noise of unit
    variance, ``eps' = rho * eps + sqrt(1 - rho^2) * N(0, 1)``, carried in the state; rho is in the contract.

    One object serves one thread: `act` reuses scratch arrays, what it returns is fresh.
    """

    def __init__(self, contract: PolicyContract, weights: Weights, *, seed: int | None = None) -> None:
        blob = pack(contract, weights)
        self._set(blob, *unpack(blob))
        self._rng = np.random.default_rng(seed)

    @classmethod
    def from_bytes(cls, blob: bytes, *, seed: int | None = None) -> Policy:
        """Load a policy from the bytes of an artefact.

        Args:
            blob: what `to_bytes` or an algorithm's ``policy_bytes`` gave.
            seed: seed of the exploration noise; from the system's entropy when omitted.

        Raises:
            PolicyError: if the bytes are no artefact, damaged, or of another format version.
        """
        policy = cls.__new__(cls)
        policy._set(blob, *unpack(blob))
        policy._rng = np.random.default_rng(seed)
        return policy

    @classmethod
    def load_file(cls, path: str | os.PathLike[str], *, seed: int | None = None) -> Policy:
        """Load a policy from a file.

        Raises:
            FileNotFoundError: if there is no such file.
            PolicyError: if it is no policy; the message names the file.
        """
        file = Path(path)
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise PolicyError(f"{file}: {size} bytes are more than a policy may have ({MAX_BYTES})")
        try:
            return cls.from_bytes(file.read_bytes(), seed=seed)
        except PolicyError as error:
            raise PolicyError(f"{file}: {error}") from error

    def to_bytes(self) -> bytes:
        """Return the artefact's bytes."""
        return self._blob

    def save_file(self, path: str | os.PathLike[str]) -> None:
        """Write the artefact so that the path holds either the old file or the whole new one."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(self._blob)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    @property
    def contract(self) -> PolicyContract:
        """What this policy was trained for."""
        return self._contract

    def _set(self, blob: bytes, contract: PolicyContract, weights: Weights) -> None:
        action = contract.action
        dtype = np.dtype(action.dtype)
        self._low = np.asarray(action.low, np.float32)
        self._high = np.asarray(action.high, np.float32)
        self._half = (self._high - self._low) * np.float32(0.5)
        self._centre = self._low + self._half
        self._dtype = dtype
        sizes = [(path, contract.leaf(path)) for path in contract.groups["actor"]]
        starts = np.cumsum([0, *(leaf.size for _, leaf in sizes)])
        self._inputs = [
            (path, leaf.shape, slice(int(starts[i]), int(starts[i + 1])))
            for i, (path, leaf) in enumerate(sizes)
        ]
        self._rho = contract.exploration.noise_correlation
        self._fresh = math.sqrt(1.0 - self._rho**2)
        self._network = _Network(contract, weights)
        self._contract = contract
        self._blob = blob

    def load(self, weights: bytes) -> None:
        """Take newer weights from the next `act` on; state and noise go on as they are.

        It happens between two ticks, so the hash of the weights is not computed again: message and shared
        memory have checksums of their own.

        Raises:
            PolicyError: if the bytes are no artefact.
            PolicyMismatch: if they were made for other spaces, groups or timing; the old weights stay.
        """
        contract, tensors = unpack(weights, check_hash=False)
        same = ("observation", "action", "groups", "period_s", "action_buffer_length")
        for field in same:
            mine, theirs = getattr(self._contract, field), getattr(contract, field)
            if mine != theirs:
                raise PolicyMismatch(f"new weights are for another {field}: {theirs}; this policy has {mine}")
        self._set(weights, contract, tensors)

    def initial_state(self, batch: int) -> State:
        """Return fresh noise of unit variance, ``{"noise": (batch, action size)}``."""
        return {"noise": self._rng.standard_normal((batch, self._contract.action.size), dtype=np.float32)}

    def act(
        self, observation: Mapping[str, Array], state: State, *, deterministic: bool = False
    ) -> tuple[Array, State, dict[str, Array]]:
        """Choose actions, ``(batch, *action)``, in the environment's units; see `Actor.act`.

        Raises:
            PolicyMismatch: if a leaf is missing or has another shape; names it.
        """
        network = self._network
        self._read(observation, network)
        out = network.forward()
        size = self._low.shape[0]
        squashed = np.tanh(out[:, :size]) if deterministic else None
        if squashed is None:
            noise = self._rng.standard_normal((len(out), size), dtype=np.float32)
            if self._rho:
                noise *= self._fresh
                noise += self._rho * state["noise"]
            exploration = self._contract.exploration
            std = np.exp(
                np.minimum(np.maximum(out[:, size:], exploration.log_std_min), exploration.log_std_max)
            )
            std *= noise
            std += out[:, :size]
            squashed = np.tanh(std, out=std)
            state = {"noise": noise}
        squashed *= self._half
        squashed += self._centre
        np.minimum(np.maximum(squashed, self._low, out=squashed), self._high, out=squashed)
        action = squashed.astype(self._dtype, copy=False).reshape(-1, *self._contract.action.shape)
        return action, state, {}

    def _read(self, observation: Mapping[str, Array], network: _Network) -> None:
        """Copy the actor group's leaves side by side into the network's input."""
        batch = -1
        for path, shape, columns in self._inputs:
            leaf = observation.get(path)
            if leaf is None:
                raise PolicyMismatch(f"the policy reads leaf {path!r}, given are {list(observation)}")
            if batch < 0:
                batch = len(leaf) if leaf.ndim else 0
                values = network.input(batch)
            if leaf.shape != (batch, *shape):
                raise PolicyMismatch(f"leaf {path!r} has shape {leaf.shape}, expected {(batch, *shape)}")
            values[:, columns] = leaf.reshape(batch, -1)

    def check(
        self,
        observation: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Space[Any],
        *,
        period_s: float | None = None,
        action_buffer_length: int | None = None,
    ) -> None:
        """Check that this policy was made for an environment, before anything is driven by it.

        Args:
            observation: leaf space by path of the canonical observation; the order is free.
            action_space: the environment's action space.
            period_s: nominal step in seconds (0 for lock-step); not compared when None.
            action_buffer_length: number of past actions in the observation; not compared when None.

        Raises:
            PolicyMismatch: naming the leaf or property, with both values.
        """
        contract = self._contract
        for leaf in contract.observation:
            if leaf.path not in observation:
                raise PolicyMismatch(
                    f"the policy was trained with the leaf {leaf.path!r}, "
                    f"the environment has {list(observation)}"
                )
            _same(f"leaf {leaf.path!r}", leaf, leaf_spec(leaf.path, observation[leaf.path]))
        known = {leaf.path for leaf in contract.observation}
        for path in observation:
            if path not in known:
                raise PolicyMismatch(f"the policy was trained without the leaf {path!r} of the environment")
        _check_actions(contract.action, action_space)
        if action_buffer_length is not None and action_buffer_length != contract.action_buffer_length:
            raise PolicyMismatch(
                f"action_buffer_length is {action_buffer_length} in the environment, "
                f"{contract.action_buffer_length} in the policy"
            )
        if period_s is not None and not math.isclose(period_s, contract.period_s, rel_tol=1e-6):
            raise PolicyMismatch(
                f"period_s is {period_s} in the environment, {contract.period_s} in the policy: "
                "a policy acts well only at the rate it was trained at"
            )

    def __repr__(self) -> str:
        contract = self._contract
        return (
            f"Policy({contract.algorithm}, version {contract.policy_version}, "
            f"{'-'.join(map(str, contract.network.widths))}, {contract.period_s} s)"
        )


def _same(what: str, policy: LeafSpec, environment: LeafSpec) -> None:
    if (policy.shape, policy.dtype) != (environment.shape, environment.dtype):
        raise PolicyMismatch(
            f"{what} is {environment.dtype}{list(environment.shape)} in the environment, "
            f"{policy.dtype}{list(policy.shape)} in the policy"
        )


def _check_actions(policy: ActionSpec, space: spaces.Space[Any]) -> None:
    if not isinstance(space, spaces.Box):
        raise PolicyMismatch(f"the action space is a {type(space).__name__}, the policy's a Box")
    spec = LeafSpec(path="action", dtype=policy.dtype, shape=policy.shape)
    _same("the action", spec, leaf_spec("action", space))
    for name, mine, theirs in (("low", policy.low, space.low), ("high", policy.high, space.high)):
        if not np.allclose(mine, theirs.reshape(-1), rtol=1e-6, atol=1e-9):
            raise PolicyMismatch(
                f"the action's {name} is {theirs.reshape(-1).tolist()} in the environment, "
                f"{list(mine)} in the policy"
            )
