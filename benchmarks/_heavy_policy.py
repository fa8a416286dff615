"""An algorithm whose policy weighs 5 MB, and a device that notes each command; for `weights.py`."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate import RealTimeGymInterface
from tickrate.artefact import (
    Exploration,
    PolicyContract,
    action_spec,
    check_contract,
    leaf_spec,
    pack,
)
from tickrate.clock import now
from tickrate.errors import RunFolderError
from tickrate.program.spec import mlp_program
from tickrate.registry import AlgorithmEntry

WIDTH = 1120
"""Of both hidden layers: 1120 * 1120 weights of 4 bytes are 5.02 MB."""
CODES = 500
"""A command says its policy's version modulo this; at a few versions a second that is minutes."""
REACH = 0.9
"""Codes lie between minus and plus this."""
POLICY = 0.5
"""Second value of each command that a policy chose; the warm-up's is negative."""
RECORD = struct.Struct("<dff")
PUBLISHED = struct.Struct("<qd")


def coded(version: int) -> float:
    """Return the first value of the commands of a version."""
    return REACH * (2.0 * (version % CODES) / (CODES - 1) - 1.0)


def decoded(value: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the version modulo `CODES` that such values say."""
    return np.rint((value / REACH + 1.0) / 2.0 * (CODES - 1)).astype(np.int64)


@dataclass(frozen=True)
class HeavyConfig:
    """Options of `Heavy`."""

    batch_size: int = 1
    """Transitions a batch."""
    log: str = ""
    """File in which each new version and the moment when it was made are noted."""


ENTRY = AlgorithmEntry(
    config="_heavy_policy:HeavyConfig",
    build="_heavy_policy:Heavy",
    summary="a policy of 5 MB, next to no learning",
)


class Heavy:
    """An `Algorithm` that learns nothing of use, cheaply, and writes a real policy of 5 MB.

    The network reads the leaf ``state``; two hidden layers compute what their weights say, and the last
    layer's bias outweighs them by far, so that each command says its version.
    """

    def __init__(
        self,
        config: HeavyConfig,
        leaf_spaces: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Box,
        *,
        seed: int,
        period_s: float,
        action_buffer_length: int,
    ) -> None:
        self._log = Path(config.log)
        self._logged = 0
        self._contract = PolicyContract(
            algorithm="heavy",
            observation=tuple(leaf_spec(path, space) for path, space in leaf_spaces.items()),
            action=action_spec(action_space),
            groups={"actor": ("state",)},
            program=mlp_program(("state",), (WIDTH, WIDTH, 4), "tanh"),
            exploration=Exploration(log_std_min=-20.0, log_std_max=-20.0),
            period_s=period_s,
            action_buffer_length=action_buffer_length,
        )
        rng = np.random.default_rng(seed)
        self._weights = {
            name: rng.normal(0.0, 0.03, shape).astype(np.float32)
            for name, shape in check_contract(self._contract).tensors.items()
        }
        self._weights["layer.2.weight"] *= np.float32(1e-6)
        self._updates = 0

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """There are no input statistics to keep."""

    def update(self, batch: Any) -> dict[str, float]:
        """Change one row of the large matrix, so that no two versions are equal."""
        self._weights["layer.1.weight"][self._updates % WIDTH] *= np.float32(0.999)
        self._updates += 1
        return {}

    def policy_bytes(self, version: int) -> bytes:
        """Return the policy; note when a new one is ready, microseconds before it gets its ``created``."""
        bias = [math.atanh(coded(version)), math.atanh(POLICY), -20.0, -20.0]
        self._weights["layer.2.bias"] = np.array(bias, np.float32)
        contract = msgspec.structs.replace(self._contract, policy_version=version)
        payload = pack(contract, self._weights)
        if version > self._logged:  # a checkpoint writes the same version once more
            self._logged = version
            with self._log.open("ab") as log:
                log.write(PUBLISHED.pack(version, now()))
        return payload

    def state(self) -> dict[str, NDArray[Any]]:
        return {"updates": np.array(self._updates)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if set(state) != {"updates"}:
            raise RunFolderError(f"a foreign state: {sorted(state)}")
        self._updates = int(state["updates"])


class NotingDevice(RealTimeGymInterface):
    """Shows a state and a frame, and writes each command with its time to a file.

    Args:
        log: the file.
    """

    def __init__(self, log: str) -> None:
        self._log = Path(log).open("wb", buffering=0)  # noqa: SIM115 (lives as long as the interface)
        self._rng = np.random.default_rng(0)
        self._frame = self._rng.integers(0, 256, (64, 64), np.uint8)

    def get_observation_space(self) -> spaces.Space[Any]:
        frame = spaces.Box(0, 255, (64, 64), np.uint8)
        return spaces.Dict({"state": spaces.Box(-1.0, 1.0, (8,), np.float32), "frame": frame})

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def get_default_action(self) -> NDArray[np.float32]:
        return np.array([0.0, -1.0], np.float32)

    def send_control(self, control: Any) -> None:
        self._log.write(RECORD.pack(now(), float(control[0]), float(control[1])))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._observe(), {}

    def get_obs_rew_terminated_info(self) -> Any:
        return self._observe(), 0.0, False, {}

    def _observe(self) -> dict[str, NDArray[Any]]:
        return {"state": self._rng.uniform(-1, 1, 8).astype(np.float32), "frame": self._frame.copy()}

    def close(self) -> None:
        self._log.close()
