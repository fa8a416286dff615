"""Keeps non-finite losses and gradients away from the weights, on the device; remembers which it was."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Guard:
    """Looks at one loss, its gradients and its statistics before each step of an optimiser.

    Nothing in `check` waits for the device; `faults` does.

    Args:
        name: what the loss is called in messages.
        parameters: names of the parameters, in the order of their gradients.
        statistics: names of the statistics that the loss was made with, in their order.
        device: where the tensors are.
        largest_norm: length to which longer gradients are cut, over all parameters; 0: they are left alone.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[str],
        statistics: Sequence[str],
        device: torch.device,
        *,
        largest_norm: float = 0.0,
    ) -> None:
        gradients = [f"the gradient of {parameter}" for parameter in parameters]
        self._names = [*gradients, *(f"the statistic {statistic}" for statistic in statistics), name]
        self._largest_norm = largest_norm
        self._count = torch.zeros((), device=device)
        self._bad = torch.zeros(len(self._names), device=device)
        """Squared norms and loss of the last bad step; all 0 before there was one."""

    @torch.no_grad()
    def check(
        self, loss: Tensor, gradients: Sequence[Tensor], statistics: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor]:
        """Return what to skip, and the gradients' length.

        Gradients that are too long are scaled in place.

        Args:
            loss: scalar, float32.
            gradients: of the parameters, in order.
            statistics: floats, in order.

        Returns:
            ``skip``, float32 scalar: 1 where the loss, or the square of a gradient or of a statistic, is not
            finite, else 0; and the length of all gradients together before any cut, float32 scalar.
        """
        norms = torch.stack(torch._foreach_norm([*gradients, *statistics]))
        length = torch.linalg.vector_norm(norms[: len(gradients)])
        # Squares: Adam would keep an infinite one for good, and its parameter would never move again.
        seen = torch.cat((norms.square(), loss.detach().reshape(1)))
        # A sum of finite numbers may overflow, but a difference to itself is 0 for finite numbers only.
        good = (seen - seen).sum() == 0.0
        skip = 1.0 - good.float()
        self._bad = torch.where(good, self._bad, seen)
        self._count += skip
        if self._largest_norm:
            factor = (self._largest_norm / (length + 1e-6)).clamp_(max=1.0)
            torch._foreach_mul_(list(gradients), factor)
        return skip, length

    def faults(self) -> tuple[int, str]:
        """Return how many steps were skipped since the last call, and the first bad tensor of the last."""
        count = int(self._count.item())
        bad = [n for n, good in zip(self._names, torch.isfinite(self._bad).tolist(), strict=True) if not good]
        self._count.zero_()
        self._bad = torch.zeros_like(self._bad)
        # A loss that is bad makes every gradient bad.
        return count, (bad[-1] if bad[-1] == self._names[-1] else bad[0]) if bad else ""
