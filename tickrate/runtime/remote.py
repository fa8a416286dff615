"""Remote inference, seen from the control process: ask, wait a bounded time, or send the fallback."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate import clock
from tickrate.errors import ConfigError, MessageError
from tickrate.policy import Actor, State
from tickrate.runtime.fallback import Fallback, FallbackKind, marks
from tickrate.runtime.register import Register
from tickrate.runtime.remote_format import InferenceAnswer, InferenceFormat, RequestFlag

POLL_S = 0.0005
"""Pause between two looks for the answer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteConfig:
    """Inference on another machine, for policies too large for the device's own. Off by default."""

    enabled: bool = False
    """Ask a remote actor for every action instead of running the policy in the control process."""
    deadline_s: float = 0.03
    """How long a step waits for its answer, in seconds; then the fallback is sent and the answer, should it
    still come, is dropped. Below the time-step. Usual: half the time-step."""
    fallback: FallbackKind = "hold"
    """What to send when no answer came in time: the last command, the device's safe or its default action.
    Such steps carry the flag FALLBACK."""
    lost_after_s: float = 5.0
    """After so long without an answer in time, in seconds, the policy is lost: the device is made safe, the
    episode is cut, and the next one begins when answers come again. Usual: 1 to 10."""

    def __post_init__(self) -> None:
        """Refuse times that cannot be waited for."""
        if not 0.0 < self.deadline_s < math.inf:
            raise ConfigError(f"remote.deadline_s is {self.deadline_s}: give seconds, above 0")
        if not self.deadline_s <= self.lost_after_s < math.inf:
            raise ConfigError(
                f"remote.lost_after_s is {self.lost_after_s}: give seconds, at least deadline_s "
                f"({self.deadline_s})"
            )


class InferenceLink(Protocol):
    """The two registers through which questions go out and answers come back (`SharedOutlet` has them)."""

    @property
    def inference(self) -> Register:
        """The newest request, written here."""
        ...

    @property
    def answer(self) -> Register:
        """The newest answer, written by the other side under a version that rises with each."""
        ...


class RemoteActor:
    """An `Actor` whose answers come from elsewhere; for one stream, a batch of one.

    Until the remote side has a policy, ``warmup`` acts (a training worker), or nobody (the control loop waits
    while `lost`).

    Args:
        config: deadline and fallback.
        link: the registers.
        leaf_spaces: canonical observation, path -> space.
        action_space: the action space.
        fallback: gives the fallback action.
        warmup: acts until there is a policy; None: nobody does.
        horizon: actions of an answer; above 1 `act` returns chunks, ``(1, horizon, *action)``.

    Attributes:
        version: version of the policy that gave the last answer; 0 before the first.
    """

    def __init__(
        self,
        config: RemoteConfig,
        link: InferenceLink,
        leaf_spaces: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Space[Any],
        fallback: Fallback,
        *,
        warmup: Actor | None = None,
        horizon: int = 1,
    ) -> None:
        self._config, self._link, self._fallback, self._warmup = config, link, fallback, warmup
        self._format = InferenceFormat(leaf_spaces, action_space)
        self._dtype, self._horizon = action_space.dtype, horizon
        self._session, self._number = secrets.randbits(63), 0
        self._seen = link.answer.version()
        self._busy = threading.Lock()
        self._silent_since: float | None = None
        self._ready = False
        self._begun = False
        self._warm_state: State = {}
        self.version = 0

    @property
    def lost(self) -> bool:
        """Whether there is no policy to act: none was ever heard of, or it has been silent for too long."""
        if not self._ready:
            return self._warmup is None
        silent = self._silent_since
        return silent is not None and clock.now() - silent >= self._config.lost_after_s

    def initial_state(self, batch: int) -> State:
        """Begin an episode, here and at the remote side."""
        if batch != 1:
            raise ConfigError(f"remote inference is for one stream, not for a batch of {batch}")
        self._begun = False
        self._silent_since = None  # a reset may take longer than the policy may be silent
        self._fallback.begin()
        if self._warmup is not None:
            self._warm_state = self._warmup.initial_state(1)
        return {}

    def act(
        self, observation: Mapping[str, NDArray[Any]], state: State, *, deterministic: bool = False
    ) -> tuple[NDArray[Any], State, dict[str, NDArray[Any]]]:
        """Return the remote side's action, or the fallback when it did not come within ``deadline_s``."""
        flags = RequestFlag.DETERMINISTIC if deterministic else RequestFlag(0)
        if not self._begun:
            flags |= RequestFlag.BEGIN
        was_ready = self._ready
        leaves = {path: leaf[0] for path, leaf in observation.items()}
        # Who warms up does not wait: acting at random needs no answer.
        patience = self._config.deadline_s if was_ready or self._warmup is None else 0.0
        with self._busy:
            answer = self._ask(flags, leaves, patience)
        if answer is not None and answer.actions is not None and len(answer.actions) == self._horizon:
            self._begun = True
            actions = answer.actions.astype(self._dtype)
            self._fallback.chosen(actions[-1])
            return self._shaped(actions), state, marks(self.version, fallback=False)
        if not was_ready and self._warmup is not None:
            action, self._warm_state, _ = self._warmup.act(observation, self._warm_state)
            chunk = np.repeat(action, self._horizon, axis=0)
            return self._shaped(chunk), state, marks(0, fallback=False)
        chunk = np.repeat(self._fallback.action()[None], self._horizon, axis=0)
        return self._shaped(chunk), state, marks(self.version, fallback=True)

    def probe(self) -> bool:
        """Ask whether there is a policy, waiting at most ``deadline_s``; return whether it answered.

        For a control loop that waits with its device safe, after `lost`.
        """
        if not self._busy.acquire(blocking=False):
            return False  # an inference on the background thread is about to end
        try:
            answer = self._ask(RequestFlag.PROBE, None, self._config.deadline_s)
        finally:
            self._busy.release()
        return answer is not None and answer.ready

    def load(self, weights: bytes) -> None:
        """The weights are at the remote side; `ConfigError` always."""
        raise ConfigError("with remote inference the worker takes no weights")

    def _shaped(self, actions: NDArray[Any]) -> NDArray[Any]:
        return actions[None] if self._horizon > 1 else actions

    def _ask(
        self, flags: RequestFlag, observation: Mapping[str, NDArray[Any]] | None, patience_s: float
    ) -> InferenceAnswer | None:
        """Write a request and wait for its answer; None if it does not come in time."""
        self._number += 1
        started = clock.now()
        if self._silent_since is None and self._ready:
            self._silent_since = started
        request = self._format.request(self._session, self._number, flags, observation)
        self._link.inference.write(self._number, request)
        deadline = started + patience_s
        while True:
            answer = self._look()
            if answer is not None:
                if answer.ready:
                    self._ready, self.version, self._silent_since = True, answer.version, None
                return answer
            left = deadline - clock.now()
            if left <= 0:
                return None
            clock.sleep(min(POLL_S, left))

    def _look(self) -> InferenceAnswer | None:
        """Return the answer to the newest request if it is there; others are dropped by their number."""
        version = self._link.answer.version()
        if version == self._seen:
            return None
        entry = self._link.answer.read()
        if entry is None:
            return None
        self._seen = entry[0]
        try:
            answer = self._format.read_answer(entry[1])
        except MessageError as error:
            _log.warning("left out an answer of the remote actor: %s", error)
            return None
        if answer.session != self._session:
            return None
        if answer.number != self._number:
            # Late. While warming up nobody waits for an answer, so that a late one tells of a policy.
            if answer.ready and not self._ready and self._warmup is not None:
                self._ready, self.version = True, answer.version
            return None
        return answer
