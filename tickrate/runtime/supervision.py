"""Child processes of a run: started as ``python -m tickrate ROLE``, watched, asked to end, made to end."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tickrate import clock

Priority = Literal["idle", "low", "normal"]
"""How far a process gives way to the others; see `lower_priority`."""

KEPT_BYTES = 128 << 20
"""Free memory that a process keeps at most, see `keep_memory`."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
ENV_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PATH_VARIABLE = "TICKRATE_PATH"
"""Environment variable by which a role's process learns where its parent finds modules."""
_WINDOWS_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


@dataclass
class Child:
    """One role in a process of its own.

    Its standard input is a pipe that nobody writes to: when the parent ends, for whatever reason, the child
    reads end-of-file and ends itself (see `on_parent_exit`). It runs in its own process group, so that
    Ctrl-C in the terminal reaches the parent alone, which then ends the roles in the right order. It has no
    session of its own: Linux's autogroups share a core between sessions as between equals, so that the
    learner's low priority would count within the learner's session alone. It finds modules where the parent
    finds them (see `join_path`).
    """

    role: str
    arguments: Sequence[str]
    log: Path
    threads: int | None = None
    name: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    starts: int = 0

    @property
    def title(self) -> str:
        """What to call it: its name, or its role if it has none."""
        return self.name or self.role

    def start(self) -> None:
        """Start the process; its output goes to the end of the log file."""
        self.close_input()
        environment = os.environ | {PATH_VARIABLE: os.pathsep.join(str(Path(p).absolute()) for p in sys.path)}
        if self.threads is not None:
            environment |= dict.fromkeys(ENV_THREADS, str(self.threads))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tickrate", self.role, *self.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
                creationflags=_WINDOWS_GROUP,
            )
        self.starts += 1

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while it runs or before it was started."""
        return None if self.process is None else self.process.poll()

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def close_input(self) -> None:
        """Tell the child that its parent goes: it ends by itself, cleanly."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; return whether it has."""
        if self.process is None:
            return True
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, timeout_s: float) -> None:
        """End it: by closing its input, by terminate, by kill; each gets ``timeout_s`` seconds."""
        if self.process is None:
            return
        self.close_input()
        for force in (None, self.process.terminate, self.process.kill):
            if force is not None:
                force()
            if self.wait(timeout_s):
                return

    def last_words(self, lines: int = 12) -> str:
        """Return the end of its log, for an error message."""
        if not self.log.exists():
            return "(it wrote nothing)"
        text = self.log.read_text(errors="replace").strip().splitlines()
        return "\n".join(text[-lines:]) or "(it wrote nothing)"


def join_path() -> None:
    """Find modules in the working folder and wherever the parent process finds them, after our own places.

    ``python -m tickrate`` looks in the working folder by itself, the command ``tickrate`` and a script that
    starts a run from elsewhere do not; a user's ``module:Class`` has to be found in all three.
    """
    inherited = os.environ.get(PATH_VARIABLE, "").split(os.pathsep)
    for place in [str(Path.cwd()), *inherited]:
        if place and place not in sys.path:
            sys.path.append(place)


def on_parent_exit(action: Callable[[], None]) -> None:
    """Call ``action`` once, from a daemon thread, when this process's standard input ends."""

    def watch() -> None:
        # os.read, not sys.stdin: a buffered reader that is blocked at interpreter exit aborts the process.
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass
        action()

    threading.Thread(target=watch, name="tickrate-parent-watch", daemon=True).start()


def lower_priority(priority: Priority) -> None:
    """Let this process give way to the others (the learner to the control loop), where it can.

    Niceness alone does not do: it makes a busy process's share smaller, but whoever wakes on its core may
    still wait for the end of its slice. A process of the idle class is interrupted at once. Threads started
    later follow.
    """
    if priority == "idle" and sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif priority != "normal" and hasattr(os, "nice"):
        os.nice(19 if priority == "idle" else 10)


def keep_memory() -> bool:
    """Let this process keep the memory of messages for the next ones, where the C library can be told so.

    glibc gives megabytes back to the system as soon as they are free, and every page of the next message is
    fetched and cleared anew: a third of what moving frames costs.
    """
    if sys.platform != "linux":
        return False
    try:
        tell = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(tell(_M_MMAP_THRESHOLD, 32 << 20)) and bool(tell(_M_TRIM_THRESHOLD, KEPT_BYTES))


def yield_session(proc: Path = Path("/proc")) -> bool:
    """Let the whole session of this process give way to others; return whether it does now.

    For a trainer in a terminal of its own: Linux's autogroups share a core between sessions as between
    equals, whatever the priority within each. A session that holds a worker as well is left as it is.

    Args:
        proc: where the system tells of its processes.
    """
    group = proc / "self" / "autogroup"
    if sys.platform != "linux" or not group.exists() or _worker_in_session(proc, os.getsid(0)):
        return False
    try:
        group.write_text("19", encoding="ascii")
    except OSError:
        return False
    return True


def _worker_in_session(proc: Path, session: int) -> bool:
    for entry in proc.glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            # The name in parentheses may hold anything; state, parent, group and session follow it.
            member = (
                int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[3]) == session
            )
        except (OSError, ValueError, IndexError):
            continue
        if member and b"worker" in words and any(b"tickrate" in word for word in words):
            return True
    return False


def wait_for(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """Poll ``condition`` until it is true or the time is over; return whether it came true."""
    deadline = clock.now() + timeout_s
    while not condition():
        if clock.now() >= deadline:
            return False
        clock.sleep(poll_s)
    return True
