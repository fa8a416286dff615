"""The circuit with a log of the moment of each command and reset, for `acting_while_learning.py`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tickrate.clock import now
from tickrate.games.circuit.interface import CircuitInterface

_RECORD = struct.Struct("<dB")
COMMAND, RESET = 0, 1


class LoggedCircuit(CircuitInterface):
    """Writes (time, kind) of each call to a file before it is passed on."""

    def __init__(self, log: str) -> None:
        super().__init__()
        self._log = Path(log).open("wb", buffering=0)  # noqa: SIM115 (lives as long as the interface)

    def send_control(self, control: Any) -> None:
        self._log.write(_RECORD.pack(now(), COMMAND))
        super().send_control(control)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._log.write(_RECORD.pack(now(), RESET))
        return super().reset(seed, options)

    def close(self) -> None:
        super().close()
        self._log.close()
