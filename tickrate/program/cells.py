"""Recurrent cells in numpy: each makes its arrays once and adds the call that fills them."""

from __future__ import annotations

import numpy as np

from tickrate.program.compiled import Array, Compiled
from tickrate.program.spec import GruCell, LstmCell

_HALF, _ONE = np.array(0.5, np.float32), np.array(1.0, np.float32)


def sigmoid(x: Array) -> None:
    """Replace x by ``1 / (1 + exp(-x)) = (tanh(x / 2) + 1) / 2``, which overflows nowhere."""
    np.multiply(x, _HALF, out=x)
    np.tanh(x, out=x)
    np.add(x, _ONE, out=x)
    np.multiply(x, _HALF, out=x)


def gru(made: Compiled, op: GruCell) -> None:
    """One step of a GRU, see `GruCell`."""
    x, units = made.values[op.input], op.units
    before, after = made.new_state(op.state)
    made.values[op.output] = after
    weight, bias = made.tensor(op, "weight"), made.tensor(op, "bias")
    state_weight, state_bias = made.tensor(op, "state_weight"), made.tensor(op, "state_bias")
    new, old = (np.empty((made.batch, 3 * units), np.float32) for _ in range(2))
    reset, keep = new[:, :units], new[:, units : 2 * units]
    gates, candidate, recurrent = new[:, : 2 * units], new[:, 2 * units :], old[:, 2 * units :]
    old_gates = old[:, : 2 * units]

    def step() -> None:
        np.dot(x, weight, out=new)
        np.add(new, bias, out=new)
        np.dot(before, state_weight, out=old)
        np.add(old, state_bias, out=old)
        np.add(gates, old_gates, out=gates)
        sigmoid(gates)
        np.multiply(recurrent, reset, out=recurrent)
        np.add(candidate, recurrent, out=candidate)
        np.tanh(candidate, out=candidate)
        np.subtract(before, candidate, out=after)
        np.multiply(after, keep, out=after)
        np.add(after, candidate, out=after)

    made.steps.append(step)


def lstm(made: Compiled, op: LstmCell) -> None:
    """One step of an LSTM, see `LstmCell`."""
    x, units = made.values[op.input], op.units
    before, after = made.new_state(op.state)
    cell_before, cell_after = made.new_state(op.cell)
    made.values[op.output] = after
    weight, state_weight, bias = (made.tensor(op, name) for name in ("weight", "state_weight", "bias"))
    gates, recurrent = (np.empty((made.batch, 4 * units), np.float32) for _ in range(2))
    enter, forget, candidate, leave = (gates[:, i * units : (i + 1) * units] for i in range(4))

    def step() -> None:
        np.dot(x, weight, out=gates)
        np.dot(before, state_weight, out=recurrent)
        np.add(gates, recurrent, out=gates)
        np.add(gates, bias, out=gates)
        for gate in (enter, forget, leave):
            sigmoid(gate)
        np.tanh(candidate, out=candidate)
        np.multiply(cell_before, forget, out=cell_after)
        np.multiply(enter, candidate, out=candidate)
        np.add(cell_after, candidate, out=cell_after)
        np.tanh(cell_after, out=after)
        np.multiply(after, leave, out=after)

    made.steps.append(step)
