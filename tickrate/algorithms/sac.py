"""Soft actor-critic: one update that reads top to bottom like the paper, for SAC and its descendants."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from tickrate import __version__
from tickrate.algorithms.observation_groups import GroupPacker
from tickrate.algorithms.options import OptimiserConfig
from tickrate.algorithms.sac_batch import TransitionLoader, bounded_box
from tickrate.algorithms.sac_config import SACConfig
from tickrate.algorithms.sac_functions import (
    SACFunctions,
    joint_batch_values,
    joint_target_values,
    least_value_loss,
    mean_value_loss,
    target_network_values,
)
from tickrate.algorithms.sac_networks import SACNetworks
from tickrate.artefact import Exploration, PolicyContract, action_spec, leaf_spec, pack
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError
from tickrate.nn.descent import Descent
from tickrate.nn.export import ProgramWriter
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.nn.policy_heads import GaussianHead
from tickrate.nn.state import (
    Arrays,
    check_arrays,
    load_arrays,
    module_tensors,
    to_arrays,
)
from tickrate.nn.value_heads import CategoricalValues, ScalarValues


class SAC:
    """Soft actor-critic (arXiv 1812.05905) and what grew out of it: REDQ, DroQ, CrossQ, FlashSAC.

    Args:
        config: the options.
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
        log_std = (config.log_std_offset, config.log_std_min, config.log_std_max)
        policy_head = GaussianHead(self._loader.action_size, self._loader.log_scale, log_std)
        value_head = (
            CategoricalValues(config.value_bins, config.value_limit, self.device)
            if config.value_bins
            else ScalarValues()
        )
        start = torch.Generator().manual_seed(seed)
        networks = SACNetworks(config, actor.size, critic.size, policy_head, value_head, start)
        self.networks = networks.to(self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        networks.dropout = self._generator
        self._critics = self._descent("critic_loss", networks.critics, config.critic_optimiser)
        self._actor = self._descent("actor_loss", networks.actor, config.actor_optimiser)
        self._alpha = self._descent("temperature_loss", networks.log_alpha, config.temperature_optimiser)
        self._target_entropy = torch.tensor(self._entropy_at(0), device=self.device)
        self.functions = functions or _functions(config)
        self.updates = 0
        """Critic updates done so far."""
        self._metrics: dict[str, SupportsFloat] = {}
        self._errors: Tensor | None = None
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

        A batch with values that are not finite is skipped and counted; a loss or gradient that is not finite
        changes no weight and no statistic. Nothing in here waits for the device.

        Returns:
            Metrics, scalars on the device: critic_loss, q_mean, target_mean (values in units of reward),
            actor_loss, entropy (nats, in environment units), alpha, the gradients' lengths
            critic_gradient and actor_gradient, and the host's count skipped_updates.
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
        self._follow_schedules()
        networks, functions, metrics = self.networks, self.functions, self._metrics
        policy_head, value_head = networks.policy_head, networks.value_head
        rows = len(transition.reward)
        actor_features = networks.actor_features(transition.actor)
        critic_features = networks.critic_features(transition.critic)
        now, later = actor_features.chunk(2)
        alpha = networks.log_alpha.detach().exp()

        with torch.no_grad():
            next_action, next_log_prob = networks.act(later, policy_head.noise(rows, self._generator))
        output, following = functions.values(networks, transition, critic_features, next_action)
        following = self._some(following)
        target = functions.target(
            value_head, transition.reward, transition.discount, following, next_log_prob, alpha
        )
        loss = functions.critic_loss(value_head, output, target)
        if transition.weights is not None:
            loss = loss * transition.weights
        metrics["critic_loss"] = self._critics.descend(loss.mean(1).sum())
        metrics["critic_gradient"] = self._critics.length
        values, target_values = value_head.mean(output.detach()), value_head.target_mean(target)
        metrics["q_mean"], metrics["target_mean"] = values.mean(), target_values.mean()
        self._errors = (values - target_values).abs().mean(0)

        self.updates += 1
        if self.updates % self.config.policy_delay == 0:
            action, log_prob = networks.act(now, policy_head.noise(rows, self._generator), learning=True)
            policy_values = value_head.mean(networks.values(critic_features.chunk(2)[0].detach(), action))
            metrics["actor_loss"] = self._actor.descend(
                functions.actor_loss(policy_values, log_prob, alpha).mean()
            )
            metrics["actor_gradient"], metrics["entropy"] = self._actor.length, -log_prob.detach().mean()
            if self.config.learn_temperature:
                self._alpha.descend(
                    functions.temperature_loss(networks.log_alpha, log_prob.detach(), self._target_entropy)
                )
            metrics["alpha"] = networks.log_alpha.detach().exp()

        networks.move_target()
        return {**metrics, "skipped_updates": self._loader.skipped}

    @property
    def target_entropy(self) -> float:
        """Target entropy now, in environment units, nats."""
        return self._entropy_at(self.updates)

    def priorities(self) -> NDArray[np.float32]:
        """Return the absolute errors of the last batch's values, ``(batch,)``; waits for the device."""
        if self._errors is None:
            raise RuntimeError("priorities() before the first update")
        errors: NDArray[np.float32] = self._errors.float().cpu().numpy()
        return errors

    def faults(self) -> list[str]:
        """Return a sentence for each network that was kept from bad steps since the last call; waits."""
        return [text for part in (self._critics, self._actor, self._alpha) if (text := part.fault())]

    def _entropy_at(self, updates: int) -> float:
        config, loader = self.config, self._loader
        return config.entropy_per_dim(updates) * loader.action_size + loader.log_scale

    def _follow_schedules(self) -> None:
        config = self.config
        for part in (self._critics, self._actor, self._alpha):
            part.follow(self.updates)
        if config.schedule_updates:
            self._target_entropy.fill_(self._entropy_at(self.updates))
            if not config.learn_temperature:
                self.networks.log_alpha.data.fill_(float(np.log(config.temperature(self.updates))))

    def _some(self, following: Tensor) -> Tensor:
        """Return the outputs of the critics that this target is taken from: all, or a random few."""
        count = self.config.target_critics
        if not 0 < count < len(following):
            return following
        chosen = torch.randperm(len(following), generator=self._generator, device=self.device)[:count]
        return following.index_select(0, chosen)

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
            **self._critics.tensors("critics"),
            **self._actor.tensors("actor"),
            **self._alpha.tensors("alpha"),
        }

    def _normalisers(self) -> dict[str, RunningNormaliser]:
        pairs = {
            "count/actor": self.networks.actor_normaliser,
            "count/critic": self.networks.critic_normaliser,
        }
        return {name: normaliser for name, normaliser in pairs.items() if normaliser is not None}

    def _descent(self, name: str, learned: nn.Module | nn.Parameter, options: OptimiserConfig) -> Descent:
        return Descent(
            name,
            learned,
            kind=options.kind,
            rate=options.rate,
            betas=options.betas,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            gradient_limit=self.config.gradient_limit,
        )


def _functions(config: SACConfig) -> SACFunctions:
    """Return the steps that a configuration asks for."""
    values = target_network_values
    if config.joint_batch:
        values = joint_target_values if config.target_network else joint_batch_values
    return SACFunctions(
        values=values, actor_loss=mean_value_loss if config.actor_value == "mean" else least_value_loss
    )
