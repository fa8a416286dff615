"""A device for the benchmarks of delivery: each observation says its number; the rest follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate import RealTimeGymInterface
from tickrate.clock import now

VALUES = 24
CELLS = 1 << 20
"""Captures whose times the log keeps."""


def values_of(number: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the ``(n, VALUES)`` values that belong to observations ``number``, ``(n,)``."""
    mixed = (number[:, None] * 40503 + np.arange(1, VALUES + 1) * 9973) % 65536
    return (mixed / 32768.0 - 1.0).astype(np.float32)


class CountingDevice(RealTimeGymInterface):
    """Counts captures over all its lives in a file: captures, commands, then the time of each capture.

    Args:
        log: the file.
    """

    def __init__(self, log: str) -> None:
        if not Path(log).exists():
            np.zeros(CELLS, np.float64).tofile(log)
        self._log = np.memmap(log, np.float64, mode="r+")

    def get_observation_space(self) -> spaces.Space[Any]:
        box = spaces.Box(-2.0, 2.0, (VALUES,), np.float32)
        return spaces.Dict({"number": spaces.Box(0, 1 << 23, (1,), np.float32), "values": box})

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def get_default_action(self) -> NDArray[np.float32]:
        return np.zeros(2, np.float32)

    def send_control(self, control: Any) -> None:
        self._log[1] += 1

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._observe(), {}

    def get_obs_rew_terminated_info(self) -> Any:
        observation = self._observe()
        return observation, float(observation["number"][0] % 97), False, {}

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        number = int(self._log[0])
        self._log[2 + number] = now()
        self._log[0] = number + 1
        return {
            "number": np.array([number], np.float32),
            "values": values_of(np.array([number]))[0],
        }
