"""A client's side of the game's sensor and control sockets: the newest frame, commands, and who is gone."""

from __future__ import annotations

import socket

from tickrate import clock
from tickrate.errors import DeviceLost, MessageError
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.process import Address
from tickrate.games.circuit.protocol import SENSORS, SensorFrame, pack_control, unpack_sensors

_READ_SIZE = 256 * 1024
_MOST_READS = 64
_STALE_S, _GRACE_S = 0.1, 0.02


class GameClient:
    """Talks to a running game. Only the newest frame counts; older ones are thrown away unread.

    Args:
        address: where the game is.
        timeout_s: limit for connecting, and for the silence of a game that is called alive.

    Raises:
        DeviceLost: if nothing answers there.
    """

    def __init__(self, address: Address, *, timeout_s: float = 2.0) -> None:
        self.timeout_s = timeout_s
        self._buffer = bytearray()
        self._newest: SensorFrame | None = None
        try:
            self._sensors = socket.create_connection((address.host, address.sensors), timeout_s)
        except OSError as error:
            raise DeviceLost(f"no game answers at {address.host}:{address.sensors}: {error}") from error
        try:
            self._control = socket.create_connection((address.host, address.control), timeout_s)
        except OSError as error:
            self._sensors.close()
            raise DeviceLost(
                f"no game takes commands at {address.host}:{address.control}: {error}"
            ) from error
        self._control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._control.setblocking(False)

    def send(self, command: Command, buttons: int = 0) -> None:
        """Send a command; returns at once.

        Raises:
            DeviceLost: if the game is gone or takes no more commands.
        """
        message = pack_control(command, buttons)
        try:
            sent = self._control.send(message)
        except OSError as error:
            raise DeviceLost(f"the game takes no commands: {error or type(error).__name__}") from error
        if sent != len(message):
            raise DeviceLost("the game takes no commands: its input is full")

    def newest(self) -> SensorFrame:
        """Return the newest frame there is.

        It returns at once, but for two cases: the very first frame is waited for, and if the newest one is
        old, 20 ms are given to a fresh one (after a long pause, what lies in the socket is old).

        Raises:
            DeviceLost: if the game is gone or has been silent for longer than the time-out.
        """
        self._receive(0.0)
        if self._newest is None:
            return self.wait_for(clock.now() - self.timeout_s)
        if clock.now() - self._newest.sent > _STALE_S:
            self._receive(_GRACE_S)
        silence = clock.now() - self._newest.sent
        if silence > self.timeout_s:
            raise DeviceLost(f"the game has been silent for {silence:.2f} s (limit {self.timeout_s} s)")
        return self._newest

    def wait_for(self, sent_after: float, *, spawns_above: int = -1) -> SensorFrame:
        """Wait, at most the time-out, for a frame made after a time and with more respawns than given.

        Raises:
            DeviceLost: if none comes in time, or the game is gone.
        """
        deadline = clock.now() + self.timeout_s
        while (left := deadline - clock.now()) > 0.0:
            self._receive(left)
            frame = self._newest
            if frame is not None and frame.sent > sent_after and frame.spawns > spawns_above:
                return frame
        raise DeviceLost(f"the game sent no new frame within {self.timeout_s} s")

    def _receive(self, wait_s: float) -> None:
        """Read all that has arrived, waiting up to ``wait_s`` for the first bytes; keep the newest frame."""
        self._sensors.settimeout(wait_s)
        try:
            for _ in range(_MOST_READS):
                data = self._sensors.recv(_READ_SIZE)
                if not data:
                    raise DeviceLost("the game closed the connection: it has ended or crashed")
                self._buffer += data
                whole = len(self._buffer) // SENSORS.size * SENSORS.size
                if whole:
                    self._newest = unpack_sensors(bytes(self._buffer[whole - SENSORS.size : whole]))
                    del self._buffer[:whole]
                self._sensors.settimeout(0.0)
        except (BlockingIOError, TimeoutError):
            return
        except MessageError as error:
            raise DeviceLost(f"the game sends something else than sensor frames: {error}") from error
        except DeviceLost:
            raise
        except OSError as error:
            raise DeviceLost(f"the connection to the game broke: {error}") from error

    def close(self) -> None:
        """Close the connection; the game goes on."""
        self._sensors.close()
        self._control.close()
