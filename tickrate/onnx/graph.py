"""Writes a policy as an ONNX file, operation by operation from its program; needs the package ``onnx``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tickrate.artefact import BoxAction, DiscreteAction, MultiDiscreteAction, PolicyContract, check_contract
from tickrate.artefact.container import text_sha256
from tickrate.errors import MissingExtra
from tickrate.onnx.names import (
    ACTION,
    CONTRACT,
    CONTRACT_HASH,
    OUTPUTS,
    leaf_input,
    state_input,
    state_output,
)
from tickrate.program.checking import check_tensors
from tickrate.program.one_hot import columns
from tickrate.program.shapes import Shapes
from tickrate.program.spec import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv1d,
    Conv2d,
    ExpectedValue,
    GruCell,
    LayerNorm,
    LstmCell,
    Op,
    Read,
    ReadLeaf,
    ReadOneHot,
    Reshape,
    RmsNorm,
    Scale,
)

try:
    import onnx
    from onnx import checker, helper, numpy_helper
except ImportError as error:
    raise MissingExtra("writing an ONNX file needs the package onnx: pip install 'tickrate[onnx]'") from error

OPSET = 18
"""Version of ONNX's operators; read by ONNX Runtime 1.14 and later."""

IR_VERSION = 8
"""Version of the file format that goes with it."""


def onnx_bytes(contract: PolicyContract, weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return the ONNX file of a policy; `tickrate.onnx.names` says what is in it.

    Raises:
        PolicyError: if contract and weights do not fit each other.
    """
    shapes = check_contract(contract)
    check_tensors(shapes, weights)
    writer = _GraphWriter(shapes, weights)
    inputs = [
        _described(leaf_input(path), contract.leaf(path).dtype, shape)
        for path, shape in shapes.leaves.items()
    ]
    inputs += [_described(state_input(name), "float32", shape) for name, shape in shapes.states.items()]
    for op in contract.program.ops:
        _WRITERS[type(op)](writer, op)
    writer.node("Identity", [_value(contract.program.output)], OUTPUTS)
    _write_head(writer, contract)
    action = _described(ACTION, contract.action.dtype, contract.action.shape)
    outputs = [action, _described(OUTPUTS, "float32", shapes.values[contract.program.output])]
    outputs += [_described(state_output(name), "float32", shape) for name, shape in shapes.states.items()]
    graph = helper.make_graph(writer.nodes, "policy", inputs, outputs, writer.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="tickrate")
    model.ir_version = IR_VERSION
    text = msgspec.json.encode(contract).decode()
    helper.set_model_props(model, {CONTRACT: text, CONTRACT_HASH: text_sha256(text)})
    checker.check_model(model, full_check=True)
    blob: bytes = model.SerializeToString()
    return blob


class _GraphWriter:
    """Collects the nodes and constants of a graph."""

    def __init__(self, shapes: Shapes, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.shapes = shapes
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._weights = weights
        self._written: set[str] = set()

    def node(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node with one output; return the output's name, a fresh one if none is given."""
        output = output or f"step/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Cut ``(batch, sum of sizes)`` into parts."""
        if len(sizes) == 1:
            return [value]
        outputs = [f"step/{len(self.nodes)}/{i}" for i in range(len(sizes))]
        sizes_name = self.constant(np.array(sizes, np.int64))
        self.nodes.append(helper.make_node("Split", [value, sizes_name], outputs, axis=1))
        return outputs

    def reshape(self, value: str, shape: Sequence[int], output: str = "") -> str:
        """Give every observation's numbers another shape."""
        return self.node("Reshape", [value, self.constant(np.array([-1, *shape], np.int64))], output)

    def cast(self, value: str, dtype: str, output: str = "") -> str:
        """Convert to a dtype."""
        return self.node("Cast", [value], output, to=_onnx_type(dtype))

    def constant(self, value: NDArray[Any]) -> str:
        """Add a constant."""
        name = f"constant/{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, value: float) -> str:
        """Add a float32 constant without axes."""
        return self.constant(np.array(value, np.float32))

    def tensor(self, op: Op, name: str) -> str:
        """Add a tensor of an operation, once; return its name."""
        full = f"tensor/{op.output}.{name}"
        if full not in self._written:
            self._written.add(full)
            array = np.ascontiguousarray(self._weights[f"{op.output}.{name}"])
            self.initializers.append(numpy_helper.from_array(array, full))
        return full

    def array(self, op: Op, name: str) -> NDArray[np.float32]:
        """Return a tensor of an operation."""
        return self._weights[f"{op.output}.{name}"]


def _value(name: str) -> str:
    return f"value/{name}"


def _onnx_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _described(name: str, dtype: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _onnx_type(dtype), ["batch", *shape])


def _read(to: _GraphWriter, op: Read) -> None:
    parts = []
    for path in op.leaves:
        floats = to.cast(leaf_input(path), "float32")
        parts.append(to.reshape(floats, [math.prod(to.shapes.leaves[path])]))
    to.node("Concat", parts, _value(op.output), axis=1)


def _read_leaf(to: _GraphWriter, op: ReadLeaf) -> None:
    value = to.cast(leaf_input(op.leaf), "float32")
    if op.scale != 1.0:
        value = to.node("Mul", [value, to.number(op.scale)])
    if op.shift != 0.0:
        value = to.node("Add", [value, to.number(op.shift)])
    axes = op.axes or range(len(to.shapes.leaves[op.leaf]))
    to.node("Transpose", [value], _value(op.output), perm=[0, *(axis + 1 for axis in axes)])


def _read_one_hot(to: _GraphWriter, op: ReadOneHot) -> None:
    """Compare every column's category with its part, as `tickrate.program.one_hot` does."""
    parts = to.reshape(to.cast(leaf_input(op.leaf), "int64"), [len(op.counts)])
    part_of_column, category = (to.constant(numbers) for numbers in columns(op.lowest, op.counts))
    spread = to.node("Gather", [parts, part_of_column], axis=1)
    to.cast(to.node("Equal", [spread, category]), "float32", _value(op.output))


def _affine(to: _GraphWriter, op: Affine) -> None:
    to.node("Gemm", [_value(op.input), to.tensor(op, "weight"), to.tensor(op, "bias")], _value(op.output))


def _scale(to: _GraphWriter, op: Scale) -> None:
    axes = len(to.shapes.values[op.input])
    per_channel = (-1, *[1] * (axes - 1))
    weight, bias = (to.constant(to.array(op, name).reshape(per_channel)) for name in ("weight", "bias"))
    to.node("Add", [to.node("Mul", [_value(op.input), weight]), bias], _value(op.output))


def _conv2d(to: _GraphWriter, op: Conv2d) -> None:
    _convolve(to, op, op.kernel, op.stride, op.padding)


def _conv1d(to: _GraphWriter, op: Conv1d) -> None:
    _convolve(to, op, (op.kernel,), (op.stride,), (op.padding,))


def _convolve(
    to: _GraphWriter,
    op: Conv1d | Conv2d,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> None:
    to.node(
        "Conv",
        [_value(op.input), to.tensor(op, "weight"), to.tensor(op, "bias")],
        _value(op.output),
        kernel_shape=list(kernel),
        strides=list(stride),
        pads=[*padding, *padding],
    )


def _layer_norm(to: _GraphWriter, op: LayerNorm) -> None:
    inputs = [_value(op.input), to.tensor(op, "weight"), to.tensor(op, "bias")]
    to.node("LayerNormalization", inputs, _value(op.output), axis=-1, epsilon=op.eps)


def _rms_norm(to: _GraphWriter, op: RmsNorm) -> None:
    x = _value(op.input)
    last = to.constant(np.array([-1], np.int64))
    moment = to.node("ReduceMean", [to.node("Mul", [x, x]), last], keepdims=1)
    root = to.node("Sqrt", [to.node("Add", [moment, to.number(op.eps)])])
    to.node("Mul", [to.node("Div", [x, root]), to.tensor(op, "weight")], _value(op.output))


def _activation(to: _GraphWriter, op: Activation) -> None:
    x = _value(op.input)
    if op.function == "silu":
        to.node("Mul", [x, to.node("Sigmoid", [x])], _value(op.output))
    else:
        to.node({"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}[op.function], [x], _value(op.output))


def _add(to: _GraphWriter, op: Add) -> None:
    to.node("Add", [_value(name) for name in op.inputs], _value(op.output))


def _concat(to: _GraphWriter, op: Concat) -> None:
    to.node("Concat", [_value(name) for name in op.inputs], _value(op.output), axis=1)


def _reshape(to: _GraphWriter, op: Reshape) -> None:
    to.reshape(_value(op.input), op.shape, _value(op.output))


def _expected(to: _GraphWriter, op: ExpectedValue) -> None:
    count = to.shapes.values[op.output][0]
    logits = to.reshape(_value(op.input), [count, op.atoms])
    support = np.linspace(op.low, op.high, op.atoms).astype(np.float32)
    to.node("MatMul", [to.node("Softmax", [logits], axis=-1), to.constant(support)], _value(op.output))


def _gru(to: _GraphWriter, op: GruCell) -> None:
    before = state_input(op.state)
    new = to.node("Gemm", [_value(op.input), to.tensor(op, "weight"), to.tensor(op, "bias")])
    old = to.node("Gemm", [before, to.tensor(op, "state_weight"), to.tensor(op, "state_bias")])
    reset, update, candidate = to.split(new, [op.units] * 3)
    old_reset, old_update, old_candidate = to.split(old, [op.units] * 3)
    reset = to.node("Sigmoid", [to.node("Add", [reset, old_reset])])
    update = to.node("Sigmoid", [to.node("Add", [update, old_update])])
    recurrent = to.node("Mul", [reset, old_candidate])
    candidate = to.node("Tanh", [to.node("Add", [candidate, recurrent])])
    change = to.node("Mul", [update, to.node("Sub", [before, candidate])])
    to.node("Add", [candidate, change], _value(op.output))
    to.node("Identity", [_value(op.output)], state_output(op.state))


def _lstm(to: _GraphWriter, op: LstmCell) -> None:
    new = to.node("Gemm", [_value(op.input), to.tensor(op, "weight"), to.tensor(op, "bias")])
    old = to.node("MatMul", [state_input(op.state), to.tensor(op, "state_weight")])
    gates = to.split(to.node("Add", [new, old]), [op.units] * 4)
    enter, forget, leave = (to.node("Sigmoid", [gates[i]]) for i in (0, 1, 3))
    entering = to.node("Mul", [enter, to.node("Tanh", [gates[2]])])
    kept = to.node("Mul", [forget, state_input(op.cell)])
    cell = to.node("Add", [kept, entering], state_output(op.cell))
    to.node("Mul", [leave, to.node("Tanh", [cell])], _value(op.output))
    to.node("Identity", [_value(op.output)], state_output(op.state))


_WRITERS: dict[type, Callable[[_GraphWriter, Any], None]] = {
    Read: _read,
    ReadLeaf: _read_leaf,
    ReadOneHot: _read_one_hot,
    Affine: _affine,
    Scale: _scale,
    Conv2d: _conv2d,
    Conv1d: _conv1d,
    LayerNorm: _layer_norm,
    RmsNorm: _rms_norm,
    Activation: _activation,
    Add: _add,
    Concat: _concat,
    Reshape: _reshape,
    ExpectedValue: _expected,
    GruCell: _gru,
    LstmCell: _lstm,
}


def _write_head(to: _GraphWriter, contract: PolicyContract) -> None:
    """Write the action without exploration, as `tickrate.artefact.heads` computes it."""
    action = contract.action
    value = _box(to, action) if isinstance(action, BoxAction) else _choices(to, action)
    to.reshape(to.cast(value, action.dtype), action.shape, ACTION)


def _box(to: _GraphWriter, action: BoxAction) -> str:
    low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
    half = (high - low) * np.float32(0.5)
    mean, _ = to.split(OUTPUTS, [action.size] * 2)
    value = to.node("Mul", [to.node("Tanh", [mean]), to.constant(half)])
    value = to.node("Add", [value, to.constant(low + half)])
    return to.node("Min", [to.node("Max", [value, to.constant(low)]), to.constant(high)])


def _choices(to: _GraphWriter, action: DiscreteAction | MultiDiscreteAction) -> str:
    parts = to.split(OUTPUTS, action.choices)
    best = [to.node("ArgMax", [part], axis=1, keepdims=1) for part in parts]
    starts = to.constant(np.array(action.starts, np.int64))
    return to.node("Add", [to.node("Concat", best, axis=1), starts])
