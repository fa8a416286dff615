"""The bytes the game speaks: telemetry and sensor frames out, commands in; little-endian structs."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import MessageError
from tickrate.games.circuit.lidar import BEAMS
from tickrate.games.circuit.physics import Command

TELEMETRY = struct.Struct("<11f")
"""See `TelemetryPacket`; one per game frame."""

SENSOR_MAGIC = b"TKC1"
SENSORS = struct.Struct(f"<4s5IQ2d15f{BEAMS}f")
"""See `SensorFrame`, whose fields come in this order after the magic bytes."""

CONTROL_MAGIC = 0x43  # "C"
CONTROL_VERSION = 1
CONTROL = struct.Struct("<BBH3f")
"""magic, version, buttons, steer [-1, 1], gas [0, 1], brake [0, 1]."""

RESPAWN = 1
"""Button: put the car back on the start line, standing; the command in the same message is not applied."""
QUIT = 2
"""Button: end the game."""


class TelemetryPacket(NamedTuple):
    """One packet of the telemetry stream, the layout of TrackMania's OpenPlanet plugin."""

    speed: float
    distance: float
    x: float
    y: float
    z: float
    steer: float
    gas: float
    brake: float
    finished: float
    gear: float
    rpm: float


class SensorFrame(NamedTuple):
    """Everything the game tells about one instant. Whole frames only: all values belong together."""

    contacts: int
    """Wall contacts since the game started (a counter, so that none is missed between two looks)."""
    laps: int
    """Laps completed since the last respawn."""
    spawns: int
    """Respawns since the game started: a frame with a new number is from after the respawn."""
    last_lap_clean: int
    """1 when the last completed lap had no contact."""
    touching: int
    """1 while the car touches a wall (or did within the last tenth of a second)."""
    frame: int
    """Number of the game frame."""
    game_time: float
    """Seconds on the game's clock."""
    sent: float
    """Seconds on the machine's monotonic clock (`tickrate.clock.now`) when the frame was made."""
    lap_time: float
    """Seconds since the lap began; the first lap's clock starts when the car first moves."""
    last_lap_time: float
    """Seconds of the last completed lap, 0 before the first."""
    progress: float
    """Metres along the centre line since the respawn, over all laps; negative behind the start line."""
    x: float
    y: float
    heading: float
    """Radians from the x axis, in [-pi, pi]."""
    lateral: float
    """Metres from the centre line, left positive."""
    speed: float
    """Metres per second over ground."""
    sideways: float
    """Sideways speed in m/s, left positive."""
    yaw_rate: float
    """Radians per second, left positive."""
    steer: float
    gas: float
    brake: float
    gear: float
    rpm: float
    beams: NDArray[np.float32]
    """(19,) distances in metres, from left to right."""


def pack_sensors(frame: SensorFrame) -> bytes:
    """Return the bytes of a sensor frame."""
    return SENSORS.pack(SENSOR_MAGIC, *frame[:-1], *frame.beams)


def unpack_sensors(payload: bytes | memoryview) -> SensorFrame:
    """Return the sensor frame of these bytes.

    Raises:
        MessageError: if they have another length, other magic bytes or values that are not finite.
    """
    if len(payload) != SENSORS.size:
        raise MessageError(f"a sensor frame has {SENSORS.size} bytes, got {len(payload)}")
    magic, contacts, laps, spawns, clean, touching, number, *values = SENSORS.unpack(payload)
    if magic != SENSOR_MAGIC:
        raise MessageError(
            f"a sensor frame begins with {SENSOR_MAGIC!r}, got {magic!r}: is this the sensor port?"
        )
    if not all(map(math.isfinite, values)):
        raise MessageError(f"sensor frame {number} holds values that are not finite")
    beams = np.array(values[-BEAMS:], dtype=np.float32)
    return SensorFrame._make([contacts, laps, spawns, clean, touching, number, *values[:-BEAMS], beams])


def unpack_telemetry(payload: bytes | memoryview) -> TelemetryPacket:
    """Return the telemetry packet of these bytes.

    Raises:
        MessageError: if they have another length or values that are not finite.
    """
    if len(payload) != TELEMETRY.size:
        raise MessageError(f"a telemetry packet has {TELEMETRY.size} bytes, got {len(payload)}")
    packet = TelemetryPacket(*TELEMETRY.unpack(payload))
    if not all(map(math.isfinite, packet)):
        raise MessageError("a telemetry packet holds values that are not finite")
    return packet


def pack_control(command: Command, buttons: int = 0) -> bytes:
    """Return the bytes of a command."""
    return CONTROL.pack(CONTROL_MAGIC, CONTROL_VERSION, buttons, *command)


def unpack_control(payload: bytes | memoryview) -> tuple[Command | None, int]:
    """Return the command (None if a value is not finite: keep the last one) and the buttons of these bytes.

    Values out of range are clipped, as a game clips a stick.

    Raises:
        MessageError: if these bytes are no control message of this version.
    """
    if len(payload) != CONTROL.size:
        raise MessageError(f"a control message has {CONTROL.size} bytes, got {len(payload)}")
    magic, version, buttons, steer, gas, brake = CONTROL.unpack(payload)
    if magic != CONTROL_MAGIC or version != CONTROL_VERSION:
        raise MessageError(
            f"no control message of version {CONTROL_VERSION}: it begins with {magic}, {version}"
        )
    if not (math.isfinite(steer) and math.isfinite(gas) and math.isfinite(brake)):
        return None, buttons
    return Command(min(max(steer, -1.0), 1.0), min(max(gas, 0.0), 1.0), min(max(brake, 0.0), 1.0)), buttons
