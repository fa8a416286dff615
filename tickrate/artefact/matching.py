"""Compares a policy's contract with an environment, before anything is driven by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate.artefact.actions import ActionSpec, BoxAction, DiscreteAction, action_spec
from tickrate.artefact.contract import LeafSpec, PolicyContract, leaf_spec
from tickrate.errors import PolicyError, PolicyMismatch
from tickrate.program.shapes import NOISE_LEFT
from tickrate.program.spec import program_states


def check_environment(
    contract: PolicyContract,
    observation: Mapping[str, spaces.Space[Any]],
    action_space: spaces.Space[Any],
    *,
    period_s: float | None = None,
    action_buffer_length: int | None = None,
) -> None:
    """Check that a policy was made for an environment.

    Args:
        contract: the policy's.
        observation: leaf space by path of the canonical observation; the order is free.
        action_space: the environment's action space.
        period_s: nominal step in seconds (0 for lock-step); not compared when None.
        action_buffer_length: number of past actions in the observation; not compared when None.

    Raises:
        PolicyMismatch: naming the leaf or property, with both values.
    """
    for leaf in contract.observation:
        if leaf.path not in observation:
            raise PolicyMismatch(
                f"the policy was trained with the leaf {leaf.path!r}, the environment has {list(observation)}"
            )
        found = leaf_spec(leaf.path, observation[leaf.path])
        _same(f"leaf {leaf.path!r}", (leaf.dtype, leaf.shape), (found.dtype, found.shape))
        if leaf.counts and (leaf.lowest, leaf.counts) != (found.lowest, found.counts):
            raise PolicyMismatch(
                f"leaf {leaf.path!r} is {_categories(found)} in the environment, {_categories(leaf)} "
                "in the policy"
            )
        _check_range(leaf, found)
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


def check_successor(old: PolicyContract, new: PolicyContract) -> None:
    """Check that newer weights may take over from older ones in the middle of an episode.

    Raises:
        PolicyMismatch: if they were made for other spaces, groups, states or timing; names the field.
    """
    for field in ("observation", "action", "head", "groups", "period_s", "action_buffer_length"):
        mine, theirs = getattr(old, field), getattr(new, field)
        if not (_leaves_agree(mine, theirs) if field == "observation" else mine == theirs):
            raise PolicyMismatch(f"new weights are for another {field}: {theirs}; this policy has {mine}")
    before, after = _states(old), _states(new)
    if before != after:
        raise PolicyMismatch(f"new weights carry the states {after}; this policy has {before}")


def _states(contract: PolicyContract) -> dict[str, int]:
    """Return the states that go from step to step, beside the noise itself."""
    held = {NOISE_LEFT: 1} if contract.exploration.noise_hold > 1 else {}
    return {**program_states(contract.program), **held}


def _leaves_agree(old: tuple[LeafSpec, ...], new: tuple[LeafSpec, ...]) -> bool:
    """Return whether two observations are the same, as far as both say the categories of a leaf."""
    return len(old) == len(new) and all(
        (a.path, a.dtype, a.shape) == (b.path, b.dtype, b.shape)
        and (not a.counts or not b.counts or (a.lowest, a.counts) == (b.lowest, b.counts))
        for a, b in zip(old, new, strict=True)
    )


def _check_range(policy: LeafSpec, environment: LeafSpec) -> None:
    """Refuse a leaf of another range, where both say one: it is most likely in other units."""
    for name in ("low", "high"):
        mine, theirs = getattr(policy, name), getattr(environment, name)
        if mine is not None and theirs is not None and not math.isclose(mine, theirs, rel_tol=1e-6):
            raise PolicyMismatch(
                f"leaf {policy.path!r} has {name} {theirs:g} in the environment, {mine:g} in the policy: is "
                "it in other units?"
            )


def _categories(leaf: LeafSpec) -> str:
    if not leaf.counts:
        return "made of no categories"
    ranges = [f"{low} to {low + n - 1}" for low, n in zip(leaf.lowest[:8], leaf.counts[:8], strict=True)]
    return f"made of the categories {', '.join(ranges)}{', ...' if len(leaf.counts) > 8 else ''}"


def _same(what: str, policy: tuple[str, tuple[int, ...]], environment: tuple[str, tuple[int, ...]]) -> None:
    if policy != environment:
        raise PolicyMismatch(
            f"{what} is {environment[0]}{list(environment[1])} in the environment, "
            f"{policy[0]}{list(policy[1])} in the policy"
        )


def _check_actions(policy: ActionSpec, space: spaces.Space[Any]) -> None:
    try:
        found = action_spec(space)
    except PolicyError as error:
        raise PolicyMismatch(str(error)) from error
    if type(found) is not type(policy):
        wanted = {BoxAction: "Box", DiscreteAction: "Discrete"}.get(type(policy), "MultiDiscrete")
        raise PolicyMismatch(f"the action space is a {type(space).__name__}, the policy's a {wanted}")
    _same("the action", (policy.dtype, policy.shape), (found.dtype, found.shape))
    names = ("low", "high") if isinstance(policy, BoxAction) else ("choices", "starts")
    for name in names:
        mine, theirs = getattr(policy, name), getattr(found, name)
        if not np.allclose(mine, theirs, rtol=1e-6, atol=1e-9):
            raise PolicyMismatch(
                f"the action's {name} is {list(theirs)} in the environment, {list(mine)} in the policy"
            )
