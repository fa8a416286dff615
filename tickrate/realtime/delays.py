"""Delays between a command and its effect: measure them on a live system, put them into a simulated one.

Counting is the same in both: a delay is the number of *later* steps, after the one that took the command,
until an observation shows its effect. That is also how many of the last commands an observation must carry so
that none that is still on its way is hidden (``act_buf_len``). In real time a device that obeys at once has a
delay of 1, because the observation returned with a command was captured before it; in lock-step it has 0.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from tickrate.errors import ConfigError
from tickrate.realtime.delay_probe import DelayReport, probe_delay
from tickrate.realtime.interface import RealTimeGymInterface

__all__ = ["DelayReport", "DelayedInterface", "delay_range", "probe_delay"]


class _Line:
    """A delay line counted in steps: each item takes its own time, and an overtaken one is dropped."""

    def __init__(self, delay: tuple[int, int], rng: random.Random) -> None:
        self._delay = delay
        self._rng = rng
        self._waiting: list[tuple[int, int, Any]] = []  # arrival, number, item
        self._sent = 0

    def put(self, step: int, item: Any) -> None:
        self._waiting.append((step + self._rng.randint(*self._delay), self._sent, item))
        self._sent += 1

    def take(self, step: int) -> tuple[bool, Any]:
        """Return whether a newer item has arrived by ``step``, and the newest one; forget all older ones."""
        arrived = [entry for entry in self._waiting if entry[0] <= step]
        if not arrived:
            return False, None
        _, number, item = max(arrived, key=lambda entry: entry[1])
        self._waiting = [entry for entry in self._waiting if entry[1] > number]
        return True, item

    def take_last(self) -> tuple[bool, Any]:
        """Return whether anything waits, and the item put in last; empty the line."""
        found = bool(self._waiting)
        item = self._waiting[-1][2] if found else None
        self._waiting.clear()
        return found, item


class DelayedInterface(RealTimeGymInterface):
    """Another interface, with random delays added to its commands and observations, counted in steps.

    Use it around a simulated device, so that a policy meets the delays of the real one. Every command and
    every observation draws its own delay. Delays are causal: a newer one overtakes an older one, and an older
    one never comes after a newer one. A step is one capture, so it works on any clock and in lock-step: a
    command with the delay d is given to the device right after the d-th capture that follows it. Rewards,
    ends and ``info`` are not delayed. Two entries are added to ``info``: ``observation_delay`` says how many
    steps old the observation is, ``action_delay`` how many steps old the command was that was in force when
    it was captured (0: the youngest that could be). Before any command of the episode has arrived, that is
    the one before the episode's first. An ``observation_time`` in ``info`` is that of the observation
    returned.

    `reset`, `wait` and `close` first deliver the newest waiting command, so that a safe action always
    arrives.

    Args:
        interface: the interface to delay.
        action_delay: steps added to commands, one number or (shortest, longest).
        observation_delay: steps added to observations, one number or (shortest, longest).
        seed: seed of the delays; a seed given to `reset` starts them anew.

    Raises:
        ConfigError: if a delay is negative or a range is upside down.
    """

    def __init__(
        self,
        interface: RealTimeGymInterface,
        *,
        action_delay: int | tuple[int, int] = 0,
        observation_delay: int | tuple[int, int] = 0,
        seed: int | None = None,
    ) -> None:
        self.interface = interface
        self._action_delay = delay_range("action_delay", action_delay)
        self._observation_delay = delay_range("observation_delay", observation_delay)
        self._newest: tuple[int, int, Any, float | None]
        """The observation that has arrived last: its step, the age of its command, itself, its time if
        known."""
        self._in_force: int
        """The step in which the command in force was sent."""
        self._seed(seed)
        self._start()

    def send_control(self, control: Any) -> None:
        """Put a command on its way; ``None`` (do nothing) passes at once."""
        if control is None:
            self.interface.send_control(None)
            return
        self._commands.put(self._step, (self._step, copy.deepcopy(control)))
        self._deliver()

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Deliver the newest waiting command and reset; the first observation comes without a delay."""
        self._deliver_last()
        if seed is not None:
            self._seed(seed)
        self._start()
        observation, info = self.interface.reset(seed=seed, options=options)
        self._newest = (0, 0, copy.deepcopy(observation), info.get("observation_time"))
        return observation, info

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        """Capture now; return the newest observation that has arrived, with the reward and end of now."""
        observation, reward, terminated, info = self.interface.get_obs_rew_terminated_info()
        self._step += 1
        time, age = info.get("observation_time"), self._step - 1 - self._in_force
        self._observations.put(self._step, (self._step, age, copy.deepcopy(observation), time))
        arrived, item = self._observations.take(self._step)
        if arrived:
            self._newest = item
        self._deliver()
        step, age, observation, time = self._newest
        info = {**info, "observation_delay": self._step - step, "action_delay": age}
        info.pop("observation_time", None)  # that of now: it is not the one returned
        if time is not None:
            info["observation_time"] = time
        return copy.deepcopy(observation), reward, terminated, info

    def wait(self) -> None:
        """Deliver the newest waiting command, then pause the device."""
        self._deliver_last()
        self.interface.wait()

    def close(self) -> None:
        """Deliver the newest waiting command, then close the interface if it can be closed."""
        self._deliver_last()
        close = getattr(self.interface, "close", None)
        if close is not None:
            close()

    def get_observation_space(self) -> spaces.Space[Any]:
        """Return the interface's observation space."""
        return self.interface.get_observation_space()

    def get_action_space(self) -> spaces.Space[Any]:
        """Return the interface's action space."""
        return self.interface.get_action_space()

    def get_default_action(self) -> Any:
        """Return the interface's default action."""
        return self.interface.get_default_action()

    def observation_names(self) -> Sequence[str] | None:
        """Return the interface's names."""
        return self.interface.observation_names()

    def mirror(self) -> Any:
        """Return the left-right symmetry that the interface declares, None if it declares none."""
        return _declared(self.interface, "mirror")

    def stacks(self) -> dict[str, int]:
        """Return the histories that the interface declares; none if observations are delayed at random.

        Their frames then come twice or not at all, so that a history cannot be put together from them.
        """
        low, high = self._observation_delay
        return dict(_declared(self.interface, "stacks") or {}) if low == high else {}

    def render(self) -> Any:
        """Show the interface."""
        return self.interface.render()

    def _seed(self, seed: int | None) -> None:
        self._rng = random.Random(seed)

    def _start(self) -> None:
        self._step = 0
        self._commands = _Line(self._action_delay, self._rng)
        self._observations = _Line(self._observation_delay, self._rng)
        self._newest = (0, 0, None, None)
        self._in_force = -1  # the command before the first of this episode

    def _deliver(self) -> None:
        self._give(*self._commands.take(self._step))

    def _deliver_last(self) -> None:
        self._give(*self._commands.take_last())

    def _give(self, found: bool, item: Any) -> None:
        if found:
            self._in_force, command = item
            self.interface.send_control(command)


def _declared(interface: RealTimeGymInterface, name: str) -> Any:
    method = getattr(interface, name, None)
    return method() if callable(method) else None


def delay_range(name: str, delay: int | tuple[int, int]) -> tuple[int, int]:
    """Return a delay in steps as (shortest, longest).

    Raises:
        ConfigError: if it is negative or the range is upside down.
    """
    low, high = (delay, delay) if isinstance(delay, int) else delay
    if not 0 <= low <= high:
        raise ConfigError(f"{name}={delay}: give a number of steps from 0 up, or (shortest, longest)")
    return low, high
