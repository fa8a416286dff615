"""From the options of an optimiser to the descent of the network that it belongs to."""

from __future__ import annotations

from torch import nn

from tickrate.algorithms.options import OptimiserConfig
from tickrate.nn.descent import Descent


def make_descent(
    name: str, learned: nn.Module | nn.Parameter, options: OptimiserConfig, gradient_limit: float
) -> Descent:
    """Return what follows the gradient of a loss.

    Args:
        name: what the loss is called in messages.
        learned: the network, or a single parameter.
        options: of its optimiser.
        gradient_limit: length to which longer gradients are cut; 0: none.
    """
    return Descent(
        name,
        learned,
        kind=options.kind,
        rate=options.rate,
        betas=options.betas,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        gradient_limit=gradient_limit,
    )
