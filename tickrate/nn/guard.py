"""Keeps non-finite losses and gradients away from the weights, on the device; remembers which it was."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Guard:
    """Looks at one loss and its gradients before each step of an optimiser.

    Nothing in `check` waits for the device; `faults` does.

    Args:
        name: what the loss is called in messages.
        parameters: names of the parameters, in the order of their gradients.
        device: where the tensors are.
        largest_norm: length to which longer gradients are cut, over all parameters; 0: they are left alone.
    """

    def __init__(
        self, name: str, parameters: Sequence[str], device: torch.device, *, largest_norm: float = 0.0
    ) -> None:
        self._names = [name, *(f"the gradient of {parameter}" for parameter in parameters)]
        self._largest_norm = largest_norm
        self._none = len(self._names)
        self._order = torch.arange(self._none, dtype=torch.float32, device=device)
        self._first = torch.full((), float(self._none), device=device)
        self._count = torch.zeros((), device=device)

    @torch.no_grad()
    def check(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return what to skip, and the gradients' length.

        Gradients that are too long are scaled in place.

        Args:
            loss: scalar.
            gradients: of the parameters, in order.

        Returns:
            ``skip``, float32 scalar: 1 where the loss or a gradient is not finite, else 0; and the length of
            all gradients together before any cut, float32 scalar.
        """
        norms = torch.stack([loss.detach().float(), *torch._foreach_norm(list(gradients))])
        bad = ~torch.isfinite(norms)
        first = torch.where(bad, self._order, float(self._none)).amin()
        skip = (first < self._none).float()
        self._first.copy_(torch.minimum(self._first, first))
        self._count.add_(skip)
        length = torch.linalg.vector_norm(norms[1:])
        if self._largest_norm:
            factor = (self._largest_norm / (length + 1e-6)).clamp_(max=1.0)
            torch._foreach_mul_(list(gradients), factor)
        return skip, length

    def faults(self) -> tuple[int, str]:
        """Return how many steps were skipped since the last call, and the first tensor that was bad."""
        count, first = int(self._count.item()), int(self._first.item())
        self._count.zero_()
        self._first.fill_(float(self._none))
        return count, self._names[first] if count else ""
