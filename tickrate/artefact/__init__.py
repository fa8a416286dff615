"""The bytes of a saved policy: a contract, the network as a program, its weights; and what its outputs mean.

Algorithms write artefacts, `tickrate.policy` acts with them. Numpy only.
"""

from tickrate.artefact.actions import (
    ActionSpec,
    BoxAction,
    DiscreteAction,
    MultiDiscreteAction,
    action_spec,
)
from tickrate.artefact.container import MAX_BYTES, Weights, pack, read_contract, unpack, weights_sha256
from tickrate.artefact.contract import (
    FORMAT,
    Exploration,
    HeadName,
    LeafSpec,
    PolicyContract,
    check_contract,
    head_outputs,
    leaf_spec,
)
from tickrate.artefact.heads import Head, make_head
from tickrate.artefact.matching import check_environment

__all__ = [
    "FORMAT",
    "MAX_BYTES",
    "ActionSpec",
    "BoxAction",
    "DiscreteAction",
    "Exploration",
    "Head",
    "HeadName",
    "LeafSpec",
    "MultiDiscreteAction",
    "PolicyContract",
    "Weights",
    "action_spec",
    "check_contract",
    "check_environment",
    "head_outputs",
    "leaf_spec",
    "make_head",
    "pack",
    "read_contract",
    "unpack",
    "weights_sha256",
]
