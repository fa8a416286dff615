"""From a replay's batch to SAC's tensors: groups read, actions coded, non-finite values refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tickrate.algorithms.action_coding import ActionCoding
from tickrate.algorithms.group_inputs import GroupInputs
from tickrate.algorithms.sac_functions import Transition
from tickrate.data.batch import Batch, SequenceBatch
from tickrate.nn.features import VECTOR

_log = logging.getLogger(__name__)


class TransitionLoader:
    """Turns batches into `Transition`s on a device.

    Args:
        actor: the actor's observation group.
        critic: the critics' observation group.
        action: how actions are seen.
        device: where the tensors go.
        burn_in: first steps of each sequence that only fill the memory.
        cloning: whether it matters which rows are demonstrations.
    """

    def __init__(
        self,
        actor: GroupInputs,
        critic: GroupInputs,
        action: ActionCoding,
        device: torch.device,
        burn_in: int = 0,
        cloning: bool = False,
    ) -> None:
        self.actor, self.critic, self.action, self.device = actor, critic, action, device
        self.skipped = 0
        """Batches refused because they held values that are not finite."""
        self._burn_in, self._cloning = burn_in, cloning
        self._one_group = actor.paths == critic.paths

    def load(self, batch: Batch | SequenceBatch) -> Transition | None:
        """Return the batch on the device, or None, counted and told once, if a value in it is not finite.

        Sequences are laid out step by step: row ``i * T + t`` is step ``t`` of sequence ``i``.
        """
        sequences = len(batch) if isinstance(batch, SequenceBatch) else 0
        lead = 2 if sequences else 1
        observations = [_merged(leaves, lead) for leaves in batch.observations]
        arrays = {f"actor:{name}": value for name, value in self.actor.arrays(observations).items()}
        if not self._one_group:
            critic = self.critic.arrays(observations)
            arrays |= {f"critic:{name}": value for name, value in critic.items()}
        arrays |= {
            "action": self.action.encode(batch.action.reshape(-1, *batch.action.shape[lead:])),
            "reward": np.asarray(batch.reward, np.float32).reshape(-1),
            "discount": np.asarray(batch.discount, np.float32).reshape(-1),
        }
        bad = [n for n, value in arrays.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
        if bad:
            self._skip(bad, batch)
            return None
        tensors = {name: self._tensor(value) for name, value in arrays.items()}
        weights, mask, judged = self._weights(batch)
        actor = _named(tensors, "actor:")
        return Transition(
            actor=actor,
            critic=actor if self._one_group else _named(tensors, "critic:"),
            action=tensors["action"],
            reward=tensors["reward"],
            discount=tensors["discount"],
            weights=weights,
            mask=mask,
            judged=judged,
            taught=self._tensor((batch.rows < 0).reshape(-1)) if self._cloning else None,
            sequences=sequences,
        )

    def _weights(self, batch: Batch | SequenceBatch) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the weights of each row's critic loss, of its actor loss, and what its priority is made of.

        The memory is filled by the first steps of a sequence, unless it begins where its episode does: there
        is nothing to fill it with. A sequence that ends within them teaches nothing: its priority is 0 where
        the episode has ended, and stays where more of it is to come. A whole batch of such is learned from as
        it is.
        """
        weights = batch.weights
        if isinstance(batch, Batch):
            return None if weights is None else self._tensor(weights), None, None
        mask = batch.mask.copy()
        mask[~batch.first, : self._burn_in] = False
        judged = mask.astype(np.float32)
        judged[~mask.any(1) & ~batch.ended] = np.nan
        if not mask.any():
            mask = batch.mask
        scale = mask.size / max(1, int(np.count_nonzero(mask)))
        share = mask.astype(np.float32) * np.float32(scale)
        losses = share if weights is None else share * weights[:, None]
        critic, actor, judge = (self._tensor(part.reshape(-1)) for part in (losses, share, judged))
        return critic, actor, judge

    def rows(self, group: GroupInputs, observation: Mapping[str, NDArray[Any]]) -> Tensor:
        """Return a group's vectors as ``(rows, size)`` on the device, without rows that are not finite."""
        values = group.arrays([dict(observation)])[VECTOR]
        return self._tensor(values[np.isfinite(values).all(1)])

    def _tensor(self, value: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(value)).to(self.device, non_blocking=True)

    def _skip(self, bad: list[str], batch: Batch | SequenceBatch) -> None:
        self.skipped += 1
        leaves = [
            f"{'next ' * i}{path}"
            for i, observation in enumerate(batch.observations)
            for path, value in observation.items()
            if not np.isfinite(value).all()
        ]
        if self.skipped == 1:
            _log.warning(
                "update skipped: values that are not finite, or categories that do not exist, in %s (leaves "
                "%s); further ones are only counted, as skipped_updates. Look at the rows the environment "
                "recorded.",
                bad,
                leaves or "with finite numbers all of them: it is a category",
            )


def _merged(leaves: Mapping[str, NDArray[Any]], lead: int) -> dict[str, NDArray[Any]]:
    """Return leaves with their first ``lead`` axes as one."""
    if lead == 1:
        return dict(leaves)
    return {path: value.reshape(-1, *value.shape[lead:]) for path, value in leaves.items()}


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
