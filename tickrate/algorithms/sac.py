"""Soft actor-critic: one update that reads top to bottom like the paper, for SAC and its descendants."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from tickrate import __version__
from tickrate.algorithms.action_coding import action_coding
from tickrate.algorithms.cloning import Cloning
from tickrate.algorithms.delay_correction import TIMING, make_correction
from tickrate.algorithms.descents import make_descent
from tickrate.algorithms.group_inputs import GroupInputs, check_encoder
from tickrate.algorithms.sac_batch import TransitionLoader
from tickrate.algorithms.sac_config import SACConfig
from tickrate.algorithms.sac_functions import SACFunctions, Transition, functions_of
from tickrate.algorithms.sac_networks import SACNetworks
from tickrate.artefact import PolicyContract, action_spec, leaf_spec, pack
from tickrate.data.batch import Batch, SequenceBatch
from tickrate.errors import ConfigError
from tickrate.nn.compiling import Acceleration
from tickrate.nn.devices import usable_device
from tickrate.nn.export import ProgramWriter
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.nn.state import Arrays, check_arrays, load_arrays, module_tensors, to_arrays
from tickrate.nn.value_heads import CategoricalValues, ScalarValues


class SAC:
    """Soft actor-critic (arXiv 1812.05905) and what grew out of it: REDQ, DroQ, CrossQ, FlashSAC.

    Args:
        config: the options.
        observation_spaces: leaf space by path of the canonical observation, in its order.
        action_space: a bounded box of floats, Discrete, or MultiDiscrete.
        seed: seeds the initial weights and the sampling of actions in updates.
        period_s: nominal step of the environment in seconds, for the contract; 0 for lock-step.
        action_buffer_length: number of past actions in the observation, for the contract.
        device: where the networks live.
        functions: replacements for single steps of the update.

    Raises:
        ConfigError: for an action space that cannot be acted in, or a leaf that cannot be read; names it.
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
        self.device = usable_device(device)
        self._action = action_coding(
            action_space, (config.log_std_offset, config.log_std_min, config.log_std_max)
        )
        actor, critic = (
            GroupInputs(name, config.groups.get(name, ()), observation_spaces, config.encoder)
            for name in ("actor", "critic")
        )
        _check_read(config, actor, critic)
        burn_in = config.burn_in if config.memory != "none" else 0
        self._cloning = Cloning(config, self.device)
        self._loader = TransitionLoader(actor, critic, self._action, self.device, burn_in, config.clones)
        value_head = (
            CategoricalValues(config.value_bins, config.value_limit, self.device)
            if config.value_bins
            else ScalarValues()
        )
        start = torch.Generator().manual_seed(seed)
        networks = SACNetworks(config, actor, critic, self._action.head, value_head, start)
        self.networks = networks.to(self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        networks.random = self._generator
        self._critics, self._actor, self._alpha = (
            make_descent(name, learned, options, config.gradient_limit)
            for name, learned, options in (
                ("critic_loss", networks.critics, config.critic_optimiser),
                ("actor_loss", networks.actor, config.actor_optimiser),
                ("temperature_loss", networks.log_alpha, config.temperature_optimiser),
            )
        )
        self._target_entropy = torch.tensor(self._entropy_at(0), device=self.device)
        self.functions = functions or functions_of(config)
        self._correction = make_correction(
            config.delay_correction, self._action, actor, critic, observation_spaces, action_buffer_length
        )
        self._acceleration = Acceleration(config.compile, config.mixed_precision, self.device)
        self._critic_terms = self._acceleration.compiled(self._plain_critic_terms)
        self._actor_terms = self._acceleration.compiled(self._plain_actor_terms)
        self.updates = 0
        """Critic updates done so far."""
        self._restored_updates = 0
        self._metrics: dict[str, SupportsFloat] = {}
        self._last: tuple[Tensor, Tensor, Tensor | None] | None = None
        self._contract = functools.partial(
            PolicyContract,
            algorithm="sac",
            observation=tuple(leaf_spec(path, space) for path, space in observation_spaces.items()),
            action=action_spec(action_space),
            head=self._action.head_name,
            groups={"actor": actor.paths, "critic": critic.paths},
            exploration=self._action.exploration(config),
            period_s=period_s,
            action_buffer_length=action_buffer_length,
            tickrate=__version__,
        )

    @property
    def sequence_length(self) -> int:
        """Steps of the sequences that `update` needs; 0: single transitions."""
        return self.config.traits.sequence_length

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Count new observations into the normalisers' statistics; does nothing when they are off."""
        networks, loader = self.networks, self._loader
        if networks.actor_normaliser is not None and networks.critic_normaliser is not None:
            networks.actor_normaliser.observe(loader.rows(loader.actor, observation))
            networks.critic_normaliser.observe(loader.rows(loader.critic, observation))

    def update(self, batch: Batch | SequenceBatch) -> Mapping[str, SupportsFloat]:
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
            self._last = self._nothing_learned(len(batch))
            return {**self._metrics, "skipped_updates": self._loader.skipped}
        self._follow_schedules()
        config, metrics, head = self.config, self._metrics, self._action.head
        self._cloning.begin(self.updates + 1)
        alpha = self._cloning.temperature(self.networks.log_alpha.detach().exp())

        following = None
        if self._correction is not None:
            transition, following = self._corrected(transition, batch, alpha)
        noise = head.noise(len(transition.reward), self._generator)
        loss, values, targets, features = self._critic_terms(
            transition, noise, self._chosen(), following, alpha
        )
        metrics["critic_loss"] = self._critics.descend(loss)
        metrics["critic_gradient"] = self._critics.length
        real = transition.mask
        metrics["q_mean"], metrics["target_mean"] = _over_real(values, real), _over_real(targets, real)
        self._last = values, targets, transition.judged

        self.updates += 1
        if self.updates % config.policy_delay == 0:
            noise = head.noise(len(transition.reward), self._generator)
            loss, log_prob = self._actor_terms(transition, features, noise, alpha)
            metrics["actor_loss"] = self._actor.descend(loss)
            metrics["actor_gradient"], metrics["entropy"] = self._actor.length, -log_prob.mean()
            if config.learn_temperature and not self._cloning.imitates:
                log_alpha = self.networks.log_alpha
                self._alpha.descend(
                    self.functions.temperature_loss(log_alpha, log_prob, self._target_entropy)
                )
            metrics["alpha"] = self.networks.log_alpha.detach().exp()

        self.networks.move_target()
        return {**metrics, "skipped_updates": self._loader.skipped}

    def _plain_critic_terms(
        self,
        transition: Transition,
        noise: Tensor,
        chosen: Tensor | None,
        following: tuple[Tensor, Tensor] | None,
        alpha: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the critics' loss, their values and targets, and what they saw of the observations now.

        The values are ``(critics, batch)``, the targets ``(batch,)``, what was seen ``(batch, features)``,
        without gradients.

        Args:
            transition: the batch.
            noise: for the next action.
            chosen: numbers of the critics that the target is taken from; None: all.
            following: next action and its log-probability, where they are known already.
            alpha: entropy coefficient.
        """
        networks, functions, head = self.networks, self.functions, self.networks.value_head
        with self._acceleration.precision():
            features = networks.critic_features(transition.critic, transition.sequences)
            if following is None:
                with torch.no_grad():
                    seen = features
                    if not networks.shares:
                        seen = networks.actor_features(transition.actor, transition.sequences)
                    following = networks.act(seen.chunk(2)[1], noise)
            next_action, next_log_prob = following
            output, next_output = functions.values(networks, transition, features, next_action)
        if chosen is not None:
            next_output = next_output.index_select(0, chosen)
        target = functions.target(
            head, transition.reward, transition.discount, next_output, next_log_prob, alpha
        )
        loss = functions.critic_loss(head, output, target)
        if transition.weights is not None:
            loss = loss * transition.weights
        now = features.detach().chunk(2)[0]
        return loss.mean(1).sum(), head.mean(output.detach()), head.target_mean(target), now

    def _plain_actor_terms(
        self, transition: Transition, features: Tensor, noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the actor's loss and the mean log-probabilities of its actions, ``(batch,)``, detached.

        The log-probabilities are weighted as the loss is, so that their mean is that of the real steps.

        What the critics see of the observations, ``features``, is taken over from their step (as in DrQ-v2,
        arXiv 2107.09645): nothing of it is learned here.
        """
        networks, head, cloning, real = self.networks, self._action.head, self._cloning, transition.mask
        with self._acceleration.precision():
            now = features
            if not networks.shares:
                now = networks.actor_features(transition.actor, transition.sequences).chunk(2)[0]
            output = networks.policy(now, learning=True)
            action, log_prob = head.sample(output, noise)
            if cloning.imitates:
                loss = imitation = cloning.loss(head, output, transition)
            if cloning.climbs:

                def judge(actions: Tensor, times: int) -> Tensor:
                    seen = features if times == 1 else features.repeat(times, 1)
                    return networks.value_head.mean(networks.values(seen, actions))

                value = head.value(output, action, judge)
                loss = self.functions.actor_loss(value, log_prob, alpha)
                if cloning.imitates:
                    loss = cloning.mixed(imitation, loss, _over_real(value.detach().abs(), real))
        if real is not None:
            loss, log_prob = loss * real, log_prob * real
        return loss.mean(), log_prob.detach()

    def _corrected(
        self, fragments: Transition, batch: Batch | SequenceBatch, alpha: Tensor
    ) -> tuple[Transition, tuple[Tensor, Tensor]]:
        """Return the fragments as transitions over as many steps as their delays allow, and what follows."""
        assert self._correction is not None
        assert isinstance(batch, SequenceBatch)
        steps, count = self.config.delay_correction, len(batch)
        delays = torch.from_numpy(np.ascontiguousarray(batch.observation[TIMING][..., 2])).to(self.device)
        noises = torch.stack([self._action.head.noise(count, self._generator) for _ in range(steps)])
        transition, *following = self._correction(self.networks, fragments, delays, noises, alpha)
        return transition, (following[0], following[1])

    def _chosen(self) -> Tensor | None:
        """Return which critics this target is taken from: all (None), or a random few."""
        count, every = self.config.target_critics, self.config.critics
        if not 0 < count < every:
            return None
        return torch.randperm(every, generator=self._generator, device=self.device)[:count]

    @property
    def target_entropy(self) -> float:
        """Target entropy now, in environment units, nats."""
        return self._entropy_at(self.updates)

    def priorities(self) -> NDArray[np.float32]:
        """Return the absolute errors of the last batch's values, ``(batch,)``; waits for the device.

        Of a sequence, the mean over the steps that were learned from. One without any has 0, or NaN, which
        changes nothing, where its episode goes on.
        """
        if self._last is None:
            raise RuntimeError("priorities() before the first update")
        values, targets, judged = self._last
        length = self.config.sequence_length if self.config.memory != "none" else 1
        errors = (values - targets).abs().mean(0).view(-1, length)
        counted = torch.ones_like(errors) if judged is None else judged.view(-1, length)
        means: NDArray[np.float32] = ((errors * counted).sum(1) / counted.sum(1).clamp_min(1.0)).cpu().numpy()
        return means

    def _nothing_learned(self, count: int) -> tuple[Tensor, Tensor, None]:
        """Return errors that leave the priorities of a skipped batch as they were: none of them is finite."""
        rows = count * (self.config.sequence_length if self.config.memory != "none" else 1)
        values = torch.full((1, rows), float("nan"))
        return values, values[0], None

    def faults(self) -> list[str]:
        """Return a sentence for each network that was kept from bad steps since the last call; waits."""
        return [text for part in (self._critics, self._actor, self._alpha) if (text := part.fault())]

    def effects(self) -> list[str]:
        """Return sentences, once, about what compilation and mixed precision came to."""
        if self.updates - self._restored_updates < self.config.policy_delay:
            return []  # the actor's part was not compiled yet
        return self._acceleration.effects(self.networks.computed_in)

    def _entropy_at(self, updates: int) -> float:
        config = self.config
        return self._action.target_entropy(config.entropy_per_dim(updates), config.target_entropy_share)

    def _follow_schedules(self) -> None:
        config = self.config
        for part in (self._critics, self._actor, self._alpha):
            part.follow(self.updates)
        if config.schedule_updates:
            self._target_entropy.fill_(self._entropy_at(self.updates))
            if not config.learn_temperature:
                self.networks.log_alpha.data.fill_(float(np.log(config.temperature(self.updates))))

    def policy_bytes(self, version: int) -> bytes:
        """Return the present actor as an artefact, weights and statistics of one moment folded together.

        Raises:
            PolicyError: if a weight is not finite: training has diverged.
        """
        writer = ProgramWriter()
        x = self.networks.write(writer, self._loader.actor.write(writer))
        self._action.write(writer, x)
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
        self._restored_updates = self.updates
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


def _over_real(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean over ``(..., batch)``, of the real steps where ``weights`` has 0 for the others."""
    return values.mean() if weights is None else (values * weights).mean()


def _check_read(config: SACConfig, actor: GroupInputs, critic: GroupInputs) -> None:
    """Refuse options for what is not observed."""
    check_encoder(config.encoder, actor, critic)
    if config.shared_encoder and not actor.pictures and config.memory == "none":
        raise ConfigError("sac.shared_encoder is on, but there is neither an image, a history nor a memory")
    if config.normalise_observations and not (actor.vector_size and critic.vector_size):
        raise ConfigError("sac.normalise_observations is on, but there are no vectors to normalise")
