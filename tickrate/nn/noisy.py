"""Affine layers whose weights carry learned noise, so that uncertainty explores (noisy nets)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tickrate.nn.export import ProgramWriter


class NoisyLinear(nn.Module):
    """``members`` independent affine layers with factorised Gaussian noise (arXiv 1706.10295).

    ``y = x (W + S * e) + b + s * f(e_out)`` with ``e = f(e_in) f(e_out)``, ``f(x) = sign(x) sqrt(|x|)`` and
    unit Gaussians ``e_in`` and ``e_out``: one number for each input and output, not for each weight.
    ``W``, ``S``, ``b`` and ``s`` are learned. W and b start uniform in +-1/sqrt(inputs), S and s at
    ``scale / sqrt(inputs)``.

    Args:
        members: number of networks.
        inputs: features in.
        outputs: features out.
        generator: source of the initial values (CPU).
        scale: sigma_0 of the paper. Usual: 0.1 to 0.5.
        gain: factor on the initial ``W`` and ``b``.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        outputs: int,
        *,
        generator: torch.Generator,
        scale: float = 0.5,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        bound, start = gain / math.sqrt(inputs), scale / math.sqrt(inputs)
        weight = torch.empty(members, inputs, outputs).uniform_(-bound, bound, generator=generator)
        bias = torch.empty(members, 1, outputs).uniform_(-bound, bound, generator=generator)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.weight_scale = nn.Parameter(torch.full_like(weight, start))
        """Size of each weight's noise, ``(members, inputs, outputs)``, float32."""
        self.bias_scale = nn.Parameter(torch.full_like(bias, start))
        """Size of each bias's noise, ``(members, 1, outputs)``, float32."""

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Map ``(members, batch, inputs)`` to ``(members, batch, outputs)``.

        Args:
            x: the input, float32.
            generator: source of the noise, drawn once for the whole batch; None: no noise.
        """
        weight, bias = (self.weight, self.bias) if generator is None else self._drawn(generator)
        return torch.baddbmm(bias, x, weight)

    @torch.no_grad()
    def keep_noise(self, generator: torch.Generator) -> None:
        """Add one draw of the noise to the weights for good: for a copy that is to act with it."""
        weight, bias = self._drawn(generator)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def write(self, writer: ProgramWriter, x: str, member: int) -> str:
        """Write one member down, without noise."""
        return writer.affine(x, self.weight[member], self.bias[member, 0])

    def project(self) -> None:
        """Do nothing: there is no length to keep."""

    def _drawn(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return weight and bias with fresh noise."""
        members, inputs, outputs = self.weight.shape
        noise = torch.randn(members, inputs + outputs, generator=generator, device=self.weight.device)
        noise = noise.sign() * noise.abs().sqrt_()
        rows, columns = noise[:, :inputs, None], noise[:, None, inputs:]
        weight = torch.addcmul(self.weight, self.weight_scale, rows * columns)
        return weight, torch.addcmul(self.bias, self.bias_scale, columns)
