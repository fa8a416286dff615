"""The networks of DQN: encoder, streams and the slow copy; their outputs are values of every choice."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor, nn

from tickrate.algorithms.bodies import Body, make_body
from tickrate.algorithms.dqn_config import DQNConfig
from tickrate.algorithms.group_inputs import GroupInputs
from tickrate.algorithms.options import NetworkConfig
from tickrate.nn.export import ProgramWriter
from tickrate.nn.features import VECTOR, FeatureNetwork, Inputs
from tickrate.nn.noisy import NoisyLinear
from tickrate.nn.normaliser import RunningNormaliser


class QNetwork(nn.Module):
    """From inputs to one output, or one distribution's logits, for each choice of each part of the action.

    Vectors go past the encoder of images and histories, then all features through the layers of
    ``config.network``. With ``config.duelling`` two streams end in a value and in advantages, and
    ``Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a')`` (arXiv 1511.06581), the mean over the choices of
    one part; the parts of an action share the value (arXiv 1711.08946).

    Args:
        config: the options.
        group: what the network reads.
        choices: number of choices of each part.
        atoms: outputs of a choice.
        generator: source of the initial weights (CPU).
    """

    def __init__(
        self,
        config: DQNConfig,
        group: GroupInputs,
        choices: tuple[int, ...],
        atoms: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._choices, self._atoms = choices, atoms
        self.features = FeatureNetwork(group.vector_size, group.pictures, config.encoder, generator=generator)
        features = self.features.features
        noise = config.noise_scale if config.noisy else 0.0
        stream = config.network
        self.trunk: Body | None = None
        if config.duelling and stream.kind == "mlp" and len(stream.hidden) > 1:
            shared, stream = _split(stream)
            self.trunk = make_body(shared, 1, features, None, generator, noise=noise)
            features = shared.hidden[-1]
        self.values: Body | None = None
        if config.duelling:
            self.values = make_body(stream, 1, features, atoms, generator, noise=noise)
        self.advantages = make_body(stream, 1, features, sum(choices) * atoms, generator, noise=noise)

    def forward(
        self, inputs: Inputs, learning: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return outputs ``(rows, choices of all parts, atoms)``, float32.

        Args:
            inputs: ``(rows, ...)`` each, the vectors normalised.
            learning: batch norm takes the batch's statistics and updates the running ones.
            generator: source of noise, dropout and shifts of images; None: none of them.
        """
        x = self.features(inputs, generator=generator)
        if self.trunk is not None:
            x = self.trunk(x, learning, generator)[0]
        rows = len(x)
        advantages: Tensor = self.advantages(x, learning, generator)[0].view(rows, -1, self._atoms).float()
        if self.values is None:
            return advantages
        values = self.values(x, learning, generator)[0].view(rows, 1, self._atoms).float()
        return duel(values, advantages, self._choices)

    def write(self, writer: ProgramWriter, vector: str | None) -> str:
        """Write the network down without noise, from the normalised vector; distributions as they are."""
        x = self.features.write(writer, vector)
        if self.trunk is not None:
            x = self.trunk.write(writer, x)
        advantages = self.advantages.write(writer, x)
        if self.values is None:
            return advantages
        both = writer.concat((self.values.write(writer, x), advantages))
        count = sum(self._choices) * self._atoms
        unit = torch.eye(self._atoms + count, dtype=torch.float64)
        # What the duel makes of each output alone is a row of its matrix: the duel is linear.
        values = unit[:, : self._atoms].view(-1, 1, self._atoms)
        rows = duel(values, unit[:, self._atoms :].view(-1, sum(self._choices), self._atoms), self._choices)
        return writer.affine(both, rows.flatten(1), None)

    @property
    def computed_in(self) -> torch.dtype:
        """What the last stream's layers were computed in the last time."""
        return self.advantages.computed_in

    @property
    def projects(self) -> bool:
        """Whether `project` has anything to do."""
        return any(body is not None and body.projects for body in (self.trunk, self.values, self.advantages))

    def project(self) -> None:
        """Bring the weights that have a length back to it; to be called after each step of the optimiser."""
        for body in (self.trunk, self.values, self.advantages):
            if body is not None:
                body.project()

    def keep_noise(self, generator: torch.Generator) -> None:
        """Add one draw of the noise to all noisy weights for good."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.keep_noise(generator)


def duel(values: Tensor, advantages: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Return ``V + A - mean of A``, the mean over each part's choices (arXiv 1511.06581, equation 9).

    Args:
        values: ``(rows, 1, atoms)``.
        advantages: ``(rows, choices of all parts, atoms)``.
        choices: number of choices of each part.
    """
    parts = torch.split(advantages, list(choices), 1)
    return torch.cat([values + part - part.mean(1, keepdim=True) for part in parts], 1)


def _split(config: NetworkConfig) -> tuple[NetworkConfig, NetworkConfig]:
    """Return the layers that two streams share, and those of each stream: the last hidden one."""
    shared = dataclasses.replace(config, hidden=config.hidden[:-1])
    return shared, dataclasses.replace(config, hidden=config.hidden[-1:])


class DQNNetworks(nn.Module):
    """Everything that DQN learns, and the copy that its targets come from.

    Args:
        config: the options.
        online: what learns.
        vector_size: numbers in the vectors.
    """

    def __init__(self, config: DQNConfig, online: QNetwork, vector_size: int) -> None:
        super().__init__()
        self.config, self.online = config, online
        self.target = copy.deepcopy(online).requires_grad_(False)
        self.normaliser: RunningNormaliser | None = None
        if config.normalise_observations:
            self.normaliser = RunningNormaliser(vector_size)
        self.generator: torch.Generator | None = None
        """Source of noise, dropout and shifts of images while learning."""
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None  # listed once, after any .to(device)

    def normalised(self, inputs: Inputs) -> Inputs:
        """Return inputs as the networks read them."""
        if self.normaliser is None:
            return inputs
        return {**inputs, VECTOR: self.normaliser(inputs[VECTOR])}

    @torch.no_grad()
    def move_target(self) -> None:
        """Move the target copy, batch norm statistics included, towards the network by ``target_rate``."""
        if self._pairs is None:
            copies = [*self.target.parameters(), *self.target.buffers()]
            self._pairs = copies, [*self.online.parameters(), *self.online.buffers()]
        torch._foreach_lerp_(*self._pairs, self.config.target_rate)
        self.target.project()
