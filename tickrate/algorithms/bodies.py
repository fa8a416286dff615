"""From the options of a network to the network itself, whatever stands in front of it and behind it."""

from __future__ import annotations

import torch

from tickrate.algorithms.options import NetworkConfig
from tickrate.nn.mlp import EnsembleMLP
from tickrate.nn.residual import EnsembleResidual

Body = EnsembleMLP | EnsembleResidual


def make_body(
    config: NetworkConfig,
    members: int,
    inputs: int,
    outputs: int | None,
    generator: torch.Generator,
    last_gain: float = 1.0,
    noise: float = 0.0,
) -> Body:
    """Return the networks that a configuration describes.

    Args:
        config: the layers between inputs and outputs.
        members: number of networks.
        inputs: features in.
        outputs: features out; None: those of an mlp's last hidden layer.
        generator: source of the initial weights (CPU).
        last_gain: factor on an mlp's initial last layer.
        noise: scale of the noise on an mlp's weights; 0: none.

    Raises:
        ValueError: for what only an mlp can have, asked of another kind.
    """
    if config.kind == "residual":
        if outputs is None or noise:
            raise ValueError("residual networks have a last layer, and no noise")
        return EnsembleResidual(
            members,
            inputs,
            config.hidden[0],
            len(config.hidden),
            outputs,
            expansion=config.expansion,
            generator=generator,
            momentum=config.batch_norm_momentum,
            epsilon=config.batch_norm_epsilon,
        )
    return EnsembleMLP(
        members,
        inputs,
        config.hidden,
        outputs,
        norm=config.norm,
        drop=config.dropout,
        unit_weights=config.unit_weights,
        generator=generator,
        last_gain=last_gain,
        momentum=config.batch_norm_momentum,
        epsilon=config.batch_norm_epsilon,
        noise=noise,
    )
