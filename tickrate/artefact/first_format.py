"""Opens contracts of the first format, "tickrate-policy/1": an MLP of folded layers, actions in a box."""

from __future__ import annotations

from typing import Literal

import msgspec

from tickrate.artefact.actions import MAX_SIZE, BoxAction
from tickrate.artefact.contract import Exploration, LeafSpec, PolicyContract
from tickrate.errors import PolicyError
from tickrate.program.spec import mlp_program

FIRST_FORMAT: Literal["tickrate-policy/1"] = "tickrate-policy/1"
"""Name of the format that earlier releases wrote."""


class FirstLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One leaf of the observation, without its batch axis."""

    path: str
    dtype: str
    shape: tuple[int, ...]


class FirstAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finite box, its bounds flattened in C order."""

    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class FirstNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Affine layers with one activation between them, over the flattened leaves of the group ``actor``."""

    widths: tuple[int, ...]
    """Values in, hidden widths, values out; out is twice the action size: mean, then log_std."""
    activation: Literal["relu", "tanh", "none"] = "relu"


class FirstExploration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the stochastic policy draws its noise."""

    noise_correlation: float = 0.0
    log_std_min: float = -5.0
    log_std_max: float = 2.0


class FirstContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contract as it stands in a file of the first format."""

    algorithm: str
    observation: tuple[FirstLeaf, ...]
    action: FirstAction
    groups: dict[str, tuple[str, ...]]
    network: FirstNetwork
    exploration: FirstExploration
    period_s: float
    action_buffer_length: int
    policy_version: int = 0
    tickrate: str = ""
    weights_sha256: str = ""
    format: str = FIRST_FORMAT


def converted(first: FirstContract) -> PolicyContract:
    """Return the same contract in the present format; tensors keep their names, so their hash holds.

    Raises:
        PolicyError: if the network's widths cannot be.
    """
    widths = first.network.widths
    if not 2 <= len(widths) <= 64 or any(not 1 <= width <= MAX_SIZE for width in widths):
        raise PolicyError(
            f"network widths {list(widths)[:64]}: possible are 2 to 64 widths of 1 to {MAX_SIZE}"
        )
    group = first.groups.get("actor", ())
    observation = tuple(LeafSpec(leaf.path, leaf.dtype, leaf.shape) for leaf in first.observation)
    sizes = {leaf.path: leaf.size for leaf in observation}
    inputs = sum(sizes.get(path, 0) for path in group)
    if inputs != widths[0]:
        raise PolicyError(f"network widths {list(widths)} do not fit: the group 'actor' has {inputs} values")
    return PolicyContract(
        algorithm=first.algorithm,
        observation=observation,
        action=BoxAction(first.action.dtype, first.action.shape, first.action.low, first.action.high),
        groups=first.groups,
        program=mlp_program(group, widths[1:], first.network.activation),
        exploration=Exploration(
            first.exploration.noise_correlation, first.exploration.log_std_min, first.exploration.log_std_max
        ),
        period_s=first.period_s,
        action_buffer_length=first.action_buffer_length,
        policy_version=first.policy_version,
        tickrate=first.tickrate,
        weights_sha256=first.weights_sha256,
    )
