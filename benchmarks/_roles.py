"""Roles of a run as processes that a benchmark starts, kills and starts again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Role:
    """One ``tickrate`` command in a process of its own; its output goes to a file."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name, self._arguments, self._folder = name, arguments, folder
        self.log = folder / f"{name}.out"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start it, again if it has ended."""
        places = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(places)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tickrate", *self._arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.starts += 1

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """Its process number."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def end(self, patience_s: float = 30.0) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not end within {patience_s:g} s: killed; the end of its log:")
            print(self.last_words())
            self.kill()

    def last_words(self, lines: int = 8) -> str:
        """Return the end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def children(self, word: str) -> list[psutil.Process]:
        """Return its child processes whose command line holds ``word``."""
        try:
            found = psutil.Process(self.pid).children()
            return [child for child in found if word in child.cmdline()]
        except psutil.NoSuchProcess:
            return []


def wait_until(condition: object, timeout_s: float, what: str) -> None:
    """Poll ``condition()`` until it is true; end the program if it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.05)


def quiet_machine() -> str:
    """Return one line on who else uses the processor."""
    load = os.getloadavg()[0]
    return f"load average before the run: {load:.2f}"
