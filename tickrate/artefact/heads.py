"""From a network's outputs to actions: with exploration, and without."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tickrate.artefact.actions import BoxAction, DiscreteAction, MultiDiscreteAction
from tickrate.artefact.contract import PolicyContract
from tickrate.program.shapes import NOISE, NOISE_LEFT

Array = NDArray[Any]
Outputs = NDArray[np.float32]


class Head(Protocol):
    """Turns outputs ``(batch, outputs)`` into actions ``(batch, *action)``, with the space's dtype."""

    def initial_state(self, batch: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return what the exploration carries from step to step, at its start."""
        ...

    def best(self, outputs: Outputs) -> Array:
        """Return the actions without exploration."""
        ...

    def explore(
        self, outputs: Outputs, state: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """Return actions with exploration, and what it carries to the next step."""
        ...


def make_head(contract: PolicyContract) -> Head:
    """Return the head that a checked contract names."""
    if isinstance(contract.action, BoxAction):
        return SquashedGaussian(contract, contract.action)
    if contract.head == "greedy":
        return Greedy(contract.action, contract.exploration.epsilon)
    return Categorical(contract.action)


class SquashedGaussian:
    """``low + (tanh(mean + std * eps) + 1) / 2 * (high - low)``.

    In exploration ``eps`` is AR(1) noise of unit variance, ``eps' = rho * eps + sqrt(1 - rho^2) * N(0, 1)``,
    carried in the state ``noise (batch, size)``; without, it is 0.

    Or white noise is held for n steps, n drawn anew each time from 1 to ``noise_hold`` with a weight of 1/n^2
    (a truncated zeta distribution, arXiv 2604.04539). The steps for which a row's noise still holds are the
    state ``noise_left (batch,)``, int64, 0 at the start of an episode.
    """

    def __init__(self, contract: PolicyContract, action: BoxAction) -> None:
        self._low, self._high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
        self._half = (self._high - self._low) * np.float32(0.5)
        self._centre = self._low + self._half
        self._dtype, self._shape, self._size = np.dtype(action.dtype), action.shape, action.size
        exploration = contract.exploration
        self._rho = exploration.noise_correlation
        self._fresh = math.sqrt(1.0 - self._rho**2)
        self._log_std = exploration.log_std_min, exploration.log_std_max
        weights = np.cumsum(1.0 / np.arange(1, exploration.noise_hold + 1, dtype=np.float64) ** 2)
        self._holds = weights / weights[-1] if exploration.noise_hold > 1 else None

    def initial_state(self, batch: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return fresh noise of unit variance; it is held for no step."""
        held = {} if self._holds is None else {NOISE_LEFT: np.zeros(batch, np.int64)}
        return {NOISE: self._white(batch, rng), **held}

    def best(self, outputs: Outputs) -> Array:
        """Return the action of the mean."""
        return self._scaled(np.tanh(outputs[:, : self._size]))

    def explore(
        self, outputs: Outputs, state: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """Return the action of mean and noise, and the noise."""
        size, (low, high) = self._size, self._log_std
        carried = self._next_noise(len(outputs), state, rng)
        std = np.exp(np.minimum(np.maximum(outputs[:, size:], low), high))
        std *= carried[NOISE]
        std += outputs[:, :size]
        return self._scaled(np.tanh(std, out=std)), carried

    def _white(self, batch: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((batch, self._size), dtype=np.float32)

    def _next_noise(
        self, batch: int, state: Mapping[str, Array], rng: np.random.Generator
    ) -> dict[str, Array]:
        if self._holds is not None:
            return self._held_noise(self._holds, state[NOISE], state[NOISE_LEFT], rng)
        noise = self._white(batch, rng)
        if self._rho:
            noise *= self._fresh
            noise += self._rho * state[NOISE]
        return {NOISE: noise}

    def _held_noise(
        self, holds: NDArray[np.float64], noise: Array, left: Array, rng: np.random.Generator
    ) -> dict[str, Array]:
        """Return the noise of each row, drawn anew where none is left; ``holds`` is P(n <= 1, 2, ...)."""
        over = left == 0
        if over.any():
            noise = np.where(over[:, None], self._white(len(left), rng), noise)
            drawn = 1 + np.searchsorted(holds, rng.random(len(left)), side="right")
            left = np.where(over, drawn, left)
        return {NOISE: noise, NOISE_LEFT: left - 1}

    def _scaled(self, squashed: Array) -> Array:
        squashed *= self._half
        squashed += self._centre
        np.minimum(np.maximum(squashed, self._low, out=squashed), self._high, out=squashed)
        return squashed.astype(self._dtype, copy=False).reshape(-1, *self._shape)


class _Choices:
    """The choices of a Discrete or MultiDiscrete action, and where each part's outputs lie."""

    def __init__(self, action: DiscreteAction | MultiDiscreteAction) -> None:
        self.counts = action.choices
        ends = np.cumsum(self.counts)
        self.columns = [slice(int(end) - n, int(end)) for end, n in zip(ends, self.counts, strict=True)]
        self._starts = np.asarray(action.starts, np.int64)
        self._dtype, self._shape = np.dtype(action.dtype), action.shape

    def best(self, outputs: Outputs) -> NDArray[np.int64]:
        """Return the index of each part's largest output, the first of equals, ``(batch, parts)``."""
        indices = np.empty((len(outputs), len(self.columns)), np.int64)
        for part, columns in enumerate(self.columns):
            np.argmax(outputs[:, columns], axis=1, out=indices[:, part])
        return indices

    def action(self, indices: NDArray[np.int64]) -> Array:
        """Return indices ``(batch, parts)`` as actions of the space."""
        return (indices + self._starts).astype(self._dtype).reshape(-1, *self._shape)


class Categorical:
    """Draws each part from its logits; without exploration, takes the likeliest."""

    def __init__(self, action: DiscreteAction | MultiDiscreteAction) -> None:
        self._choices = _Choices(action)

    def initial_state(self, batch: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return nothing: each draw is independent."""
        return {}

    def best(self, outputs: Outputs) -> Array:
        """Return the likeliest choices."""
        return self._choices.action(self._choices.best(outputs))

    def explore(
        self, outputs: Outputs, state: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """Draw choices: the largest of logit plus Gumbel noise has the softmax's probabilities."""
        noise = rng.gumbel(size=outputs.shape)
        return self._choices.action(self._choices.best(outputs + noise.astype(np.float32))), {}


class Greedy:
    """Takes the choice of the largest value; with probability epsilon the whole action is uniform instead."""

    def __init__(self, action: DiscreteAction | MultiDiscreteAction, epsilon: float) -> None:
        self._choices, self._epsilon = _Choices(action), epsilon

    def initial_state(self, batch: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return nothing: each draw is independent."""
        return {}

    def best(self, outputs: Outputs) -> Array:
        """Return the choices of the largest values."""
        return self._choices.action(self._choices.best(outputs))

    def explore(
        self, outputs: Outputs, state: Mapping[str, Array], rng: np.random.Generator
    ) -> tuple[Array, dict[str, Array]]:
        """Return the best choices, or random ones."""
        indices = self._choices.best(outputs)
        drawn = rng.random(len(outputs)) < self._epsilon
        if drawn.any():
            uniform = rng.integers(0, self._choices.counts, (len(outputs), len(self._choices.counts)))
            indices[drawn] = uniform[drawn]
        return self._choices.action(indices), {}
