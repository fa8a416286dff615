"""Options of the encoder of one observation group. No torch: commands that only read it load it quickly."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from tickrate.errors import ConfigError

ConvolveAlong = Literal["time", "features"]


@dataclass(frozen=True)
class EncoderConfig:
    """How an observation group becomes features."""

    image_channels: tuple[int, ...] = (32, 64, 64)
    """Channels of each convolution over images. The default is the Atari network (Mnih et al. 2015), for
    84x84 (7x7 remain) and 64x64 (4x4). Usual: the default, or DrQ's (32, 32, 32, 32)."""
    image_kernels: tuple[int, ...] = (8, 4, 3)
    """Edge of each kernel in pixels. Usual: the default, or DrQ's (3, 3, 3, 3)."""
    image_strides: tuple[int, ...] = (4, 2, 1)
    """Stride of each convolution in pixels. DrQ's network sees more, at six times the cost. Usual: the
    default, or DrQ's (2, 1, 1, 1)."""
    image_shift: int = 4
    """Pixels by which each image is shifted at random while learning (DrQ); 0: not at all. Usual: 4 at
    84x84."""
    image_features: int = 64
    """Features of each image leaf, after a linear layer, layer norm and tanh. Usual: 50 to 512."""
    history_leaves: tuple[str, ...] = ()
    """Leaves ``(time, features)`` that go through a 1-D CNN of their own; all others are flattened."""
    history_channels: tuple[int, ...] = (32, 32)
    """Channels of each convolution over histories. Usual: 16 to 64 each."""
    history_kernels: tuple[int, ...] = (3, 3)
    """Length of each kernel, in steps or neighbouring features. Usual: 3 to 5."""
    history_strides: tuple[int, ...] = (1, 1)
    """Stride of each convolution over histories. Usual: 1 or 2."""
    history_features: int = 64
    """Features of each such leaf, after a linear layer, layer norm and tanh. Usual: 32 to 128."""
    history_along: ConvolveAlong = "time"
    """Which axis the kernels move along. ``time``: long histories. ``features``: neighbouring features belong
    together, as the beams of a LIDAR; the steps are the channels."""

    def __post_init__(self) -> None:
        """Refuse layers that cannot be."""
        for kind in ("image", "history"):
            names = [f"{kind}_{part}" for part in ("channels", "kernels", "strides")]
            lists = [getattr(self, name) for name in names]
            if len({len(values) for values in lists}) != 1 or not lists[0]:
                raise ConfigError(f"{', '.join(names)} are {lists}: give one number each for every layer")
            if any(n < 1 for values in lists for n in values) or getattr(self, f"{kind}_features") < 1:
                raise ConfigError(f"{', '.join(names)} and {kind}_features must be positive: {lists}")
        if len(set(self.history_leaves)) < len(self.history_leaves):
            raise ConfigError(f"history_leaves names a leaf twice: {list(self.history_leaves)}")
        if not self.history_leaves and (changed := self.changed("history_")):
            raise ConfigError(f"{', '.join(changed)}: set, but history_leaves names no leaf to use it for")
        if self.image_shift < 0:
            raise ConfigError(f"image_shift is {self.image_shift}: it must be 0 (off) or positive")
        if self.history_along not in get_args(ConvolveAlong):
            raise ConfigError(f"history_along is {self.history_along!r}: one of {get_args(ConvolveAlong)}")

    def changed(self, prefix: str) -> list[str]:
        """Return the names of the options with this prefix that are not at their defaults."""
        names = [f.name for f in fields(self) if f.name.startswith(prefix)]
        return [name for name in names if getattr(self, name) != getattr(type(self), name)]
