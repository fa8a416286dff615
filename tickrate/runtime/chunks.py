"""Plays chunks of future actions by counting what it has played, and knows when to ask for the next.

Action ``i`` of a chunk is meant for the ``i``-th step after its observation. While a chunk is being inferred
the steps go on, so its first actions are out of date when it arrives: exactly as many as were played since
its observation. That number is counted; a delay estimated from times would be wrong whenever an inference
takes longer than usual, and after a standstill, when nothing was played, it would skip what was never done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import ConfigError, PolicyMismatch
from tickrate.runtime.fallback import FallbackKind


@dataclass(frozen=True)
class ChunkConfig:
    """How to play the chunks of an actor that answers with several future actions."""

    horizon: int = 1
    """Actions in a chunk, as the actor returns them, ``(batch, horizon, *action)``. 1: no chunks. Usual: 8 to
    50, at least the steps that an inference takes divided by ``threshold``."""
    threshold: float = 0.5
    """The next chunk is asked for when at most this share of a chunk is left. Usual: 0.3 to 0.7; 1 asks
    always, 0 only when nothing is left."""
    fallback: FallbackKind = "hold"
    """What to send when nothing is left: the last command, the device's safe or its default action. Such
    steps carry the flag FALLBACK."""
    background: bool = True
    """Infer on a thread of its own, so that acting never waits. Off: the step that asks waits for the chunk,
    which is repeatable (tests, simulators)."""

    def __post_init__(self) -> None:
        """Refuse chunks without actions and shares that are none."""
        if self.horizon < 1:
            raise ConfigError(f"chunks.horizon is {self.horizon}; it must be 1 or more")
        if not 0.0 <= self.threshold <= 1.0:
            raise ConfigError(f"chunks.threshold is {self.threshold}; it is a share of a chunk, 0 to 1")


class ChunkPlayer:
    """Hands out one action a step; pure logic, with no thread and no clock: a step is a call of `next`.

    Args:
        config: threshold and horizon.
        action_shape: shape of one action.

    Attributes:
        served: chunks that arrived, of all episodes.
        starved: steps on which nothing was left, of all episodes.
    """

    WINDOW = 20
    """Inferences over which the delay is averaged."""

    def __init__(self, config: ChunkConfig, action_shape: tuple[int, ...]) -> None:
        self._shape = (config.horizon, *action_shape)
        self._refill_at = config.threshold * config.horizon
        self._delays: deque[int] = deque(maxlen=self.WINDOW)
        self._left: NDArray[Any] = np.empty((0, *action_shape))
        self._asking = False
        self._consumed = self._ticks = 0
        self.served = self.starved = 0

    def begin(self) -> None:
        """Start an episode: nothing is queued and no request is running. The delays are remembered."""
        self._left = self._left[:0]
        self._asking = False

    @property
    def left(self) -> int:
        """Actions in the queue."""
        return len(self._left)

    @property
    def delay_ticks(self) -> float:
        """Steps from an observation to its chunk, averaged over the last `WINDOW`; NaN before the second.

        The very first inference is left out: it warms up caches and compilers, and says nothing of the rest.
        """
        return float(np.mean(self._delays)) if self._delays else float("nan")

    @property
    def too_slow(self) -> bool:
        """Whether a chunk takes longer than the actions that are left when it is asked for."""
        return self.delay_ticks > self._refill_at

    def wants(self) -> bool:
        """Tell whether to ask for a chunk with the observation of this step."""
        return not self._asking and len(self._left) <= self._refill_at

    def asked(self) -> None:
        """A request was made with the observation of this step, before its action was taken by `next`."""
        self._asking = True
        self._consumed = self._ticks = 0

    def failed(self) -> None:
        """The request was not answered: ask again at the next step."""
        self._asking = False

    def answered(self, chunk: NDArray[Any]) -> int:
        """Queue a chunk in place of what is left; return how many of its first actions were out of date.

        Raises:
            PolicyMismatch: if it has another shape than ``(horizon, *action)``.
        """
        if chunk.shape != self._shape:
            raise PolicyMismatch(
                f"the actor returned a chunk of shape {chunk.shape}; worker.chunks.horizon and the action "
                f"space say {self._shape}"
            )
        if self.served > 0:
            self._delays.append(self._ticks)
        self.served += 1
        self._asking = False
        late = min(self._consumed, len(chunk))
        self._left = chunk[late:]
        return late

    def next(self) -> NDArray[Any] | None:
        """Take the action of this step out of the queue; None if nothing is left."""
        self._ticks += 1
        if not len(self._left):
            self.starved += 1
            return None
        self._consumed += 1
        action: NDArray[Any]
        action, self._left = self._left[0], self._left[1:]
        return action
