"""The networks of SAC: an actor, an ensemble of critics, their target, the temperature."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from tickrate.algorithms.bodies import Body, make_body
from tickrate.algorithms.group_inputs import GroupInputs
from tickrate.algorithms.sac_config import SACConfig
from tickrate.nn.export import ProgramWriter
from tickrate.nn.features import VECTOR, FeatureNetwork, Inputs
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.nn.policy_heads import PolicyHead
from tickrate.nn.value_heads import ValueHead


class Part(nn.Module):
    """The actor, or all critics: what they read made features, and their bodies."""

    def __init__(self, features: FeatureNetwork, body: Body) -> None:
        super().__init__()
        self.features, self.body = features, body

    @property
    def projects(self) -> bool:
        """Whether `project` has anything to do."""
        return self.body.projects

    def project(self) -> None:
        """Bring weights back to their lengths; to be called after each step of the optimiser."""
        self.body.project()


class SACNetworks(nn.Module):
    """Everything that SAC learns. Actions in here are scaled to [-1, 1], or one-hot.

    Args:
        config: SAC's options.
        actor: the actor's observation group.
        critic: the critics' observation group.
        policy_head: turns the actor's outputs into actions.
        value_head: turns the critics' outputs into values.
        generator: source of the initial weights (CPU).
    """

    def __init__(
        self,
        config: SACConfig,
        actor: GroupInputs,
        critic: GroupInputs,
        policy_head: PolicyHead,
        value_head: ValueHead,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        self.policy_head, self.value_head = policy_head, value_head

        def features(group: GroupInputs) -> FeatureNetwork:
            return FeatureNetwork(
                group.vector_size,
                group.pictures,
                config.encoder,
                memory=config.memory,
                units=config.memory_units,
                generator=generator,
            )

        seen = features(critic)  # with a shared encoder the actor reads this, and its own part is empty
        read = FeatureNetwork(seen.features, {}, config.encoder, generator=generator)
        if not self.shares:
            read = features(actor)
        last_gain = config.actor_last_gain
        body = make_body(config.actor, 1, read.features, policy_head.outputs, generator, last_gain)
        self.actor = Part(read, body)
        width = seen.features + policy_head.size
        bodies = make_body(config.critic, config.critics, width, value_head.outputs, generator)
        self.critics = Part(seen, bodies)
        self.target_critics: Part | None = None
        if config.target_network:
            self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self._target_pairs: tuple[list[Tensor], list[Tensor]] | None = (
            None  # listed once, after any .to(device)
        )
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_temperature)))
        self.actor_normaliser: RunningNormaliser | None = None
        self.critic_normaliser: RunningNormaliser | None = None
        if config.normalise_observations:
            self.actor_normaliser = RunningNormaliser(actor.vector_size)
            self.critic_normaliser = RunningNormaliser(critic.vector_size)
        self.random: torch.Generator | None = None
        """Source of dropout's random numbers and of the shifts of images while learning."""

    @property
    def computed_in(self) -> torch.dtype:
        """What the critics' layers were computed in the last time."""
        return self.critics.body.computed_in

    @property
    def shares(self) -> bool:
        """Whether the actor reads what the critics' encoder makes, and leaves its learning to them (DrQ)."""
        return self.config.shared_encoder

    def actor_features(self, inputs: Inputs, sequences: int = 0) -> Tensor:
        """Return what the actor's body reads, ``(rows, features)``; see `FeatureNetwork.forward`."""
        part = self.critics if self.shares else self.actor
        features: Tensor = part.features(_normalised(inputs, self.actor_normaliser), sequences, self.random)
        return features

    def critic_features(self, inputs: Inputs, sequences: int = 0) -> Tensor:
        """Return what the critics' bodies read beside the action, ``(rows, features)``."""
        inputs = _normalised(inputs, self.critic_normaliser)
        features: Tensor = self.critics.features(inputs, sequences, self.random)
        return features

    @torch.no_grad()
    def target_features(self, inputs: Inputs, sequences: int, features: Tensor) -> Tensor:
        """Return what the target critics read: the critics' own ``features``, if none is learned."""
        if self.target_critics is None or not self.critics.features.learned:
            return features
        inputs = _normalised(inputs, self.critic_normaliser)
        slow: Tensor = self.target_critics.features(inputs, sequences, self.random)
        return slow

    def act(self, features: Tensor, noise: Tensor, *, learning: bool = False) -> tuple[Tensor, Tensor]:
        """Sample actions ``(rows, size)``; their log-probabilities in environment units ``(rows,)``."""
        return self.policy_head.sample(self.policy(features, learning=learning), noise)

    def policy(self, features: Tensor, *, learning: bool = False) -> Tensor:
        """Return the actor's outputs, ``(rows, outputs)``, for the policy head."""
        output: Tensor = self.actor.body(features, learning, self.random if learning else None)[0]
        return output.float()

    def values(self, features: Tensor, action: Tensor, *, learning: bool = False) -> Tensor:
        """Return the critics' outputs, ``(critics, rows, outputs)``; dropout, if any, drops (DroQ).

        Args:
            features: of the observations, ``(rows, features)``.
            action: ``(rows, size)``.
            learning: batch norm takes the batch's statistics and updates the running ones.
        """
        return self._values(self.critics, features, action, learning)

    def target_values(self, features: Tensor, action: Tensor, *, learning: bool = False) -> Tensor:
        """Return the target critics' outputs, ``(critics, rows, outputs)``; see `values`."""
        if self.target_critics is None:
            raise RuntimeError("these networks have no target critics: config.target_network is False")
        return self._values(self.target_critics, features, action, learning)

    def _values(self, critics: Part, features: Tensor, action: Tensor, learning: bool) -> Tensor:
        output: Tensor = critics.body(torch.cat((features, action), 1), learning, self.random)
        return output.float()

    @torch.no_grad()
    def move_target(self) -> None:
        """Move the target critics, batch norm statistics included, towards the critics by ``target_rate``.

        In joint batches the target sees the batch's statistics, and what it noted itself is of no use: its
        running ones are the critics', which a guard keeps finite.
        """
        if self.target_critics is None:
            return
        if self._target_pairs is None:
            self._target_pairs = (
                [*self.target_critics.parameters(), *self.target_critics.buffers()],
                [*self.critics.parameters(), *self.critics.buffers()],
            )
        if self.config.joint_batch:
            for slow, now in zip(self.target_critics.buffers(), self.critics.buffers(), strict=True):
                slow.copy_(now)
        torch._foreach_lerp_(*self._target_pairs, self.config.target_rate)
        if self.target_critics.projects:
            self.target_critics.project()

    def write(self, writer: ProgramWriter, vector: str | None) -> str:
        """Write the actor down, from the value of its vectors (None without any) to its outputs."""
        if vector is not None and self.actor_normaliser is not None:
            vector = self.actor_normaliser.write(writer, vector)
        part = self.critics if self.shares else self.actor
        return self.actor.body.write(writer, part.features.write(writer, vector))


def _normalised(inputs: Inputs, normaliser: RunningNormaliser | None) -> Inputs:
    if normaliser is None or VECTOR not in inputs:
        return inputs
    return {**inputs, VECTOR: normaliser(inputs[VECTOR])}
