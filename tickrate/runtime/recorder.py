"""Turns what happens in an episode into rows of the record format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.checksums import CHECKSUM, has_checksum, observation_bytes, transition_checksum
from tickrate.data.schema import Flag, RecordSchema
from tickrate.errors import RecordError
from tickrate.trees import Leaves

Row = NDArray[np.void]


class Recorder:
    """Writes one row per observation of one stream, and hands each over as soon as it is complete.

    A row holds an observation, the action that was applied after it, and the reward and end flags that came
    back; the last row of an episode holds the true final observation alone (`Flag.FINAL`).

    Args:
        schema: the record schema.
        stream: number of the stream (worker or environment index).
        first_episode: number of the first episode; a later boot of a worker begins above the earlier ones.
        sink: takes each finished row, a scalar structured array that is reused: copy it or write it out.
        flags: `Flag` bits that every row of the stream gets (`Flag.EXPERT`).
    """

    def __init__(
        self,
        schema: RecordSchema,
        stream: int,
        first_episode: int,
        sink: Callable[[Row], None],
        *,
        flags: int = 0,
    ) -> None:
        self._schema = schema
        self._checksum = has_checksum(schema)
        self._before = b""  # with checksums: the last observation, whole
        self._stream_flags = int(flags)
        self._row = np.zeros((), dtype=schema.row_dtype)
        self._row["stream"] = stream
        self._paths = [(f"o/{field.name}", field.name, field.stack) for field in schema.observation]
        self._extras = {f"x/{field.name}" for field in schema.extras}
        self._sink = sink
        self._episode = first_episode - 1
        self._step = 0
        self._episode_flags = 0

    @property
    def episode(self) -> int:
        """Number of the running episode."""
        return self._episode

    def begin(self, observation: Leaves, *, evaluation: bool = False) -> None:
        """Start an episode with its first observation."""
        self._episode += 1
        self._step = 0
        self._episode_flags = self._stream_flags | (int(Flag.EVALUATION) if evaluation else 0)
        if self._checksum:
            self._before = observation_bytes(self._schema, observation)
        self._observe(observation)

    def step(
        self,
        action: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        observation: Leaves,
        *,
        timing: Mapping[str, Any] | None = None,
        policy_version: int = 0,
        extras: Mapping[str, Any] | None = None,
        flags: int = 0,
        final_flags: int = 0,
    ) -> None:
        """Complete the row of the last observation with what came of it, and begin the next.

        Args:
            action: the action that was applied, in the environment's units.
            reward: reward of the step.
            terminated: the episode ended for good.
            truncated: the episode was cut off.
            observation: what was observed after it, by path.
            timing: ``info["timing"]`` of a live environment; None in lock-step.
            policy_version: version of the policy that chose the action; 0 is the warm-up.
            extras: further values that the actor gave (log-probabilities, ...), as the schema has them.
            flags: further `Flag` bits of this step (`Flag.TAKEOVER`, `Flag.FALLBACK`).
            final_flags: further `Flag` bits of the final row, if the step ends the episode.

        Raises:
            RecordError: if the actor gave what the schema has no place for.
        """
        row = self._row
        flags |= self._episode_flags
        if terminated:
            flags |= Flag.TERMINATED
        elif truncated:
            flags |= Flag.TRUNCATED
        if timing is not None:
            row["start"] = timing["start"]
            row["lateness"] = timing["lateness"]
            row["observation_age"] = timing["observation_age"]
            if timing["overrun"]:
                flags |= Flag.LATE
        row["action"] = action
        row["reward"] = reward
        row["policy_version"] = policy_version
        self._record_extras(extras or {})
        if self._checksum:
            before, self._before = self._before, observation_bytes(self._schema, observation)
            row[f"x/{CHECKSUM}"] = transition_checksum(
                self._schema, before, action, reward, terminated, truncated, self._before
            )
        self._emit(flags)
        self._observe(observation)
        if terminated or truncated:
            self.cut(final_flags)

    def cut(self, flags: int = 0) -> None:
        """End the episode here: write its last observation as the final one, with further ``flags``.

        Called between two steps it cuts an episode that neither terminated nor reached a limit (a pause); the
        transition before stays usable and bootstraps from this observation.
        """
        self._row["action"] = 0
        self._row["reward"] = 0.0
        self._record_extras({})
        self._emit(self._episode_flags | Flag.FINAL | flags)

    def _record_extras(self, extras: Mapping[str, Any]) -> None:
        """Write what the actor gave, and zero for what it did not: the row still holds the last step's."""
        given = {f"x/{name}": value for name, value in extras.items()}
        if unknown := sorted(given.keys() - self._extras):
            raise RecordError(
                f"the actor gave the extras {unknown}, but rows of this run hold {sorted(self._extras)}: let "
                "it return only those"
            )
        for column in self._extras:
            self._row[column] = given.get(column, 0)

    def _observe(self, observation: Leaves) -> None:
        for column, path, stack in self._paths:
            value = observation[path]
            self._row[column] = value[-1] if stack > 1 else value

    def _emit(self, flags: int) -> None:
        self._row["episode"] = self._episode
        self._row["step"] = self._step
        self._row["flags"] = flags
        self._sink(self._row)
        self._step += 1
