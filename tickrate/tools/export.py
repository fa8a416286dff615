"""Exports a policy to ONNX, and proves that the file acts as the policy does before it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.artefact import BoxAction, PolicyContract
from tickrate.artefact.container import unpack
from tickrate.errors import PolicyError
from tickrate.onnx.actor import OnnxPolicy
from tickrate.onnx.graph import onnx_bytes
from tickrate.policy import Policy, State

Observation = dict[str, NDArray[Any]]

TOLERANCE = 1e-5
"""Largest difference, relative to the largest output of that observation or 1, whichever is more."""

OBSERVATIONS = 1000
"""Random observations that are compared."""

STEPS = 50
"""Steps they are spread over."""

RESET_AT = 25
"""Step at which recurrent states begin anew."""


def export_onnx(policy: Policy, path: Path) -> float:
    """Write a policy as an ONNX file, after a parity check; return the largest difference found.

    Raises:
        PolicyError: if the file does not act as the policy does; nothing is written then.
    """
    contract, weights = unpack(policy.to_bytes())
    blob = onnx_bytes(contract, weights)
    difference = check_parity(policy, OnnxPolicy(blob))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(blob)
    temporary.replace(path)
    return difference


def check_parity(policy: Policy, exported: OnnxPolicy, *, seed: int = 0) -> float:
    """Compare raw outputs and actions without exploration on random observations.

    There are 1000 observations, as 20 rows of 50 steps: recurrent policies carry their states, which begin
    anew at steps 0 and 25. Floats are normal, categories and bytes uniform, other whole numbers from 0 to 9.

    Returns:
        The largest difference of an output or a Box's action, relative as `TOLERANCE` is.

    Raises:
        PolicyError: if anything differs by more than `TOLERANCE`; tells what, where and by how much.
    """
    rng, rows, largest = np.random.default_rng(seed), OBSERVATIONS // STEPS, 0.0
    contract = policy.contract
    mine, theirs = policy.initial_state(rows), exported.initial_state(rows)
    for step in range(STEPS):
        if step == RESET_AT:
            mine, theirs = policy.initial_state(rows), exported.initial_state(rows)
        observation = random_observation(contract, rows, rng)
        largest = max(largest, _compare(policy, exported, observation, mine, theirs, step))
        _, mine = policy.outputs(observation, mine)
        _, theirs = exported.outputs(observation, theirs)
    return largest


def _compare(
    policy: Policy, exported: OnnxPolicy, observation: Observation, mine: State, theirs: State, step: int
) -> float:
    expected, _ = policy.outputs(observation, mine)
    found, _ = exported.outputs(observation, theirs)
    action, _, _ = policy.act(observation, mine, deterministic=True)
    exported_action, _, _ = exported.act(observation, theirs, deterministic=True)
    largest = _difference("outputs", step, expected, found)
    if action.shape != exported_action.shape or action.dtype != exported_action.dtype:
        raise PolicyError(
            f"ONNX parity: actions are {exported_action.dtype}{list(exported_action.shape)}, "
            f"the policy's are {action.dtype}{list(action.shape)}"
        )
    if isinstance(policy.contract.action, BoxAction):
        return max(largest, _difference("actions", step, action, exported_action))
    _same_choices(policy.contract, step, expected, exported_action)
    return largest


def _difference(what: str, step: int, expected: NDArray[Any], found: NDArray[Any]) -> float:
    wanted = expected.reshape(len(expected), -1).astype(np.float64)
    size = np.maximum(1.0, np.abs(wanted).max(axis=1))
    off = np.abs(found.reshape(wanted.shape).astype(np.float64) - wanted).max(axis=1) / size
    if not (off <= TOLERANCE).all():
        raise PolicyError(
            f"ONNX parity: {what} differ by {off.max():.2e} at step {step}, allowed are {TOLERANCE:.0e}: "
            f"{found.reshape(wanted.shape)[off.argmax()]} instead of {wanted[off.argmax()]}"
        )
    return float(off.max())


def _same_choices(
    contract: PolicyContract, step: int, outputs: NDArray[np.float32], found: NDArray[Any]
) -> None:
    """Check that each choice has the largest output, or one that is equal to it but for rounding."""
    assert not isinstance(contract.action, BoxAction)
    chosen = found.reshape(len(outputs), -1) - np.array(contract.action.starts)
    slack = 2.0 * TOLERANCE * np.maximum(1.0, np.abs(outputs).max(axis=1))
    start = 0
    for part, count in enumerate(contract.action.choices):
        values = outputs[:, start : start + count]
        start += count
        taken = np.take_along_axis(values, chosen[:, part : part + 1], axis=1)[:, 0]
        if (wrong := values.max(axis=1) - taken > slack).any():
            row = int(wrong.argmax())
            raise PolicyError(
                f"ONNX parity: choice {chosen[row, part]} of part {part} at step {step}, "
                f"the outputs are {values[row]}"
            )


def random_observation(contract: PolicyContract, batch: int, rng: np.random.Generator) -> Observation:
    """Return random values for every leaf, ``(batch, *leaf)``, in the leaf's dtype."""
    found: Observation = {}
    for leaf in contract.observation:
        dtype, shape = np.dtype(leaf.dtype), (batch, *leaf.shape)
        if leaf.counts:
            highest = [low + n - 1 for low, n in zip(leaf.lowest, leaf.counts, strict=True)]
            parts = rng.integers(leaf.lowest, highest, (batch, leaf.size), endpoint=True)
            found[leaf.path] = parts.astype(dtype).reshape(shape)
        elif dtype.kind == "f":
            found[leaf.path] = rng.standard_normal(shape).astype(dtype)
        else:
            high = {"b": 2, "u": 256 if dtype.itemsize == 1 else 10}.get(dtype.kind, 10)
            found[leaf.path] = rng.integers(0, high, shape).astype(dtype)
    return found
