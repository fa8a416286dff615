"""The bytes on the wire: sizes, round trips, and bytes that are none of ours."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickrate.errors import MessageError
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.protocol import (
    CONTROL,
    QUIT,
    RESPAWN,
    SENSORS,
    TELEMETRY,
    pack_control,
    pack_sensors,
    unpack_control,
    unpack_sensors,
    unpack_telemetry,
)
from tickrate.games.circuit.track import make_track
from tickrate.games.circuit.world import World


def driven_world() -> World:
    world = World(make_track("demo"))
    world.command = Command(0.25, 0.5, 0.0)
    for _ in range(50):
        world.advance_frame()
    return world


def test_sizes() -> None:
    assert TELEMETRY.size == 44
    assert CONTROL.size == 16
    assert SENSORS.size == 4 + 5 * 4 + 8 + 2 * 8 + 15 * 4 + 19 * 4


def test_the_telemetry_packet_has_the_plugin_s_layout() -> None:
    world = driven_world()
    values = struct.unpack("<11f", world.telemetry())
    state = world.state
    assert values[0] == pytest.approx(state.speed)
    assert values[1] == pytest.approx(world.distance)
    assert values[2:5] == pytest.approx((state.x, 0.0, state.y), rel=1e-6)
    assert values[5:8] == pytest.approx((0.25, 0.5, 0.0))
    assert values[8] == 0.0
    assert values[9] == world.gear
    assert unpack_telemetry(world.telemetry()).rpm > 1000.0


def test_a_sensor_frame_survives_the_wire() -> None:
    frame = driven_world().frame(123.456)
    again = unpack_sensors(pack_sensors(frame))
    assert again[:6] == frame[:6]
    assert again.sent == 123.456  # doubles stay exact
    assert again.game_time == frame.game_time
    assert again[8:-1] == pytest.approx(frame[8:-1], rel=1e-6)
    np.testing.assert_array_equal(again.beams, frame.beams)


def test_a_command_survives_the_wire() -> None:
    command, buttons = unpack_control(pack_control(Command(-0.5, 0.25, 1.0), RESPAWN | QUIT))
    assert command == Command(-0.5, 0.25, 1.0)
    assert buttons == RESPAWN | QUIT


def test_commands_out_of_range_are_clipped() -> None:
    assert unpack_control(pack_control(Command(-7.0, 2.0, -1.0)))[0] == Command(-1.0, 1.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_command_that_is_not_finite_is_no_command_but_its_buttons_count(bad: float) -> None:
    for command in (Command(bad, 0.0, 0.0), Command(0.0, bad, 0.0), Command(0.0, 0.0, bad)):
        assert unpack_control(pack_control(command, RESPAWN)) == (None, RESPAWN)


@given(st.binary(max_size=256))
def test_foreign_bytes_raise_message_error_or_give_a_valid_command(payload: bytes) -> None:
    for unpack in (unpack_sensors, unpack_telemetry):
        try:
            unpack(payload)
        except MessageError:
            pass
    try:
        command, _ = unpack_control(payload)
    except MessageError:
        return
    assert command is None or (abs(command.steer) <= 1 and 0 <= command.gas <= 1 and 0 <= command.brake <= 1)


def test_wrong_magic_version_length_and_values_are_named() -> None:
    frame = bytearray(pack_sensors(driven_world().frame(0.0)))
    with pytest.raises(MessageError, match="sensor port"):
        unpack_sensors(b"XXXX" + frame[4:])
    with pytest.raises(MessageError, match=r"has \d+ bytes"):
        unpack_sensors(bytes(frame[:-1]))
    frame[-4:] = struct.pack("<f", math.nan)
    with pytest.raises(MessageError, match="not finite"):
        unpack_sensors(bytes(frame))
    message = bytearray(pack_control(Command()))
    message[1] = 9
    with pytest.raises(MessageError, match="version 1"):
        unpack_control(bytes(message))
