"""Running normalisation of inputs: mean and variance over every observation seen, each counted once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tickrate.nn.export import ProgramWriter


class RunningNormaliser(nn.Module):
    """``(x - mean) / sqrt(variance + eps)`` with the statistics of everything given to `observe`.

    The statistics move only in `observe`, which is called once for each new observation, never on replayed
    batches (a replayed row would be counted again and again). The count is a number on the host, so that
    nothing waits for the device.

    Args:
        features: width of the input.
        eps: added to the variance, in squared units of the input.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, features: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.count = 0
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(features, dtype=torch.float64))

    def observe(self, x: Tensor) -> None:
        """Count the rows of ``x`` ``(rows, features)`` into the statistics (Chan et al. 1979)."""
        rows = x.shape[0]
        if rows == 0:
            return
        variance, mean = torch.var_mean(x.double(), dim=0, correction=0)
        total = self.count + rows
        share = rows / total
        delta = mean - self.mean
        if self.count == 0:
            self.variance.copy_(variance)
        else:
            between = delta * delta * (1.0 - share)
            self.variance.lerp_(variance + between, share)
        self.mean.add_(delta, alpha=share)
        self.count = total

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``(batch, features)``; the result is float32."""
        scale, shift = self.affine()
        return torch.addcmul(shift.float(), x, scale.float())

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return float64 ``scale`` and ``shift`` of ``(features,)`` that equal this layer."""
        scale = torch.rsqrt(self.variance + self.eps)
        return scale, -self.mean * scale

    def write(self, writer: ProgramWriter, x: str) -> str:
        """Write the present statistics down as a scale."""
        return writer.scale(x, *self.affine())
