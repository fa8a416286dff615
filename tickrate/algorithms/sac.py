"""Soft actor-critic: one update that reads top to bottom like the paper, for SAC and for CrossQ."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from tickrate import __version__
from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.algorithms.sac_batch import TransitionLoader, bounded_box
from tickrate.algorithms.sac_config import SACConfig
from tickrate.algorithms.sac_functions import SACFunctions, joint_batch_values
from tickrate.algorithms.sac_networks import SACNetworks
from tickrate.artefact import Exploration, PolicyContract, action_spec, leaf_spec, pack
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError
from tickrate.nn.adam import FusedAdam
from tickrate.nn.export import ProgramWriter
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.nn.state import (
    Arrays,
    check_arrays,
    load_arrays,
    module_tensors,
    to_arrays,
)


class SAC:
    """Soft actor-critic (arXiv 1812.05905) with a learned temperature, with or without a target network.

    Args:
        config: the options; `SACConfig.plain` and `SACConfig.crossq` are the recipes.
        observation_spaces: leaf space by path of the canonical observation, in its order.
        action_space: a bounded box.
        seed: seeds the initial weights and the sampling of actions in updates.
        period_s: nominal step of the environment in seconds, for the contract; 0 for lock-step.
        action_buffer_length: number of past actions in the observation, for the contract.
        device: where the networks live.
        functions: replacements for single steps of the update.

    Raises:
        ConfigError: for an action space without finite bounds, or a leaf that cannot be read; names it.
    """

    def __init__(
        self,
        config: SACConfig,
        observation_spaces: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Space[Any],
        *,
        seed: int,
        period_s: float,
        action_buffer_length: int,
        device: str | torch.device = "cpu",
        functions: SACFunctions | None = None,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        box = bounded_box(action_space)
        actor = GroupPacker("actor", config.groups.get("actor", ()), observation_spaces)
        critic = GroupPacker("critic", config.groups.get("critic", ()), observation_spaces)
        self._loader = TransitionLoader(actor, critic, box, self.device)
        size, log_scale = self._loader.action_size, self._loader.log_scale
        self.target_entropy = config.target_entropy_per_dim * size + log_scale
        """Target entropy in environment units, nats."""
        start = torch.Generator().manual_seed(seed)
        self.networks = SACNetworks(config, actor.size, critic.size, size, log_scale, start).to(self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._critic_adam = self._adam(self.networks.critics.parameters())
        self._actor_adam = self._adam(self.networks.actor.parameters())
        self._alpha_adam = self._adam([self.networks.log_alpha])
        default = SACFunctions() if config.target_network else SACFunctions(values=joint_batch_values)
        self.functions = functions or default
        self.updates = 0
        """Critic updates done so far."""
        self._metrics: dict[str, SupportsFloat] = {}
        self._contract = functools.partial(
            PolicyContract,
            algorithm="sac",
            observation=tuple(leaf_spec(path, space) for path, space in observation_spaces.items()),
            action=action_spec(box),
            groups={"actor": actor.paths, "critic": critic.paths},
            exploration=Exploration(config.noise_correlation, config.log_std_min, config.log_std_max),
            period_s=period_s,
            action_buffer_length=action_buffer_length,
            tickrate=__version__,
        )

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Count new observations into the normalisers' statistics; does nothing when they are off."""
        networks, loader = self.networks, self._loader
        if networks.actor_normaliser is not None and networks.critic_normaliser is not None:
            networks.actor_normaliser.observe(loader.rows(loader.actor, observation))
            networks.critic_normaliser.observe(loader.rows(loader.critic, observation))

    def update(self, batch: Batch) -> Mapping[str, SupportsFloat]:
        """Do one critic update and, at every ``policy_delay``-th, one of actor and temperature.

        A batch with values that are not finite is skipped and counted; a loss that is not finite changes no
        weight. Nothing in here waits for the device.

        Returns:
            Metrics, scalars on the device: critic_loss, q_mean, target_mean (values in units of reward),
            actor_loss, entropy (nats, in environment units), alpha, and the host's count skipped_updates.
            Those of the actor appear with its first update.

        Raises:
            ConfigError: if inputs are to be normalised and `observe` was never called.
        """
        for normaliser in self._normalisers().values():
            if normaliser.count == 0:
                raise ConfigError(
                    "sac.normalise_observations is on, but observe() was never called: "
                    "give it every new observation once"
                )
        transition = self._loader.load(batch)
        if transition is None:
            return {**self._metrics, "skipped_updates": self._loader.skipped}
        networks, functions, metrics = self.networks, self.functions, self._metrics
        now, later = transition.actor_observation.chunk(2)
        alpha = networks.log_alpha.detach().exp()

        with torch.no_grad():
            next_action, next_log_prob = networks.act(later, self._noise(transition.action))
        values, next_values = functions.values(networks, transition, next_action)
        target = functions.target(transition.reward, transition.discount, next_values, next_log_prob, alpha)
        critic_loss = functions.critic_loss(values, target)
        _descend(self._critic_adam, critic_loss)
        metrics["critic_loss"], metrics["q_mean"] = critic_loss.detach(), values.detach().mean()
        metrics["target_mean"] = target.mean()

        self.updates += 1
        if self.updates % self.config.policy_delay == 0:
            action, log_prob = networks.act(now, self._noise(transition.action), batch_statistics=True)
            policy_values = networks.values(transition.critic_observation.chunk(2)[0], action)
            actor_loss = functions.actor_loss(policy_values, log_prob, alpha)
            _descend(self._actor_adam, actor_loss)
            metrics["actor_loss"], metrics["entropy"] = actor_loss.detach(), -log_prob.detach().mean()
            if self.config.learn_temperature:
                loss = functions.temperature_loss(networks.log_alpha, log_prob.detach(), self.target_entropy)
                _descend(self._alpha_adam, loss)
            metrics["alpha"] = networks.log_alpha.detach().exp()

        networks.move_target()
        return {**metrics, "skipped_updates": self._loader.skipped}

    def policy_bytes(self, version: int) -> bytes:
        """Return the present actor as an artefact, weights and statistics of one moment folded together.

        Raises:
            PolicyError: if a weight is not finite: training has diverged.
        """
        writer, networks, size = ProgramWriter(), self.networks, self._loader.action_size
        x = writer.read(self._loader.actor.paths)
        if networks.actor_normaliser is not None:
            x = networks.actor_normaliser.write(writer, x)
        x = networks.actor.write(writer, x)
        offset = torch.cat([torch.zeros(size), torch.full((size,), self.config.log_std_offset)])
        writer.scale(x, torch.ones(2 * size), offset)
        program, weights = writer.finish()
        return pack(self._contract(program=program, policy_version=version), weights)

    def state(self) -> Arrays:
        """Return a copy of networks, statistics, optimisers, counters and random state, by name."""
        arrays = to_arrays(self._tensors())
        arrays["updates"] = np.array(self.updates, np.int64)
        arrays["skipped"] = np.array(self._loader.skipped, np.int64)
        arrays["random"] = self._generator.get_state().numpy().copy()
        for name, normaliser in self._normalisers().items():
            arrays[name] = np.array(normaliser.count, np.int64)
        return arrays

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put back what `state` returned; the next update is then bit-equal on the CPU.

        Raises:
            RunFolderError: if anything is missing, foreign or of another shape; nothing is changed then.
        """
        check_arrays(self.state(), state)
        load_arrays(self._tensors(), state)
        self._generator.set_state(torch.from_numpy(np.array(state["random"], np.uint8)))
        self.updates, self._loader.skipped = int(state["updates"].item()), int(state["skipped"].item())
        for name, normaliser in self._normalisers().items():
            normaliser.count = int(state[name].item())

    def _tensors(self) -> dict[str, Tensor]:
        return {
            **module_tensors(self.networks, "networks"),
            **self._critic_adam.tensors("adam/critics"),
            **self._actor_adam.tensors("adam/actor"),
            **self._alpha_adam.tensors("adam/alpha"),
        }

    def _normalisers(self) -> dict[str, RunningNormaliser]:
        pairs = {
            "count/actor": self.networks.actor_normaliser,
            "count/critic": self.networks.critic_normaliser,
        }
        return {name: normaliser for name, normaliser in pairs.items() if normaliser is not None}

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._generator, device=self.device)

    def _adam(self, parameters: Iterable[nn.Parameter]) -> FusedAdam:
        betas = (self.config.adam_beta1, self.config.adam_beta2)
        return FusedAdam(parameters, learning_rate=self.config.learning_rate, betas=betas)


def _descend(optimiser: FusedAdam, loss: Tensor) -> None:
    """Step down the gradient of the loss in the optimiser's own parameters; a non-finite loss is skipped.

    Gradients are computed for these parameters alone: none for the critics in the actor's step.
    """
    gradients = torch.autograd.grad(loss, optimiser.parameters)
    value = loss.detach()
    optimiser.step(gradients, skip=torch.ne(value - value, 0.0).float())  # inf - inf and nan - nan are not 0
