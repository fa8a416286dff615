"""From the actor's outputs to actions and their log-probabilities: squashed Gaussian, or categories."""

from __future__ import annotations

import torch
from torch import Tensor

from tickrate.nn.gaussian import mean_and_log_std, squashed_sample


class GaussianHead:
    """Bounded continuous actions, scaled to [-1, 1].

    Args:
        size: values in an action.
        log_scale: sum over the action of ``log((high - low) / 2)``.
        log_std: offset, low and high clamp of the network's log_std.
    """

    def __init__(self, size: int, log_scale: float, log_std: tuple[float, float, float]) -> None:
        self.size, self.outputs = size, 2 * size
        self._log_scale, self._log_std = log_scale, log_std

    def noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return what `sample` needs, ``(batch, size)``, on the generator's device."""
        return torch.randn((batch, self.size), generator=generator, device=generator.device)

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions ``(batch, size)`` and log-densities in environment units ``(batch,)``."""
        offset, low, high = self._log_std
        mean, log_std = mean_and_log_std(output, offset=offset, low=low, high=high)
        return squashed_sample(mean, log_std, noise, self._log_scale)

    def negative_log_likelihood(self, output: Tensor, action: Tensor) -> Tensor:
        """Return how unlikely given actions are, ``(batch,)``, in nats; at a bound they are moved off it."""
        offset, low, high = self._log_std
        mean, log_std = mean_and_log_std(output, offset=offset, low=low, high=high)
        u = torch.atanh(action.clamp(-1.0 + 1e-4, 1.0 - 1e-4))
        return -squashed_sample(mean, log_std, (u - mean) * torch.exp(-log_std), self._log_scale)[1]


class CategoricalHead:
    """One or several choices among categories, as one-hot vectors side by side.

    The sample is exact (the Gumbel maximum), its gradient that of the softmax at temperature 1 (straight
    through, arXiv 1611.01144). The log-probability is its expectation, ``sum p log p``: for a soft value it
    has the same mean and no noise.

    Args:
        parts: number of categories of each choice.
    """

    def __init__(self, parts: tuple[int, ...]) -> None:
        self.parts = parts
        self.size = self.outputs = sum(parts)

    def noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return Gumbel noise, ``(batch, size)``, on the generator's device."""
        exponential = torch.empty((batch, self.size), device=generator.device).exponential_(
            generator=generator
        )
        return exponential.clamp_min_(1e-30).log_().neg_()

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return one-hot choices ``(batch, size)`` with a gradient, and negative entropies ``(batch,)``."""
        choices, minus_entropy = [], output.new_zeros(len(output))
        for logits, gumbel in zip(
            torch.split(output, list(self.parts), 1), torch.split(noise, list(self.parts), 1), strict=True
        ):
            log_prob = torch.log_softmax(logits, 1)
            minus_entropy = minus_entropy + (log_prob.exp() * log_prob).sum(1)
            soft = torch.softmax(log_prob + gumbel, 1)
            hard = torch.zeros_like(soft).scatter_(1, soft.argmax(1, keepdim=True), 1.0)
            choices.append(hard + (soft - soft.detach()))
        return torch.cat(choices, 1), minus_entropy

    def negative_log_likelihood(self, output: Tensor, action: Tensor) -> Tensor:
        """Return how unlikely given one-hot choices are, ``(batch,)``, in nats."""
        logs = [torch.log_softmax(logits, 1) for logits in torch.split(output, list(self.parts), 1)]
        return -(torch.cat(logs, 1) * action).sum(1)


PolicyHead = GaussianHead | CategoricalHead
