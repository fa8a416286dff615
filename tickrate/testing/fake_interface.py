"""A scripted live system: it logs every command with its time and misbehaves exactly when told to."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from tickrate.clock import Clock, now
from tickrate.errors import DeviceLost
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.realtime.spaces import neutral_action
from tickrate.testing.behaviours import (
    Behaviour,
    Block,
    End,
    NotFinite,
    Raise,
    Return,
    Script,
    Silent,
    Stale,
    Stall,
)
from tickrate.trees import Array, leaves, rebuild


class Command(NamedTuple):
    """One command as the device heard it: when (seconds on its clock), and a copy of the value."""

    time: float
    value: Any


Observe = Callable[["FakeInterface"], Any]


class FakeInterface(RealTimeGymInterface):
    """An interface without a device behind it, for tests of everything that drives an interface.

    Its observation is an echo: the command that is applied, as a Tuple of one leaf named ``command``. Its
    reward is the reward the test gives. What goes wrong is said in scripts, by the number of the call,
    counted from 1 over the life of the object::

        fake = FakeInterface(clock=clock, on_capture={3: Stall(0.1), 7: Silent()})

    Args:
        clock: the clock that stamps the log; the machine's monotonic clock when omitted.
        lag: how many captures after a command the first one that shows it comes: 1 is a device that obeys at
            once and whose effect is seen at the next look, 2 shows it one look later.
        action_space: any Gymnasium space; a Box of one float32 in [-1, 1] when omitted.
        default_action: the default action; zeros (or the nearest bounds) when omitted.
        on_capture: behaviour of the n-th call of `get_obs_rew_terminated_info`.
        on_send: behaviour of the n-th command (`Stall`, `Raise`, `Silent`, `Block`).
        on_reset: behaviour of the n-th `reset`.
        fail: an exception that the constructor raises, as a device that cannot be opened does.
        observe: what is observed instead of the echo, from the interface's own state; needs
            ``observation_space``.
        observation_space: the space of what ``observe`` returns.
        reward: the reward of a capture, a number or a function of the interface.
        reset_s: how long each reset takes, in seconds.
        capture_s: how long each capture takes, in seconds.

    Attributes:
        commands: all commands in order, with the time at which the device heard them.
        none_commands: how many times it was told ``None`` (do nothing).
        capture_times: when each capture began, in seconds.
        reset_times: when each reset began, in seconds.
        seeds: the seed of each reset.
        waits: how many times `wait` was called.
        closed: how many times `close` was called.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        lag: int = 1,
        action_space: spaces.Space[Any] | None = None,
        default_action: Any = None,
        on_capture: Script | None = None,
        on_send: Script | None = None,
        on_reset: Script | None = None,
        fail: BaseException | None = None,
        observe: Observe | None = None,
        observation_space: spaces.Space[Any] | None = None,
        reward: float | Callable[[FakeInterface], float] = 0.0,
        reset_s: float = 0.0,
        capture_s: float = 0.0,
    ) -> None:
        if fail is not None:
            raise fail
        if lag < 1:
            raise ValueError(
                f"lag={lag}: a command is seen at the next capture at the earliest, which is lag 1"
            )
        if (observe is None) != (observation_space is None):
            raise ValueError("observe and observation_space come together: give both or neither")
        self._clock = clock
        self._lag = lag
        self._action_space = action_space or spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._default = neutral_action(self._action_space) if default_action is None else default_action
        self._scripts = {"capture": on_capture or {}, "send": on_send or {}, "reset": on_reset or {}}
        self._observe = observe
        self._observation_space = observation_space
        self._reward = reward
        self._reset_s = reset_s
        self._capture_s = capture_s
        self._sends = 0
        self._last_observation: Any = None
        self._last_time = 0.0
        self._queue: list[tuple[int, Any]] = [(-lag, self._default)]
        self.commands: list[Command] = []
        self.none_commands = 0
        self.capture_times: list[float] = []
        self.reset_times: list[float] = []
        self.seeds: list[int | None] = []
        self.waits = 0
        self.closed = 0

    # -- what a test asks ---------------------------------------------------------------------------------

    @property
    def applied(self) -> Any:
        """The command whose effect shows at present; the default action before the first one shows."""
        shown = len(self.capture_times) - self._lag
        while len(self._queue) > 1 and self._queue[1][0] <= shown:
            self._queue.pop(0)
        return self._queue[0][1]

    @property
    def values(self) -> list[Any]:
        """The values of all commands, in order."""
        return [command.value for command in self.commands]

    # -- the interface ------------------------------------------------------------------------------------

    def get_observation_space(self) -> spaces.Space[Any]:
        """Return the Tuple of the one leaf ``command``, or the space given."""
        if self._observation_space is not None:
            return self._observation_space
        return spaces.Tuple((self._action_space,))

    def get_action_space(self) -> spaces.Space[Any]:
        """Return the action space given."""
        return self._action_space

    def get_default_action(self) -> Any:
        """Return a copy of the default action."""
        return copy.deepcopy(self._default)

    def observation_names(self) -> list[str] | None:
        """Return the name of the echo's one leaf."""
        return ["command"] if self._observe is None else None

    def send_control(self, control: Any) -> None:
        """Log the command and apply it."""
        if control is None:
            self.none_commands += 1
            return
        self._sends += 1
        time = self._now()
        value = copy.deepcopy(control)
        self._before("send", self._sends)
        self.commands.append(Command(time, value))
        self._queue.append((len(self.capture_times), value))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Log the reset; return what is observed now. The command that was applied stays applied."""
        self.reset_times.append(self._now())
        self.seeds.append(seed)
        self._pass(self._reset_s)
        behaviour = self._before("reset", len(self.reset_times))
        return self._look(behaviour), {}

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        """Return the echo, the reward, whether the script ends the episode, and the time of the data."""
        self.capture_times.append(self._now())
        self._pass(self._capture_s)
        behaviour = self._before("capture", len(self.capture_times))
        observation = self._look(behaviour)
        info: dict[str, Any] = {"observation_time": self._last_time}
        ends = isinstance(behaviour, End)
        if isinstance(behaviour, End) and behaviour.truncated:
            info |= {"truncated": True, "truncation_reason": behaviour.reason}
            ends = False
        reward = self._reward(self) if callable(self._reward) else self._reward
        return observation, reward, ends, info

    def wait(self) -> None:
        """Count the call."""
        self.waits += 1

    def render(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Count the call."""
        self.closed += 1

    # -- inside -------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._clock.now() if self._clock is not None else now()

    def _pass(self, seconds: float) -> None:
        """Let time pass: a fake clock is advanced, a real one waited for."""
        if seconds <= 0.0:
            return
        advance = getattr(self._clock, "advance", None)
        if advance is not None:
            advance(seconds)
        else:
            threading.Event().wait(seconds)

    def _before(self, call: str, number: int) -> Behaviour | None:
        """Play the scripted behaviour of a call up to what it returns."""
        behaviour = self._scripts[call].get(number)
        match behaviour:
            case Stall(seconds):
                self._pass(seconds)
            case Raise(error):
                raise error
            case Silent(reason):
                raise DeviceLost(reason)
            case Block(limit_s, release):
                release.wait(limit_s)
        return behaviour

    def _look(self, behaviour: Behaviour | None) -> Any:
        if isinstance(behaviour, Stale) and self._last_observation is not None:
            return self._last_observation
        if isinstance(behaviour, Return):
            return behaviour.observation
        observation = self._observe(self) if self._observe is not None else (copy.deepcopy(self.applied),)
        if isinstance(behaviour, NotFinite):
            return _filled(self.get_observation_space(), observation, behaviour.value)
        self._last_observation, self._last_time = observation, self._now()
        return observation


def _filled(space: spaces.Space[Any], observation: Any, value: float) -> Any:
    def fill(leaf: Any) -> Array:
        array = np.array(leaf)
        if array.dtype.kind == "f":
            array[...] = value
        return array

    return rebuild(space, {path: fill(leaf) for path, leaf in leaves(space, observation).items()})
