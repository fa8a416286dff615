"""Lets an actor that answers with chunks drive one action at a time, inferring on one background thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.errors import ConfigError
from tickrate.policy import Actor, State
from tickrate.runtime.chunks import ChunkConfig, ChunkPlayer
from tickrate.runtime.fallback import FALLBACK, POLICY_VERSION, Fallback, marks

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """One inference to make: a batch of one observation; ``episode`` tells late answers from others."""

    episode: int
    observation: Mapping[str, NDArray[Any]]
    deterministic: bool


@dataclass(frozen=True)
class Answer:
    """What came of a request: the chunk ``(horizon, *action)``, or None if nobody answered in time."""

    episode: int
    chunk: NDArray[Any] | None
    version: int


class Inference:
    """Makes the inferences of one actor: its state, its weights and its calls, one at a time.

    Args:
        actor: what returns chunks.
        version: version of the weights that it acts with.
    """

    def __init__(self, actor: Actor, version: int) -> None:
        self._actor = actor
        self._version = version
        self._episode = -1
        self._state: State = {}
        self._weights: tuple[int, bytes] | None = None
        self._loaded: tuple[int, bytes] | None = None

    def load(self, version: int, weights: bytes) -> None:
        """Take newer weights at the next inference."""
        self._weights = version, weights

    def answer(self, request: Request) -> Answer:
        """Infer one chunk; a request of another episode begins with a fresh state."""
        if (newer := self._weights) is not None and newer is not self._loaded:
            self._loaded = newer  # compared, not cleared: `load` may be called at this very moment
            self._actor.load(newer[1])
            self._version = newer[0]
        if request.episode != self._episode:
            self._episode, self._state = request.episode, self._actor.initial_state(1)
        actions, self._state, extras = self._actor.act(
            request.observation, self._state, deterministic=request.deterministic
        )
        if FALLBACK in extras and bool(extras[FALLBACK][0]):  # remote inference that was not answered
            return Answer(request.episode, None, self._version)
        version = int(extras[POLICY_VERSION][0]) if POLICY_VERSION in extras else self._version
        return Answer(request.episode, actions[0], version)


class InferenceThread:
    """One persistent thread that answers the newest request; an exception is raised where it is polled.

    Args:
        infer: makes one inference.
    """

    def __init__(self, infer: Callable[[Request], Answer]) -> None:
        self._infer = infer
        self._wake = threading.Condition()
        self._request: Request | None = None
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="tickrate-inference", daemon=True)
        self._thread.start()

    def ask(self, request: Request) -> None:
        """Leave a request in place of one that was not begun."""
        with self._wake:
            self._request = request
            self._wake.notify()

    def poll(self) -> Answer | None:
        """Return an answer that has arrived, once; None while there is none."""
        with self._wake:
            if self._error is not None:
                raise self._error
            answer, self._answer = self._answer, None
            return answer

    def close(self) -> None:
        """End the thread; an inference that hangs is left behind (the thread is a daemon)."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._request is None and not self._ended:
                    self._wake.wait(1.0)
                if self._ended:
                    return
                request, self._request = self._request, None
            assert request is not None
            try:
                answer = self._infer(request)
            except Exception as error:  # noqa: BLE001 - raised again by `poll`, for whoever acts
                with self._wake:
                    self._error = error
                return
            with self._wake:
                self._answer = answer


class ChunkedActor:
    """An `Actor` of single actions made of one of chunks; for one stream, a batch of one.

    `initial_state` begins an episode: what is left of the last one is dropped.

    Args:
        actor: returns ``(1, horizon, *action)``.
        config: how to play the chunks.
        fallback: what to send when nothing is left.
        action_shape: shape of one action.
        version: version of the weights that ``actor`` acts with.
    """

    def __init__(
        self,
        actor: Actor,
        config: ChunkConfig,
        fallback: Fallback,
        action_shape: tuple[int, ...],
        version: int = 0,
    ) -> None:
        self._inference = Inference(actor, version)
        self.player = ChunkPlayer(config, action_shape)
        self._fallback = fallback
        self._thread = InferenceThread(self._inference.answer) if config.background else None
        self._episode = 0
        self._version = version  # of the chunk that is being played
        self._warned = False

    def initial_state(self, batch: int) -> State:
        """Begin an episode; the state of the actor behind is kept with its inferences."""
        if batch != 1:
            raise ConfigError(f"chunks are played for one stream at a time, not for a batch of {batch}")
        self._episode += 1
        self.player.begin()
        self._fallback.begin()
        return {}

    def act(
        self, observation: Mapping[str, NDArray[Any]], state: State, *, deterministic: bool = False
    ) -> tuple[NDArray[Any], State, dict[str, NDArray[Any]]]:
        """Return the action of this step, ``(1, *action)``, and the marks of `tickrate.runtime.fallback`."""
        player = self.player
        if self._thread is not None and (answer := self._thread.poll()) is not None:
            self._take(answer)
        if player.wants():
            player.asked()
            if self._thread is None:
                self._take(self._inference.answer(Request(self._episode, observation, deterministic)))
            else:
                copies = {path: np.array(leaf) for path, leaf in observation.items()}
                self._thread.ask(Request(self._episode, copies, deterministic))
        action = player.next()
        if action is None:
            return self._fallback.action()[None], state, marks(self._version, fallback=True)
        self._fallback.chosen(action)
        return action[None], state, marks(self._version, fallback=False)

    def load(self, weights: bytes) -> None:
        """Take newer weights of no known version; `load_version` is what the control loop uses."""
        self.load_version(self._version, weights)

    def load_version(self, version: int, weights: bytes) -> None:
        """Take newer weights at the next inference; what is queued is played on."""
        self._inference.load(version, weights)

    def metrics(self) -> dict[str, float]:
        """Return what the player counted, for the episode's summary."""
        player = self.player
        figures = {"chunks_served": float(player.served), "chunk_delay_ticks": player.delay_ticks}
        return {name: value for name, value in figures.items() if np.isfinite(value)}

    def close(self) -> None:
        """End the background thread."""
        if self._thread is not None:
            self._thread.close()

    def _take(self, answer: Answer) -> None:
        if answer.episode != self._episode:
            return  # of an episode that has ended; the request of this one waits for its turn
        if answer.chunk is None:
            self.player.failed()
            return
        self.player.answered(np.asarray(answer.chunk))
        self._version = answer.version
        if self.player.too_slow != self._warned:
            self._warned = self.player.too_slow
            if self._warned:
                _log.warning(
                    "a chunk takes %.1f steps, but is asked for when fewer actions are left: raise "
                    "worker.chunks.threshold, or the policy stands still between its chunks",
                    self.player.delay_ticks,
                )
