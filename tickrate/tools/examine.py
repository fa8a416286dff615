"""Examines a live environment: its contract, its delays, its clock, its rewards. Dry, it moves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tickrate.errors import ConfigError, DelayNotSeen, RecordError
from tickrate.realtime.delays import probe_delay
from tickrate.realtime.env import RealTimeEnv
from tickrate.realtime.timing import TimingSummary
from tickrate.runtime.environments import (
    EnvironmentConfig,
    action_fault,
    realtime_config,
    record_schema,
)
from tickrate.testing.contracts import Finding, check_interface

DELAY_REPEATS = 5


def examine(
    config: EnvironmentConfig, *, dry: bool, steps: int, seed: int
) -> Iterator[tuple[str, str | Finding]]:
    """Examine a live environment; yield (topic, what was seen) as it goes.

    A dry examination sends no command and resets the device at most once. Otherwise random actions of the
    action space are sent: clear the floor first. The device is left safe.

    Args:
        config: which environment.
        dry: leave the device alone.
        steps: steps to drive for timing and rewards.
        seed: seed of the reset and of the random actions.
    """
    env = RealTimeEnv(realtime_config(config))
    try:
        inner = env.interface.interface if config.delays is not None else env.interface
        yield "interface", type(inner).__name__
        for path, space in env.leaf_spaces.items():
            yield "observes", f"{path}: {space}"
        yield "acts", str(env.action_space)
        yield "recorded", _recorded(env)
        if config.delays is not None:
            yield "delays added", str(config.delays)
        yield "default action", str(np.asarray(env.default_action))
        period_s = float(env.time_step_duration)
        yield (
            "clock",
            f"{1 / period_s:g} Hz, observed at {env.start_obs_capture / period_s:.0%} of the step",
        )
        findings = check_interface(env.interface, dry=dry, period_s=period_s, seed=seed)
        for finding in findings:
            yield "contract", finding
        if not findings:
            yield "contract", "kept"
        if not dry and not any(f.level == "error" for f in findings):
            yield from _drive(env, steps, seed)
            yield from _delay(env)
    finally:
        env.close()


def _recorded(env: RealTimeEnv) -> str | Finding:
    """Return what a row of a run takes, or why no run can act here."""
    if fault := action_fault(env.action_space):
        return Finding("warning", "get_action_space", f"no run can act in {fault}")
    declare = getattr(env.interface, "stacks", None)
    stacks = (declare() if callable(declare) else None) or {}
    try:
        schema = record_schema(env.leaf_spaces, env.action_space, stacks=stacks)
    except RecordError as error:
        return Finding("error", "stacks", str(error))
    once = f", of {', '.join(stacks)} each frame once" if stacks else ""
    return f"{schema.stored_bytes} bytes a step{once}"


def _drive(env: RealTimeEnv, steps: int, seed: int) -> Iterator[tuple[str, str]]:
    rewards, episodes, age = _random_steps(env, steps, seed)
    yield "timing", str(env.timing_summary())
    yield "observation age", f"{1e3 * np.median(age):.1f} ms (median), {1e3 * np.max(age):.1f} ms (max)"
    shown = f"{np.min(rewards):.4g} to {np.max(rewards):.4g}, mean {np.mean(rewards):.4g}"
    yield "rewards", f"{shown} over {len(rewards)} steps and {episodes} episodes of random actions"
    if np.ptp(rewards) == 0.0:
        yield (
            "rewards",
            "the same at every step: a policy cannot learn from it unless other actions change it",
        )


def _delay(env: RealTimeEnv) -> Iterator[tuple[str, str]]:
    try:
        yield "delay", str(probe_delay(env, repeats=DELAY_REPEATS))
    except DelayNotSeen as error:
        yield "delay", f"not seen: {error}"


def _random_steps(env: RealTimeEnv, steps: int, seed: int) -> tuple[list[float], int, list[float]]:
    env.action_space.seed(seed)
    rewards: list[float] = []
    ages: list[float] = []
    episodes, ended = 0, True
    for _ in range(steps):
        if ended:
            env.reset(seed=seed if episodes == 0 else None)
            episodes += 1
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        rewards.append(float(reward))
        ages.append(float(info["timing"]["observation_age"]))
        ended = terminated or truncated
    return rewards, episodes, ages


def time_environment(
    config: EnvironmentConfig, *, seconds: float, seed: int, overrides: dict[str, Any]
) -> tuple[TimingSummary, dict[str, Any], np.ndarray[Any, np.dtype[np.float64]]]:
    """Drive a live environment with its default action and return how the clock was kept.

    Args:
        config: which environment.
        seconds: how long to drive, in seconds of wall time.
        seed: seed of the first reset.
        overrides: real-time configuration keys to change for the measurement.

    Returns:
        The timing summary, the mean durations of the parts of a step (as ``benchmarks`` gives them), and the
        lateness of every step in seconds.
    """
    if seconds <= 0:
        raise ConfigError(f"cannot measure for {seconds:g} s: give a positive time")
    env = RealTimeEnv(realtime_config(config) | overrides | {"benchmark": True, "benchmark_type": "polyak"})
    lateness: list[float] = []
    try:
        env.reset(seed=seed)
        for _ in range(max(1, round(seconds / env.time_step_duration))):
            _, _, terminated, truncated, info = env.step(env.default_action)
            lateness.append(float(info["timing"]["lateness"]))
            if terminated or truncated:
                env.reset()
        return env.timing_summary(), env.benchmarks(), np.asarray(lateness)
    finally:
        env.close()
