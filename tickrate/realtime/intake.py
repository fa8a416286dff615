"""What comes in: an interface's observation, checked, preprocessed, and checked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import spaces

from tickrate import trees
from tickrate.realtime.config import RealTimeConfig
from tickrate.realtime.observation_guard import Corrections, ObservationGuard


class Intake:
    """What comes in: checks an observation, applies ``obs_prepro_func``, checks what that returns.

    Args:
        config: the configuration.
        space: space of the interface's observation.
        names: names of the elements of a Tuple, or None.

    Attributes:
        check: returns the checked leaves of an observation as fresh arrays, or raises `ObservationError`.
        corrections: what was clipped and held so far.
        space: space of the leaves that come out.
        names: names of its elements, or None.
    """

    def __init__(self, config: RealTimeConfig, space: spaces.Space[Any], names: Sequence[str] | None) -> None:
        self._raw_space, self._raw_names = space, names
        self._raw_paths = list(trees.leaf_spaces(space, names if isinstance(space, spaces.Tuple) else None))
        self._prepro = config.obs_prepro_func
        if self._prepro is not None and config.obs_prepro_space is not None:
            space = config.obs_prepro_space
            names = names if names is not None and len(names) == len(getattr(space, "spaces", ())) else None
        self.space, self.names = space, names
        self.corrections = Corrections()
        how = (config.out_of_bounds_observation, config.nonfinite_observation, self.corrections)
        self._raw = ObservationGuard(self._raw_space, self._raw_names, *how)
        self._guard = self._raw
        self.check: Callable[[Any], list[Any]] = self._raw.check
        if self._prepro is not None:
            self._guard = ObservationGuard(space, names, *how)
            self.check = self._prepare

    def _prepare(self, observation: Any) -> list[Any]:
        assert self._prepro is not None
        leaves = dict(zip(self._raw_paths, self._raw(observation), strict=True))
        clean = trees.rebuild(self._raw_space, leaves, self._raw_names)
        return self._guard(self._prepro(list(clean) if isinstance(clean, tuple) else clean))

    def begin_episode(self) -> None:
        """Forget the values held for bridging: those of the last episode are no substitute."""
        self._raw.forget()
        self._guard.forget()
