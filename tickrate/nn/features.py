"""Everything of a network before its body: encoders of images and histories, and memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from tickrate.nn.augment import random_shift
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.nn.encoders import ObservationEncoder
from tickrate.nn.export import ProgramWriter
from tickrate.nn.recurrent import RecurrentLayer

Inputs = dict[str, Tensor]
"""What a network reads, by name: leaves that are vectors side by side as `VECTOR`, others by their path."""

VECTOR = "vector"


class FeatureNetwork(nn.Module):
    """Turns the inputs of one group into rows of features for a body.

    Args:
        vector_size: numbers in the vectors.
        pictures: spaces of the images and histories, by path.
        config: layers of their encoders.
        memory: a recurrent layer behind everything, or none.
        units: width of the memory.
        generator: source of the initial weights (CPU).

    Attributes:
        features: width of the result.
        learned: whether there is anything to learn in here.
    """

    def __init__(
        self,
        vector_size: int,
        pictures: Mapping[str, spaces.Space[Any]],
        config: EncoderConfig,
        *,
        memory: Literal["none", "gru", "lstm"] = "none",
        units: int = 0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.features = self._vector_size = vector_size
        self._shift = config.image_shift
        self.encoder: ObservationEncoder | None = None
        if pictures:
            self.encoder = ObservationEncoder(config, pictures, generator=generator)
            self.features += self.encoder.features
        self.memory: RecurrentLayer | None = None
        if memory != "none":
            self.memory = RecurrentLayer(memory, self.features, units, generator=generator)
            self.features = units
        self.learned = self.encoder is not None or self.memory is not None

    def forward(self, inputs: Inputs, sequences: int = 0, generator: torch.Generator | None = None) -> Tensor:
        """Return features, ``(rows, features)``.

        Args:
            inputs: ``(rows, ...)`` each.
            sequences: 0: every row is by itself. Else the rows are so many sequences, one after the other,
                and the result has each row but the last of a sequence, then each but the first: now, then
                next.
            generator: source of random shifts of images; None: they are left as they are.
        """
        parts = [inputs[VECTOR]] if self._vector_size else []
        if self.encoder is not None:
            parts.append(self.encoder(inputs, self._augmentation(generator)))
        features = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if not sequences:
            return features
        steps = features.view(sequences, -1, features.shape[1])
        if self.memory is not None:
            reset = torch.zeros(steps.shape[:2], dtype=torch.bool, device=steps.device)
            steps, _ = self.memory(steps, reset, self.memory.initial_state(sequences))
        return torch.cat((steps[:, :-1].flatten(0, 1), steps[:, 1:].flatten(0, 1)))

    def _augmentation(self, generator: torch.Generator | None) -> Callable[[Tensor], Tensor] | None:
        if generator is None or not self._shift:
            return None
        return functools.partial(random_shift, generator=generator, pad=self._shift)

    def write(self, writer: ProgramWriter, vector: str | None) -> str:
        """Write down what comes behind the vectors, whose value is ``vector`` (None without any)."""
        parts = [] if vector is None else [vector]
        if self.encoder is not None:
            parts.append(self.encoder.write(writer))
        x = writer.concat(parts)
        return x if self.memory is None else self.memory.write(writer, x)
