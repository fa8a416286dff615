"""Puts a learner together from the parts that an experiment names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tickrate import registry
from tickrate.algorithms.protocol import Algorithm
from tickrate.data.augment import Mirror
from tickrate.data.replay import Replay
from tickrate.errors import RunFolderError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner import Learner, ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder
from tickrate.tracking.tracker import Tracker


@dataclass(frozen=True)
class LearnerParts:
    """What a learner is made of.

    Attributes:
        algorithm: name in the registry.
        settings: the algorithm's configuration.
        replay: replay configuration.
        trainer: trainer configuration.
        evaluation_episodes: episodes of one evaluation.
        seed: seed of networks and sampling.
    """

    algorithm: str
    settings: Any
    replay: ReplayConfig
    trainer: TrainerConfig
    evaluation_episodes: int
    seed: int

    def build(self, contract: EnvironmentContract, folder: RunFolder, tracker: Tracker, *, resume: bool) -> Learner:
        """Return a learner for an environment, new or continued from the newest checkpoint.

        Raises:
            RunFolderError: if ``resume`` is set and there is no checkpoint, or it cannot be used.
            ConfigError: if the algorithm cannot learn in these spaces, or the replay does not fit into memory.
        """
        learning_seed, replay_seed = np.random.SeedSequence(self.seed).generate_state(2).tolist()
        algorithm: Algorithm = registry.resolve(registry.algorithm(self.algorithm).build)(
            self.settings,
            contract.leaf_spaces,
            contract.action_space,
            seed=learning_seed,
            period_s=contract.period_s,
            action_buffer_length=contract.action_buffer_length,
        )
        replay = Replay(
            contract.schema(),
            self.replay.capacity,
            gamma=self.replay.gamma,
            n_step=self.replay.n_step,
            seed=replay_seed,
        )
        learner = Learner(
            algorithm,
            replay,
            self.trainer,
            folder,
            tracker,
            batch_size=self.settings.batch_size,
            period_s=contract.period_s,
            evaluation_episodes=self.evaluation_episodes,
            mirror=mirror_of(contract) if self.replay.mirror else None,
        )
        if resume:
            checkpoint = folder.latest_checkpoint()
            if checkpoint is None:
                raise RunFolderError(f"{folder.path} has no complete checkpoint to resume from")
            learner.restore(checkpoint)
        return learner


def mirror_of(contract: EnvironmentContract) -> Mirror | None:
    """Return the augmentation for the left-right symmetry that the interface declares, or None."""
    if contract.mirror is None:
        return None
    return Mirror(contract.mirror["observation"], contract.mirror["action"])
