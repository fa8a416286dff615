"""Policies that act: the Actor protocol, and Policy, which runs a saved artefact in numpy without torch."""

from __future__ import annotations

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
    BoxAction,
    DiscreteAction,
    Exploration,
    LeafSpec,
    MultiDiscreteAction,
    PolicyContract,
    Weights,
    check_environment,
    make_head,
    pack,
)
from tickrate.artefact.container import unpack_with_shapes
from tickrate.artefact.matching import check_successor
from tickrate.errors import PolicyError
from tickrate.program.running import Runner
from tickrate.program.shapes import Shapes

__all__ = [
    "Actor",
    "BoxAction",
    "DiscreteAction",
    "Exploration",
    "LeafSpec",
    "MultiDiscreteAction",
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
            ``(batch, horizon, *action)``; the next state; and extras to be recorded with the step, by name,
            as far as the schema of the run's rows has a place for them (`tickrate.data.schema`).
        """
        ...

    def load(self, weights: bytes) -> None:
        """Take newer weights of the same contract, from the next `act` on."""
        ...


class Policy:
    """A saved policy: contract, network and weights, acting in numpy (float32).

    The network is the contract's program. Its outputs become actions as the contract's head says
    (`tickrate.artefact.heads`): a squashed Gaussian in a Box, the best or a drawn choice elsewhere. What the
    exploration and recurrent cells carry from step to step is in the state.

    One object serves one thread: `act` reuses scratch arrays, what it returns is fresh.
    """

    def __init__(self, contract: PolicyContract, weights: Weights, *, seed: int | None = None) -> None:
        self._set(*unpack_with_shapes(pack(contract, weights), check_hash=False))
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
        policy._set(*unpack_with_shapes(blob, check_hash=True))
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
        """Return the artefact's bytes, in the present format whatever it was loaded from."""
        return pack(self._contract, self._weights)

    def save_file(self, path: str | os.PathLike[str]) -> None:
        """Write the artefact so that the path holds either the old file or the whole new one."""
        blob, file = self.to_bytes(), Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(blob)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)

    @property
    def contract(self) -> PolicyContract:
        """What this policy was trained for."""
        return self._contract

    def _set(self, contract: PolicyContract, weights: Weights, shapes: Shapes) -> None:
        self._runner = Runner(contract.program, shapes, weights)
        self._head = make_head(contract)
        self._contract, self._weights = contract, weights

    def load(self, weights: bytes) -> None:
        """Take newer weights from the next `act` on; state and noise go on as they are.

        It happens between two ticks, so the hash of the weights is not computed again: message and shared
        memory have checksums of their own.

        Raises:
            PolicyError: if the bytes are no artefact.
            PolicyMismatch: if they are for other spaces, groups, states or timing; the old weights stay.
        """
        contract, tensors, shapes = unpack_with_shapes(weights, check_hash=False)
        check_successor(self._contract, contract)
        self._set(contract, tensors, shapes)

    def initial_state(self, batch: int) -> State:
        """Return the state at the start of an episode.

        For a Box ``noise``, fresh and of unit variance, ``(batch, action size)``, and where noise is held for
        several steps ``noise_left (batch,)``, zeros; and zeros for each state of a recurrent network,
        ``(batch, units)``.
        """
        return {**self._head.initial_state(batch, self._rng), **self._runner.initial_state(batch)}

    def act(
        self, observation: Mapping[str, Array], state: State, *, deterministic: bool = False
    ) -> tuple[Array, State, dict[str, Array]]:
        """Choose actions, ``(batch, *action)``, in the environment's units; see `Actor.act`.

        Raises:
            PolicyMismatch: if a leaf or a state is missing or has another shape, or a leaf that is read as
                one-hot holds what is none of its categories, as 5 of ``Discrete(5)``; names it and the value.
        """
        outputs, carried = self._runner.run(observation, state)
        if deterministic:
            return self._head.best(outputs), {**state, **carried} if carried else state, {}
        action, explored = self._head.explore(outputs, state, self._rng)
        explored.update(carried)
        return action, explored, {}

    def outputs(self, observation: Mapping[str, Array], state: State) -> tuple[NDArray[np.float32], State]:
        """Return what the network says, ``(batch, outputs)``, before the head, and the next state.

        Raises:
            PolicyMismatch: if a leaf or a state is missing or has another shape, or a leaf that is read as
                one-hot holds what is none of its categories, as 5 of ``Discrete(5)``; names it and the value.
        """
        outputs, carried = self._runner.run(observation, state)
        return outputs.copy(), {**state, **carried}

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
        check_environment(
            self._contract,
            observation,
            action_space,
            period_s=period_s,
            action_buffer_length=action_buffer_length,
        )

    def __repr__(self) -> str:
        contract = self._contract
        return (
            f"Policy({contract.algorithm}, version {contract.policy_version}, "
            f"{len(contract.program.ops)} operations, {contract.head}, {contract.period_s} s)"
        )
