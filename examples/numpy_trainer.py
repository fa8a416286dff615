"""A trainer without torch: an algorithm and an actor of your own, in numpy, behind tickrate's protocols.

`FittedQ` learns, `LinearActor` acts; what passes between them are bytes that nobody else looks into. Whatever
framework you use, it replaces what is inside these two classes. In an experiment file they are named like so
(run from the folder that holds ``examples``):

    algorithm: {name: "examples.numpy_trainer:ENTRY", batch_size: 64}
    worker: {actor: "examples.numpy_trainer:LinearActor"}

Run by itself, this file learns a small task of known answer in one process:

    python examples/numpy_trainer.py [--steps 500]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import safetensors
import safetensors.numpy
from gymnasium import spaces

from tickrate.data.batch import Batch
from tickrate.data.replay import Replay
from tickrate.errors import ConfigError, PolicyError, RunFolderError
from tickrate.registry import AlgorithmEntry
from tickrate.runtime.environments import record_schema
from tickrate.runtime.recorder import Recorder
from tickrate.testing import ProbeEnv
from tickrate.trees import leaf_spaces, leaves


@dataclass(frozen=True)
class FittedQConfig:
    """Options of `FittedQ`; each stands in the experiment file beside ``name``."""

    batch_size: int = 64
    """Transitions a batch."""
    memory: float = 0.95
    """Weight of the past at each update: about ``1 / (1 - memory)`` batches are remembered. More is steadier,
    and the longer does a reward take to reach the states before it. Usual: 0.9 to 0.99."""
    ridge: float = 1e-3
    """Pull of the weights towards 0, for what the data do not tell."""
    noise: float = 0.3
    """Standard deviation of the exploration noise, as a share of half the action range."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not 0 <= self.memory < 1 or self.ridge <= 0 or self.noise < 0:
            raise ConfigError(f"fitted_q: one of these options cannot work: {self}")


ENTRY = AlgorithmEntry(
    config="examples.numpy_trainer:FittedQConfig",
    build="examples.numpy_trainer:FittedQ",
    summary="fitted Q iteration with quadratic features, in numpy",
)


class FittedQ:
    """Fitted Q iteration (Ernst et al., JMLR 2005) with Q(o, a) = z' W z, where z = (1, o, a).

    Each update is a least-squares fit to the targets r + discount * Q(o', best a'), over the batches it still
    remembers. Such a Q has its best action in closed form, and that is linear in the observation.
    """

    def __init__(
        self,
        config: FittedQConfig,
        leaf_spaces: Mapping[str, spaces.Space],
        action_space: spaces.Box,
        *,
        seed: int,
        period_s: float,
        action_buffer_length: int,
    ) -> None:
        self._config = config
        self._low, self._high = (
            np.asarray(bound, np.float64).ravel() for bound in (action_space.low, action_space.high)
        )
        size = 1 + sum(spaces.flatdim(space) for space in leaf_spaces.values()) + len(self._low)
        self._pairs = np.triu_indices(size)
        count = len(self._pairs[0])
        self._weights = np.zeros(count)
        self._squares = np.zeros((count, count))  # sum of features x features, and of features x target
        self._products = np.zeros(count)

    def observe(self, observation: Mapping[str, np.ndarray]) -> None:
        """There are no input statistics to keep."""

    def update(self, batch: Batch) -> dict[str, float]:
        """Fit the weights to the newest batch and the remembered ones."""
        following = flat(batch.next_observation)
        target = batch.reward + batch.discount * self.value(following, self.best_action(following))
        features = self._features(flat(batch.observation), batch.action)
        memory = self._config.memory
        self._squares = memory * self._squares + features.T @ features / len(batch)
        self._products = memory * self._products + features.T @ target / len(batch)
        ridge = self._config.ridge * np.eye(len(self._weights))
        self._weights = np.linalg.solve(self._squares + ridge, self._products)
        return {"error": float(np.sqrt(np.mean((features @ self._weights - target) ** 2)))}

    def value(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return Q of observations ``(n, values)`` and actions ``(n, action)``."""
        return self._features(observation, action) @ self._weights

    def best_action(self, observation: np.ndarray) -> np.ndarray:
        """Return the action that Q likes best, ``(n, action)``."""
        return np.clip(with_one(observation) @ self.gain().T, self._low, self._high)

    def gain(self) -> np.ndarray:
        """Return K of the best action K (1, o): where the derivative of Q by the action is 0."""
        size, actions = self._pairs[0][-1] + 1, len(self._low)
        matrix = np.zeros((size, size))
        matrix[self._pairs] = self._weights
        matrix += matrix.T  # z' matrix z = 2 Q
        curvature, slope = matrix[-actions:, -actions:], matrix[-actions:, :-actions]
        # A fit may say that more is ever better; bent downwards, its best action lies at a bound.
        bends, axes = np.linalg.eigh(curvature)
        return -(axes / np.minimum(bends, -1e-3)) @ axes.T @ slope

    def _features(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        z = np.hstack([with_one(observation), np.asarray(action, np.float64).reshape(len(action), -1)])
        return z[:, self._pairs[0]] * z[:, self._pairs[1]]

    def policy_bytes(self, version: int) -> bytes:
        """Return what `LinearActor.load` reads: numbers only, never code."""
        noise = np.array(self._config.noise)
        return safetensors.numpy.save(
            {"gain": np.ascontiguousarray(self.gain()), "noise": noise}, {"version": str(version)}
        )

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next update depends on."""
        parts = {"weights": self._weights, "squares": self._squares, "products": self._products}
        return {name: part.copy() for name, part in parts.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what `state` returned, all or nothing."""
        mine = self.state()
        if state.keys() != mine.keys() or any(state[n].shape != mine[n].shape for n in mine):
            raise RunFolderError(
                f"this state of {sorted(state)} was not saved by a FittedQ of these spaces, "
                f"which has {', '.join(f'{name} {part.shape}' for name, part in mine.items())}"
            )
        self._weights, self._squares, self._products = (
            np.array(state[name], np.float64) for name in ("weights", "squares", "products")
        )


class LinearActor:
    """Acts by a = K (1, o) plus noise; the worker makes it, and loads what `FittedQ` wrote."""

    def __init__(
        self,
        *,
        leaf_spaces: Mapping[str, spaces.Space],
        action_space: spaces.Box,
        period_s: float,
        action_buffer_length: int,
        seed: int,
    ) -> None:
        self._space = action_space
        values = sum(spaces.flatdim(space) for space in leaf_spaces.values())
        self._gain = np.zeros((spaces.flatdim(action_space), 1 + values))
        self._noise = 0.0
        self._rng = np.random.default_rng(seed)

    def initial_state(self, batch: int) -> dict[str, np.ndarray]:
        """There is nothing to remember from step to step."""
        return {}

    def act(
        self, observation: Mapping[str, np.ndarray], state: Mapping, *, deterministic: bool = False
    ) -> tuple[np.ndarray, Mapping, dict[str, np.ndarray]]:
        """Return actions ``(batch, *action)`` in the environment's units, the state, and no extras."""
        low, high = self._space.low, self._space.high
        action = (with_one(flat(observation)) @ self._gain.T).reshape(-1, *low.shape)
        action = np.clip(action, low, high)  # the best one there is, before noise is added to it
        if not deterministic:
            action += self._noise * (high - low) / 2 * self._rng.standard_normal(action.shape)
        return np.clip(action, low, high).astype(self._space.dtype), state, {}

    def load(self, weights: bytes) -> None:
        """Take newer weights. They came over a network: nothing is used before it is checked."""
        try:
            found = safetensors.numpy.load(weights)
            gain, noise = found["gain"], float(found["noise"])
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"{len(weights)} bytes are no weights of a LinearActor: {error}") from error
        if gain.shape != self._gain.shape or not (np.isfinite(gain).all() and 0 <= noise < np.inf):
            raise PolicyError(
                f"weights with a gain of {gain.shape} and noise {noise}: expected {self._gain.shape} and "
                "finite numbers; were they made for another environment?"
            )
        self._gain, self._noise = gain.astype(np.float64), noise


def flat(observation: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the leaves of a batch of observations side by side, ``(n, values)``."""
    return np.hstack([np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in observation.values()])


def with_one(values: np.ndarray) -> np.ndarray:
    """Return the values with a column of ones in front."""
    return np.hstack([np.ones((len(values), 1)), values])


def learn(probe: str, steps: int, *, gamma: float = 0.9, seed: int = 0) -> tuple[FittedQ, LinearActor]:
    """Learn a probe environment in one thread, with the parts of a run: recorder, replay, weights."""
    env = ProbeEnv(probe)
    observed = leaf_spaces(env.observation_space)
    given = {"period_s": 0.0, "action_buffer_length": 0, "seed": seed}
    algorithm = FittedQ(FittedQConfig(), observed, env.action_space, **given)
    actor = LinearActor(leaf_spaces=observed, action_space=env.action_space, **given)
    replay = Replay(record_schema(observed, env.action_space), 10_000, gamma=gamma, seed=seed)
    recorder = Recorder(replay.schema, stream=0, first_episode=0, sink=replay.add)
    env.action_space.seed(seed)
    over = True
    for step in range(steps):
        if over:
            observation = leaves(env.observation_space, env.reset(seed=seed if step == 0 else None)[0])
            recorder.begin(observation)
        action = env.action_space.sample()  # a warm-up, until there are weights
        if step >= 100:
            batch_of_one = {path: leaf[None] for path, leaf in observation.items()}
            action = actor.act(batch_of_one, actor.initial_state(1))[0][0]
        found, reward, terminated, truncated, _ = env.step(action)
        observation, over = leaves(env.observation_space, found), terminated or truncated
        recorder.step(action, reward, terminated, truncated, observation)
        if step >= 50:
            algorithm.update(replay.sample(FittedQConfig().batch_size))
            actor.load(algorithm.policy_bytes(version=step))
    env.close()
    return algorithm, actor


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    algorithm, actor = learn("observed_action", parser.parse_args().steps)
    for sign in (-1.0, 1.0):
        seen = np.full((1, 1), sign)
        action = actor.act({"": seen}, {}, deterministic=True)[0]
        value = algorithm.value(seen, action).item()
        print(f"observed {sign:+.0f}: action {action.item():+.3f} (best: {sign / 2:+.1f}), Q {value:.3f} (1)")


if __name__ == "__main__":
    main()
