"""The lock-step mode: the world waits for the action, so nothing is ever late."""

from __future__ import annotations

from typing import Any

from tickrate.clock import Clock
from tickrate.errors import DeviceLost
from tickrate.realtime.answers import observation_time, unpack_step
from tickrate.realtime.episode import Episode, StepResult
from tickrate.realtime.parts import Parts
from tickrate.realtime.stepper import Stepper
from tickrate.realtime.timing import timing_info


class LockStep:
    """Steps an episode whose world waits: send once, capture, return.

    Args:
        clock: the environment's clock.
        stepper: runs the calls into the interface.
        parts: the environment's parts.
        episode: the environment's episode.
    """

    __slots__ = ("_clock", "_episode", "_guard", "_interface", "_stepper")

    def __init__(self, clock: Clock, stepper: Stepper, parts: Parts, episode: Episode) -> None:
        self._clock, self._stepper, self._episode = clock, stepper, episode
        self._interface, self._guard = parts.interface, parts.action_guard

    def leave(self, interrupted: bool) -> None:
        """Leave the episode before for a reset: there is nothing to do, for the world stands still."""

    def begin(self, began: float) -> float:
        """Return the start of the first step (s): now, at ``began``. No action is sent."""
        return began

    def stop(self) -> None:
        """Wait for the running step to end: it has, whenever ``step`` has returned."""

    def step(self, action: Any) -> StepResult:
        """Send ``action``, capture, return: the observation shows the action's effect."""
        clock, episode, guard = self._clock, self._episode, self._guard
        entered, before = clock.now(), episode.last
        told, changed = (before, False) if action is None else guard(action, before)
        try:
            if action is not None:
                episode.send(told)
            capture = clock.now()
            result = self._stepper.step_call(
                "get_obs_rew_terminated_info()", self._interface.get_obs_rew_terminated_info
            )
            captured = clock.now()
        except DeviceLost as error:
            return episode.lost(error, told)
        observation, reward, terminated, info = unpack_step(result)
        episode.steps += 1
        seen = observation_time(info, capture)
        truncated, reason = episode.truncation(info, captured - seen)
        episode.log.record(captured, 0.0)
        if episode.paused:
            episode.paused = False
            episode.log.resume(captured)
        tail = episode.tail(told)
        episode.buffer.push(told)
        episode.last = told
        returned = episode.hand_out(observation, tail, info, captured)
        info["timing"] = timing_info(captured, capture, captured - seen, episode.log.overruns)
        if changed:
            info["applied_action"] = guard.copy(told)
        if terminated or truncated:
            episode.running = False
            episode.conclude(info, None, reason, terminated)
        if episode.bench is not None:
            episode.bench.capture(capture, captured)
            episode.bench.step(entered, captured, clock.now())
        return returned, reward, terminated, truncated and not terminated, info
