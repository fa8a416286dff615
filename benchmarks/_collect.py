"""An algorithm that only collects, for benchmarks of what comes before learning; it never updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import RunFolderError
from tickrate.registry import AlgorithmEntry


@dataclass(frozen=True)
class CollectConfig:
    """Options of `Collect`."""

    batch_size: int = 1
    """Transitions a batch."""


ENTRY = AlgorithmEntry(
    config="_collect:CollectConfig", build="_collect:Collect", summary="collects and does not learn"
)


class Collect:
    """An `Algorithm` without parameters."""

    def __init__(self, config: CollectConfig, *_: Any, **__: Any) -> None:
        self._observed = 0

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        self._observed += len(next(iter(observation.values())))

    def update(self, batch: Any) -> dict[str, float]:
        raise RuntimeError("set trainer.start_steps out of reach: this algorithm cannot learn")

    def policy_bytes(self, version: int) -> bytes:
        return version.to_bytes(8, "little")

    def state(self) -> dict[str, NDArray[Any]]:
        return {"observed": np.array(self._observed)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if set(state) != {"observed"}:
            raise RunFolderError(f"a foreign state: {sorted(state)}")
        self._observed = int(state["observed"])
