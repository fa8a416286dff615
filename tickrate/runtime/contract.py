"""What a worker tells the trainer about its environment: the trainer has neither device nor interface."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.data.fields import DTYPES
from tickrate.data.schema import RecordSchema
from tickrate.errors import ConfigError, MessageError
from tickrate.runtime.environments import (
    Environment,
    LiveEnvironment,
    LockStepEnvironment,
    action_fault,
    record_schema,
)

MAX_LEAF_ELEMENTS = 1 << 24
MAX_ELEMENTS = 1 << 25
"""Elements of all leaves together; their bounds take a few hundred MB at most."""
MAX_LEAVES = 1024
MAX_AXES = 8
MAX_STACK = 256


@dataclass(frozen=True)
class EnvironmentContract:
    """Spaces, clock and symmetry of an environment, as plain data.

    Attributes:
        leaf_spaces: canonical observation, path -> space, the action buffer last.
        action_space: a bounded Box of floats, Discrete, MultiDiscrete or MultiBinary.
        period_s: time-step in seconds; 0 in lock-step.
        action_buffer_length: actions in flight that the observation holds.
        mirror: left-right symmetry as the interface declares it, or None.
        checksum: whether the worker's rows carry a hash of each transition.
        stacks: leaves that are histories, newest frame last, by their length, as the interface declares it
            (``stacks()``): each frame is sent and stored once.
    """

    leaf_spaces: Mapping[str, spaces.Space[Any]]
    action_space: spaces.Space[Any]
    period_s: float
    action_buffer_length: int
    mirror: Mapping[str, Any] | None
    checksum: bool = False
    stacks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Environment, *, checksum: bool = False) -> EnvironmentContract:
        """Return the contract of an open environment, whose rows are to carry hashes if ``checksum``."""
        mirror, stacks = None, None
        if isinstance(environment, LiveEnvironment):
            mirror = _declared(environment, "mirror")
            stacks = _declared(environment, "stacks")
        elif isinstance(environment, LockStepEnvironment):
            stacks = environment.stacks
        return cls(
            environment.leaf_spaces,
            environment.action_space,
            environment.period_s,
            environment.action_buffer_length,
            mirror,
            checksum,
            stacks or {},
        )

    def schema(self) -> RecordSchema:
        """Return the record schema of this environment."""
        return record_schema(self.leaf_spaces, self.action_space, stacks=self.stacks, checksum=self.checksum)

    def difference(self, other: EnvironmentContract) -> str:
        """Return one line that names the first thing in which ``other`` differs, empty if none does.

        The symmetry is left out: it is the trainer's own affair.
        """
        if difference := self.schema().difference(other.schema()):
            return difference
        for path, space in self.leaf_spaces.items():
            if space != other.leaf_spaces[path]:
                return f"leaf {path!r} is {space} here and {other.leaf_spaces[path]} there"
        if self.checksum != other.checksum:
            return f"worker.checksum is {self.checksum} here and {other.checksum} there"
        if self.action_space != other.action_space:
            return f"the action space is {self.action_space} here and {other.action_space} there"
        if not math.isclose(self.period_s, other.period_s, rel_tol=1e-6):
            return f"the time-step is {self.period_s} s here and {other.period_s} s there"
        if self.action_buffer_length != other.action_buffer_length:
            return (
                f"the action buffer holds {self.action_buffer_length} actions here and "
                f"{other.action_buffer_length} there"
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the contract as JSON-like data."""
        return {
            "observation": [{"path": p, **_space_to_dict(s)} for p, s in self.leaf_spaces.items()],
            "action": _space_to_dict(self.action_space),
            "period_s": self.period_s,
            "action_buffer_length": self.action_buffer_length,
            "mirror": _plain(self.mirror),
            "checksum": self.checksum,
            "stacks": dict(self.stacks),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvironmentContract:
        """Return the contract that `to_dict` described.

        Raises:
            MessageError: if the data is not such a description (it comes over the network).
        """
        try:
            observation = data["observation"]
            if not isinstance(observation, list) or not 0 < len(observation) <= MAX_LEAVES:
                raise ValueError(f"{len(observation)} observation leaves")
            if sum(math.prod(_shape(leaf)) for leaf in observation) > MAX_ELEMENTS:
                raise ValueError(f"over {MAX_ELEMENTS} elements in an observation")
            leaf_spaces = {str(leaf["path"]): _space_from_dict(leaf) for leaf in observation}
            if len(leaf_spaces) < len(observation):
                raise ValueError("a leaf is described twice")
            action_space = _space_from_dict(data["action"])
            if (fault := action_fault(action_space)) or math.prod(action_space.shape or ()) == 0:
                raise ValueError(f"the action is {fault or 'empty'}")
            period_s, length = float(data["period_s"]), int(data["action_buffer_length"])
            if not (0 <= period_s < math.inf and 0 <= length < 10_000):
                raise ValueError(f"period {period_s}, action buffer {length}")
            mirror = data["mirror"]
            if mirror is not None and not isinstance(mirror, Mapping):
                raise ValueError("the mirror is no mapping")
            checksum = data.get("checksum", False)
            if not isinstance(checksum, bool):
                raise ValueError(f"checksum {checksum!r}")
            stacks = {str(path): int(length) for path, length in data.get("stacks", {}).items()}
            if any(not 1 <= length <= MAX_STACK for length in stacks.values()):
                raise ValueError(f"stacks {stacks}")
        except (KeyError, TypeError, ValueError, OverflowError, AssertionError, AttributeError) as error:
            raise MessageError(f"not the contract of an environment: {error!r}") from error
        return cls(leaf_spaces, action_space, period_s, length, mirror, checksum, stacks)

    @classmethod
    def load(cls, path: Path) -> EnvironmentContract | None:
        """Return the contract in a JSON file, None if there is no such file.

        Raises:
            MessageError: if the file holds none.
        """
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise MessageError(f"{path} holds no contract of an environment: {error}") from error


def _declared(environment: LiveEnvironment, name: str) -> Any:
    """Return what an optional method of the interface declares, None if it has no such method."""
    method = getattr(environment.env.interface, name, None)
    return method() if callable(method) else None


def _space_to_dict(space: spaces.Space[Any]) -> dict[str, Any]:
    low: Any
    high: Any
    if isinstance(space, spaces.Box):
        kind, low, high = "box", _bound(space.low), _bound(space.high)
    elif isinstance(space, spaces.Discrete):
        kind, low, high = "discrete", int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        kind, low, high = "multidiscrete", _bound(space.start), _bound(space.start + space.nvec - 1)
    elif isinstance(space, spaces.MultiBinary):
        kind, low, high = "multibinary", 0, 1
    else:
        raise ConfigError(f"the space {space} cannot be described to a trainer")
    dtype = np.dtype(space.dtype).name
    return {"kind": kind, "shape": list(space.shape or ()), "dtype": dtype, "low": low, "high": high}


def _bound(values: NDArray[Any]) -> Any:
    """Return one number if all are the same, as for images, else a flat list."""
    flat = values.ravel()
    return flat[0].item() if flat.size and np.all(flat == flat[0]) else flat.tolist()


def _shape(data: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tuple(int(n) for n in data["shape"])
    if len(shape) > MAX_AXES or any(n < 0 for n in shape) or math.prod(shape) > MAX_LEAF_ELEMENTS:
        raise ValueError(f"shape {shape}")
    return shape


def _space_from_dict(data: Mapping[str, Any]) -> spaces.Space[Any]:
    shape, name, kind = _shape(data), data["dtype"], data["kind"]
    if name not in DTYPES:  # looked up, never parsed: numpy evaluates parts of a dtype's text
        raise ValueError(f"dtype {str(name)[:100]!r}")
    dtype = np.dtype(name)
    if kind == "box":
        low, high = (_array(data[name], shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "multibinary":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if dtype.kind not in "iu":
        raise ValueError(f"categories of dtype {dtype}")
    low, high = (_array(data[name], shape, np.dtype(np.int64)) for name in ("low", "high"))
    if any(not abs(n) < 1 << 62 for n in (*low.ravel().tolist(), *high.ravel().tolist())):
        raise ValueError("categories beyond 64 bits")
    if kind == "discrete" and shape == ():
        return spaces.Discrete(int(high) - int(low) + 1, start=int(low), dtype=dtype.type)
    if kind == "multidiscrete":
        return spaces.MultiDiscrete(high - low + 1, start=low, dtype=dtype.type)
    raise ValueError(f"kind of space {kind!r} with shape {shape}")


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a bound as a full array; whole numbers are never rounded through floats."""
    numbers = bound if isinstance(bound, list) else [bound]
    if not all(isinstance(n, int | float) for n in numbers):
        raise ValueError("a bound that is no number")
    values = np.array(numbers, dtype=dtype)
    return values.reshape(shape) if isinstance(bound, list) else np.broadcast_to(values[0], shape)


def _plain(value: Any) -> Any:
    """Return nested mappings and arrays as dicts and lists."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value
