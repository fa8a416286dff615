"""The observation space with its action buffer, and the three forms in which an observation is handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate.errors import ConfigError
from tickrate.realtime.timing_leaf import TIMING, timing_space
from tickrate.trees import ROOT, Array, categories, leaf_spaces, rebuild

Space = spaces.Space[Any]

ACTIONS = "actions"
"""Path of the action buffer in the canonical observation; always the last leaf."""


def buffer_space(action: Space, length: int) -> Space:
    """Return the space of ``length`` elements of the leaf space ``action`` along a new first axis.

    Raises:
        ConfigError: for a kind of space that has no such form.
    """
    if isinstance(action, spaces.Box):
        shape = (length, *action.shape)
        return spaces.Box(
            np.broadcast_to(action.low, shape).copy(),
            np.broadcast_to(action.high, shape).copy(),
            shape,
            action.dtype.type,
        )
    if isinstance(action, spaces.Discrete):
        return spaces.MultiDiscrete([int(action.n)] * length, start=[int(action.start)] * length)
    if isinstance(action, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(
            np.broadcast_to(action.nvec, (length, *action.nvec.shape)).copy(),
            dtype=action.dtype.type,
            start=np.broadcast_to(action.start, (length, *action.start.shape)).copy(),
        )
    if isinstance(action, spaces.MultiBinary):
        return spaces.MultiBinary((length, *action.shape))
    raise ConfigError(
        f"{type(action).__name__} actions are not supported: use Box, Discrete, MultiDiscrete, MultiBinary"
    )


def neutral_action(space: spaces.Space[Any]) -> Any:
    """Return an action of zeros, moved to the nearest bound where zero is not allowed; first categories.

    Raises:
        ConfigError: for a kind of space that cannot be acted in.
    """

    def neutral(leaf: spaces.Space[Any]) -> Array:
        if isinstance(leaf, spaces.Box):
            return np.clip(np.zeros(leaf.shape, leaf.dtype), leaf.low, leaf.high).astype(leaf.dtype)
        if (bounds := categories(leaf)) is not None:
            return bounds[0].astype(leaf.dtype)
        raise ConfigError(f"no neutral action in {leaf}: give a default action")

    return rebuild(space, {path: neutral(leaf) for path, leaf in leaf_spaces(space).items()})


class ActionBuffer:
    """The last actions told to the device, oldest first, each a list of leaves.

    It takes the leaves over: whoever hands them in changes them no more. What it hands out are copies. With
    length 0 it still remembers the last action.
    """

    __slots__ = ("_entries", "_kinds", "_paths", "_single", "_space")

    def __init__(self, space: Space, length: int, default: list[Any]) -> None:
        leaves = leaf_spaces(space)
        self._space = space
        self._paths = list(leaves)
        self._single = not isinstance(space, spaces.Tuple | spaces.Dict)
        self._kinds = [(leaf.dtype, leaf.shape or ()) for leaf in leaves.values()]
        self._entries: deque[list[Any]] = deque(maxlen=max(1, length))
        self.fill(default)

    def fill(self, action: list[Any]) -> None:
        """Make every entry ``action``."""
        self._entries.extend([action] * (self._entries.maxlen or 1))

    def push(self, action: list[Any]) -> None:
        """Drop the oldest entry and append ``action``."""
        self._entries.append(action)

    def replace(self, action: list[Any]) -> None:
        """Rewrite the newest entry."""
        self._entries[-1] = action

    def last(self) -> list[Any]:
        """Return the leaves of the newest entry; they are not to be changed."""
        return self._entries[-1]

    def arrays(self, upcoming: list[Any] | None = None) -> list[Array]:
        """Return each leaf's history, once ``upcoming`` is pushed: fresh arrays (length, *action)."""
        history, out = list(self._entries), []
        if upcoming is not None:
            history = [*history[1:], upcoming]
        for at, (dtype, shape) in enumerate(self._kinds):
            array = np.empty((len(history), *shape), dtype)
            for row, entry in enumerate(history):
                array[row] = entry[at]
            out.append(array)
        return out

    def entries(self, upcoming: list[Any] | None = None) -> list[Any]:
        """Return copies of the entries, once ``upcoming`` is pushed, each an element of the action space."""
        history, out = list(self._entries), []
        if upcoming is not None:
            history = [*history[1:], upcoming]
        for entry in history:  # a loop: a comprehension is one more cold call in a tick
            if self._single:
                out.append(entry[0].copy())
            else:
                leaves = dict(zip(self._paths, [leaf.copy() for leaf in entry], strict=True))
                out.append(rebuild(self._space, leaves))
        return out


class ObservationLayout:
    """Builds the observations of one environment from leaves and the action buffer.

    Args:
        source: space of the interface's observation (after ``obs_prepro_func``), without the buffer.
        names: names of the elements of a Tuple, or None.
        action: the action space.
        length: entries of the action buffer in the observation; 0 for none.
        form: "tuple", "dict" or "flat".
        timing: whether the leaf ``timing`` stands between the leaves of ``source`` and the buffer; not in the
            "tuple" form.

    Attributes:
        leaf_spaces: path to leaf space of the canonical observation, the action buffer last.
        space: the space of the observations that are handed out.
        paths: paths of the leaves of ``source``, in order.
        plain: whether an observation is simply the tuple of these leaves and the tail's entries.
    """

    def __init__(
        self,
        source: Space,
        names: Sequence[str] | None,
        action: Space,
        length: int,
        form: str,
        *,
        timing: bool = False,
    ) -> None:
        self._source = source
        self._names = names if isinstance(source, spaces.Tuple) else None
        try:
            sources = leaf_spaces(source, self._names)
        except ValueError as error:
            raise ConfigError(f"observation_names() does not fit the observation space: {error}") from error
        self.paths = list(sources)
        self.leaf_spaces: dict[str, Space] = dict(sources)
        if timing:
            if TIMING in sources:
                raise ConfigError(
                    f"the observation has a leaf {TIMING!r}: with timing_in_obs that path is kept "
                    "for the timing"
                )
            self.leaf_spaces[TIMING] = timing_space()
        if length:
            for path, leaf in leaf_spaces(action).items():
                name = ACTIONS if path == ROOT else f"{ACTIONS}/{path}"
                if name in sources:
                    raise ConfigError(
                        f"the observation has a leaf {name!r}: that path is kept for the action buffer"
                    )
                self.leaf_spaces[name] = buffer_space(leaf, length)
        self._all_paths = list(self.leaf_spaces)
        self._length = length
        self.space: Space
        self._tuple_form = form == "tuple"
        self.plain = False
        self.assemble: Callable[[Sequence[Any], Sequence[Any]], Any]
        """Builds an observation from the leaves of ``source`` (in order; then the timing, if it has one) and
        the action buffer's `tail`."""
        if form == "tuple":
            self.space = spaces.Tuple((*self._elements(), *([action] * length)))
            self.plain = not any(isinstance(s, spaces.Tuple | spaces.Dict) for s in self._elements())
            self.assemble = self._assemble_tuple
        elif form == "dict":
            self.space = spaces.Dict(list(self.leaf_spaces.items()))
            self.assemble = self._assemble_dict
        else:
            self._encoders = [_encoder(path, leaf) for path, leaf in self.leaf_spaces.items()]
            self.space = self._flat_space()
            self._size = int(self.space.shape[0])  # type: ignore[index]
            self.assemble = self._assemble_flat

    def tail(self, buffer: ActionBuffer) -> Callable[[list[Any] | None], Sequence[Any]]:
        """Return what makes the action buffer's part of an observation, as it is once an action is pushed.

        That action is its argument (None: as the buffer is now). The part can be made before the observation
        is there, while there is time.
        """
        if not self._length:
            return lambda upcoming: ()
        return buffer.entries if self._tuple_form else buffer.arrays

    def _elements(self) -> list[Space]:
        if isinstance(self._source, spaces.Tuple):
            return list(self._source.spaces)
        if isinstance(self._source, spaces.Dict):
            return list(self._source.spaces.values())
        return [self._source]

    def _assemble_tuple(self, values: Sequence[Any], tail: Sequence[Any]) -> Any:
        if not self.plain:
            whole = rebuild(self._source, dict(zip(self.paths, values, strict=True)), self._names)
            values = list(whole.values()) if isinstance(whole, dict) else whole
        return (*values, *tail)

    def _assemble_dict(self, values: Sequence[Any], tail: Sequence[Any]) -> Any:
        return dict(zip(self._all_paths, (*values, *tail), strict=True))

    def _assemble_flat(self, values: Sequence[Any], tail: Sequence[Any]) -> Any:
        out = np.zeros(self._size, dtype=np.float32)
        at = 0
        for (size, write), value in zip(self._encoders, (*values, *tail), strict=True):
            write(out[at : at + size], value)
            at += size
        return out

    def _flat_space(self) -> Space:
        low, high = [], []
        for leaf, (size, _) in zip(self.leaf_spaces.values(), self._encoders, strict=True):
            if isinstance(leaf, spaces.Box):
                with np.errstate(over="ignore"):
                    low.append(leaf.low.ravel().astype(np.float32))
                    high.append(leaf.high.ravel().astype(np.float32))
            else:
                low.append(np.zeros(size, dtype=np.float32))
                high.append(np.ones(size, dtype=np.float32))
        return spaces.Box(np.concatenate(low), np.concatenate(high), dtype=np.float32)


_Write = Callable[[Array, Any], None]


def _encoder(path: str, leaf: Space) -> tuple[int, _Write]:
    """Return a leaf's length in the flat form and the function that writes it: categories become one-hot."""
    if isinstance(leaf, spaces.Box | spaces.MultiBinary):
        size = int(np.prod(leaf.shape))

        def copy(out: Array, value: Any) -> None:
            out[:] = value.ravel()

        return size, copy
    if isinstance(leaf, spaces.Discrete):
        start = int(leaf.start)

        def one(out: Array, value: Any) -> None:
            out[int(value) - start] = 1.0

        return int(leaf.n), one
    if isinstance(leaf, spaces.MultiDiscrete):
        counts = leaf.nvec.ravel()
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]) - leaf.start.ravel()

        def many(out: Array, value: Any) -> None:
            out[offsets + value.ravel()] = 1.0

        return int(counts.sum()), many
    raise ConfigError(
        f"obs[{path!r}] is a {type(leaf).__name__}, which has no flat form: use obs_format 'tuple' or 'dict'"
    )
