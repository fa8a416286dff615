"""Random shifts of images, which let a critic learn from pictures (DrQ)."""

from __future__ import annotations

import torch
from torch import Tensor


def random_shift(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift each image by up to ``pad`` pixels each way, repeating its edge (DrQ, arXiv 2004.13649).

    It is padding by ``pad`` with the edge's pixels and cropping at random, as one gather on the device.

    Args:
        images: ``(batch, channels, height, width)``, of any dtype.
        generator: source of the shifts, on the images' device.
        pad: largest shift in pixels. Usual: 4 at 84x84.

    Returns:
        Images of the same shape and dtype; the channels of one image (its stack) move together.
    """
    batch, channels, height, width = images.shape
    shifts = torch.randint(0, 2 * pad + 1, (2, batch, 1), generator=generator, device=images.device) - pad
    rows = (torch.arange(height, device=images.device) + shifts[0]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shifts[1]).clamp_(0, width - 1)
    which = torch.arange(batch, device=images.device).view(batch, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, channels, 1, 1)
    return images[which, channel, rows.view(batch, 1, height, 1), columns.view(batch, 1, 1, width)]
