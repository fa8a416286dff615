"""What critics say: a number, or a distribution over fixed values; how targets are made and losses taken."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class ScalarValues:
    """A critic's output is the value itself; the loss is half the squared error."""

    outputs = 1
    """Outputs of a critic."""

    def mean(self, output: Tensor) -> Tensor:
        """Return the values, ``(critics, batch)``, of outputs ``(critics, batch, 1)``."""
        return output.squeeze(2)

    def least(self, output: Tensor) -> Tensor:
        """Return of each row the smallest critic's value, ``(batch,)``."""
        return self.mean(output).amin(0)

    def belief(self, output: Tensor) -> Tensor:
        """Return outputs ``(..., 1)`` as `target` takes them: the values, ``(...)``."""
        return output.squeeze(-1)

    def target(self, reward: Tensor, discount: Tensor, following: Tensor, bonus: Tensor) -> Tensor:
        """Return ``r + discount * (V + bonus)``, ``(batch,)``; ``following`` is `least` or a `belief`."""
        return reward + discount * (following + bonus)

    def target_mean(self, target: Tensor) -> Tensor:
        """Return the targets' values, ``(batch,)``."""
        return target

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return half the squared error, ``(critics, batch)``."""
        return 0.5 * (self.mean(output) - target).square()

    def surprise(self, output: Tensor, target: Tensor) -> Tensor:
        """Return how far outputs are from a target, ``(critics, batch)``: the absolute error."""
        return (self.mean(output) - target).abs()


class CategoricalValues:
    """A critic's outputs are logits over evenly spaced values; the loss is the cross-entropy.

    The target distribution is that of the successor, moved and scaled, and split between the two nearest
    values (C51, arXiv 1707.06887). What lies beyond the limits is clamped to them: they have to hold the
    returns, or rewards have to be scaled to fit (`tickrate.data.return_scale`).

    Args:
        bins: number of values.
        limit: largest value.
        device: where the values live.
        low: smallest value; None: ``-limit``.
    """

    def __init__(self, bins: int, limit: float, device: torch.device, *, low: float | None = None) -> None:
        self.outputs, self.limit = bins, limit
        self.low = -limit if low is None else low
        self._width = (limit - self.low) / (bins - 1)
        self._values = torch.linspace(self.low, limit, bins, device=device)

    def mean(self, output: Tensor) -> Tensor:
        """Return the distributions' means, ``(critics, batch)``, of logits ``(critics, batch, bins)``."""
        return torch.softmax(output, 2) @ self._values

    def least(self, output: Tensor) -> Tensor:
        """Return of each row the distribution of the critic whose mean is smallest, ``(batch, bins)``."""
        probabilities = torch.softmax(output, 2)
        smallest = (probabilities @ self._values).argmin(0)
        return probabilities.gather(0, smallest[None, :, None].expand(1, -1, output.shape[2]))[0]

    def belief(self, output: Tensor) -> Tensor:
        """Return logits ``(..., bins)`` as `target` takes them: the probabilities."""
        return torch.softmax(output, -1)

    def target(self, reward: Tensor, discount: Tensor, following: Tensor, bonus: Tensor) -> Tensor:
        """Return the distribution of ``r + discount * (V + bonus)``, ``(batch, bins)``."""
        moved = reward[:, None] + discount[:, None] * (self._values + bonus[:, None])
        place = (moved.clamp(self.low, self.limit) - self.low) / self._width
        lower = place.floor().clamp_(max=self.outputs - 2)
        upper_share = place - lower
        # A value that is no number has no place: its share stays NaN, which the guard of the loss sees.
        index = lower.nan_to_num(0.0).long()
        target = torch.zeros_like(following)
        target.scatter_add_(1, index, following * (1.0 - upper_share))
        return target.scatter_add_(1, index + 1, following * upper_share)

    def target_mean(self, target: Tensor) -> Tensor:
        """Return the targets' means, ``(batch,)``."""
        return target @ self._values

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy of the logits with the target, ``(critics, batch)``."""
        return -(target * functional.log_softmax(output, 2)).sum(2)

    def surprise(self, output: Tensor, target: Tensor) -> Tensor:
        """Return how far outputs are from a target, ``(critics, batch)``: the divergence KL(target, output).

        It is what is left of the cross-entropy without the target's own entropy (Rainbow, arXiv 1710.02298).
        """
        entropy: Tensor = torch.special.entr(target).sum(1)
        return (self.loss(output, target) - entropy).clamp_min(0.0)


ValueHead = ScalarValues | CategoricalValues
