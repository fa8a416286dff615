"""One network's way downhill: gradients of its own parameters, guard, optimiser, projection, statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tickrate.nn.guard import Guard
from tickrate.nn.optimisers import FusedOptimiser


@runtime_checkable
class Projected(Protocol):
    """A network whose weights have to be brought back to their lengths after each step."""

    @property
    def projects(self) -> bool:
        """Whether `project` has anything to do."""
        ...

    def project(self) -> None:
        """Bring the weights back to their lengths."""
        ...


class Descent:
    """Follows the gradient of a loss with one network, and leaves it alone where that is not finite.

    Args:
        name: what the loss is called in messages.
        learned: the network, or a single parameter.
        kind: which optimiser.
        rate: learning rate after so many updates.
        betas: of Adam.
        momentum: of SGD.
        weight_decay: see `FusedOptimiser`.
        gradient_limit: length to which longer gradients are cut; 0: none.
    """

    def __init__(
        self,
        name: str,
        learned: nn.Module | nn.Parameter,
        *,
        kind: Literal["adam", "adamw", "sgd"],
        rate: Callable[[int], float],
        betas: tuple[float, float],
        momentum: float,
        weight_decay: float,
        gradient_limit: float,
    ) -> None:
        named = dict(learned.named_parameters()) if isinstance(learned, nn.Module) else {name: learned}
        self._parameters = list(named.values())
        device = self._parameters[0].device
        self._name = name
        self._rate, self._moves = rate, rate(0) != rate(1 << 40)
        self._optimiser = FusedOptimiser(
            self._parameters,
            learning_rate=rate(0),
            kind=kind,
            betas=betas,
            momentum=momentum,
            weight_decay=weight_decay,
        )
        statistics = dict(learned.named_buffers()) if isinstance(learned, nn.Module) else {}
        self._guard = Guard(name, list(named), list(statistics), device, largest_norm=gradient_limit)
        self._projected = learned if isinstance(learned, Projected) and learned.projects else None
        self._statistics = list(statistics.values())
        self._before = [buffer.clone() for buffer in self._statistics]
        self.length = torch.zeros((), device=device)
        """Length of the last gradient, before any cut."""

    def follow(self, updates: int) -> None:
        """Set the learning rate that is due after so many updates."""
        if self._moves:
            self._optimiser.set_learning_rate(self._rate(updates))

    def descend(self, loss: Tensor) -> Tensor:
        """Make one step down the gradient of a scalar loss and return the loss without its graph.

        Gradients are computed for these parameters alone: none for the critics in the actor's step. Where the
        loss, a gradient or a statistic is not finite, weights, moments and the statistics that the loss was
        made with go back to what they were.
        """
        gradients = torch.autograd.grad(loss, self._parameters)
        skip, self.length = self._guard.check(loss, gradients, self._statistics)
        self._optimiser.step(gradients, skip)
        if self._projected is not None:
            self._projected.project()
        if self._statistics:
            self._keep_statistics(skip)
        return loss.detach()

    @torch.no_grad()
    def _keep_statistics(self, skip: Tensor) -> None:
        good = skip == 0
        for now, before in zip(self._statistics, self._before, strict=True):
            before.copy_(torch.where(good, now, before))
            now.copy_(before)

    def fault(self) -> str:
        """Return a sentence about steps that were skipped since the last call, or nothing; waits."""
        count, tensor = self._guard.faults()
        steps = "1 step" if count == 1 else f"{count} steps"
        return (
            f"{steps} down {self._name} skipped: {tensor} was not finite, or too large to square"
            if count
            else ""
        )

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return what a resume needs beside the network, by name."""
        named = self._optimiser.tensors(f"optimiser/{prefix}")
        return named | {f"statistics/{prefix}/{i}": before for i, before in enumerate(self._before)}
