"""Puts a learner together from the parts that an experiment names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate import registry
from tickrate.algorithms.protocol import Algorithm
from tickrate.data.augment import Mirror
from tickrate.data.demonstrations import load_demonstrations
from tickrate.data.mixture import Mixture
from tickrate.data.priorities import Proportional
from tickrate.data.replay import Replay
from tickrate.data.return_scale import ReturnScale
from tickrate.errors import ConfigError, RecordError, RunFolderError, suggest
from tickrate.realtime.spaces import ACTIONS
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner import Learner
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder
from tickrate.tracking.tracker import Tracker

_log = logging.getLogger(__name__)


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
        journal: keep the replay in the run folder's journal, where it survives a kill.
        synchronous_steps: steps of the rounds of a synchronous run; 0: there are none.
        changed: names of the settings that somebody chose; those that do nothing are refused.
    """

    algorithm: str
    settings: Any
    replay: ReplayConfig
    trainer: TrainerConfig
    evaluation_episodes: int
    seed: int
    journal: bool = False
    synchronous_steps: int = 0
    changed: frozenset[str] = frozenset()

    def build(
        self,
        contract: EnvironmentContract,
        folder: RunFolder,
        tracker: Tracker,
        *,
        resume: bool,
        started: float | None = None,
        algorithm: Algorithm | None = None,
    ) -> Learner:
        """Return a learner for an environment, new or continued from the newest checkpoint.

        Args:
            contract: the environment.
            folder: where the learner keeps its files.
            tracker: where metrics go.
            resume: continue from the newest checkpoint and the journal.
            started: the time (of `clock.now`) at which the command was given; now when omitted.
            algorithm: what `make_algorithm` returned for this environment; made here when omitted.

        Raises:
            RunFolderError: if ``resume`` is set and there is no checkpoint, or it cannot be used.
            RecordError: if journal or demonstrations are damaged, or hold rows of another shape; says what
                to do.
            ConfigError: if the algorithm cannot learn in these spaces or gives no priorities where they are
                asked for, the replay does not fit into memory, a file of demonstrations is not there, or the
                declared symmetry is none.
        """
        algorithm = self.make_algorithm(contract) if algorithm is None else algorithm
        demonstrations = self._load_demonstrations(contract, self._seeds[2])
        replay = self._open_replay(contract, folder, self._seeds[1])
        for note in replay.notes:
            _log.warning("%s", note)
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
            return_scale=self._return_scale(),
            synchronous_steps=self.synchronous_steps,
            demonstrations=None if demonstrations is None else Mixture(replay, demonstrations, self._share),
            importance_exponent=self.replay.importance_exponent,
        )
        if started is not None:
            learner.began_at(started)
        self._fill(learner, folder, resume)
        folder.accept_experiment()
        return learner

    def _fill(self, learner: Learner, folder: RunFolder, resume: bool) -> None:
        """Give a learner what its run has made so far, or the demonstrations to begin with."""
        checkpoint = folder.latest_checkpoint() if resume else None
        if checkpoint is not None:
            learner.restore(checkpoint)
            return
        if resume and not self.journal:
            raise RunFolderError(f"{folder.path} has no complete checkpoint to resume from")
        learner.observe_demonstrations()
        if resume:
            learner.recover()

    def _return_scale(self) -> ReturnScale | None:
        limit = self.replay.return_limit
        return ReturnScale(self.replay.gamma, limit) if limit else None

    def make_algorithm(self, contract: EnvironmentContract) -> Algorithm:
        """Return a fresh algorithm for an environment.

        Raises:
            ConfigError: if it cannot learn in these spaces, or does not use there what was set.
        """
        self._check_used(contract.action_space)
        device = {} if self.trainer.device == "cpu" else {"device": self.trainer.device}
        algorithm: Algorithm = registry.resolve(registry.algorithm(self.algorithm).build)(
            self.settings,
            contract.leaf_spaces,
            contract.action_space,
            seed=self._seeds[0],
            period_s=contract.period_s,
            action_buffer_length=contract.action_buffer_length,
            **device,
        )
        return algorithm

    def _check_used(self, action_space: spaces.Space[Any]) -> None:
        kind = "box" if isinstance(action_space, spaces.Box) else "choices"
        for option, needed in registry.algorithm(self.algorithm).used_only_for.items():
            if option in self.changed and needed != kind:
                raise ConfigError(
                    f"algorithm.{option} is set, but {self.algorithm} does not use it where the actions are "
                    f"{action_space}: leave it out"
                )

    @property
    def _seeds(self) -> list[int]:
        """Seeds of the networks, of the replay's sampling and of the demonstrations'."""
        seeds: list[int] = np.random.SeedSequence(self.seed).generate_state(3).tolist()
        return seeds

    @property
    def _share(self) -> float:
        """Share of each batch from demonstrations."""
        return 1.0 if self.trainer.offline_updates is not None else self.replay.demonstration_share

    @property
    def _sampling(self) -> Proportional | None:
        prioritised = self.replay.sampling == "prioritised"
        return Proportional(self.replay.priority_exponent) if prioritised else None

    def _load_demonstrations(self, contract: EnvironmentContract, seed: int) -> Replay | None:
        """Return the demonstrations. They come first: what memory they take, the replay cannot have."""
        if not self.replay.demonstrations:
            return None
        return load_demonstrations(
            [Path(name) for name in self.replay.demonstrations],
            contract.schema(),
            gamma=self.replay.gamma,
            n_step=self.replay.n_step,
            seed=seed,
            sampling=self._sampling,
        )

    def _open_replay(self, contract: EnvironmentContract, folder: RunFolder, seed: int) -> Replay:
        try:
            return Replay(
                contract.schema(),
                self.replay.capacity,
                gamma=self.replay.gamma,
                n_step=self.replay.n_step,
                seed=seed,
                path=folder.journal if self.journal else None,
                sync=self.replay.sync,
                sampling=self._sampling,
            )
        except RecordError as error:
            raise RecordError(
                f"this run's journal cannot be used: {error}. Restore a copy of the file, take back the "
                "change, or start the run anew with --replace"
            ) from error


def mirror_of(contract: EnvironmentContract) -> Mirror | None:
    """Return the augmentation for the left-right symmetry that the interface declares, or None.

    The action buffer is not the interface's: it is mirrored as the actions are, wherever it is observed.

    Raises:
        ConfigError: if what it declares has another form, names a leaf that is not there, or is no symmetry.
    """
    if contract.mirror is None:
        return None
    if not isinstance(contract.action_space, spaces.Box):
        raise ConfigError(
            f"mirror() of the interface changes signs, but the actions are {contract.action_space}: "
            "categories have none; set replay.mirror to false"
        )
    try:
        leaves = {str(path): (given[0], given[1]) for path, given in contract.mirror["observation"].items()}
        action = contract.mirror["action"]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(
            "mirror() of the interface must return {'observation': {leaf: (permutation, signs)}, "
            f"'action': signs}}; got {contract.mirror!r}"
        ) from error
    if not contract.action_buffer_length:
        leaves.pop(ACTIONS, None)
    elif ACTIONS in contract.leaf_spaces:
        leaves.setdefault(ACTIONS, (None, action))
    for path in leaves:
        if path not in contract.leaf_spaces:
            near = suggest(path, contract.leaf_spaces)
            raise ConfigError(
                f"mirror() of the interface names the leaf {path!r}, which is not observed.{near}"
            )
    return Mirror(leaves, action)
