"""Makes what acts: our policy, an actor of the user's own, an expert, chunks, or a remote side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gymnasium import spaces

from tickrate import registry
from tickrate.errors import ConfigError
from tickrate.policy import Actor, Policy, PolicyContract
from tickrate.runtime.chunk_actor import ChunkedActor
from tickrate.runtime.environments import Acted, Environment
from tickrate.runtime.fallback import Fallback, resting_action
from tickrate.runtime.remote import InferenceLink, RemoteActor
from tickrate.runtime.resting import RestingActor
from tickrate.runtime.warmup import WarmupActor
from tickrate.runtime.worker_config import ONNX_SUFFIX, POLICY_SUFFIXES, WorkerConfig


class SavedPolicy(Actor, Protocol):
    """An actor that was loaded from a file and knows what it was made for."""

    @property
    def contract(self) -> PolicyContract:
        """What it was trained for."""
        ...

    def check(
        self,
        observation: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Space[Any],
        *,
        period_s: float | None = None,
        action_buffer_length: int | None = None,
    ) -> None:
        """Check that it was made for an environment; raises PolicyMismatch."""
        ...


Saved = TypeVar("Saved", bound=SavedPolicy)


def make_policy(weights: bytes, where: Acted, seed: int) -> Policy:
    """Return our own policy with these weights.

    Raises:
        PolicyError: if the bytes are no policy.
        PolicyMismatch: if it was made for another environment.
    """
    return _checked(Policy.from_bytes(weights, seed=seed), where)


def make_actor(target: str, where: Acted, weights: bytes | None, seed: int) -> Actor:
    """Return the actor that ``worker.actor`` names, with its first weights.

    Args:
        target: ``module:Class``, the path of a saved policy, or empty for our own policy.
        where: where it acts.
        weights: its weights; None for one that acts without (an expert).
        seed: seed of its exploration.

    Raises:
        ConfigError: if there is no such class or file, it cannot be made, or it is no `Actor`.
        PolicyError: if weights or file are no policy, or one for another environment.
    """
    if target.endswith(POLICY_SUFFIXES):
        return _saved(Path(target), where, seed)
    if not target:
        if weights is None:
            raise ConfigError("our own policy cannot act without weights: name an actor")
        return make_policy(weights, where, seed)
    build: Callable[..., Actor] = registry.resolve(target)
    try:
        actor = build(
            leaf_spaces=where.leaf_spaces,
            action_space=where.action_space,
            period_s=where.period_s,
            action_buffer_length=where.action_buffer_length,
            seed=seed,
        )
    except TypeError as error:
        raise ConfigError(f"worker.actor: {target} cannot be made: {error}") from error
    missing = [name for name in ("initial_state", "act", "load") if not callable(getattr(actor, name, None))]
    if missing:
        raise ConfigError(f"worker.actor: {target} is no Actor: it has no {', '.join(missing)}")
    if weights is not None:
        actor.load(weights)
    return actor


def load_saved(path: Path, seed: int) -> SavedPolicy:
    """Return the policy that a file holds: an artefact, or an ONNX file if it ends so.

    Raises:
        FileNotFoundError: if there is no such file.
        PolicyError: if it is no policy.
        MissingExtra: if ONNX Runtime is needed and not installed.
    """
    if path.suffix == ONNX_SUFFIX:
        policy: SavedPolicy = registry.resolve("tickrate.onnx.actor:OnnxPolicy").load_file(path, seed=seed)
        return policy
    return Policy.load_file(path, seed=seed)


def _saved(path: Path, where: Acted, seed: int) -> SavedPolicy:
    try:
        return _checked(load_saved(path, seed), where)
    except FileNotFoundError as error:
        raise ConfigError(f"worker.actor: there is no file {path}") from error


def _checked(policy: Saved, where: Acted) -> Saved:
    policy.check(
        where.leaf_spaces,
        where.action_space,
        period_s=where.period_s,
        action_buffer_length=where.action_buffer_length,
    )
    return policy


class ActorMaker:
    """Makes the actors of one worker, as its configuration says.

    Args:
        config: how the worker acts.
        environment: what it drives.
        seeds: of the warm-up and of the policy.
        link: the registers of remote inference, where there are any.

    Attributes:
        remote: the remote side's actor, None if inference is local.

    Raises:
        ConfigError: if the options cannot work with this environment.
    """

    def __init__(
        self,
        config: WorkerConfig,
        environment: Environment,
        seeds: tuple[int, int],
        link: InferenceLink | None,
    ) -> None:
        self._config, self._env = config, environment
        self._warmup_seed, self._seed = seeds
        self.remote = self._make_remote(link) if config.remote.enabled else None

    def first(self) -> Actor:
        """Return what acts before any weights: the warm-up, an expert (or its rest), or the remote side."""
        config = self._config
        if self.remote is not None:
            return self._chunked(self.remote, 0)
        if config.purpose == "expert" and not config.actor:
            return RestingActor(resting_action(self._env, safe=False))
        if config.purpose == "expert":
            return self._chunked(make_actor(config.actor, self._env, None, self._seed), 0)
        return self._warmup()

    def from_weights(self, version: int, weights: bytes) -> Actor:
        """Return the actor that takes over from the warm-up."""
        return self._chunked(make_actor(self._config.actor, self._env, weights, self._seed), version)

    def _warmup(self) -> WarmupActor:
        return WarmupActor(self._config.warmup, self._env.action_space, self._warmup_seed)

    def _chunked(self, actor: Actor, version: int) -> Actor:
        chunks, env = self._config.chunks, self._env
        if chunks.horizon == 1:
            return actor
        fallback = Fallback(chunks.fallback, env)
        return ChunkedActor(actor, chunks, fallback, env.action_space.shape or (), version)

    def _make_remote(self, link: InferenceLink | None) -> RemoteActor:
        remote, env = self._config.remote, self._env
        if link is None:
            raise ConfigError(
                "worker.remote is enabled, but this worker has no companion that could carry its requests: "
                "remote inference needs the roles in processes of their own"
            )
        waits = self._config.chunks.horizon == 1 or not self._config.chunks.background
        if waits and 0 < env.period_s <= remote.deadline_s:
            raise ConfigError(
                f"worker.remote.deadline_s is {remote.deadline_s}; a step of {env.period_s} s cannot wait so "
                "long"
            )
        return RemoteActor(
            remote,
            link,
            env.leaf_spaces,
            env.action_space,
            Fallback(remote.fallback, env),
            warmup=self._warmup() if self._config.purpose == "train" else None,
            horizon=self._config.chunks.horizon,
        )


def load_weights(actor: Actor, version: int, weights: bytes) -> None:
    """Give newer weights to an actor that has some."""
    if isinstance(actor, ChunkedActor):
        actor.load_version(version, weights)
    else:
        actor.load(weights)
