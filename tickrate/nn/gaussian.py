"""The tanh-squashed Gaussian: bounded actions, their log-density, a positive standard deviation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


def mean_and_log_std(output: Tensor, *, offset: float, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Split a network's output ``(batch, 2 * size)`` into mean and log_std, ``(batch, size)`` each.

    ``log_std = clamp(output + offset, low, high)``: its exponential is positive whatever the network says.
    """
    mean, raw = output.chunk(2, dim=-1)
    return mean, (raw + offset).clamp(low, high)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor, log_scale: float) -> tuple[Tensor, Tensor]:
    """Return an action in [-1, 1] and the log-density of the action in the environment's units.

    The action is ``a = tanh(u)``, ``u = mean + exp(log_std) * noise``. The density is that of
    ``centre + scale * a`` and integrates to 1 over the box: the Jacobian of tanh (SAC, arXiv 1812.05905,
    appendix C) and of the scale are both in it. ``log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))``
    stays exact for large ``|u|``.

    Args:
        mean: ``(batch, size)``.
        log_std: ``(batch, size)``.
        noise: standard normal, ``(batch, size)``.
        log_scale: sum over the action's components of ``log((high - low) / 2)``.

    Returns:
        Action ``(batch, size)`` and log-density ``(batch,)``; both carry gradients.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_normal = noise.square().mul(-0.5) - log_std
    log_slope = (u + functional.softplus(-2.0 * u)) * 2.0
    constant = mean.shape[-1] * (-_LOG_SQRT_2_PI - 2.0 * _LOG_2) - log_scale
    return torch.tanh(u), (log_normal + log_slope).sum(-1) + constant
