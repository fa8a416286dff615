"""A delay probe: excite a live system and count the steps until something moves."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from tickrate.clock import Clock, make_clock
from tickrate.errors import ConfigError, DelayNotSeen
from tickrate.realtime.delay_subjects import EnvSubject, InterfaceSubject, Reading, Subject, excitations
from tickrate.realtime.interface import RealTimeGymInterface
from tickrate.trees import Array


@dataclass(frozen=True)
class DelayReport:
    """What a delay probe saw."""

    steps: tuple[int, ...]
    """The delay of each repeat, in steps."""
    seconds: tuple[float, ...]
    """From the sending of each command to the capture that showed it, in seconds; empty if unknown."""
    leaves: tuple[str, ...]
    """The leaves that showed an effect first, without repetition."""
    ignored: tuple[str, ...]
    """Leaves that were not watched because they change all the time (clocks, counters)."""
    action_buffer_length: int | None
    """The length of the environment's action buffer; None for an interface or a foreign environment."""

    @property
    def min_steps(self) -> int:
        """The shortest delay seen, in steps."""
        return min(self.steps)

    @property
    def max_steps(self) -> int:
        """The longest delay seen, in steps; a lower bound of what can happen."""
        return max(self.steps)

    @property
    def required_action_buffer(self) -> int:
        """How many of the last commands an observation must carry (``act_buf_len``)."""
        return self.max_steps

    @property
    def enough(self) -> bool | None:
        """Whether the environment's action buffer is long enough; None if it has none to judge."""
        if self.action_buffer_length is None:
            return None
        return self.action_buffer_length >= self.required_action_buffer

    def __str__(self) -> str:
        shortest, longest = self.min_steps, self.max_steps
        span = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        times = (
            f" ({min(self.seconds) * 1e3:.0f} to {max(self.seconds) * 1e3:.0f} ms)" if self.seconds else ""
        )
        text = (
            f"delay {span} steps{times} over {len(self.steps)} commands, seen in {', '.join(self.leaves)}; "
            f"act_buf_len of at least {self.required_action_buffer}"
        )
        if self.action_buffer_length is not None:
            text += f" ({'enough' if self.enough else 'too short'}: it is {self.action_buffer_length})"
        return text


def probe_delay(
    target: RealTimeGymInterface | gymnasium.Env[Any, Any],
    *,
    repeats: int = 20,
    excitation: Sequence[Any] | None = None,
    amplitude: float = 0.5,
    quiet: Any = None,
    watch: Sequence[str] | None = None,
    tolerance: float | None = None,
    settle_steps: int = 10,
    max_steps: int = 50,
    period_s: float = 0.05,
    clock: Clock | None = None,
) -> DelayReport:
    """Measure how many steps pass from a command to its first visible effect. The system MOVES.

    Each repeat gives the quiet command until the observations rest, then an excitation until one of them
    leaves the range in which it rested. The device is told the quiet command at the end, whatever happens.

    Args:
        target: an environment, stepped as it is configured; or an interface, stepped in real time.
        repeats: how many commands are timed; a random delay needs many for its extremes to be seen.
        excitation: the commands, used in turn; when omitted one up and one down from the quiet command.
        amplitude: how far the automatic excitation goes from the quiet command to the bound, above 0, up to
        1.
        quiet: the command at which the system rests; the default action when omitted.
        watch: paths of the leaves that count; all when omitted (``value`` is a single leaf's path).
        tolerance: how much a watched number may change and still rest, in its own units; learned from the
            noise at rest when omitted.
        settle_steps: how many steps in a row must be quiet, 4 or more.
        max_steps: give up on a command that shows no effect within so many steps.
        period_s: the step of an interface in seconds; an environment has its own.
        clock: the clock of an interface; a real one when omitted.

    Raises:
        DelayNotSeen: if the system never rests, shows no effect, or ends every episode before one shows.
        ConfigError: if a number is impossible, a path is unknown, or no excitation can be made.
    """
    if repeats < 1 or max_steps < 1 or settle_steps < 4 or not 0.0 < amplitude <= 1.0:
        raise ConfigError(
            f"repeats={repeats}, max_steps={max_steps}, settle_steps={settle_steps}, amplitude={amplitude}: "
            "give at least 1, 1 and 4, and an amplitude above 0 and up to 1"
        )
    subject: Subject
    if isinstance(target, gymnasium.Env):
        subject = EnvSubject(target, quiet)
    else:
        subject = InterfaceSubject(
            target, quiet, period_s, clock if clock is not None else make_clock("cheap")
        )
    commands = list(excitation or excitations(subject.space, subject.quiet, amplitude))
    try:
        return _Probe(subject, commands, watch, tolerance, settle_steps, max_steps).run(repeats)
    finally:
        subject.stop()


class _EpisodeEnded(Exception):
    """The episode ended while the probe was looking."""


class _Rest(NamedTuple):
    """Where the watched numbers rested: (n,) float64 each."""

    low: Array
    high: Array


class _Probe:
    """One run of the probe."""

    def __init__(
        self,
        subject: Subject,
        commands: list[Any],
        watch: Sequence[str] | None,
        tolerance: float | None,
        settle_steps: int,
        max_steps: int,
    ) -> None:
        self._subject = subject
        self._commands = commands
        self._watch = watch
        self._tolerance = tolerance
        self._settle_steps = settle_steps
        self._max_steps = max_steps
        self._paths: list[str] = []  # of each watched number
        self._restless: Array | None = None  # (n,) bool: numbers that are not watched any more

    def run(self, repeats: int) -> DelayReport:
        steps: list[int] = []
        seconds: list[float] = []
        shown: dict[str, None] = {}
        resets = 0
        self._subject.reset()
        while len(steps) < repeats:
            try:
                # What the last repeat set in motion must have come through before the rest can be trusted.
                flushed = 2 * max(steps, default=self._settle_steps // 2) + 1
                rest = self._settle(flushed)
                delay, took, leaf = self._time(self._commands[len(steps) % len(self._commands)], rest)
            except _EpisodeEnded as end:
                resets += 1
                if resets > 3 * repeats + 10:
                    raise DelayNotSeen(
                        f"the episode ended {resets} times before an effect showed: make it longer, or the "
                        "excitation smaller"
                    ) from end
                self._subject.reset()
                continue
            steps.append(delay)
            shown[leaf] = None
            if took is not None:
                seconds.append(took)
        return DelayReport(
            tuple(steps), tuple(seconds), tuple(shown), self._ignored(), self._subject.buffer_length
        )

    def _ignored(self) -> tuple[str, ...]:
        assert self._restless is not None
        pairs = zip(self._paths, self._restless, strict=True)
        return tuple(dict.fromkeys(path for path, restless in pairs if restless))

    def _settle(self, flush: int) -> _Rest:
        """Give the quiet command until every watched number rests; stop watching those that never do."""
        for _ in range(flush):
            self._step(self._subject.quiet)
        window: list[Array] = []
        moving: Array | None = None
        for _ in range(10 * self._settle_steps):
            window.append(self._numbers(self._step(self._subject.quiet)))
            if len(window) < self._settle_steps:
                continue
            del window[: -self._settle_steps]
            recent = np.stack(window)
            moving = self._moving(recent)
            if not moving.any():
                return self._bounds(recent)
        assert moving is not None
        assert self._restless is not None
        self._restless |= moving
        if self._restless.all():
            raise DelayNotSeen(
                f"the system does not rest: {', '.join(self._ignored())} kept changing for "
                f"{10 * self._settle_steps} steps of the quiet command; watch other leaves, raise "
                "settle_steps, or give a tolerance"
            )
        return self._bounds(np.stack(window))

    def _moving(self, recent: Array) -> Array:
        """Which watched numbers have not come to rest within the window (steps, n)."""
        assert self._restless is not None
        half = len(recent) // 2
        first, second = recent[:half], recent[half:]
        if self._tolerance is not None:
            moving = np.ptp(recent, axis=0) > self._tolerance
        else:
            # Noise stays in its own range; a number that is on its way somewhere leaves it.
            slack = 0.5 * np.ptp(first, axis=0)
            moving = (second.max(axis=0) > first.max(axis=0) + slack) | (
                second.min(axis=0) < first.min(axis=0) - slack
            )
        return np.asarray(moving & ~self._restless)

    def _bounds(self, recent: Array) -> _Rest:
        low, high = recent.min(axis=0), recent.max(axis=0)
        margin = high - low if self._tolerance is None else np.full_like(low, self._tolerance)
        return _Rest(low - margin, high + margin)

    def _time(self, command: Any, rest: _Rest) -> tuple[int, float | None, str]:
        """Give a command until its effect shows; return the steps, the seconds if known, and the leaf."""
        assert self._restless is not None
        sent: float | None = None
        for delay in range(self._max_steps + 1):
            reading = self._step(command)
            if delay == 0:
                sent = reading.sent
            numbers = self._numbers(reading)
            moved = ((numbers < rest.low) | (numbers > rest.high)) & ~self._restless
            if moved.any():
                took = None if sent is None or reading.captured is None else reading.captured - sent
                return delay, took, self._paths[int(np.argmax(moved))]
        raise DelayNotSeen(
            f"command {command} had no visible effect within {self._max_steps} steps; watched "
            f"{', '.join(dict.fromkeys(self._paths))}, not counting {', '.join(self._ignored()) or 'none'}: "
            "give a stronger excitation, other leaves to watch, or more max_steps"
        )

    def _step(self, command: Any) -> Reading:
        reading = self._subject.step(copy.deepcopy(command))
        if reading.ended:
            raise _EpisodeEnded
        return reading

    def _numbers(self, reading: Reading) -> Array:
        """Return the watched numbers of a reading as one float64 vector."""
        sensors = reading.sensors
        foreign = [path for path in self._watch or () if path not in sensors]
        if foreign:
            raise ConfigError(f"no observation leaf {foreign}: there are {list(sensors)}")
        parts = {
            path: np.asarray(value, np.float64).ravel()
            for path, value in sensors.items()
            if self._watch is None or path in self._watch
        }
        if self._restless is None:
            self._paths = [path for path, part in parts.items() for _ in part]
            self._restless = np.zeros(len(self._paths), bool)
        return np.concatenate(list(parts.values()))
