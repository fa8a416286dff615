"""A remote-controlled drone behind a slow radio link, to try real-time control without hardware.

The drone flies in a square world and knows nothing of Gymnasium. Commands reach it late, its positions come
back late, and both delays change from message to message. No thread stands behind it: the link and the flight
are worked out from time stamps when somebody asks, which gives the same answers as a drone that runs all the
time, costs nothing between two calls, and runs on a fake clock as well.
"""

from __future__ import annotations

import math
import random
import threading
from typing import NamedTuple

from tickrate.clock import Clock, now

_CATCH_UP_TICKS = 1_000
"""A longer silence is bridged in closed form instead of tick by tick (10 s at the default rate)."""


class _Message(NamedTuple):
    sent: float
    arrival: float
    number: int
    x: float
    y: float


class _Link:
    """One direction of the radio link: each message takes its own time, the newest one wins."""

    def __init__(self, delay_min: float, delay_max: float, rng: random.Random) -> None:
        self._delay_min = delay_min
        self._delay_max = delay_max
        self._rng = rng
        self._in_flight: list[_Message] = []
        self._sent = 0
        self.newest = _Message(-math.inf, -math.inf, -1, 0.0, 0.0)

    def send(self, time: float, x: float, y: float) -> None:
        delay = self._rng.uniform(self._delay_min, self._delay_max)
        self._in_flight.append(_Message(time, time + delay, self._sent, x, y))
        self._sent += 1

    def receive(self, time: float) -> _Message:
        """Return the newest message that has arrived by ``time``."""
        if not self._in_flight:
            return self.newest
        arrived = [m for m in self._in_flight if m.arrival <= time]
        if arrived:
            self._in_flight = [m for m in self._in_flight if m.arrival > time]
            best = max(arrived, key=lambda m: m.number)
            if best.number > self.newest.number:
                self.newest = best
        return self.newest


class DummyRCDrone:
    """A drone in the square ``[-world_size, world_size]^2`` that flies with the velocity it was told last.

    Every ``control_sleep`` seconds it looks at the newest command that has reached it, sends its position
    back, and moves. Each message, in either direction, takes a random time between
    ``communication_delay_min`` and ``communication_delay_max``; a message that is overtaken by a newer one is
    dropped. It starts at rest in the middle, holds its velocity until told otherwise, and stops at the edge
    of the world.

    Safe to use from several threads.

    Args:
        mass: kept so that existing code runs; the drone takes up a new velocity at once, so it has no effect.
        friction: the same, no effect.
        communication_delay_min: the shortest delay of a message in seconds.
        communication_delay_max: the longest, in seconds.
        max_vel: top speed in units/s; a faster command is scaled down, its direction kept.
        world_size: half the side of the world, in units.
        control_sleep: period of the drone's own loop in seconds.
        clock: where the time comes from; the machine's monotonic clock when omitted.
        seed: seed of the delays; different each time when omitted. Both directions draw from their own
            generator, so the delays do not depend on how often positions are read.

    Raises:
        ValueError: if a delay, a size or the period is impossible.
    """

    def __init__(
        self,
        mass: float = 1.0,
        friction: float = 1.0,
        communication_delay_min: float = 0.02,
        communication_delay_max: float = 0.05,
        max_vel: float = 2.0,
        world_size: float = 1.0,
        control_sleep: float = 0.01,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        if not 0.0 <= communication_delay_min <= communication_delay_max < math.inf:
            raise ValueError(
                f"communication delays {communication_delay_min} to {communication_delay_max} s: "
                "give 0 <= minimum <= maximum, in seconds"
            )
        for name, value in (
            ("max_vel", max_vel),
            ("world_size", world_size),
            ("control_sleep", control_sleep),
        ):
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name}={value}: give a positive, finite number")
        self.mass = mass
        self.friction = friction
        self.communication_delay_min = communication_delay_min
        self.communication_delay_max = communication_delay_max
        self.max_vel = max_vel
        self.world_size = world_size
        self.control_sleep = control_sleep
        self._now = clock.now if clock is not None else now
        self._lock = threading.Lock()
        seeds = random.Random(seed)
        delays = (communication_delay_min, communication_delay_max)
        self._commands = _Link(*delays, random.Random(seeds.getrandbits(64)))
        self._positions = _Link(*delays, random.Random(seeds.getrandbits(64)))
        self._x = 0.0
        self._y = 0.0
        self._origin = self._now()
        self._ticks = 0
        self._observation_time = self._origin

    def send_control(self, vel_x: float, vel_y: float) -> None:
        """Send a velocity in units/s; returns at once, the drone hears of it later.

        Raises:
            ValueError: if a velocity is not finite.
        """
        speed = math.hypot(vel_x, vel_y)
        if not math.isfinite(speed):
            raise ValueError(f"send_control({vel_x}, {vel_y}): velocities must be finite numbers")
        scale = self.max_vel / speed if speed > self.max_vel else 1.0
        with self._lock:
            time = self._now()
            self._fly_until(time)
            self._commands.send(time, float(vel_x) * scale, float(vel_y) * scale)

    def get_observation(self) -> tuple[float, float]:
        """Return the newest position (x, y) that has come back; the true one is elsewhere already."""
        with self._lock:
            time = self._now()
            self._fly_until(time)
            newest = self._positions.receive(time)
            if newest.number >= 0:
                self._observation_time = newest.sent
            return newest.x, newest.y

    @property
    def observation_time(self) -> float:
        """When the drone measured the position read last: seconds on its clock."""
        return self._observation_time

    def _fly_until(self, time: float) -> None:
        """Work out the drone's loop up to ``time``."""
        due = math.floor((time - self._origin) / self.control_sleep) + 1
        if due - self._ticks > _CATCH_UP_TICKS:
            self._bridge(due)
        while self._ticks < due:
            self._tick()

    def _tick(self) -> None:
        time = self._origin + self._ticks * self.control_sleep
        command = self._commands.receive(time)
        self._positions.send(time, self._x, self._y)
        self._move(command, 1)
        self._ticks += 1

    def _bridge(self, due: int) -> None:
        """Jump over most of a long silence: once no command is in flight the velocity is constant."""
        in_flight = math.ceil(self.communication_delay_max / self.control_sleep) + 1
        jump = due - self._ticks - 2 * in_flight
        if jump <= 0:
            return
        for _ in range(in_flight):  # every command sent so far arrives in these
            self._tick()
        self._move(self._commands.receive(math.inf), jump)
        self._ticks += jump  # the rest goes tick by tick: its positions may still be on their way

    def _move(self, command: _Message, ticks: int) -> None:
        step = ticks * self.control_sleep
        self._x = min(max(self._x + command.x * step, -self.world_size), self.world_size)
        self._y = min(max(self._y + command.y * step, -self.world_size), self.world_size)
