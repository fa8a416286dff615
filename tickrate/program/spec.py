"""The operations that a network is written down in, and what a program of them is.

A program is straight-line code: every operation names the values it reads and the one it makes, there is no
control flow, and its tensors follow from it (their names, dtypes and shapes). All values are float32 and have
a batch axis in front that is left out here: a value of shape ``(C, H, W)`` is an array ``(batch, C, H, W)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Function = Literal["relu", "tanh", "elu", "silu"]
"""Activations: ``max(x, 0)``; ``tanh x``; ``x`` or ``exp(x) - 1`` below 0; ``x / (1 + exp(-x))``."""


class Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="read"):
    """Leaves of the observation, each flattened in C order, side by side: ``(sum of sizes,)``."""

    leaves: tuple[str, ...]
    output: str


class ReadLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="read_leaf"):
    """One leaf with its axes: ``scale * leaf + shift``, then its axes in another order."""

    leaf: str
    output: str
    scale: float = 1.0
    """Factor; 1/255 for images of uint8."""
    shift: float = 0.0
    """Added after the factor."""
    axes: tuple[int, ...] = ()
    """Which axis of the leaf comes first, second, ...; empty: as they are. (2, 0, 1) puts channels first."""


class ReadOneHot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="read_one_hot"):
    """One leaf of categories, flattened in C order into parts, as one-hot columns: ``(sum of counts,)``.

    The columns of each part lie side by side in the leaf's order: 1 in the column of its category, else 0.
    """

    leaf: str
    output: str
    lowest: tuple[int, ...]
    """Lowest category of each part."""
    counts: tuple[int, ...]
    """Number of categories of each part; together at most 65,536."""


class Affine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="affine"):
    """``x W + b``: ``(n,)`` to ``(units,)``. Tensors: ``weight (n, units)``, ``bias (units,)``."""

    input: str
    output: str
    units: int


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="scale"):
    """``w * x + b`` along the first axis: features of ``(n,)``, channels of an image or a history.

    Tensors: ``weight (n,)``, ``bias (n,)``.
    """

    input: str
    output: str


class Conv2d(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="conv2d"):
    """Cross-correlation of ``(C, H, W)`` with ``channels`` kernels, zeros around the picture.

    Tensors: ``weight (channels, C, kernel height, kernel width)``, ``bias (channels,)``.
    """

    input: str
    output: str
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    """Zeros added on either side, in height and in width."""


class Conv1d(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="conv1d"):
    """Cross-correlation of ``(C, T)`` with ``channels`` kernels.

    Tensors: ``weight (channels, C, kernel)``, ``bias (channels,)``.
    """

    input: str
    output: str
    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0


class LayerNorm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="layer_norm"):
    """``(x - mean) / sqrt(variance + eps) * w + b`` over ``(n,)`` (arXiv 1607.06450), the variance biased.

    Tensors: ``weight (n,)``, ``bias (n,)``.
    """

    input: str
    output: str
    eps: float = 1e-5


class RmsNorm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="rms_norm"):
    """``x / sqrt(mean of x^2 + eps) * w`` over ``(n,)`` (arXiv 1910.07467). Tensor: ``weight (n,)``."""

    input: str
    output: str
    eps: float = 1e-6


class Activation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="activation"):
    """A function of each number, for values of any shape."""

    input: str
    output: str
    function: Function


class Add(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="add"):
    """The sum of two values of one shape: a residual connection."""

    inputs: tuple[str, str]
    output: str


class Concat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="concat"):
    """Values of shape ``(n,)`` side by side."""

    inputs: tuple[str, ...]
    output: str


class Reshape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="reshape"):
    """The same numbers in C order under another shape; one axis flattens."""

    input: str
    output: str
    shape: tuple[int, ...]


class ExpectedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="expected"):
    """Means of categorical distributions (C51, arXiv 1707.06887): logits ``(n * atoms,)`` to ``(n,)``.

    ``sum_i softmax(logits)_i * z_i`` with ``atoms`` values ``z_i`` evenly from ``low`` to ``high``.
    """

    input: str
    output: str
    atoms: int
    low: float
    high: float


class GruCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="gru"):
    """One step of a GRU (arXiv 1406.1078, in torch's form); the new state is the output, ``(units,)``.

    ``r, z = sigmoid(x W + b + h U + c)``, ``n = tanh(x W_n + b_n + r * (h U_n + c_n))``,
    ``h' = (1 - z) n + z h``. Tensors, the gates side by side in the order r, z, n: ``weight (n, 3 units)``,
    ``bias (3 units,)``, ``state_weight (units, 3 units)``, ``state_bias (3 units,)``.
    """

    input: str
    output: str
    units: int
    state: str
    """Name of the state h, ``(units,)``; zero at the start of an episode."""


class LstmCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="lstm"):
    """One step of an LSTM; the new hidden state is the output, ``(units,)``.

    ``i, f, o = sigmoid``, ``g = tanh`` of ``x W + h U + b``; ``c' = f c + i g``, ``h' = o tanh(c')``.
    Tensors, the gates side by side in torch's order i, f, g, o: ``weight (n, 4 units)``,
    ``state_weight (units, 4 units)``, ``bias (4 units,)``.
    """

    input: str
    output: str
    units: int
    state: str
    """Name of the hidden state h, ``(units,)``; zero at the start of an episode."""
    cell: str
    """Name of the cell state c, ``(units,)``; zero at the start of an episode."""


Op = (
    Read
    | ReadLeaf
    | ReadOneHot
    | Affine
    | Scale
    | Conv2d
    | Conv1d
    | LayerNorm
    | RmsNorm
    | Activation
    | Add
    | Concat
    | Reshape
    | ExpectedValue
    | GruCell
    | LstmCell
)


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network: operations in the order they run. The last one's value is the network's output."""

    ops: tuple[Op, ...]

    @property
    def output(self) -> str:
        """Name of the network's output."""
        return self.ops[-1].output


def op_inputs(op: Op) -> tuple[str, ...]:
    """Return the names of the values an operation reads."""
    if isinstance(op, Read | ReadLeaf | ReadOneHot):
        return ()
    return op.inputs if isinstance(op, Add | Concat) else (op.input,)


def program_states(program: Program) -> dict[str, int]:
    """Return the recurrent states of a program: name to units."""
    states: dict[str, int] = {}
    for op in program.ops:
        if isinstance(op, GruCell | LstmCell):
            states[op.state] = op.units
        if isinstance(op, LstmCell):
            states[op.cell] = op.units
    return states


def mlp_program(
    leaves: Sequence[str], widths: Sequence[int], activation: Function | Literal["none"] = "relu"
) -> Program:
    """Return a multi-layer perceptron over flattened leaves; its tensors are ``layer.0.weight``, ...

    Args:
        leaves: the leaves it reads, side by side.
        widths: hidden widths, then outputs.
        activation: between the layers.
    """
    ops: list[Op] = [Read(leaves=tuple(leaves), output="input")]
    for i, width in enumerate(widths):
        ops.append(Affine(input=ops[-1].output, output=f"layer.{i}", units=width))
        if i < len(widths) - 1 and activation != "none":
            ops.append(Activation(input=f"layer.{i}", output=f"active.{i}", function=activation))
    return Program(ops=tuple(ops))
