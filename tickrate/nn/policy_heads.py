"""From the actor's outputs to actions and their log-probabilities: squashed Gaussian, or categories."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tickrate.nn.gaussian import mean_and_log_std, squashed_sample

Judge = Callable[[Tensor, int], Tensor]
"""(actions ``(n * rows, size)``, n) -> values ``(critics, n * rows)`` of the same observations, n times."""


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

    def value(self, output: Tensor, action: Tensor, judge: Judge) -> Tensor:
        """Return what critics say of the actions, ``(critics, rows)``; the gradient goes through them."""
        return judge(action, 1)

    def negative_log_likelihood(self, output: Tensor, action: Tensor) -> Tensor:
        """Return how unlikely given actions are, ``(batch,)``, in nats; at a bound they are moved off it."""
        offset, low, high = self._log_std
        mean, log_std = mean_and_log_std(output, offset=offset, low=low, high=high)
        u = torch.atanh(action.clamp(-1.0 + 1e-4, 1.0 - 1e-4))
        return -squashed_sample(mean, log_std, (u - mean) * torch.exp(-log_std), self._log_scale)[1]


class CategoricalHead:
    """One or several choices among categories, as one-hot vectors side by side.

    The sample is exact (the Gumbel maximum). The log-probability is its expectation, ``sum p log p``: for a
    soft value it has the same mean and no noise.

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
        """Return one-hot choices ``(batch, size)``, no gradient in them; negative entropies ``(batch,)``."""
        choices, minus_entropy = [], output.new_zeros(len(output))
        for logits, gumbel in zip(self._split(output), self._split(noise), strict=True):
            log_prob = torch.log_softmax(logits, 1)
            minus_entropy = minus_entropy + (log_prob.exp() * log_prob).sum(1)
            best = (log_prob.detach() + gumbel).argmax(1, keepdim=True)
            choices.append(torch.zeros_like(gumbel).scatter_(1, best, 1.0))
        return torch.cat(choices, 1), minus_entropy

    def value(self, output: Tensor, action: Tensor, judge: Judge) -> Tensor:
        """Return values as the policy expects them, ``(critics, rows)``; its probabilities get the gradient.

        Each choice in turn is averaged over all its categories while the others stay as sampled: exact for
            one choice, unbiased for several, and critics need no gradient.
        """
        rows, size = action.shape
        with torch.no_grad():
            others = action.expand(size, rows, size).clone()
            begin = 0
            for count in self.parts:
                others[begin : begin + count, :, begin : begin + count] = torch.eye(
                    count, device=action.device
                ).unsqueeze(1)
                begin += count
            values = judge(others.view(-1, size), size)
        values = values.view(len(values), size, rows)
        probabilities = torch.cat([torch.softmax(logits, 1) for logits in self._split(output)], 1)
        expected = [part.sum(1) for part in torch.split(values * probabilities.T, list(self.parts), 1)]
        # The sum has the gradient of every choice; it counts the value once.
        return expected[0] + sum(part - part.detach() for part in expected[1:])

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        return torch.split(values, list(self.parts), 1)

    def negative_log_likelihood(self, output: Tensor, action: Tensor) -> Tensor:
        """Return how unlikely given one-hot choices are, ``(batch,)``, in nats."""
        logs = [torch.log_softmax(logits, 1) for logits in self._split(output)]
        return -(torch.cat(logs, 1) * action).sum(1)


PolicyHead = GaussianHead | CategoricalHead
