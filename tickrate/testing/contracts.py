"""Contract checks: does an interface, or an environment, keep the promises that tickrate relies on?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from tickrate.clock import Clock, make_clock
from tickrate.errors import InterfaceError
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.trees import describe, leaf_spaces, leaves


@dataclass(frozen=True)
class Finding:
    """One thing a check found."""

    level: Literal["error", "warning"]
    """``error``: it will be refused, or learning will go wrong. ``warning``: it works, but look at it."""
    where: str
    """The method or the leaf concerned."""
    message: str
    """What was found, with the value, and what to do."""

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.message}"


def require(findings: Iterable[Finding]) -> None:
    """Raise if there is an error among the findings; warnings pass.

    Raises:
        InterfaceError: lists every error.
    """
    errors = [str(finding) for finding in findings if finding.level == "error"]
    if errors:
        raise InterfaceError("\n".join(errors))


class _Report:
    """Collects findings, each text once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def error(self, where: str, message: str) -> None:
        self._add(Finding("error", where, message))

    def warning(self, where: str, message: str) -> None:
        self._add(Finding("warning", where, message))

    def _add(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)


# -- an interface -------------------------------------------------------------------------------------------


def check_interface(
    interface: RealTimeGymInterface,
    *,
    dry: bool = True,
    observations: int = 5,
    period_s: float = 0.05,
    clock: Clock | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Check an interface against the contract; return what was found, an empty list when all is well.

    A dry check sends no command, resets once and reads ``observations`` times. Otherwise a random action of
    the action space is sent before each reading, so the system moves: clear the floor first. It ends with the
    default action, whatever happens. Exceptions of the interface's own are passed on as they are.

    Args:
        interface: the interface; it is not closed.
        dry: whether to leave the system alone.
        observations: how many observations to read after the reset.
        period_s: time between two readings in seconds.
        clock: what to wait on; a real clock when omitted.
        seed: seed of the reset and of the random actions.
    """
    report = _Report()
    clock = clock if clock is not None else make_clock("cheap")
    action_space = interface.get_action_space()
    space = interface.get_observation_space()
    names = _check_spaces(report, interface, space, action_space)
    _check_default_action(report, interface, action_space)
    if any(finding.level == "error" for finding in report.findings):
        return report.findings  # what follows would only repeat these
    action_space.seed(seed)
    try:
        seen = [_check_reset(report, interface, space, names, seed)]
        _check_stacks(report, interface, seen[0])
        for _ in range(observations):
            if not dry:
                _check_send(report, interface, action_space)
            clock.sleep_until(clock.now() + period_s)
            seen.append(_check_reading(report, interface, space, names))
    finally:
        if not dry:
            interface.send_control(interface.get_default_action())
    _check_aliasing(report, "get_obs_rew_terminated_info", [leaf for leaf in seen if leaf])
    return report.findings


def _check_spaces(
    report: _Report, interface: RealTimeGymInterface, space: Any, action_space: Any
) -> Sequence[str] | None:
    for where, value in (("get_observation_space", space), ("get_action_space", action_space)):
        if not isinstance(value, spaces.Space):
            report.error(where, f"returned {type(value).__name__}: return a Gymnasium space")
    if report.findings:
        return None
    for path, leaf in leaf_spaces(action_space).items():
        if isinstance(leaf, spaces.Box) and not (
            np.isfinite(leaf.low).all() and np.isfinite(leaf.high).all()
        ):
            report.warning(f"action {path!r}", "its bounds are not finite: policies cannot be scaled to it")
        if isinstance(leaf, spaces.Box) and leaf.dtype.kind != "f":
            report.warning(
                f"action {path!r}", f"is a Box of {leaf.dtype}: a run acts in floats, or in MultiDiscrete"
            )
    if isinstance(action_space, spaces.Tuple | spaces.Dict):
        report.warning(
            "get_action_space",
            f"{type(action_space).__name__}: a run acts in one array, a Box of floats, Discrete, "
            "MultiDiscrete or MultiBinary",
        )
    for path, leaf in leaf_spaces(space).items():
        if isinstance(leaf, spaces.Box) and leaf.dtype == np.float64:
            report.warning(
                f"obs {path!r}", "is float64: float32 takes half the memory and is what networks use"
            )
    names = interface.observation_names()
    if names is None:
        return None
    if not isinstance(space, spaces.Tuple):
        report.error(
            "observation_names", f"given for a {type(space).__name__}: only a Tuple's leaves need names"
        )
    elif len(names) != len(space.spaces) or len(set(names)) != len(names):
        report.error(
            "observation_names",
            f"returned {names} for {len(space.spaces)} leaves: give each one its own name",
        )
    return names


def _check_default_action(report: _Report, interface: RealTimeGymInterface, space: Any) -> None:
    if not isinstance(space, spaces.Space):
        return
    action = interface.get_default_action()
    _check_value(report, "get_default_action", space, action, None, bounds="error")


def _check_reset(
    report: _Report, interface: RealTimeGymInterface, space: Any, names: Sequence[str] | None, seed: int
) -> dict[str, Any]:
    result: Any = interface.reset(seed=seed, options=None)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        report.error("reset", f"returned {describe(result)}: return (observation, info), info being a dict")
        return {}
    return _check_value(report, "reset", space, result[0], names)


def _check_send(report: _Report, interface: RealTimeGymInterface, space: spaces.Space[Any]) -> None:
    action = space.sample()
    before = {path: np.array(leaf) for path, leaf in leaves(space, action).items()}
    interface.send_control(action)
    for path, leaf in leaves(space, action).items():
        if not np.array_equal(before[path], leaf):
            report.error("send_control", f"changed its argument {path!r} in place: copy it first")


def _check_reading(
    report: _Report, interface: RealTimeGymInterface, space: Any, names: Sequence[str] | None
) -> dict[str, Any]:
    where = "get_obs_rew_terminated_info"
    result: Any = interface.get_obs_rew_terminated_info()
    if not (isinstance(result, tuple) and len(result) == 4):
        report.error(where, f"returned {describe(result)}: return (observation, reward, terminated, info)")
        return {}
    observation, reward, terminated, info = result
    _check_reward(report, where, reward)
    if not isinstance(terminated, bool | np.bool_):
        report.error(where, f"terminated is a {type(terminated).__name__}: return a bool")
    if not isinstance(info, dict):
        report.error(where, f"info is a {type(info).__name__}: return a dict")
    else:
        _check_delays(report, info)
    return _check_value(report, where, space, observation, names)


def _check_delays(report: _Report, info: dict[str, Any]) -> None:
    """Where an interface tells its delays, they must be steps."""
    for name in ("observation_delay", "action_delay"):
        steps = info.get(name, 0)
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
            report.error(f"info[{name!r}]", f"is {steps!r}: give a whole number of steps, 0 or more")


def _check_stacks(report: _Report, interface: RealTimeGymInterface, first: dict[str, Any]) -> None:
    """Histories that are stored frame by frame must begin with copies of one frame."""
    declare = getattr(interface, "stacks", None)
    for path, length in (declare() or {}).items() if callable(declare) and first else ():
        history = np.asarray(first[path]) if path in first else None
        if history is None or history.shape[:1] != (length,):
            shape = "no leaf" if history is None else f"of shape {history.shape}"
            report.error("stacks", f"says that {path!r} holds {length} frames, but it is {shape}")
        elif not np.array_equal(history, np.broadcast_to(history[-1], history.shape)):
            report.error(
                f"stacks {path!r}",
                "the first history holds different frames: fill it with copies of the first on reset "
                "(tickrate.realtime.observations.History does)",
            )


def _check_reward(report: _Report, where: str, reward: Any) -> None:
    try:
        number = float(reward)
    except (TypeError, ValueError):
        report.error(where, f"the reward is a {type(reward).__name__}: return a number")
        return
    if not math.isfinite(number):
        report.error(where, f"the reward is {number}: return a finite number")


def _check_value(
    report: _Report,
    where: str,
    space: spaces.Space[Any],
    value: Any,
    names: Sequence[str] | None,
    *,
    bounds: Literal["error", "warning"] = "warning",
) -> dict[str, Any]:
    """Check structure, shape, dtype, finiteness and bounds; return the leaves, none if it is misbuilt."""
    try:
        found = leaves(space, value, names)
    except ValueError as error:
        report.error(where, f"wrong structure {error}")
        return {}
    for path, leaf in leaf_spaces(space, names).items():
        _check_leaf(report, f"{where} {path!r}", leaf, found[path], bounds)
    return found


def _check_leaf(
    report: _Report, where: str, space: spaces.Space[Any], value: Any, bounds: Literal["error", "warning"]
) -> None:
    try:
        array = np.asarray(value)
    except ValueError as error:
        report.error(where, f"is no array: {error}")
        return
    if array.dtype.kind not in "biuf":
        report.error(where, f"is {describe(value)}: return numbers")
        return
    if space.shape is not None and array.shape != space.shape:
        report.error(where, f"shape {array.shape}, expected {space.shape}")
        return
    dtype = np.dtype(space.dtype) if space.dtype is not None else array.dtype
    if array.dtype != dtype:
        castable = np.can_cast(array.dtype, dtype, "same_kind") or dtype.kind == "f"
        if not castable:
            report.error(where, f"dtype {array.dtype} cannot become {dtype} without loss: return {dtype}")
            return
        if isinstance(value, np.ndarray):
            report.warning(where, f"dtype {array.dtype}, cast to {dtype} at each step: return {dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        report.error(where, f"holds {array[~np.isfinite(array)].flat[0]}: return finite numbers")
        return
    if not space.contains(array.astype(dtype) if array.shape else dtype.type(array)):
        getattr(report, bounds)(where, f"{array.tolist()} is outside of {space}")


def _check_aliasing(report: _Report, where: str, seen: list[dict[str, Any]]) -> None:
    for earlier, later in itertools.pairwise(seen):
        for path, leaf in earlier.items():
            other = later[path]
            if (
                isinstance(leaf, np.ndarray)
                and isinstance(other, np.ndarray)
                and np.shares_memory(leaf, other)
            ):
                report.warning(
                    f"{where} {path!r}",
                    "reuses one array for every observation: whoever keeps one sees it change",
                )


# -- an environment -----------------------------------------------------------------------------------------


def check_environment(env: gymnasium.Env[Any, Any], *, steps: int = 20, seed: int = 0) -> list[Finding]:
    """Check an environment as a learner sees it; return what was found, an empty list when all is well.

    Resets, plays ``steps`` random actions (so a live system moves) and looks at every observation, reward,
    end flag and alias. It adds to `gymnasium.utils.env_checker.check_env`, which knows nothing of real time:
    use both.

    Args:
        env: the environment; it is not closed.
        steps: how many steps to play, over as many episodes as that takes.
        seed: seed of the first reset and of the actions.
    """
    report = _Report()
    space, action_space = env.observation_space, env.action_space
    action_space.seed(seed)
    first: Any = env.reset(seed=seed)
    observation, info = first
    if not isinstance(info, dict):
        report.error("reset", f"info is a {type(info).__name__}: return a dict")
    previous = _check_value(report, "reset", space, observation, None, bounds="error")
    for _ in range(steps):
        result: Any = env.step(action_space.sample())
        if len(result) != 5:
            report.error("step", f"returned {len(result)} values: return observation, reward, two ends, info")
            break
        observation, reward, terminated, truncated, info = result
        _check_reward(report, "step", reward)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                report.error("step", f"{name} is a {type(flag).__name__}: return a bool")
        current = _check_value(report, "step", space, observation, None, bounds="error")
        _check_aliasing(report, "step", [leaf for leaf in (previous, current) if leaf])
        _check_timing(report, info)
        previous = current
        if terminated or truncated:
            observation, _ = env.reset()
            previous = _check_value(report, "reset", space, observation, None, bounds="error")
    return report.findings


_TIMING = ("start", "capture", "observation_age", "lateness")


def _check_timing(report: _Report, info: dict[str, Any]) -> None:
    """Where an environment reports its timing, the figures must be finite seconds."""
    timing = info.get("timing")
    if timing is None:
        return
    for name in _TIMING:
        value = timing.get(name)
        if not isinstance(value, float | int) or not math.isfinite(value):
            report.error("step", f"info['timing'][{name!r}] is {value!r}: give finite seconds")
