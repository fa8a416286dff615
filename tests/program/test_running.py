"""The numpy execution of programs: values worked out by hand, arrays that are never shared by mistake."""

import numpy as np
import pytest

from tickrate.errors import PolicyMismatch
from tickrate.program.checking import check_program, check_tensors
from tickrate.program.running import Runner
from tickrate.program.spec import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv2d,
    ExpectedValue,
    GruCell,
    LayerNorm,
    Program,
    Read,
    ReadLeaf,
    ReadOneHot,
    Reshape,
    RmsNorm,
)


def run(ops, tensors, observation, state=None):
    """Check and run once; return output and next state."""
    arrays = {name: np.asarray(value, np.float32) for name, value in tensors.items()}
    program = Program(tuple(ops))
    shapes = check_program(program, {path: np.shape(rows)[1:] for path, rows in observation.items()})
    check_tensors(shapes, arrays)
    observation = {path: np.asarray(rows) for path, rows in observation.items()}
    return Runner(program, shapes, arrays).run(observation, state or {})


def test_leaves_lie_side_by_side_whatever_their_type():
    observation = {"b": [[[1, 2], [3, 4]]], "a": [0.5], "c": [[True, False]]}
    out, state = run([Read(("a", "b", "c"), "x")], {}, observation)
    np.testing.assert_array_equal(out, [[0.5, 1, 2, 3, 4, 1, 0]])
    assert out.dtype == np.float32
    assert state == {}


PARTS = ReadOneHot("keys", "x", (5, -1), (2, 3))


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32])
def test_categories_become_columns_part_by_part(dtype):
    keys = np.array([[[5], [-1]], [[6], [1]], [[5], [0]]], dtype)  # (batch 3, 2, 1)
    out, _ = run([PARTS], {}, {"keys": keys})
    np.testing.assert_array_equal(out, [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 0]])
    assert out.dtype == np.float32


def test_a_single_category_and_a_switch_are_leaves_without_axes():
    ops = [ReadOneHot("gear", "g", (0,), (3,)), ReadOneHot("lamp", "l", (0,), (2,)), Concat(("g", "l"), "x")]
    out, _ = run(ops, {}, {"gear": np.array([2, 0], np.uint8), "lamp": np.array([False, True])})
    np.testing.assert_array_equal(out, [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([5, 2], "leaf 'keys' holds 2 in part 1: the policy knows the categories -1 to 1 there"),
        ([4, 0], "holds 4 in part 0: the policy knows the categories 5 to 6 there"),
        ([5, 2**62], "holds 4.6116860184273879e+18 in part 1"),
        ([5.5, 0], "holds 5.5 in part 0"),
        ([5, float("nan")], "holds nan in part 1"),
        ([float("-inf"), 0], "holds -inf in part 0"),
    ],
)
def test_what_is_no_category_is_refused_by_leaf_and_value(row, words):
    program = Program((PARTS,))
    runner = Runner(program, check_program(program, {"keys": (2,)}), {})
    with pytest.raises(PolicyMismatch) as error:
        runner.run({"keys": np.array([[6, 0], row])}, {})
    assert words in str(error.value)
    out, _ = runner.run({"keys": np.array([[5, 1], [6, 0]])}, {})  # it goes on with what is good
    np.testing.assert_array_equal(out, [[1, 0, 0, 0, 1], [0, 1, 0, 1, 0]])


@pytest.mark.parametrize("lowest", [2**52, -(2**52)])
def test_the_largest_categories_are_told_apart(lowest):
    op = ReadOneHot("word", "x", (lowest,), (3,))
    out, _ = run([op], {}, {"word": np.arange(lowest, lowest + 3)})
    np.testing.assert_array_equal(out, np.eye(3))
    for wrong in (lowest - 1, lowest + 3, 2 * lowest + 1):
        with pytest.raises(PolicyMismatch, match=str(wrong) if abs(wrong) < 2**53 else "holds"):
            run([op], {}, {"word": np.array([wrong])})


def test_an_image_is_scaled_and_its_channels_come_first():
    image = np.array([[[[0, 255], [51, 102]]]], np.uint8)  # (batch 1, H 1, W 2, C 2)
    ops = [ReadLeaf("eye", "x", 1 / 255, -0.5, (2, 0, 1)), Reshape("x", "flat", (4,))]
    out, _ = run(ops, {}, {"eye": image})
    np.testing.assert_allclose(out, [[-0.5, -0.3, 0.5, -0.1]], atol=1e-6)


def test_convolution_by_hand():
    image = np.arange(9, dtype=np.uint8).reshape(1, 1, 3, 3)
    kernel = [[[[1, 2], [3, 4]]]]  # a cross-correlation: the kernel is not flipped
    tensors = {"y.weight": kernel, "y.bias": [10]}
    out, _ = run([ReadLeaf("eye", "x"), Conv2d("x", "y", 1, (2, 2))], tensors, {"eye": image})
    np.testing.assert_array_equal(out, [[[[37, 47], [67, 77]]]])
    # With one zero on each side and a stride of 2: corners (0 0 0 0), (0 0 1 2), (0 3 0 6), (4 5 7 8).
    ops = [ReadLeaf("eye", "x"), Conv2d("x", "y", 1, (2, 2), (2, 2), (1, 1))]
    for _ in range(2):
        out, _ = run(ops, tensors, {"eye": image})
        np.testing.assert_array_equal(out, [[[[10, 21], [40, 77]]]])


def test_norms_by_hand():
    observation = {"a": [[1.0, 3.0], [-2.0, 2.0]]}
    tensors = {"y.weight": [2.0, 1.0], "y.bias": [0.5, 0.0]}
    out, _ = run([Read(("a",), "x"), LayerNorm("x", "y", 1e-12)], tensors, observation)
    np.testing.assert_allclose(out, [[-1.5, 1.0], [-1.5, 1.0]], atol=1e-6)
    out, _ = run([Read(("a",), "x"), RmsNorm("x", "y", 1e-12)], {"y.weight": [2.0, 1.0]}, observation)
    np.testing.assert_allclose(out, [[2 / 5**0.5, 3 / 5**0.5], [-2.0, 1.0]], atol=1e-6)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("relu", [0.0, 0.0, 0.0, 2.0, 200.0]),
        ("tanh", [-1.0, -0.76159416, 0.0, 0.96402758, 1.0]),
        ("elu", [-1.0, -0.63212056, 0.0, 2.0, 200.0]),
        ("silu", [0.0, -0.26894142, 0.0, 1.76159416, 200.0]),
    ],
)
def test_activations_by_hand_without_overflow(function, expected):
    out, _ = run(
        [Read(("a",), "x"), Activation("x", "y", function)], {}, {"a": [[-200.0, -1.0, 0.0, 2.0, 200.0]]}
    )
    np.testing.assert_allclose(out, [expected], atol=1e-6)


def test_expected_value_by_hand_and_for_huge_logits():
    logits = np.log([[0.2, 0.3, 0.5, 0.5, 0.25, 0.25]]) + 1000.0
    out, _ = run([Read(("a",), "x"), ExpectedValue("x", "y", 3, -1.0, 1.0)], {}, {"a": logits})
    np.testing.assert_allclose(out, [[0.3, -0.25]], atol=1e-4)


def test_a_value_with_two_readers_is_not_overwritten():
    ops = [
        Read(("a",), "x"),
        Activation("x", "r", "relu"),
        Add(("x", "r"), "s"),
        Activation("s", "t", "tanh"),
        Concat(("s", "t", "x"), "all"),
        Reshape("all", "square", (3, 2)),
        Activation("square", "r2", "relu"),
        Reshape("r2", "flat", (6,)),
        Concat(("flat", "all"), "out"),
    ]
    out, _ = run(ops, {}, {"a": [[-1.0, 2.0]]})
    s, t = [-1.0, 4.0], np.tanh([-1.0, 4.0])
    everything = np.array([*s, *t, -1.0, 2.0])
    np.testing.assert_allclose(out, [[*np.maximum(everything, 0), *everything]], atol=1e-6)


GRU = [Read(("a",), "x"), GruCell("x", "h", 1, "mind"), Activation("h", "y", "relu")]
ONES = {
    "h.weight": [[0, 0, 1]],
    "h.bias": [0, 0, 0],
    "h.state_weight": [[0, 0, 0]],
    "h.state_bias": [0, 0, 0],
}


def test_a_recurrent_state_by_hand_and_untouched_by_what_follows():
    # Gates of 1/2: h' = (h + tanh a) / 2.
    out, state = run(GRU, ONES, {"a": [[-3.0], [3.0]]}, {"mind": np.array([[0.5], [0.5]])})
    expected = (0.5 + np.tanh([[-3.0], [3.0]])) / 2
    np.testing.assert_allclose(state["mind"], expected, atol=1e-6)
    np.testing.assert_allclose(out, np.maximum(expected, 0), atol=1e-6)


def test_states_returned_are_not_touched_by_the_next_run():
    tensors = {name: np.asarray(value, np.float32) for name, value in ONES.items()}
    program = Program(tuple(GRU))
    runner = Runner(program, check_program(program, {"a": (1,)}), tensors)
    _, first = runner.run({"a": np.array([[1.0]])}, runner.initial_state(1))
    kept = first["mind"].copy()
    _, second = runner.run({"a": np.array([[1.0]])}, first)
    np.testing.assert_array_equal(first["mind"], kept)
    np.testing.assert_allclose(second["mind"], (kept + np.tanh(1.0)) / 2, atol=1e-6)


def test_a_state_that_is_missing_or_of_another_batch_is_named():
    with pytest.raises(PolicyMismatch, match="carries the state 'mind'"):
        run(GRU, ONES, {"a": [[1.0]]})
    with pytest.raises(PolicyMismatch, match=r"state 'mind' has shape \(2, 1\), expected \(1, 1\)"):
        run(GRU, ONES, {"a": [[1.0]]}, {"mind": np.zeros((2, 1))})


def test_batches_of_any_size_agree():
    rng = np.random.default_rng(0)
    ops = [
        ReadLeaf("eye", "x", axes=(2, 0, 1)),
        Conv2d("x", "c", 3, (3, 3), (2, 2), (1, 1)),
        Activation("c", "r", "relu"),
        Reshape("r", "f", (27,)),
        Affine("f", "y", 4),
    ]
    program, leaves = Program(tuple(ops)), {"eye": (6, 5, 2)}
    shapes = check_program(program, leaves)
    tensors = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.tensors.items()}
    runner = Runner(program, shapes, tensors)
    images = rng.integers(0, 9, (7, 6, 5, 2), np.uint8)
    whole = runner.run({"eye": images}, {})[0].copy()
    for i in range(7):
        np.testing.assert_allclose(
            runner.run({"eye": images[i : i + 1]}, {})[0], whole[i : i + 1], rtol=1e-5, atol=1e-4
        )
    np.testing.assert_array_equal(runner.run({"eye": images}, {})[0], whole)
