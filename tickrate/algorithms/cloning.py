"""A start by behaviour cloning: the loss of an actor that follows demonstrations, and then less and less."""

from __future__ import annotations

import torch
from torch import Tensor

from tickrate.algorithms.sac_config import SACConfig
from tickrate.algorithms.sac_functions import Transition
from tickrate.nn.policy_heads import PolicyHead


class Cloning:
    """How far the actor follows the demonstrations now.

    Args:
        config: says at which updates it does.
        device: where the losses are.

    Attributes:
        imitates: whether anything of the actor's loss is imitation now.
        climbs: whether anything of it is what the critics say.
    """

    def __init__(self, config: SACConfig, device: torch.device) -> None:
        self._config = config
        self._share = torch.zeros((), device=device)  # a tensor: compiled code is not tied to its value
        self.imitates, self.climbs = False, True

    def begin(self, update: int) -> None:
        """Set what holds at the update of this number, counted from 1."""
        share = self._config.cloning_share(update)
        self.imitates, self.climbs = share > 0.0, share < 1.0
        if self.imitates:
            self._share.fill_(share)

    def temperature(self, alpha: Tensor) -> Tensor:
        """Return the entropy coefficient that counts now: none of it while the actor only imitates.

        Imitation decides then how random the policy is. An entropy term would only make critics judge the
        demonstrations by how certain they are.
        """
        return alpha * (1.0 - self._share) if self.imitates else alpha

    def loss(self, head: PolicyHead, output: Tensor, transition: Transition) -> Tensor:
        """Return how unlikely the demonstrated actions are, ``(batch,)``, nats; 0 at the other rows.

        Scaled so that the mean over the batch is that over its demonstrations.

        Args:
            head: what the policy's outputs mean.
            output: of the policy, ``(batch, outputs)``.
            transition: the batch.
        """
        loss = head.negative_log_likelihood(output, transition.action)
        if transition.taught is None:
            return loss
        taught = transition.taught.float()
        return loss * taught * (len(taught) / taught.sum().clamp_min(1.0))

    def mixed(self, imitation: Tensor, climbing: Tensor, size: Tensor) -> Tensor:
        """Return the loss on the way from imitation to the critics, ``(batch,)``.

        Values may have any scale; imitation is in nats. Times the mean size of the values both weigh alike
        (as in TD3+BC, arXiv 2106.06860, equation 5).

        Args:
            imitation: what `loss` returned.
            climbing: loss of an actor that climbs the critics, ``(batch,)``.
            size: mean absolute value of the actions, a scalar.
        """
        return (1.0 - self._share) * climbing + self._share * size * imitation
