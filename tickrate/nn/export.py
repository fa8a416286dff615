"""Writes torch modules down as a program, so that they can act without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tickrate.program.folding import fold_scales
from tickrate.program.spec import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv1d,
    Conv2d,
    ExpectedValue,
    Function,
    GruCell,
    LayerNorm,
    LstmCell,
    Op,
    Program,
    Read,
    ReadLeaf,
    Reshape,
    RmsNorm,
    Scale,
)


@runtime_checkable
class Writable(Protocol):
    """A module that knows how it is written down."""

    def write(self, writer: ProgramWriter, x: str) -> str:
        """Write what the module computes in evaluation from the value ``x``; return its value's name."""
        ...


class ProgramWriter:
    """Collects the operations of a network and their tensors; every method returns the name of a value."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._tensors: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, int] = {}

    def read(self, leaves: Sequence[str]) -> str:
        """Read leaves, each flattened, side by side."""
        return self._add(Read(leaves=tuple(leaves), output=self._name("read")))

    def read_leaf(
        self, leaf: str, *, scale: float = 1.0, shift: float = 0.0, axes: Sequence[int] = ()
    ) -> str:
        """Read one leaf, ``scale * leaf + shift``, with its axes in this order."""
        name = self._name("leaf")
        return self._add(ReadLeaf(leaf=leaf, output=name, scale=scale, shift=shift, axes=tuple(axes)))

    def one_hot(self, x: str, low: Sequence[int], high: Sequence[int]) -> str:
        """Write whole numbers, one of ``low`` to ``high`` in each part, as one-hot columns, part by part.

        It is exact up to 2^24 in either direction. A number outside its range has no column: all are 0.
        The column of k is the second difference of ``max(x - k, 0)``, which is 1 at k and 0 at every other
        whole number.
        """
        knots = [(part, k) for part, ends in enumerate(zip(low, high, strict=True)) for k in _knots(*ends)]
        columns = [i for i, (part, k) in enumerate(knots) if low[part] <= k <= high[part]]
        rise, hats = torch.zeros(len(low), len(knots)), torch.zeros(len(knots), len(columns))
        rise[[part for part, _ in knots], range(len(knots))] = 1.0
        for column, i in enumerate(columns):
            hats[i - 1 : i + 2, column] = torch.tensor([1.0, -2.0, 1.0])
        ramps = self.affine(x, rise, torch.tensor([-float(k) for _, k in knots]))
        return self.affine(self.activation(ramps, "relu"), hats, None)

    def affine(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """Write ``x W + b``; weight ``(in, out)``, bias ``(out,)``."""
        outputs = weight.shape[1]
        op = Affine(input=x, output=self._name("layer"), units=outputs)
        return self._add(op, weight=weight, bias=torch.zeros(outputs) if bias is None else bias)

    def scale(self, x: str, scale: Tensor, shift: Tensor) -> str:
        """Write ``scale * x + shift`` along the first axis; it becomes part of a neighbour where it can."""
        return self._add(Scale(input=x, output=self._name("scale")), weight=scale, bias=shift)

    def conv(
        self, x: str, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
    ) -> str:
        """Write a convolution over one or two axes; weight ``(out, in, *kernel)`` as in torch."""
        channels, kernel, name = weight.shape[0], weight.shape[2:], self._name("conv")
        op: Op
        if len(kernel) == 1:
            op = Conv1d(x, name, channels, kernel[0], stride[0], padding[0])
        else:
            op = Conv2d(
                x, name, channels, (kernel[0], kernel[1]), (stride[0], stride[1]), (padding[0], padding[1])
            )
        return self._add(op, weight=weight, bias=torch.zeros(channels) if bias is None else bias)

    def layer_norm(self, x: str, weight: Tensor, bias: Tensor, eps: float) -> str:
        """Write layer normalisation of a flat value."""
        return self._add(LayerNorm(input=x, output=self._name("norm"), eps=eps), weight=weight, bias=bias)

    def rms_norm(self, x: str, weight: Tensor, eps: float) -> str:
        """Write root-mean-square normalisation of a flat value."""
        return self._add(RmsNorm(input=x, output=self._name("norm"), eps=eps), weight=weight)

    def activation(self, x: str, function: Function) -> str:
        """Write a function of each number."""
        return self._add(Activation(input=x, output=self._name(function), function=function))

    def add(self, left: str, right: str) -> str:
        """Write the sum of two values."""
        return self._add(Add(inputs=(left, right), output=self._name("sum")))

    def concat(self, parts: Sequence[str]) -> str:
        """Write flat values side by side; one value stays itself."""
        if len(parts) == 1:
            return parts[0]
        return self._add(Concat(inputs=tuple(parts), output=self._name("concat")))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Write the same numbers under another shape."""
        return self._add(Reshape(input=x, output=self._name("reshape"), shape=tuple(shape)))

    def expected_value(self, x: str, atoms: int, low: float, high: float) -> str:
        """Write the means of categorical distributions from their logits, ``(n * atoms,)`` to ``(n,)``."""
        op = ExpectedValue(input=x, output=self._name("mean"), atoms=atoms, low=low, high=high)
        return self._add(op)

    def gru(
        self, x: str, state: str, weight: Tensor, bias: Tensor, state_weight: Tensor, state_bias: Tensor
    ) -> str:
        """Write one step of a GRU; weights ``(in, 3 units)`` and ``(units, 3 units)``, see `GruCell`."""
        units = state_weight.shape[0]
        return self._add(
            GruCell(input=x, output=self._name("gru"), units=units, state=state),
            weight=weight,
            bias=bias,
            state_weight=state_weight,
            state_bias=state_bias,
        )

    def lstm(self, x: str, state: str, cell: str, weight: Tensor, state_weight: Tensor, bias: Tensor) -> str:
        """Write one step of an LSTM; weights ``(in, 4 units)`` and ``(units, 4 units)``, see `LstmCell`."""
        units = state_weight.shape[0]
        op = LstmCell(input=x, output=self._name("lstm"), units=units, state=state, cell=cell)
        return self._add(op, weight=weight, state_weight=state_weight, bias=bias)

    def module(self, module: nn.Module, x: str) -> str:
        """Write a module as it computes in evaluation: one of ours, or one of torch's that are known here.

        Raises:
            TypeError: for a module that cannot be written down; names it.
        """
        if isinstance(module, Writable):
            return module.write(self, x)
        if isinstance(module, nn.Sequential):
            for part in module:
                x = self.module(part, x)
            return x
        return self._torch_module(module, x)

    def finish(self) -> tuple[Program, dict[str, NDArray[np.float32]]]:
        """Return the program, whose output is the last value, and its tensors, with every scale folded."""
        program, tensors = fold_scales(self._ops, dict(self._tensors))
        return program, {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}

    def _torch_module(self, module: nn.Module, x: str) -> str:
        match module:
            case nn.Linear():
                return self.affine(x, module.weight.T, module.bias)
            case nn.Conv1d() | nn.Conv2d():
                return self._torch_conv(module, x)
            case nn.BatchNorm1d() | nn.BatchNorm2d():
                return self.scale(x, *_batch_norm(module))
            case nn.LayerNorm() | nn.RMSNorm() if len(module.normalized_shape) == 1:
                return self._torch_norm(module, x)
            case nn.ReLU():
                return self.activation(x, "relu")
            case nn.Tanh():
                return self.activation(x, "tanh")
            case nn.ELU() if module.alpha == 1.0:
                return self.activation(x, "elu")
            case nn.SiLU():
                return self.activation(x, "silu")
            case nn.Identity() | nn.Dropout():
                return x
        raise TypeError(
            f"{module} cannot be written down as a policy: give its class a method write(writer, x) that "
            "says it in the operations of tickrate.program.spec"
        )

    def _torch_conv(self, module: nn.Conv1d | nn.Conv2d, x: str) -> str:
        plain = module.groups == 1 and module.padding_mode == "zeros" and set(module.dilation) == {1}
        if not plain or isinstance(module.padding, str):
            raise TypeError(f"{module}: only plain convolutions with padding as numbers can be written down")
        return self.conv(x, module.weight, module.bias, module.stride, module.padding)

    def _torch_norm(self, module: nn.LayerNorm | nn.RMSNorm, x: str) -> str:
        size = math.prod(module.normalized_shape)
        weight = torch.ones(size) if module.weight is None else module.weight
        if isinstance(module, nn.LayerNorm):
            bias = torch.zeros(size) if module.bias is None else module.bias
            return self.layer_norm(x, weight, bias, module.eps)
        eps = float(torch.finfo(torch.float32).eps) if module.eps is None else module.eps
        return self.rms_norm(x, weight, eps)

    def _name(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, -1) + 1
        return f"{kind}.{self._counts[kind]}"

    def _add(self, op: Op, **tensors: Tensor) -> str:
        self._ops.append(op)
        for name, value in tensors.items():
            array: NDArray[np.float64] = value.detach().double().cpu().numpy()
            self._tensors[f"{op.output}.{name}"] = array.copy()
        return op.output


def _knots(low: int, high: int) -> range:
    """Return the whole numbers of a part and one more on either side."""
    return range(low - 1, high + 2)


@torch.no_grad()
def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return scale and shift of a batch norm with its running statistics."""
    if module.running_mean is None or module.running_var is None:
        raise TypeError(f"{module} keeps no running statistics: it cannot act on one observation")
    scale = torch.rsqrt(module.running_var.double() + module.eps)
    if module.affine:
        scale = scale * module.weight.double()
    shift = -module.running_mean.double() * scale
    return scale, shift + module.bias.double() if module.affine else shift
