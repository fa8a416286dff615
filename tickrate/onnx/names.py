"""How the inputs, outputs and metadata of a policy's ONNX file are named: what both sides must agree on.

Inputs: each leaf the network reads, in the leaf's own dtype, ``(batch, *leaf)``, and each recurrent state,
float32 ``(batch, units)``, zero at the start of an episode. Outputs: the action without exploration in the
environment's units and dtype, ``(batch, *action)``; what the network says before the head, float32
``(batch, outputs)``; and each next state. The metadata hold the contract as JSON.

The file itself cannot refuse a category that does not exist: its one-hot columns are then all 0, as
they never are in training. `tickrate.onnx.actor.OnnxPolicy` refuses it; elsewhere, check such leaves first.
"""

from __future__ import annotations

CONTRACT = "tickrate.contract"
"""Key of the contract in the metadata."""

CONTRACT_HASH = "tickrate.contract_sha256"
"""Key of its hash; files from before there was one are read without."""

ACTION = "action"
"""The output that holds the action without exploration."""

OUTPUTS = "outputs"
"""The output that holds what the network says."""


def leaf_input(path: str) -> str:
    """Return the input that takes a leaf."""
    return f"leaf/{path}"


def state_input(name: str) -> str:
    """Return the input that takes a recurrent state."""
    return f"state/{name}"


def state_output(name: str) -> str:
    """Return the output that gives the next recurrent state."""
    return f"next_state/{name}"
