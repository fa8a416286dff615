"""A folder that one process uses at a time: a lock that the system lifts when its holder dies."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tickrate import clock
from tickrate.errors import FolderInUse, RunFolderError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


_LOOK_EVERY_S = 0.01


class LockFile:
    """Holds ``path`` locked until closed, or until the process dies, however it dies.

    Args:
        path: the lock file; it is made if needed and stays behind, unlocked.
        what: what it stands for, for the error message.
        patience_s: how long to wait for its holder to let go, in seconds. Meanwhile the holder finds `wanted`
            true.

    Raises:
        FolderInUse: if another process holds it; says which.
        RunFolderError: if the file cannot be made.
    """

    def __init__(self, path: Path, what: str, *, patience_s: float = 0.0) -> None:
        self.path = path
        self._wanted = path.with_name(f"{path.name}.wanted")
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"{what} cannot be used: {path} cannot be written ({error.strerror}). Mend its "
                "permissions, or choose another place with run.root"
            ) from error
        if not self._acquire(patience_s):
            # Windows locks the first byte against reading too: the note begins after it.
            os.lseek(self._handle, 1, os.SEEK_SET)
            holder = os.read(self._handle, 200).decode(errors="replace").strip() or "another process"
            os.close(self._handle)
            raise FolderInUse(
                f"{what} is in use by {holder} ({path}): stop that one first, or use another name"
            ) from None
        self._wanted.unlink(missing_ok=True)
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, f"\nprocess {os.getpid()} on {socket.gethostname()}\n".encode())

    def _acquire(self, patience_s: float) -> bool:
        deadline = clock.now() + patience_s
        while True:
            try:
                _lock(self._handle)
            except OSError:
                if clock.now() >= deadline:
                    return False
                self._wanted.touch()
                clock.sleep(_LOOK_EVERY_S)
            else:
                return True

    @property
    def wanted(self) -> bool:
        """Whether another process waits for the lock."""
        return self._wanted.exists()

    def close(self) -> None:
        """Let go of the lock; a second call does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(handle: int) -> None:
    """Lock at once or raise OSError."""
    if sys.platform == "win32":
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
