"""The world of the game: car, walls, laps; stepped by the live game and by the simulation alike."""

from __future__ import annotations

import math

import numpy as np

from tickrate.games.circuit.lidar import Lidar
from tickrate.games.circuit.physics import (
    CarParameters,
    CarState,
    Command,
    advance,
    engine_rpm,
    push_back,
    shift,
)
from tickrate.games.circuit.protocol import TELEMETRY, SensorFrame
from tickrate.games.circuit.track import Track

PHYSICS_S = 0.005
"""Length of a physics step in seconds of game time (200 Hz)."""
STEPS_PER_FRAME = 2
FRAME_S = PHYSICS_S * STEPS_PER_FRAME
"""Length of a game frame in seconds of game time (100 Hz)."""

_MOVING = 0.05
_CONTACT_MEMORY_S = 0.1


class World:
    """A car on a track. `step` moves it, `frame` looks at it; nothing here knows of clocks or sockets."""

    def __init__(self, track: Track, car: CarParameters | None = None) -> None:
        self.track = track
        self.car = car or CarParameters()
        self.lidar = Lidar(track)
        self.game_time = 0.0
        self.frames = 0
        self.contacts = 0
        self.spawns = 0
        self.respawn()

    def respawn(self) -> None:
        """Put the car on the start line, standing, no command held; the lap clock waits for it to move."""
        x, y = self.track.centre[0]
        self.state = CarState(float(x), float(y), self.track.start_heading)
        self.command = Command()
        self.gear = 1
        self.laps = 0
        self.last_lap_time = 0.0
        self.last_lap_clean = False
        self.progress = 0.0
        self.lateral = 0.0
        self.distance = 0.0
        self.spawns += 1
        self._along = self._last_along = 0.0
        self._hints = [0, 0, 0]
        self._lap_start: float | None = None
        self._lap_contacts = self.contacts
        self._touched_at = -math.inf

    @property
    def touching(self) -> bool:
        """Whether the car touches a wall, or did within the last tenth of a second."""
        return self.game_time - self._touched_at < _CONTACT_MEMORY_S

    @property
    def lap_time(self) -> float:
        """Seconds of game time since the running lap began, 0 before the car moves."""
        return 0.0 if self._lap_start is None else self.game_time - self._lap_start

    def step(self) -> None:
        """Move the world by one physics step, under the command that is held."""
        before = self.game_time
        self.game_time += PHYSICS_S
        self.state = advance(self.state, self.command, PHYSICS_S, self.car)
        self._meet_walls()
        speed = self.state.speed
        self.distance += speed * PHYSICS_S
        self.gear = shift(self.gear, speed)
        if self._lap_start is None and speed > _MOVING:
            self._lap_start = before
        self._follow_track(before)

    def advance_frame(self) -> None:
        """Move the world by one game frame."""
        for _ in range(STEPS_PER_FRAME):
            self.step()
        self.frames += 1

    def _meet_walls(self) -> None:
        room = self.track.width_m / 2.0 - self.car.half_width_m
        for slot, reach in ((1, self.car.axle_m), (2, -self.car.axle_m)):
            x = self.state.x + reach * math.cos(self.state.yaw)
            y = self.state.y + reach * math.sin(self.state.yaw)
            place = self.track.locate(x, y, self._hints[slot])
            self._hints[slot] = place.index
            depth = abs(place.lateral_m) - room
            if depth <= 0.0:
                continue
            first = not self.touching
            side = math.copysign(1.0, place.lateral_m)
            heading = self.track.heading_at(place.index)
            self.state = push_back(self.state, reach, depth, heading, side, PHYSICS_S, first)
            self.contacts += first
            self._touched_at = self.game_time

    def _follow_track(self, before: float) -> None:
        place = self.track.locate(self.state.x, self.state.y, self._hints[0])
        self._hints[0] = place.index
        length = self.track.length_m
        moved = math.remainder(place.along_m - self._last_along, length)
        self._last_along = place.along_m
        line = (self.laps + 1) * length
        was, self.progress, self.lateral = self.progress, self.progress + moved, place.lateral_m
        if was < line <= self.progress and self._lap_start is not None:
            crossed = before + PHYSICS_S * (line - was) / moved
            self.laps += 1
            self.last_lap_time = crossed - self._lap_start
            self.last_lap_clean = self.contacts == self._lap_contacts
            self._lap_start, self._lap_contacts = crossed, self.contacts

    def frame(self, sent: float) -> SensorFrame:
        """Return what the sensors show now; ``sent`` is the time on the machine's clock that it carries."""
        state, command = self.state, self.command
        return SensorFrame(
            contacts=self.contacts,
            laps=self.laps,
            spawns=self.spawns,
            last_lap_clean=int(self.last_lap_clean),
            touching=int(self.touching),
            frame=self.frames,
            game_time=self.game_time,
            sent=sent,
            lap_time=self.lap_time,
            last_lap_time=self.last_lap_time,
            progress=self.progress,
            x=state.x,
            y=state.y,
            heading=math.remainder(state.yaw, 2.0 * math.pi),
            lateral=self.lateral,
            speed=state.speed,
            sideways=state.sideways,
            yaw_rate=state.yaw_rate,
            steer=command.steer,
            gas=command.gas,
            brake=command.brake,
            gear=float(self.gear),
            rpm=engine_rpm(self.gear, state.speed),
            beams=self.lidar.scan(state.x, state.y, state.yaw).astype(np.float32),
        )

    def telemetry(self) -> bytes:
        """Return the telemetry packet of this instant; the world is flat, so its height (y) is 0."""
        state, command = self.state, self.command
        rpm = engine_rpm(self.gear, state.speed)
        return TELEMETRY.pack(
            state.speed,
            self.distance,
            state.x,
            0.0,
            state.y,
            *command,
            float(self.laps > 0),
            float(self.gear),
            rpm,
        )
