"""From one observation group, vectors, images and histories, to one row of features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tickrate.errors import ConfigError
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.nn.export import ProgramWriter
from tickrate.nn.normaliser import RunningNormaliser


class ConvolutionEncoder(nn.Module):
    """Convolutions with ReLU, then linear, layer norm and tanh (DrQ's head): ``(batch, C, ...)`` to features.

    Args:
        shape: ``(C, H, W)`` or ``(C, T)``.
        channels: of each convolution; kernels and strides likewise.
        kernels: edge of each kernel.
        strides: of each convolution.
        features: width of the result.
        generator: source of the initial weights (CPU), uniform in +-1/sqrt(fan in).

    Raises:
        ConfigError: if a kernel is larger than what the layer before it leaves.
    """

    def __init__(
        self,
        shape: Sequence[int],
        channels: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        features: int,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        make = nn.Conv2d if len(shape) == 3 else nn.Conv1d
        inputs, size = shape[0], list(shape[1:])
        layers: list[nn.Module] = []
        for outputs, kernel, stride in zip(channels, kernels, strides, strict=True):
            if min(size) < kernel:
                raise ConfigError(
                    f"a kernel of {kernel} does not fit into the {size} that are left of {shape}"
                )
            layers += [_started(make, generator, inputs, outputs, kernel, stride), nn.ReLU()]
            inputs, size = outputs, [(n - kernel) // stride + 1 for n in size]
        self.convolutions = nn.Sequential(*layers)
        self.flat = inputs * math.prod(size)
        """Numbers that the convolutions leave."""
        norm = nn.LayerNorm(features)
        self.head = nn.Sequential(_started(nn.Linear, generator, self.flat, features), norm, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, C, ...)`` to ``(batch, features)``."""
        features: Tensor = self.head(self.convolutions(x).flatten(1))
        return features

    def write(self, writer: ProgramWriter, x: str) -> str:
        """Write the layers down."""
        x = writer.module(self.convolutions, x)
        return writer.module(self.head, writer.reshape(x, (self.flat,)))


class ObservationEncoder(nn.Module):
    """Encodes the leaves of one observation group and puts the results side by side.

    - An image is a leaf of uint8 with two axes or more: ``(H, W)``; ``(C, H, W)`` or ``(stack, H, W)``;
      ``(H, W, C)``, which is assumed if the last axis is shorter than both others; ``(stack, *frame)`` with
      four axes, where stack and colours become channels. It is scaled to [-0.5, 0.5] and has a CNN of its
      own.
    - A leaf named in ``history_leaves`` has a 1-D CNN of its own.
    - All others are vectors: flattened, side by side in the group's order, normalised together if so wished.

    The features are those of the vectors, then of the images, then of the histories.

    Args:
        config: the layers.
        observation_spaces: leaf space by path, those of the group, in its order.
        generator: source of the initial weights (CPU).
        normaliser: of the vectors, ``vector_size`` wide; None leaves them as they are.

    Attributes:
        features: width of the result.
        vector_paths: leaves that are flattened.

    Raises:
        ConfigError: for a leaf that cannot be read, or a history that is none; names it.
    """

    def __init__(
        self,
        config: EncoderConfig,
        observation_spaces: Mapping[str, spaces.Space[Any]],
        *,
        generator: torch.Generator,
        normaliser: RunningNormaliser | None = None,
    ) -> None:
        super().__init__()
        shapes = {path: leaf_shape(path, space) for path, space in observation_spaces.items()}
        self.image_paths = [path for path, space in observation_spaces.items() if is_image(space)]
        self.history_paths = [path for path in config.history_leaves if path in observation_spaces]
        others = {*self.image_paths, *self.history_paths}
        self.vector_paths = tuple(path for path in shapes if path not in others)
        self.vector_size = sum(math.prod(shapes[path]) for path in self.vector_paths)
        """Numbers in all vectors."""
        self.normaliser = normaliser
        self._axes: dict[str, tuple[int, ...]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.encoders = nn.ModuleList()
        for path in self.image_paths:
            self._axes[path], self._shapes[path] = image_axes(shapes[path])
            layers = config.image_channels, config.image_kernels, config.image_strides, config.image_features
            self.encoders.append(self._encoder(path, layers, generator))
        for path in self.history_paths:
            self._axes[path], self._shapes[path] = _history_axes(path, shapes[path], config, self.image_paths)
            layers = (
                config.history_channels,
                config.history_kernels,
                config.history_strides,
                config.history_features,
            )
            self.encoders.append(self._encoder(path, layers, generator))
        widths = [config.image_features] * len(self.image_paths)
        widths += [config.history_features] * len(self.history_paths)
        self.features = self.vector_size + sum(widths)

    def _encoder(self, path: str, layers: Any, generator: torch.Generator) -> ConvolutionEncoder:
        channels, kernels, strides, features = layers
        try:
            return ConvolutionEncoder(
                self._shapes[path], channels, kernels, strides, features, generator=generator
            )
        except ConfigError as error:
            raise ConfigError(f"observation leaf {path!r}: {error}") from error

    def forward(
        self,
        observation: Mapping[str, Tensor],
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Encode a batch.

        Args:
            observation: leaves by path, ``(batch, *leaf)``, in their own dtypes.
            augment: changes each image, ``(batch, channels, height, width)`` scaled, before its CNN, as
                `tickrate.nn.augment.random_shift` does; None in evaluation.

        Returns:
            ``(batch, features)``, float32.
        """
        parts = []
        if self.vector_paths:
            leaves = [observation[path] for path in self.vector_paths]
            vectors = torch.cat([leaf.reshape(len(leaf), -1).float() for leaf in leaves], 1)
            parts.append(vectors if self.normaliser is None else self.normaliser(vectors))
        for path, encoder in zip([*self.image_paths, *self.history_paths], self.encoders, strict=True):
            x = self.picture(path, observation[path])
            parts.append(encoder(augment(x) if augment is not None and path in self.image_paths else x))
        return torch.cat(parts, 1)

    def picture(self, path: str, leaf: Tensor) -> Tensor:
        """Return an image or history as its convolutions read it: channels first, float32, images scaled."""
        axes = self._axes[path]
        x = leaf.permute(0, *(1 + axis for axis in axes)).reshape(len(leaf), *self._shapes[path]).float()
        return x * (1.0 / 255.0) - 0.5 if path in self.image_paths else x

    def write(self, writer: ProgramWriter, x: str = "") -> str:
        """Write reading and encoding down; the leaves come from the observation, there is no input value."""
        parts = []
        if self.vector_paths:
            vectors = writer.read(self.vector_paths)
            parts.append(vectors if self.normaliser is None else writer.module(self.normaliser, vectors))
        for path, encoder in zip([*self.image_paths, *self.history_paths], self.encoders, strict=True):
            image = path in self.image_paths
            scale, shift = (1.0 / 255.0, -0.5) if image else (1.0, 0.0)
            value = writer.read_leaf(path, scale=scale, shift=shift, axes=self._axes[path])
            if len(self._axes[path]) != len(self._shapes[path]):
                value = writer.reshape(value, self._shapes[path])
            parts.append(writer.module(encoder, value))
        return writer.concat(parts)


def leaf_shape(path: str, space: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the shape of a leaf that an encoder can read.

    Raises:
        ConfigError: if it is no Box and no MultiBinary; names it.
    """
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or space.shape is None:
        raise ConfigError(
            f"observation leaf {path!r} is a {type(space).__name__}: networks read Box and MultiBinary "
            "leaves; leave it out with groups, or give it as a Box (categories one-hot)"
        )
    return tuple(space.shape)


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a leaf is an image: a Box of uint8 with two axes or more."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def image_axes(shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """Return the order in which an image's axes are read, and its shape ``(channels, H, W)`` then.

    Raises:
        ConfigError: for more than four axes.
    """
    if not 2 <= len(shape) <= 4:
        raise ConfigError(f"an image of shape {list(shape)}: it needs two to four axes")
    frame = tuple(range(len(shape)))[-3:]
    if len(frame) == 3 and shape[-1] < min(shape[-2], shape[-3]):
        frame = (frame[2], frame[0], frame[1])
    axes = (0, *frame) if len(shape) == 4 else frame
    return axes, (math.prod(shape[axis] for axis in axes[:-2]), shape[axes[-2]], shape[axes[-1]])


def _history_axes(
    path: str, shape: Sequence[int], config: EncoderConfig, images: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if len(shape) != 2 or path in images:
        raise ConfigError(
            f"history_leaves names {path!r} of shape {list(shape)}: a history has two axes, "
            "(time, features), and is no image"
        )
    axes = (1, 0) if config.history_along == "time" else (0, 1)
    return axes, (shape[axes[0]], shape[axes[1]])


def _started(make: Any, generator: torch.Generator, *sizes: int) -> nn.Module:
    """Return a layer of torch's whose weights come from this generator alone."""
    layer: nn.Module = nn.utils.skip_init(make, *sizes)  # type: ignore[no-untyped-call]
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    bound = 1.0 / math.sqrt(math.prod(weight.shape[1:]))
    with torch.no_grad():
        weight.uniform_(-bound, bound, generator=generator)
        bias.uniform_(-bound, bound, generator=generator)
    return layer
