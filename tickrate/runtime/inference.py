"""The other side of remote inference: answers the requests of workers with the newest weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from tickrate.errors import PolicyMismatch
from tickrate.policy import Actor, State
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.fallback import POLICY_VERSION
from tickrate.runtime.remote_format import InferenceFormat, RequestFlag

MAX_SESSIONS = 256
"""Control processes whose state is kept; the one that asked least recently is forgotten first."""


class InferenceServer:
    """Answers requests with the actions of one actor; pure, what carries the bytes is elsewhere.

    Each session (a control process) has a state of its own, which begins anew with each of its episodes. A
    request that was overtaken by a newer one is simply never seen.

    Args:
        factory: makes the actor from the first weights, or from None if it acts without any.
        contract: the environment that it acts in.
        needs_weights: whether there is no policy before `load`; False makes the actor at once.
    """

    def __init__(
        self,
        factory: Callable[[bytes | None], Actor],
        contract: EnvironmentContract,
        *,
        needs_weights: bool = True,
    ) -> None:
        self._factory = factory
        self._format = InferenceFormat(contract.leaf_spaces, contract.action_space)
        self._shape = contract.action_space.shape or ()
        self._actor: Actor | None = None if needs_weights else factory(None)
        self._states: OrderedDict[int, State] = OrderedDict()
        self.version = 0

    def load(self, version: int, weights: bytes) -> None:
        """Take newer weights from the next answer on.

        Raises:
            PolicyError: if they are no policy, or one for another environment; the old ones stay.
        """
        if self._actor is None:
            self._actor = self._factory(weights)
        else:
            self._actor.load(weights)
        self.version = version

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a worker's request.

        Raises:
            MessageError: if it is none, or comes from another environment.
            PolicyMismatch: if the actor gives something else than actions of this environment.
        """
        asked = self._format.read_request(request)
        if self._actor is None or asked.flags & RequestFlag.PROBE:
            ready = self._actor is not None
            return self._format.answer(asked, self.version, ready=ready, actions=None)
        state = self._states.pop(asked.session, None)
        if state is None or asked.flags & RequestFlag.BEGIN:
            state = self._actor.initial_state(1)
        batch = {path: leaf[None] for path, leaf in asked.observation.items()}
        deterministic = bool(asked.flags & RequestFlag.DETERMINISTIC)
        actions, state, extras = self._actor.act(batch, state, deterministic=deterministic)
        self._states[asked.session] = state
        while len(self._states) > MAX_SESSIONS:
            self._states.popitem(last=False)
        actions = np.asarray(actions)
        given = actions.shape
        if actions.ndim == len(self._shape) + 1:
            actions = actions[:, None]
        if actions.ndim != len(self._shape) + 2 or actions.shape[2:] != self._shape or len(actions) != 1:
            raise PolicyMismatch(
                f"the actor returned actions of shape {given} for an action space of {self._shape}"
            )
        version = int(extras[POLICY_VERSION][0]) if POLICY_VERSION in extras else self.version
        return self._format.answer(asked, version, ready=True, actions=actions[0])
