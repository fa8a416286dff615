"""Optimisers as one fused kernel a step, their state in the open, with a skip that never asks the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor


class FusedOptimiser:
    """Adam (arXiv 1412.6980), AdamW (arXiv 1711.05101) or SGD over a fixed list of parameters.

    The arithmetic is that of `torch.optim`. Beside its fused optimisers, which call the same kernels, this
    one has less to do on the host in each step, has its whole state before the first step, takes the
    gradients as an argument, and can be told on the device to do nothing.

    Args:
        parameters: what is optimised.
        learning_rate: step size; `set_learning_rate` changes it.
        kind: which of the three.
        betas: Adam's decay of the means of gradient and squared gradient.
        momentum: SGD's decay of the mean of gradients.
        weight_decay: added to the gradient (adam, sgd), or taken off the weights themselves (adamw).
        eps: added to Adam's denominator.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        learning_rate: float,
        kind: Literal["adam", "adamw", "sgd"] = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        moments = 2 if kind != "sgd" else int(momentum > 0)
        self._moments = [
            [torch.zeros_like(p, requires_grad=False) for p in self.parameters] for _ in range(moments)
        ]
        device = self.parameters[0].device
        self._steps = torch.zeros((), dtype=torch.float32, device=device)
        self._rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        self._kind, self._betas, self._momentum = kind, betas, momentum
        self._weight_decay, self._eps = weight_decay, eps

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use another step size from the next step on; nothing waits for the device."""
        self._rate.fill_(learning_rate)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], skip: Tensor) -> None:
        """Move the parameters against their gradients.

        Args:
            gradients: one for each parameter, in order.
            skip: float32 scalar on the device; where it is 1, nothing changes.
        """
        self._steps += 1.0 - skip
        if self._kind == "sgd":
            self._step_sgd(list(gradients), skip)
        else:
            self._step_adam(list(gradients), skip)

    def _step_adam(self, gradients: list[Tensor], skip: Tensor) -> None:
        kernel = torch._fused_adamw_ if self._kind == "adamw" else torch._fused_adam_
        kernel(
            self.parameters,
            gradients,
            self._moments[0],
            self._moments[1],
            [],
            [self._steps] * len(self.parameters),
            lr=self._rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._weight_decay,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )

    def _step_sgd(self, gradients: list[Tensor], skip: Tensor) -> None:
        # A skipped first step must not count as the one that fills the momentum: it starts from zero instead.
        torch._fused_sgd_(
            self.parameters,
            gradients,
            self._moments[0] if self._moments else [],
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=None,
            found_inf=skip,
        )

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the moments and the step count by name; they are the tensors themselves."""
        named = {f"{prefix}/steps": self._steps}
        for name, moments in zip(("mean", "square"), self._moments, strict=False):
            named |= {f"{prefix}/{i}/{name}": moment for i, moment in enumerate(moments)}
        return named
