"""The game's own process: its clock, its loop, its command line. It never waits for anybody.

    python -m tickrate.games.circuit --track demo --speed 1

prints one JSON line with its ports and then runs until it is told to quit. It
loads neither torch nor matplotlib, so that it starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import Sequence

from tickrate import clock
from tickrate.errors import ConfigError
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.protocol import QUIT, RESPAWN, pack_sensors
from tickrate.games.circuit.server import HOST, ControlServer, StreamServer
from tickrate.games.circuit.track import TRACKS, make_track
from tickrate.games.circuit.world import FRAME_S, World

LONGEST_CATCH_UP_S = 2.0
"""Wall time, in seconds, that a late game makes up for; a longer stop (a suspended machine) is cut out."""


class Game:
    """Runs a world on the machine's clock: 100 frames per second of game time, each streamed as it is made.

    The newest command is held until the next one comes, as a real game holds a stick. A respawn releases it.

    Args:
        world: the world.
        speed: seconds of game time per second of wall time.
        telemetry_port: port of the telemetry stream; 0 takes any free one.
        sensor_port: port of the sensor stream.
        control_port: port that takes commands.
    """

    def __init__(
        self,
        world: World,
        *,
        speed: float = 1.0,
        telemetry_port: int = 0,
        sensor_port: int = 0,
        control_port: int = 0,
    ) -> None:
        if not (math.isfinite(speed) and 0.01 <= speed <= 50.0):
            raise ConfigError(f"speed is {speed}; it must lie between 0.01 and 50")
        self.world = world
        self.speed = speed
        for port in (telemetry_port, sensor_port, control_port):
            if not 0 <= port < 65536:
                raise ConfigError(f"port is {port}; it must lie between 0 (any free one) and 65535")
        with contextlib.ExitStack() as opened:  # closes the others if one port is taken
            self.telemetry = StreamServer(telemetry_port)
            opened.callback(self.telemetry.close)
            self.sensors = StreamServer(sensor_port)
            opened.callback(self.sensors.close)
            self.control = ControlServer(control_port)
            opened.pop_all()
        self.stopping = threading.Event()

    def announcement(self) -> dict[str, object]:
        """Return what a client must know: the ports, the track, the speed, the process id."""
        return {
            "host": HOST,
            "telemetry": self.telemetry.port,
            "sensors": self.sensors.port,
            "control": self.control.port,
            "track": self.world.track.name,
            "speed": self.speed,
            "pid": os.getpid(),
        }

    def run(self, parent: int | None = None) -> None:
        """Run until `stopping` is set, a client says quit, or ``parent`` is no longer our parent process."""
        period = FRAME_S / self.speed
        origin, done = clock.now(), 0
        while not self.stopping.is_set():
            clock.sleep(origin + (done + 1) * period - clock.now())
            due = max(1, int((clock.now() - origin) / period) - done)
            if due * period > LONGEST_CATCH_UP_S:
                origin += (due - 1) * period
                due = 1
            done += due
            self.tick(due)
            if parent is not None and os.getppid() != parent:
                return

    def tick(self, frames: int) -> None:
        """Take what clients sent, move the world by so many frames, and stream the last of them."""
        for server in (self.telemetry, self.sensors, self.control):
            server.accept()
        for command, buttons in self.control.receive():
            self._obey(command, buttons)
        for _ in range(frames):
            self.world.advance_frame()
        if self.telemetry.clients:
            self.telemetry.broadcast(self.world.telemetry())
        if self.sensors.clients:
            self.sensors.broadcast(pack_sensors(self.world.frame(clock.now())))

    def _obey(self, command: Command | None, buttons: int) -> None:
        if buttons & QUIT:
            self.stopping.set()
        if buttons & RESPAWN:
            self.world.respawn()
        elif command is not None:
            self.world.command = command

    def close(self) -> None:
        """Close all sockets."""
        for server in (self.telemetry, self.sensors, self.control):
            server.close()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tickrate game circuit",
        description="A 2D racing game that never waits. Prints one JSON line with its ports, then runs.",
    )
    parser.add_argument("--track", default="demo", help=f"{', '.join(TRACKS)} or random:SEED (default: demo)")
    parser.add_argument("--speed", type=float, default=1.0, help="game seconds per wall second (default: 1)")
    for name in ("telemetry", "sensor", "control"):
        parser.add_argument(f"--{name}-port", type=int, default=0, help="0 takes any free port (default)")
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="quit when the standard input closes or the parent dies",
    )
    return parser.parse_args(argv)


def _quit_at_end_of_input(stopping: threading.Event) -> None:
    # os.read and not sys.stdin: a thread blocked inside a buffered reader would hang the interpreter's exit.
    while True:
        try:
            if not os.read(0, 1024):
                break
        except OSError:
            break
    stopping.set()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the game from the command line; returns the exit status."""
    options = _parse(argv)
    try:
        game = Game(
            World(make_track(options.track)),
            speed=options.speed,
            telemetry_port=options.telemetry_port,
            sensor_port=options.sensor_port,
            control_port=options.control_port,
        )
    except (ConfigError, OSError) as error:
        print(f"tickrate game circuit: {error}", file=sys.stderr)
        return 2
    parent = None
    if options.exit_with_parent:
        parent = os.getppid()
        threading.Thread(target=_quit_at_end_of_input, args=(game.stopping,), daemon=True).start()
    print(json.dumps(game.announcement()), flush=True)
    try:
        game.run(parent)
    except KeyboardInterrupt:
        pass
    finally:
        game.close()
    return 0
