"""Single key presses from a terminal, without waiting for Enter; silent where there is no terminal."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

try:
    import select
    import termios
    import tty
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

try:
    import msvcrt
except ImportError:  # everything else
    msvcrt = None  # type: ignore[assignment]


class Keys:
    """Reads keys while used as a context manager, and gives the terminal back as it was.

    Ctrl-C still interrupts. Without a terminal `pressed` always returns None.
    """

    def __init__(self) -> None:
        self._saved: list[Any] | None = None
        self._active = False

    def __enter__(self) -> Keys:
        self._active = sys.stdin is not None and sys.stdin.isatty()
        if self._active and termios is not None:
            # A process in the background that touches the terminal's settings is stopped for it.
            self._active = os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
        if self._active and termios is not None:
            self._saved = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._saved is not None and termios is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)
            self._saved = None
        self._active = False

    def pressed(self) -> str | None:
        """Return the next key that was pressed, or None if there is none; never waits."""
        if not self._active:
            return None
        if msvcrt is not None and sys.platform == "win32":
            return msvcrt.getwch() if msvcrt.kbhit() else None
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        # os.read: a buffered read would take further keys out of select's sight.
        return (os.read(sys.stdin.fileno(), 1).decode("latin-1") or None) if ready else None
