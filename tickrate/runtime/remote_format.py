"""The bytes of remote inference: a numbered request with an observation, and the answer with its actions.

Both begin with a fixed head; an observation is its leaves, each as it is stored in a row, one after another
in the contract's order. Both sides know all sizes from the contract, so anything else is refused. Who carries
the bytes need not read them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate.data.fields import Field
from tickrate.errors import MessageError
from tickrate.runtime.environments import record_schema
from tickrate.trees import Leaves, categories

FORMAT = 1
MAX_HORIZON = 4096
ANSWER_BYTES = 1 << 20
"""Longest answer that the register between companion and control process takes."""

_REQUEST = struct.Struct("<4sHHQQ")  # magic, format, flags, session, number
_ANSWER = struct.Struct("<4sHHQQqI4x")  # magic, format, flags, session, number, policy version, horizon
_ASK, _REPLY = b"TRRQ", b"TRRP"


class RequestFlag(IntFlag):
    """Bits of a request."""

    BEGIN = 1
    """The first one of an episode: the actor begins with a fresh state."""
    DETERMINISTIC = 2
    """Act without exploration."""
    PROBE = 4
    """Only ask whether there is a policy; the observation means nothing."""


@dataclass(frozen=True)
class InferenceRequest:
    """One question of a control process.

    Attributes:
        session: drawn at random by the control process; its states are kept apart by it.
        number: number of the request within the session; the newest is the one that counts.
        observation: leaves by path, without a batch axis.
    """

    session: int
    number: int
    flags: RequestFlag
    observation: Leaves


@dataclass(frozen=True)
class InferenceAnswer:
    """One answer.

    Attributes:
        actions: ``(horizon, *action)``; None says that there is no policy yet, or answers a probe.
        ready: whether there is a policy.
    """

    session: int
    number: int
    version: int
    ready: bool
    actions: NDArray[Any] | None


class InferenceFormat:
    """Packs and unpacks for the spaces of one environment.

    Args:
        leaf_spaces: canonical observation, path -> space.
        action_space: the action space.
    """

    def __init__(self, leaf_spaces: Mapping[str, spaces.Space[Any]], action_space: spaces.Space[Any]) -> None:
        schema = record_schema(leaf_spaces, action_space)
        self._leaves: tuple[Field, ...] = schema.observation
        self._action = schema.action
        self._categories = categories(action_space)
        self.request_bytes = _REQUEST.size + sum(field.nbytes for field in self._leaves)

    def request(self, session: int, number: int, flags: int, observation: Mapping[str, Any] | None) -> bytes:
        """Return the bytes of a request; of a probe the observation is None."""
        parts = [_REQUEST.pack(_ASK, FORMAT, flags, session, number)]
        for field in self._leaves:
            value = 0 if observation is None else observation[field.name]
            leaf = np.asarray(value).astype(field.storage, copy=False)
            parts.append(np.broadcast_to(leaf, field.shape).tobytes())
        return b"".join(parts)

    def read_request(self, data: bytes) -> InferenceRequest:
        """Return what `request` packed.

        Raises:
            MessageError: for any other bytes.
        """
        if len(data) != self.request_bytes:
            raise MessageError(f"a request of {len(data)} bytes; this contract makes {self.request_bytes}")
        magic, version, flags, session, number = _REQUEST.unpack_from(data)
        if magic != _ASK or version != FORMAT:
            raise MessageError(f"no inference request of format {FORMAT}: it begins with {data[:6]!r}")
        observation, at = {}, _REQUEST.size
        for field in self._leaves:
            values = np.frombuffer(data, field.storage, math.prod(field.shape), at)
            observation[field.name] = values.reshape(field.shape)
            at += field.nbytes
        return InferenceRequest(session, number, RequestFlag(flags), observation)

    def answer(
        self, request: InferenceRequest, version: int, *, ready: bool, actions: NDArray[Any] | None
    ) -> bytes:
        """Return the bytes of the answer to a request.

        Args:
            request: what is answered.
            version: version of the policy; 0 for one that has none.
            ready: whether there is a policy.
            actions: ``(horizon, *action)``, or None.

        Raises:
            MessageError: if the actions have another shape, are not finite, or are no categories of the
            space.
        """
        horizon, body = 0, b""
        if actions is not None:
            horizon = len(actions) if actions.ndim else 0
            if actions.shape != (horizon, *self._action.shape) or not 1 <= horizon <= MAX_HORIZON:
                raise MessageError(
                    f"actions of shape {actions.shape}; expected (horizon, *{self._action.shape})"
                )
            self._check("the actor's actions", actions)
            body = actions.astype(self._action.storage, copy=False).tobytes()
        head = (_REPLY, FORMAT, int(ready), request.session, request.number, version, horizon)
        return _ANSWER.pack(*head) + body

    def read_answer(self, data: bytes) -> InferenceAnswer:
        """Return what `answer` packed.

        Raises:
            MessageError: for any other bytes.
        """
        if len(data) < _ANSWER.size:
            raise MessageError(f"an answer of {len(data)} bytes is too short")
        magic, form, ready, session, number, version, horizon = _ANSWER.unpack_from(data)
        if magic != _REPLY or form != FORMAT:
            raise MessageError(f"no inference answer of format {FORMAT}: it begins with {data[:6]!r}")
        if horizon > MAX_HORIZON or len(data) != _ANSWER.size + horizon * self._action.nbytes:
            raise MessageError(f"an answer of {len(data)} bytes cannot hold {horizon} actions")
        actions = None
        if horizon:
            values = np.frombuffer(data, self._action.storage, -1, _ANSWER.size)
            actions = values.reshape(horizon, *self._action.shape)
            self._check("the actions of an answer", actions)
        return InferenceAnswer(session, number, version, bool(ready & 1), actions)

    def _check(self, what: str, actions: NDArray[Any]) -> None:
        """Refuse actions that no device can be told; a Box's bounds are the action guard's affair."""
        if self._categories is None:
            if not np.isfinite(actions).all():
                raise MessageError(f"{what} are not finite")
            return
        low, high = self._categories
        if actions.dtype.kind not in "iub" or not ((actions >= low).all() and (actions <= high).all()):
            raise MessageError(
                f"{what} are {actions.ravel()[:8].tolist()}: no categories from {low.tolist()} to "
                f"{high.tolist()}"
            )
