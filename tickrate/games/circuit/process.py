"""Starts the game as a process of its own, learns its ports, and ends it."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import IO, NamedTuple

from tickrate.errors import ConfigError, DeviceLost


class Address(NamedTuple):
    """Where a running game is reached."""

    host: str
    telemetry: int
    sensors: int
    control: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address written as ``HOST:TELEMETRY,SENSORS,CONTROL``.

        Raises:
            ConfigError: if the text has another form.
        """
        host, _, ports = text.rpartition(":")
        numbers = ports.split(",")
        if (
            not host
            or len(numbers) != 3
            or not all(n.isascii() and n.isdigit() and int(n) < 65536 for n in numbers)
        ):
            raise ConfigError(
                f"address is {text!r}; write HOST:TELEMETRY,SENSORS,CONTROL, e.g. 127.0.0.1:9000,9001,9002"
            )
        return cls(host, *map(int, numbers))


class GameProcess:
    """A game that this process owns: it ends with `close`, and by itself if this process dies.

    It runs in a process group of its own, so that Ctrl-C in the terminal reaches its owner first, who can
    still stop the car.

    Args:
        track: name of the track.
        speed: game seconds per wall second.
        start_timeout_s: how long it may take to say its ports.

    Raises:
        DeviceLost: if it does not start in time.
    """

    def __init__(self, track: str = "demo", speed: float = 1.0, *, start_timeout_s: float = 20.0) -> None:
        command = [sys.executable, "-m", "tickrate.games.circuit", "--exit-with-parent"]
        command += ["--track", track, "--speed", repr(float(speed))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # what Windows has instead
        )
        try:
            self.address = self._read_address(start_timeout_s)
        except DeviceLost:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the game."""
        return self._process.pid

    def alive(self) -> bool:
        """Return whether the game still runs."""
        return self._process.poll() is None

    def _read_address(self, timeout_s: float) -> Address:
        lines: queue.Queue[bytes] = queue.Queue()
        stream = self._process.stdout
        assert stream is not None
        threading.Thread(target=_read_line, args=(stream, lines), daemon=True).start()
        try:
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            raise DeviceLost(
                f"the game did not say its ports within {timeout_s} s: is the machine overloaded?"
            ) from None
        try:
            said = json.loads(line)
            return Address(said["host"], said["telemetry"], said["sensors"], said["control"])
        except (ValueError, KeyError, TypeError):
            raise DeviceLost(
                f"the game did not start: it said {line[:200]!r}; its error is printed above"
            ) from None

    def close(self, timeout_s: float = 2.0) -> None:
        """End the game: close its input, and kill it if it is still there after ``timeout_s``."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _read_line(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    lines.put(stream.readline(4096))
