"""Programs that cannot run are refused before they do, and the message names the operation."""

import msgspec
import numpy as np
import pytest

from tickrate.errors import PolicyError
from tickrate.program.checking import check_program, check_tensors
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
    Program,
    Read,
    ReadLeaf,
    ReadOneHot,
    Reshape,
    RmsNorm,
    Scale,
    mlp_program,
)

LEAVES = {"speed": (3,), "scan": (4, 5), "camera": (84, 84, 3), "flag": ()}
ATARI = (
    ReadLeaf("camera", "x", 1 / 255, 0.0, (2, 0, 1)),
    Conv2d("x", "a", 32, (8, 8), (4, 4)),
    Conv2d("a", "b", 64, (4, 4), (2, 2)),
    Conv2d("b", "c", 64, (3, 3)),
    Reshape("c", "y", (3136,)),
)


def test_shapes_of_the_atari_network():
    # 84 -> 20 -> 9 -> 7 and 3136 features, as in Mnih et al. 2015.
    shapes = check_program(Program(ATARI), LEAVES)
    assert shapes.values == {
        "x": (3, 84, 84),
        "a": (32, 20, 20),
        "b": (64, 9, 9),
        "c": (64, 7, 7),
        "y": (3136,),
    }
    assert shapes.tensors["a.weight"] == (32, 3, 8, 8)
    assert shapes.leaves == {"camera": (84, 84, 3)}
    products = 400 * 32 * 192 + 81 * 64 * 512 + 49 * 64 * 576
    assert products < shapes.work < products + 60_000


def test_shapes_of_everything_else():
    ops = (
        Read(("flag", "speed", "scan"), "x"),
        Affine("x", "y", 6),
        GruCell("y", "g", 4, "mind"),
        LstmCell("g", "l", 4, "short", "long"),
        Add(("g", "l"), "sum"),
        LayerNorm("sum", "n"),
        RmsNorm("n", "r"),
        ReadLeaf("scan", "s", axes=(1, 0)),
        Conv1d("s", "h", 2, 3, 1, 1),
        Scale("h", "hs"),
        Activation("hs", "ha", "elu"),
        Reshape("ha", "flat", (8,)),
        ReadOneHot("flag", "hot", (-2,), (65533,)),
        Affine("hot", "few", 3),
        Concat(("r", "flat", "few"), "all"),
        ExpectedValue("all", "out", 3, -1.0, 1.0),
    )
    shapes = check_program(Program(ops), LEAVES)
    expected = {"x": (24,), "l": (4,), "s": (5, 4), "h": (2, 4), "hot": (65533,), "all": (15,), "out": (5,)}
    assert {name: shapes.values[name] for name in expected} == expected
    assert shapes.states == {"mind": (4,), "short": (4,), "long": (4,)}
    assert shapes.tensors == {
        "y.weight": (24, 6),
        "y.bias": (6,),
        "g.weight": (6, 12),
        "g.bias": (12,),
        "g.state_weight": (4, 12),
        "g.state_bias": (12,),
        "l.weight": (4, 16),
        "l.state_weight": (4, 16),
        "l.bias": (16,),
        "n.weight": (4,),
        "n.bias": (4,),
        "r.weight": (4,),
        "h.weight": (2, 5, 3),
        "h.bias": (2,),
        "hs.weight": (2,),
        "hs.bias": (2,),
        "few.weight": (65533, 3),
        "few.bias": (3,),
    }


X = Read(("speed", "scan"), "x")  # 23 numbers
IMAGE = ATARI[0]  # 3 x 84 x 84


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ((), "a program of 0 operations"),
        ((X,) * 1025, "a program of 1025 operations"),
        ((X, Affine("nowhere", "y", 2)), "operation 1 (affine -> 'y'): it reads 'nowhere'"),
        ((Affine("y", "y", 2),), "it reads 'y', which no operation before it makes"),
        ((X, Affine("x", "x", 2)), "a value of this name is made already"),
        ((X, Affine("x", "../y", 2)), "no name for a value"),
        ((X, Affine("x", "y" * 65, 2)), "no name for a value"),
        ((X, Affine("x", "y", 0)), "units is 0"),
        ((X, Affine("x", "y", 2**40)), "units is 1099511627776"),
        ((X, Affine("x", "y", 2**22)), "tensors have 100663296 numbers"),
        ((X, Affine("x", "y", 2), Affine("x", "z", 2)), "values ['y']: made, but nothing reads them"),
        ((Read(("nowhere",), "x"),), "operation 0 (read -> 'x'): it reads the leaf 'nowhere'"),
        ((Read((), "x"),), "at least one leaf"),
        ((Read(("speed", "speed"), "x"),), "each once"),
        ((ReadLeaf("nowhere", "x"),), "the leaf 'nowhere'"),
        ((ReadLeaf("flag", "x"),), "impossible shape []"),
        ((ReadLeaf("camera", "x", axes=(0, 1)),), "axes [0, 1] are no order of the 3 axes"),
        ((ReadLeaf("camera", "x", axes=(0, 1, 1)),), "are no order"),
        ((ReadLeaf("speed", "x", scale=float("inf")),), "scale is inf"),
        ((ReadLeaf("speed", "x", shift=float("nan")),), "shift is nan"),
        ((ReadOneHot("nowhere", "x", (0,), (2,)),), "the leaf 'nowhere'"),
        (
            (ReadOneHot("speed", "x", (0, 0), (2, 2)),),
            "operation 0 (read_one_hot -> 'x'): the leaf 'speed' has 3 parts, there are 2 lowest categories "
            "and 2 counts",
        ),
        ((ReadOneHot("speed", "x", (0, 0, 0), (2, 2)),), "3 lowest categories and 2 counts"),
        ((ReadOneHot("flag", "x", (0,), (0,)),), "counts [0]: at least 1 each"),
        ((ReadOneHot("speed", "x", (0, 0, 0), (3, -1, 3)),), "counts [3, -1, 3]: at least 1 each"),
        ((ReadOneHot("flag", "x", (0,), (65537,)),), "at most 65536 columns"),
        ((ReadOneHot("speed", "x", (0, 0, 0), (65535, 1, 1)),), "at most 65536 columns"),
        ((ReadOneHot("flag", "x", (2**52 + 1,), (2,)),), "lowest [4503599627370497]"),
        ((ReadOneHot("flag", "x", (-(10**30),), (2,)),), "lowest [-1000000"),
        ((IMAGE, Affine("x", "y", 2)), "of shape [3, 84, 84], it needs 1 axes"),
        ((IMAGE, Conv1d("x", "y", 2, 3)), "it needs 2 axes"),
        ((IMAGE, Conv2d("x", "y", 2, (85, 3))), "a kernel of 85 does not fit into 84"),
        ((IMAGE, Conv2d("x", "y", 2, (3, 3), (0, 1))), "stride is 0"),
        ((IMAGE, Conv2d("x", "y", 2, (0, 3))), "kernel is 0"),
        ((IMAGE, Conv2d("x", "y", 2, (3, 3), (1, 1), (3, 0))), "padding 3 with a kernel of 3"),
        ((IMAGE, Conv2d("x", "y", 2, (3, 3), (1, 1), (-1, 0))), "padding -1"),
        ((IMAGE, Conv2d("x", "y", 0, (3, 3))), "channels is 0"),
        ((IMAGE, Conv2d("x", "y", 2**14, (2, 2))), "impossible shape [16384, 83, 83]"),
        ((IMAGE, *(Conv2d("xabcd"[i], "abcde"[i], 400, (5, 5)) for i in range(3))), "multiply-adds"),
        ((IMAGE, Conv2d("x", "y", 1000, (42, 42))), "multiply-adds"),
        ((IMAGE, *(Conv2d("x", name, 1, (30, 30)) for name in "abcdefghi")), "the values are"),
        ((X, LayerNorm("x", "y", 0.0)), "eps is 0.0"),
        ((X, RmsNorm("x", "y", float("nan"))), "eps is nan"),
        ((X, Affine("x", "y", 2), Add(("x", "y"), "z")), "it adds the shapes [23] and [2]"),
        ((X, Concat((), "z")), "it joins 0 values"),
        ((X, Reshape("x", "y", (22,))), "[23] cannot take the shape [22]"),
        ((X, Reshape("x", "y", (-1,))), "cannot take the shape"),
        ((X, Reshape("x", "y", (23, *[1] * 16))), "cannot take the shape"),
        ((X, ExpectedValue("x", "y", 5, 0.0, 1.0)), "23 logits are no distributions of 5 atoms"),
        ((X, ExpectedValue("x", "y", 1, 0.0, 1.0)), "at least 2"),
        ((X, ExpectedValue("x", "y", 23, 1.0, 1.0)), "low must be below high"),
        ((X, GruCell("x", "y", 2, "noise")), "a state named 'noise' is there already"),
        ((X, GruCell("x", "y", 2, "noise_left")), "a state named 'noise_left' is there already"),
        ((X, GruCell("x", "y", 2, "m"), GruCell("y", "z", 2, "m")), "a state named 'm' is there already"),
        ((X, LstmCell("x", "y", 2, "m", "m")), "a state named 'm' is there already"),
        ((X, GruCell("x", "y", 2, "a b")), "no name for a state"),
        ((X, GruCell("x", "y", 2**14, "m")), "tensors have"),
    ],
)
def test_what_cannot_be_is_refused_by_operation(ops, words):
    with pytest.raises(PolicyError) as error:
        check_program(Program(tuple(ops)), LEAVES)
    assert words in str(error.value)


def test_every_operation_travels_as_json():
    ops = (
        X,
        *ATARI,
        ReadOneHot("flag", "0", (-2,), (3,)),
        Affine("x", "1", 2),
        Scale("x", "2"),
        Conv1d("x", "3", 2, 3),
        LayerNorm("x", "4"),
        RmsNorm("x", "5"),
        Activation("x", "6", "silu"),
        Add(("x", "y"), "7"),
        Concat(("x", "y"), "8"),
        ExpectedValue("x", "9", 2, 0.0, 1.0),
        GruCell("x", "10", 2, "m"),
        LstmCell("x", "11", 2, "m", "c"),
    )
    program = Program(ops)
    assert msgspec.json.decode(msgspec.json.encode(program), type=Program) == program
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        msgspec.json.decode(b'{"ops":[{"op":"scale","input":"x","output":"y","surprise":1}]}', type=Program)


def test_tensors_are_compared_by_name_shape_and_type():
    shapes = check_program(mlp_program(["speed"], [2]), LEAVES)
    good = {"layer.0.weight": np.zeros((3, 2), np.float32), "layer.0.bias": np.zeros(2, np.float32)}
    check_tensors(shapes, good)
    for change, words in (
        ({"layer.0.bias": np.zeros(3, np.float32)}, "'layer.0.bias' is float32[3], expected float32[2]"),
        ({"layer.0.bias": np.zeros(2)}, "is float64"),
        ({"layer.0.bias": np.full(2, np.nan, np.float32)}, "not finite"),
        ({"layer.1.bias": np.zeros(2, np.float32)}, "unexpected ['layer.1.bias']"),
    ):
        with pytest.raises(PolicyError) as error:
            check_tensors(shapes, good | change)
        assert words in str(error.value)
