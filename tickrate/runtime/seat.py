"""Who drives: a warm-up or an expert at first, then the policy with the newest weights."""

from __future__ import annotations

from tickrate import clock
from tickrate.policy import State
from tickrate.runtime.actors import ActorMaker, load_weights
from tickrate.runtime.chunk_actor import ChunkedActor
from tickrate.runtime.environments import Environment
from tickrate.runtime.episode import Outlet
from tickrate.runtime.remote import InferenceLink
from tickrate.runtime.worker_config import WorkerConfig


class Seat:
    """The driver's seat of one control loop.

    Args:
        config: how the worker acts.
        environment: what it drives.
        outlet: where newer weights come from.
        seeds: of the warm-up and of the policy.
        link: the registers of remote inference, where there are any.

    Attributes:
        actor: who acts now.
        version: version of its weights; 0 for the warm-up and for an expert.
        steps: training steps made so far; the control loop counts them here.
        remote: the remote side's actor, None if inference is local.

    Raises:
        ConfigError: if the options cannot work with this environment, or name what does not exist.
    """

    def __init__(
        self,
        config: WorkerConfig,
        environment: Environment,
        outlet: Outlet,
        seeds: tuple[int, int],
        link: InferenceLink | None,
    ) -> None:
        self._config, self._outlet = config, outlet
        self._make = ActorMaker(config, environment, seeds, link)
        self.actor = self._make.first()
        self.remote = self._make.remote
        self._takes_weights = config.purpose != "expert" and self.remote is None
        self.version = 0
        self.steps = self._steps_at_weights = 0
        self._weights_at = clock.now()

    def keep_up(self, state: State) -> State:
        """Take newer weights; return the state to go on with, a fresh one if another actor acts now."""
        actor = self.actor
        self.swap()
        return state if self.actor is actor else self.actor.initial_state(1)

    def swap(self) -> bool:
        """Take newer weights, if there are any; return whether. The first ones replace the warm-up."""
        if not self._takes_weights:
            return self._follow_remote()
        newer = self._outlet.newest_weights(self.version)
        if newer is None:
            return False
        version, weights = newer
        if self.version == 0:
            self.actor = self._make.from_weights(version, weights)
        else:
            load_weights(self.actor, version, weights)
        self._took(version)
        return True

    def _follow_remote(self) -> bool:
        """Note the version with which the remote side answers; an expert's own actor has none."""
        if self.remote is None or self.remote.version == self.version:
            return False
        self._took(self.remote.version)
        return True

    def _took(self, version: int) -> None:
        self.version = version
        self._weights_at = clock.now()
        self._steps_at_weights = self.steps

    @property
    def steps_with_weights(self) -> int:
        """Training steps since the last new weights."""
        return self.steps - self._steps_at_weights

    @property
    def empty(self) -> bool:
        """Whether only a warm-up could act."""
        return self.version == 0 and self._takes_weights

    @property
    def lost(self) -> bool:
        """Whether nobody may act: the remote side is silent, or the weights are too old."""
        return (self.remote is not None and self.remote.lost) or self.too_old

    @property
    def too_old(self) -> bool:
        """Whether nothing newer has come for too long; looks only, an evaluation keeps its weights."""
        limit = self._config.max_policy_age_s
        if limit == 0 or self.version == 0 or clock.now() - self._weights_at <= limit:
            return False
        if self.remote is not None:
            return self.remote.version == self.version
        return self._outlet.newest_weights(self.version) is None

    def metrics(self) -> dict[str, float]:
        """Return what an actor of chunks counted; nothing for any other."""
        return self.actor.metrics() if isinstance(self.actor, ChunkedActor) else {}

    def close(self) -> None:
        """End the inference thread, if there is one."""
        if isinstance(self.actor, ChunkedActor):
            self.actor.close()
