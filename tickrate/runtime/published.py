"""The policies that a run has handed out: their versions, their scores in evaluations, the best of them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tickrate import clock
from tickrate.errors import RunFolderError
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.run_folder import RunFolder, write_atomically

KEPT_POLICIES = 512
"""Published policies kept in memory, so that the one that did best in an evaluation can still be saved."""

HANDED_OUT = "handed_out.policy"
"""Name of the newest published policy in the checkpoint of a synchronous run."""


class Published:
    """Numbers policies, keeps the newest of them, and saves the one that did best in an evaluation.

    Args:
        folder: where the best policy goes.
        evaluation_episodes: episodes that make one evaluation; the worst of them is a policy's score.

    Attributes:
        version: of the newest policy, 0 before the first; may be one of an earlier life of the trainer.
        best_score: score of the best policy, -inf before the first evaluation.
        best_version: its version, 0 before the first evaluation.
    """

    def __init__(self, folder: RunFolder, evaluation_episodes: int) -> None:
        self.version = 0
        self.best_score = -np.inf
        self.best_version = 0
        self._folder = folder
        self._evaluation_episodes = evaluation_episodes
        self._policies: OrderedDict[int, tuple[bytes, float]] = OrderedDict()
        self._scores: dict[int, list[float]] = {}

    def add(self, policy_bytes: Callable[[int], bytes]) -> tuple[int, bytes]:
        """Return (version, policy) of one more policy; ``policy_bytes`` makes it of its version."""
        self.version += 1
        weights = policy_bytes(self.version)
        self._policies[self.version] = (weights, clock.now())
        while len(self._policies) > KEPT_POLICIES:
            self._policies.popitem(last=False)
        return self.version, weights

    def seen(self, version: int) -> None:
        """Take note of a version that a worker acts with: the next policy has to count as newer.

        It may have been handed out by an earlier life of this trainer, after its last checkpoint.
        """
        self.version = max(self.version, version)

    def published_at(self, version: int) -> float | None:
        """Return when a policy was published (of `clock.now`), None if it is not known any more."""
        kept = self._policies.get(version)
        return None if kept is None else kept[1]

    @property
    def handed_out(self) -> tuple[int, bytes] | None:
        """The newest policy (version, bytes) as it was published, None if it is not known any more."""
        kept = self._policies.get(self.version)
        return None if kept is None else (self.version, kept[0])

    def judge(self, summary: EpisodeSummary) -> None:
        """Count an episode of an evaluation, and save its policy if that is the best one now.

        An episode that was cut, or in which a person helped, spoils the evaluation: it begins again.

        Raises:
            OSError: if the policy cannot be written.
        """
        version = summary.policy_version
        if summary.cut or summary.metrics.get("takeover_steps"):
            self._scores.pop(version, None)
            return
        scores = self._scores.setdefault(version, [])
        scores.append(summary.score)
        if len(scores) < self._evaluation_episodes:
            return
        worst = min(self._scores.pop(version))
        kept = self._policies.get(version)
        if worst > self.best_score and kept is not None:
            self.best_score, self.best_version = worst, version
            write_atomically(self._folder.best_policy, kept[0])
            write_atomically(self._folder.best, json.dumps({"score": worst, "version": version}).encode())

    # --- resume --------------------------------------------------------------------------------------------

    def save_handed_out(self, checkpoint: Path) -> None:
        """Put the newest policy, if it is known, into a checkpoint: the weights may have gone on since."""
        if (policy := self.handed_out) is not None:
            write_atomically(checkpoint / HANDED_OUT, policy[1])

    def restore(self, checkpoint: Path, *, version: int, best_score: float, best_version: int) -> None:
        """Continue from a checkpoint, which has the numbers among its counters.

        Raises:
            RunFolderError: if a policy or the best score cannot be read.
        """
        self.version = version
        self.best_score, self.best_version = best_score, best_version
        self._recall_handed_out(checkpoint)
        self._recall_best()

    def _recall_handed_out(self, checkpoint: Path) -> None:
        """Know again what the workers act with: it goes out once more under the same version."""
        path = checkpoint / HANDED_OUT
        try:
            if path.exists():
                self._policies[self.version] = (path.read_bytes(), clock.now())
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    def _recall_best(self) -> None:
        """Take the best score from beside the best policy: it may have been found after the checkpoint."""
        if not (self._folder.best.exists() and self._folder.best_policy.exists()):
            return
        try:
            best = json.loads(self._folder.best.read_text(encoding="utf-8"))
            score, version = float(best["score"]), int(best["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self._folder.best} does not say a score and a version: {error!r}"
            ) from error
        if score > self.best_score:
            self.best_score, self.best_version = score, version
