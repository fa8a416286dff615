"""GRU and LSTM over sequences in which episodes begin: the state is zeroed where the caller says so."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tickrate.errors import ConfigError
from tickrate.nn.export import ProgramWriter

CellKind = Literal["gru", "lstm"]


class RecurrentLayer(nn.Module):
    """One recurrent layer, torch's arithmetic (`torch.nn.GRU`, `torch.nn.LSTM`), with resets.

    The state is one tensor ``(batch, state_size)``: h, and for an LSTM h and c side by side.

    Args:
        kind: ``gru`` (arXiv 1406.1078) or ``lstm``.
        inputs: features in.
        units: features out.
        generator: source of the initial weights (CPU), uniform in +-1/sqrt(units) as in torch.
        name: of its states in an exported policy; two layers of one network need two names.

    Raises:
        ConfigError: for an unknown kind.
    """

    def __init__(
        self,
        kind: CellKind,
        inputs: int,
        units: int,
        *,
        generator: torch.Generator,
        name: str = "memory",
    ) -> None:
        super().__init__()
        if kind not in get_args(CellKind):
            raise ConfigError(f"recurrent layer {kind!r}: there are {list(get_args(CellKind))}")
        self.kind, self.units, self.name = kind, units, name
        self.state_size = units if kind == "gru" else 2 * units
        """Width of the state."""
        gates = (3 if kind == "gru" else 4) * units
        bound = 1.0 / math.sqrt(units)

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))

        self.weight, self.state_weight = uniform(inputs, gates), uniform(units, gates)
        self.bias, self.state_bias = uniform(gates), uniform(gates)

    def initial_state(self, batch: int) -> Tensor:
        """Return zeros, ``(batch, state_size)``, where the weights are."""
        return self.weight.new_zeros(batch, self.state_size)

    def forward(self, x: Tensor, reset: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run over sequences.

        Args:
            x: ``(batch, time, inputs)``.
            reset: ``(batch, time)``, true where an episode begins: the state is zero before that step.
            state: ``(batch, state_size)``, the state before the first step.

        Returns:
            Outputs ``(batch, time, units)``, and the state after the last step.
        """
        keep = (~reset.bool()).to(x.dtype).unsqueeze(2)
        projected = x @ self.weight + self.bias  # of all steps at once; only the rest must wait for the state
        step = self._gru if self.kind == "gru" else self._lstm
        outputs = []
        for now, kept in zip(projected.unbind(1), keep.unbind(1), strict=True):
            state = step(now, state * kept)
            outputs.append(state[:, : self.units])
        return torch.stack(outputs, 1), state

    def write(self, writer: ProgramWriter, x: str) -> str:
        """Write one step down; the state of a policy starts at zero with each episode."""
        if self.kind == "gru":
            tensors = self.weight, self.bias, self.state_weight, self.state_bias
            return writer.gru(x, self.name, *tensors)
        bias = self.bias.detach().double() + self.state_bias.detach().double()
        return writer.lstm(x, self.name, f"{self.name}.cell", self.weight, self.state_weight, bias)

    def _gru(self, now: Tensor, state: Tensor) -> Tensor:
        reset, update, candidate = now.chunk(3, -1)
        old_reset, old_update, old_candidate = (state @ self.state_weight + self.state_bias).chunk(3, -1)
        candidate = torch.tanh(candidate + torch.sigmoid(reset + old_reset) * old_candidate)
        return torch.lerp(candidate, state, torch.sigmoid(update + old_update))

    def _lstm(self, now: Tensor, state: Tensor) -> Tensor:
        hidden, cell = state.chunk(2, -1)
        enter, forget, candidate, leave = (now + hidden @ self.state_weight + self.state_bias).chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.cat([torch.sigmoid(leave) * torch.tanh(cell), cell], -1)
