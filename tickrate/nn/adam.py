"""Adam as one fused kernel a step, with its state in the open and a skip that never asks the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class FusedAdam:
    """Adam (arXiv 1412.6980) over a fixed list of parameters, the same arithmetic as `torch.optim.Adam`.

    Beside `torch.optim.Adam(fused=True)`, which calls the same kernel, it has less to do on the host in each
    step, has its whole state before the first step, and takes the gradients as an argument.

    Args:
        parameters: what is optimised.
        learning_rate: step size.
        betas: decay of the means of gradient and squared gradient.
        eps: added to the denominator.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        self._means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self._squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self._steps = torch.zeros((), dtype=torch.float32, device=self.parameters[0].device)
        self._learning_rate, self._betas, self._eps = learning_rate, betas, eps

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], skip: Tensor) -> None:
        """Move the parameters against their gradients.

        Args:
            gradients: one for each parameter, in order.
            skip: float32 scalar on the device; where it is 1, nothing changes.
        """
        self._steps += 1.0 - skip
        torch._fused_adam_(
            self.parameters,
            list(gradients),
            self._means,
            self._squares,
            [],
            [self._steps] * len(self.parameters),
            lr=self._learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the moments and the step count by name; they are the tensors themselves."""
        named = {f"{prefix}/steps": self._steps}
        for i, (mean, square) in enumerate(zip(self._means, self._squares, strict=True)):
            named[f"{prefix}/{i}/mean"], named[f"{prefix}/{i}/square"] = mean, square
        return named
