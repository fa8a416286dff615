"""Deep Q-learning: one update that reads top to bottom like the paper, for DQN and its descendants."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from tickrate import __version__
from tickrate.algorithms.descents import make_descent
from tickrate.algorithms.dqn_batch import TransitionLoader
from tickrate.algorithms.dqn_config import DQNConfig
from tickrate.algorithms.dqn_functions import DQNFunctions, Transition, functions_of, pick
from tickrate.algorithms.dqn_networks import DQNNetworks, QNetwork
from tickrate.algorithms.group_inputs import GroupInputs, check_encoder
from tickrate.artefact import Exploration, PolicyContract, action_spec, leaf_spec, pack
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError
from tickrate.nn.compiling import Acceleration
from tickrate.nn.devices import usable_device
from tickrate.nn.export import ProgramWriter
from tickrate.nn.features import VECTOR
from tickrate.nn.state import Arrays, check_arrays, load_arrays, module_tensors, to_arrays
from tickrate.nn.value_heads import CategoricalValues, ScalarValues, ValueHead


class DQN:
    """Deep Q-learning (Mnih et al. 2015) and what grew out of it, up to Rainbow (arXiv 1710.02298).

    Actions of several parts have a branch for each (arXiv 1711.08946).

    Args:
        config: the options.
        observation_spaces: leaf space by path of the canonical observation, in its order.
        action_space: Discrete or MultiDiscrete.
        seed: seeds the initial weights, noise and dropout.
        period_s: nominal step of the environment in seconds, for the contract; 0 for lock-step.
        action_buffer_length: number of past actions in the observation, for the contract.
        device: where the networks live.
        functions: replacements for single steps of the update.

    Raises:
        ConfigError: for another action space, or a leaf that cannot be read; names it.
    """

    def __init__(
        self,
        config: DQNConfig,
        observation_spaces: Mapping[str, spaces.Space[Any]],
        action_space: spaces.Space[Any],
        *,
        seed: int,
        period_s: float,
        action_buffer_length: int,
        device: str | torch.device = "cpu",
        functions: DQNFunctions | None = None,
    ) -> None:
        self.config, self._noise_seed = config, seed
        self.device = usable_device(device)
        paths = config.groups.get("actor", ())
        self.group = group = GroupInputs("actor", paths, observation_spaces, config.encoder)
        check_encoder(config.encoder, group)
        if config.normalise_observations and not group.vector_size:
            raise ConfigError("dqn.normalise_observations is on, but there are no vectors to normalise")
        self._loader = TransitionLoader(group, action_space, self.device)
        self.choices = self._loader.choices
        self.head: ValueHead = ScalarValues()
        if config.value_bins:
            low, high = config.value_low, config.value_high
            self.head = CategoricalValues(config.value_bins, high, self.device, low=low)
        start = torch.Generator().manual_seed(seed)
        online = QNetwork(config, group, self.choices, self.head.outputs, start)
        self.networks = DQNNetworks(config, online, group.vector_size).to(self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self.networks.generator = self._generator
        options = config.optimiser
        self._descent = make_descent("q_loss", self.networks.online, options, config.gradient_limit)
        self.functions = functions or functions_of(config)
        self._acceleration = Acceleration(config.compile, config.mixed_precision, self.device)
        self._terms = self._acceleration.compiled(self._plain_terms)
        self.updates = 0
        """Updates done so far."""
        self._restored_updates = 0
        self._metrics: dict[str, SupportsFloat] = {}
        self._surprise: Tensor | None = None
        self._contract = functools.partial(
            PolicyContract,
            algorithm="dqn",
            observation=tuple(leaf_spec(path, space) for path, space in observation_spaces.items()),
            action=action_spec(action_space),
            head="greedy",
            groups={"actor": group.paths},
            period_s=period_s,
            action_buffer_length=action_buffer_length,
            tickrate=__version__,
        )

    @property
    def epsilon(self) -> float:
        """Probability of a random action of a policy published now."""
        return self.config.epsilon(self.updates)

    def observe(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Count new observations into the normaliser's statistics; does nothing when it is off."""
        if self.networks.normaliser is not None:
            values = self.group.arrays([dict(observation)])[VECTOR]
            self.networks.normaliser.observe(self._loader.tensor(values[np.isfinite(values).all(1)]))

    def update(self, batch: Batch) -> Mapping[str, SupportsFloat]:
        """Do one update, and move the target copy at every ``target_every``-th.

        A batch with values that are not finite, or choices that do not exist, is skipped and counted; a loss
        or gradient that is not finite changes no weight and no statistic. Nothing in here waits for the
        device.

        Returns:
            Metrics, scalars on the device: q_loss, q_mean, target_mean and td_error (units of reward; mean
            absolute error), the gradient's length q_gradient, and the host's epsilon and skipped_updates.

        Raises:
            ConfigError: if inputs are to be normalised and `observe` was never called.
        """
        networks, metrics, head = self.networks, self._metrics, self.head
        if networks.normaliser is not None and networks.normaliser.count == 0:
            raise ConfigError(
                "dqn.normalise_observations is on, but observe() was never called: "
                "give it every new observation once"
            )
        transition = self._loader.load(batch)
        if transition is None:
            self._surprise = torch.full((len(batch),), float("nan"))  # priorities stay as they were
            return {**metrics, "skipped_updates": self._loader.skipped}
        transition = dataclasses.replace(transition, inputs=networks.normalised(transition.inputs))
        self._descent.follow(self.updates)

        loss, chosen, target = self._terms(transition)
        metrics["q_loss"] = self._descent.descend(loss)
        metrics["q_gradient"] = self._descent.length

        values, target_values = head.mean(chosen), head.target_mean(target)
        metrics["q_mean"], metrics["target_mean"] = values.mean(), target_values.mean()
        metrics["td_error"] = (values - target_values).abs().mean()
        self._surprise = head.surprise(chosen, target).sum(0)
        self.updates += 1
        if self.updates % self.config.target_every == 0:
            networks.move_target()
        return {**metrics, "epsilon": self.epsilon, "skipped_updates": self._loader.skipped}

    def _plain_terms(self, transition: Transition) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the outputs for the actions taken without gradients, and the target.

        The outputs are ``(parts, batch, atoms)``, the target ``(batch,)`` or ``(batch, atoms)``.
        """
        functions, head = self.functions, self.head
        with self._acceleration.precision():
            outputs = functions.outputs(self.networks, transition)
        with torch.no_grad():
            target = functions.target(
                head,
                self.choices,
                transition.reward,
                transition.discount,
                outputs.choosing,
                outputs.valuing,
            )
        chosen = pick(outputs.now, transition.action)
        loss = functions.loss(head, chosen, target).mean(0)
        if transition.weights is not None:
            loss = loss * transition.weights
        return loss.mean(), chosen.detach(), target

    def priorities(self) -> NDArray[np.float32]:
        """Return how far the network was from each target of the last batch, ``(batch,)``; waits.

        The absolute errors of values; of distributions the divergence that the loss descends (Rainbow). Those
        of several parts are added (arXiv 1711.08946).
        """
        if self._surprise is None:
            raise RuntimeError("priorities() before the first update")
        surprise: NDArray[np.float32] = self._surprise.float().cpu().numpy()
        return surprise

    def faults(self) -> list[str]:
        """Return a sentence if the network was kept from bad steps since the last call; waits."""
        return [text] if (text := self._descent.fault()) else []

    def effects(self) -> list[str]:
        """Return sentences, once, about what compilation and mixed precision came to."""
        if self.updates == self._restored_updates:
            return []  # nothing was computed yet
        return self._acceleration.effects(self.networks.online.computed_in)

    def policy_bytes(self, version: int) -> bytes:
        """Return the present policy as an artefact, weights and statistics of one moment folded together.

        With ``noisy_policies`` the noise depends on the seed and the version alone.

        Raises:
            PolicyError: if a weight is not finite: training has diverged.
        """
        config, networks, head = self.config, self.networks, self.head
        network = networks.online
        if config.noisy_policies:
            mixed = int(np.random.SeedSequence((self._noise_seed, version)).generate_state(1)[0])
            network = copy.deepcopy(network)
            network.keep_noise(torch.Generator(self.device).manual_seed(mixed))
        writer = ProgramWriter()
        vector = self.group.write(writer)
        if networks.normaliser is not None and vector is not None:
            vector = networks.normaliser.write(writer, vector)
        x = network.write(writer, vector)
        if isinstance(head, CategoricalValues):
            writer.expected_value(x, head.outputs, head.low, head.limit)
        program, weights = writer.finish()
        contract = self._contract(
            program=program, policy_version=version, exploration=Exploration(epsilon=self.epsilon)
        )
        return pack(contract, weights)

    def state(self) -> Arrays:
        """Return a copy of networks, statistics, optimiser, counters and random state, by name."""
        arrays = to_arrays(self._tensors())
        arrays["updates"] = np.array(self.updates, np.int64)
        arrays["skipped"] = np.array(self._loader.skipped, np.int64)
        arrays["noise_seed"] = np.array(self._noise_seed, np.uint64)
        arrays["random"] = self._generator.get_state().numpy().copy()
        if self.networks.normaliser is not None:
            arrays["count"] = np.array(self.networks.normaliser.count, np.int64)
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
        self._noise_seed = int(state["noise_seed"].item())
        if self.networks.normaliser is not None:
            self.networks.normaliser.count = int(state["count"].item())

    def _tensors(self) -> dict[str, Tensor]:
        return module_tensors(self.networks, "networks") | self._descent.tensors("online")
