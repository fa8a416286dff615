"""What a policy was trained for: the contract that travels with its weights, and its checks."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from gymnasium import spaces

from tickrate.artefact.actions import (
    ActionSpec,
    BoxAction,
    check_action,
    check_ranges,
    number_dtype,
    possible_shape,
)
from tickrate.errors import PolicyError
from tickrate.program.checking import check_program
from tickrate.program.shapes import MAX_COLUMNS, Shapes
from tickrate.program.spec import Program, ReadOneHot
from tickrate.trees import categories

FORMAT: Literal["tickrate-policy/2"] = "tickrate-policy/2"
"""Name and version of the format that is written."""

HeadName = Literal["squashed_gaussian", "categorical", "greedy"]
"""What the network's outputs mean. ``squashed_gaussian``, for a Box: means, then log_stds. ``categorical``:
logits. ``greedy``: values of the choices. Both for Discrete and MultiDiscrete, the parts side by side."""


MAX_HOLD = 1 << 16
"""Most steps for which exploration noise can be held."""


class LeafSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One leaf of the observation, without its batch axis.

    A Discrete or MultiDiscrete leaf says its categories, which are compared with an environment's. They are
    empty for any other leaf, for one of more than 65,536 parts, and in files from before they were said. A
    Box says its range.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    lowest: tuple[int, ...] = ()
    """Lowest category of each part, the parts flattened in C order."""
    counts: tuple[int, ...] = ()
    """Number of categories of each part."""
    low: float | None = None
    """Least value of a Box, over all its parts; None: unbounded, or not said."""
    high: float | None = None
    """Largest value of a Box, as above."""

    @property
    def size(self) -> int:
        """Number of values in the leaf."""
        return math.prod(self.shape)


class Exploration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the policy explores; what its head does not use stays at its default."""

    noise_correlation: float = 0.0
    """``squashed_gaussian``: rho of the AR(1) noise between neighbouring steps, in [0, 1);
    0 is white noise."""
    log_std_min: float = -5.0
    """``squashed_gaussian``: lower clamp of the network's log_std output."""
    log_std_max: float = 2.0
    """``squashed_gaussian``: upper clamp of the network's log_std output."""
    epsilon: float = 0.0
    """``greedy``: probability of a random action, every part of it uniform, in [0, 1]."""
    noise_hold: int = 1
    """``squashed_gaussian``: most steps for which noise is held, 1 to 65,536. Each draw is held for n steps,
    n drawn with a weight of 1/n^2 (arXiv 2604.04539); 1 is new noise at every step. Usual: 1 or 16."""


class PolicyContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a policy was trained for: it travels with the weights and is checked before they are used."""

    algorithm: str
    """Name of the algorithm that trained it, for people."""
    observation: tuple[LeafSpec, ...]
    """Every leaf of the canonical observation, in its order."""
    action: ActionSpec
    head: HeadName = "squashed_gaussian"
    groups: dict[str, tuple[str, ...]]
    """Observation groups; the network reads the leaves of ``actor``."""
    program: Program
    """The network; its output is one number for each that the head needs (`head_outputs`)."""
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
    leaf = LeafSpec(path=path, dtype=np.dtype(space.dtype).name, shape=tuple(int(n) for n in space.shape))
    if isinstance(space, spaces.Box) and leaf.size:
        ends = (float(space.low.min()), float(space.high.max()))
        low, high = (end if math.isfinite(end) else None for end in ends)
        return msgspec.structs.replace(leaf, low=low, high=high)
    bounds = categories(space)
    if bounds is None or isinstance(space, spaces.MultiBinary) or leaf.size > MAX_COLUMNS:
        return leaf
    lowest, highest = (bound.ravel().tolist() for bound in bounds)
    counts = tuple(high - low + 1 for low, high in zip(lowest, highest, strict=True))
    return msgspec.structs.replace(leaf, lowest=tuple(lowest), counts=counts)


def head_outputs(action: ActionSpec) -> int:
    """Return how many numbers the network gives: mean and log_std of each value, or one for each choice."""
    return 2 * action.size if isinstance(action, BoxAction) else sum(action.choices)


def check_contract(contract: PolicyContract) -> Shapes:
    """Check that a contract is possible and agrees with itself; return the shapes of its program.

    Raises:
        PolicyError: naming the part that cannot be.
    """
    if contract.format != FORMAT:
        raise PolicyError(f"policy format {contract.format!r}: this version of tickrate writes {FORMAT!r}")
    paths = [leaf.path for leaf in contract.observation]
    if len(set(paths)) != len(paths):
        raise PolicyError(f"observation leaves {paths}: a path occurs twice")
    for leaf in contract.observation:
        if not possible_shape(leaf.shape):
            raise PolicyError(f"observation leaf {leaf.path!r} has the impossible shape {leaf.shape}")
        _check_categories(leaf, number_dtype(leaf.dtype, f"observation leaf {leaf.path!r}"))
    check_action(contract.action)
    _check_exploration(contract)
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
    return _check_network(contract)


def _check_categories(leaf: LeafSpec, dtype: np.dtype[Any]) -> None:
    if not leaf.lowest and not leaf.counts:
        return
    if dtype.kind not in "iu":
        raise PolicyError(f"observation leaf {leaf.path!r} has categories of {dtype}: they are whole numbers")
    if not len(leaf.lowest) == len(leaf.counts) == leaf.size:
        raise PolicyError(
            f"observation leaf {leaf.path!r} of shape {leaf.shape} has {leaf.size} parts, it says "
            f"{len(leaf.lowest)} lowest categories and {len(leaf.counts)} counts"
        )
    check_ranges(f"categories of the observation leaf {leaf.path!r}", leaf.lowest, leaf.counts, dtype)


def _check_network(contract: PolicyContract) -> Shapes:
    group = contract.groups.get("actor")
    if not group:
        raise PolicyError(f"the contract has no observation group 'actor', only {list(contract.groups)}")
    shapes = check_program(contract.program, {path: contract.leaf(path).shape for path in group})
    if unread := [path for path in group if path not in shapes.leaves]:
        raise PolicyError(f"the program does not read the leaves {unread} of the group 'actor'")
    for op in contract.program.ops:
        if isinstance(op, ReadOneHot):
            leaf = contract.leaf(op.leaf)
            if (op.lowest, op.counts) != (leaf.lowest, leaf.counts):
                raise PolicyError(
                    f"the program reads the leaf {op.leaf!r} as {list(op.counts[:16])} categories from "
                    f"{list(op.lowest[:16])} on, the leaf has {list(leaf.counts[:16])} from "
                    f"{list(leaf.lowest[:16])} on"
                )
    outputs, needed = shapes.values[contract.program.output], head_outputs(contract.action)
    if outputs != (needed,):
        raise PolicyError(
            f"the program's output {contract.program.output!r} has the shape {list(outputs)}: the head "
            f"{contract.head!r} needs [{needed}] for this action"
        )
    return shapes


def _check_exploration(contract: PolicyContract) -> None:
    exploration, head = contract.exploration, contract.head
    if head not in get_args(HeadName):
        raise PolicyError(f"the head {head!r} is unknown: there are {list(get_args(HeadName))}")
    if isinstance(contract.action, BoxAction) != (head == "squashed_gaussian"):
        kind = type(contract.action).__struct_config__.tag
        raise PolicyError(f"the head {head!r} cannot act in a {kind} space")
    low, high = exploration.log_std_min, exploration.log_std_max
    if not 0.0 <= exploration.noise_correlation < 1.0:
        raise PolicyError(f"noise_correlation is {exploration.noise_correlation}: it must be in [0, 1)")
    if not -20.0 <= low <= high <= 5.0:
        raise PolicyError(f"log_std clamp [{low}, {high}]: it must be ordered and inside [-20, 5]")
    if not 0.0 <= exploration.epsilon <= 1.0:
        raise PolicyError(f"epsilon is {exploration.epsilon}: it must be in [0, 1]")
    if not 1 <= exploration.noise_hold <= MAX_HOLD:
        raise PolicyError(f"noise_hold is {exploration.noise_hold}: possible are 1 to {MAX_HOLD}")
    if exploration.noise_hold > 1 and exploration.noise_correlation:
        raise PolicyError(
            f"noise_hold is {exploration.noise_hold} and noise_correlation {exploration.noise_correlation}: "
            "choose one"
        )
    used = {
        "squashed_gaussian": ("noise_correlation", "log_std_min", "log_std_max", "noise_hold"),
        "greedy": ("epsilon",),
    }
    for name in Exploration.__struct_fields__:
        if name not in used.get(head, ()) and getattr(exploration, name) != getattr(Exploration(), name):
            raise PolicyError(f"exploration.{name} is set, but the head {head!r} does not use it")
