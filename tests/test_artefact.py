"""Bytes that are no policy are refused, each for its own reason, before anything is done with them."""

import json
import math
import pickle
import struct
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tickrate.artefact import (
    FORMAT,
    BoxAction,
    Exploration,
    LeafSpec,
    MultiDiscreteAction,
    PolicyContract,
    check_contract,
    pack,
    read_contract,
    unpack,
)
from tickrate.artefact.container import contract_from_json
from tickrate.artefact.contract import leaf_spec
from tickrate.artefact.matching import check_environment
from tickrate.errors import PolicyError, PolicyMismatch
from tickrate.policy import Policy
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
    Program,
    Read,
    ReadLeaf,
    ReadOneHot,
    Reshape,
    RmsNorm,
    Scale,
    mlp_program,
)


def contract(**changes):
    parts = {
        "algorithm": "sac",
        "observation": (LeafSpec("speed", "float32", (1,)), LeafSpec("actions", "float32", (2, 1))),
        "action": BoxAction("float32", (1,), (-1.0,), (1.0,)),
        "groups": {"actor": ("speed", "actions")},
        "program": mlp_program(("speed", "actions"), (4, 2)),
        "exploration": Exploration(),
        "period_s": 0.05,
        "action_buffer_length": 2,
    }
    return PolicyContract(**{**parts, **changes})


def weights():
    rng = np.random.default_rng(0)
    shapes = {"layer.0.weight": (3, 4), "layer.0.bias": (4,), "layer.1.weight": (4, 2), "layer.1.bias": (2,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_round_trip_keeps_contract_and_every_bit():
    blob = pack(contract(policy_version=3), weights())
    back, tensors = unpack(blob)
    assert msgspec.structs.replace(back, weights_sha256="") == contract(policy_version=3)
    assert len(back.weights_sha256) == 64
    for name, value in weights().items():
        np.testing.assert_array_equal(tensors[name], value)
    assert pack(back, tensors) == blob


def test_contract_is_readable_json_in_the_metadata():
    blob = pack(contract(), weights())
    (length,) = struct.unpack_from("<Q", blob)
    text = json.loads(blob[8 : 8 + length])["__metadata__"]["contract"]
    assert json.loads(text)["period_s"] == 0.05
    assert json.loads(text)["format"] == FORMAT
    assert read_contract(blob).action_buffer_length == 2


def test_every_truncation_is_refused():
    blob = pack(contract(), weights())
    for length in range(0, len(blob), 7):
        with pytest.raises(PolicyError):
            unpack(blob[:length])
    with pytest.raises(PolicyError):
        unpack(blob + b"\0")


def test_every_flipped_byte_is_refused_or_harmless():
    # No flip may change a weight or the contract, or raise anything else.
    blob = pack(contract(), weights())
    expected = unpack(blob)[0]
    for position in range(0, len(blob), 3):
        changed = bytearray(blob)
        changed[position] ^= 0x5A
        try:
            found, tensors = unpack(bytes(changed))
        except PolicyError:
            continue
        assert found == expected
        for name, value in weights().items():
            np.testing.assert_array_equal(tensors[name], value)


def test_a_file_without_the_contracts_hash_is_read():
    blob = pack(contract(), weights())
    (length,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + length])
    assert len(header["__metadata__"].pop("contract_sha256")) == 64
    text = json.dumps(header).encode()
    assert unpack(struct.pack("<Q", len(text)) + text + blob[8 + length :])[0] == unpack(blob)[0]


def test_a_leaf_says_the_range_of_its_box_as_far_as_it_is_bounded():
    space = spaces.Box(np.array([-2.0, -8.0], np.float32), np.array([3.0, np.inf], np.float32))
    assert leaf_spec("x", space) == LeafSpec("x", "float32", (2,), low=-8.0)
    assert leaf_spec("x", spaces.Box(0, 255, (4, 4), np.uint8)).high == 255.0
    assert leaf_spec("x", spaces.Box(-np.inf, np.inf, (2,))) == LeafSpec("x", "float32", (2,))


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (
            -0.001,
            0.001,
            "leaf 'x' has low -0.001 in the environment, -1 in the policy: is",
        ),
        (-1.0, 255.0, "has high 255 in the environment, 1 in the policy"),
        (-1.0, np.inf, None),
        (-np.inf, 1.0 + 1e-8, None),
    ],
)
def test_an_environment_of_another_range_is_refused(low, high, words):
    mine = leaf_spec("x", spaces.Box(-1.0, 1.0, (1,)))
    made = contract(observation=(mine, *contract().observation))
    seen = {
        "x": spaces.Box(low, high, (1,)),
        "speed": spaces.Box(-np.inf, np.inf, (1,)),
        "actions": spaces.Box(-1, 1, (2, 1)),
    }
    if words is None:
        check_environment(made, seen, spaces.Box(-1, 1, (1,)))
        return
    with pytest.raises(PolicyMismatch) as error:
        check_environment(made, seen, spaces.Box(-1, 1, (1,)))
    assert words in str(error.value)


class Bomb:
    """Would run code if anything unpickled it."""

    def __reduce__(self):
        return (pytest.fail, ("pickle was executed",))


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"12345678",
        pickle.dumps(Bomb()),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 4) + b"[[[[",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 4) + b"\xff\xfe\x00\x01",
        safetensors.numpy.save({"a": np.zeros(3, np.float32)}),
        safetensors.numpy.save({"a": np.zeros(3, np.float32)}, metadata={"contract": "{}"}),
        safetensors.numpy.save({"a": np.zeros(3, np.float32)}, metadata={"contract": "[" * 100_000}),
    ],
)
def test_foreign_bytes_are_refused(blob):
    with pytest.raises(PolicyError):
        unpack(blob)


def test_edited_weights_do_not_match_the_hash():
    blob = bytearray(pack(contract(), weights()))
    blob[-1] ^= 1
    with pytest.raises(PolicyError, match="damaged or was edited"):
        unpack(bytes(blob))


def edited(change, tensors=None):
    """Return an artefact whose contract was edited behind the writer's back, with the right hash."""
    text = json.loads(msgspec.json.encode(unpack(pack(contract(), weights()))[0]))
    change(text)
    return safetensors.numpy.save(tensors or weights(), metadata={"contract": json.dumps(text)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(format="tickrate-policy/9"), "tickrate-policy/9"),
        (lambda c: c.update(surprise=1), "surprise"),
        (lambda c: c.pop("groups"), "groups"),
        (lambda c: c.update(period_s="fast"), "period_s"),
        (lambda c: c.update(period_s=-1.0), "period_s is -1.0"),
        (lambda c: c.update(action_buffer_length=-1), "action_buffer_length -1"),
        (lambda c: c["observation"].append(c["observation"][0]), "twice"),
        (lambda c: c["observation"][0].update(shape=[0]), "'speed' has the impossible shape"),
        (lambda c: c["observation"][0].update(shape=[2**40]), "'speed' has the impossible shape"),
        (lambda c: c["observation"][0].update(shape=[3] + [1] * 70), "'speed' has the impossible shape"),
        (lambda c: c["action"].update(shape=c["action"]["shape"] + [1] * 70), "action has the impossible"),
        (lambda c: c["observation"][0].update(shape=[2]), "float32[3, 4], expected float32[4, 4]"),
        (lambda c: c["observation"][0].update(dtype="O"), "'speed' has dtype 'O'"),
        (lambda c: c["observation"][0].update(dtype="os.system"), "unknown dtype"),
        (lambda c: c["groups"].update(actor=["nowhere"]), "'nowhere'"),
        (lambda c: c["groups"].update(actor=["speed", "speed"]), "twice"),
        (lambda c: c["groups"].clear(), "no observation group 'actor'"),
        (lambda c: c["action"].update(low=[2.0]), "action bounds [2.0, 1.0]"),
        (lambda c: c["action"].update(low=[-1.0, -1.0]), "needs 1 bounds"),
        (lambda c: c["action"].update(dtype="int32"), "int32"),
        (lambda c: c["action"].update(kind="graph"), "graph"),
        (lambda c: c["action"].update(high=[1e39]), "action bounds [-1.0, 1e+39]"),
        (lambda c: c["action"].update(high=[1e5], dtype="float16"), "action bounds [-1.0, 100000.0]"),
        (
            lambda c: c.update(action={"kind": "discrete", "dtype": "uint64", "n": 2, "start": 2**63}),
            "do not fit uint64",
        ),
        (
            lambda c: c.update(action={"kind": "discrete", "dtype": "uint8", "n": 300}),
            "choices from 0 to 299 at index 0 do not fit uint8",
        ),
        (lambda c: c.update(action={"kind": "discrete", "dtype": "float32", "n": 2}), "choices are whole"),
        (lambda c: c.update(action={"kind": "discrete", "dtype": "int64", "n": 0}), "at least 1 each"),
        (
            lambda c: c.update(
                action={
                    "kind": "multi_discrete",
                    "dtype": "int8",
                    "shape": [2],
                    "choices": [2],
                    "starts": [0],
                }
            ),
            "needs 2 numbers of choices",
        ),
        (lambda c: c["action"].pop("kind"), "kind"),
        (lambda c: c.update(head="oracle"), "oracle"),
        (lambda c: c.update(head="greedy"), "the head 'greedy' cannot act in a box space"),
        (lambda c: c["groups"].update(actor=["speed"]), "it reads the leaf 'actions', it may read ['speed']"),
        (lambda c: c["program"]["ops"][2].update(function="eval"), "eval"),
        (lambda c: c["program"]["ops"][2].update(op="eval"), "eval"),
        (lambda c: c["program"]["ops"][1].update(units=5), "float32[3, 4], expected float32[3, 5]"),
        (lambda c: c["program"]["ops"][1].update(units=0), "operation 1 (affine -> 'layer.0'): units is 0"),
        (lambda c: c["program"]["ops"][3].update(units=3), "has the shape [3]: the head"),
        (lambda c: c["program"].update(ops=[]), "a program of 0 operations"),
        (lambda c: c["exploration"].update(epsilon=0.1), "exploration.epsilon is set"),
        (lambda c: c["exploration"].update(noise_correlation=1.0), "noise_correlation is 1.0"),
        (lambda c: c["exploration"].update(noise_hold=0), "noise_hold is 0: possible are 1 to 65536"),
        (lambda c: c["exploration"].update(noise_hold=10**30), "noise_hold is 1000000"),
        (lambda c: c["exploration"].update(noise_hold=2.5), "noise_hold"),
        (
            lambda c: c["exploration"].update(noise_hold=2, noise_correlation=0.5),
            "noise_hold is 2 and noise_correlation 0.5: choose one",
        ),
        (
            lambda c: c["observation"][0].update(lowest=[0], counts=[3]),
            "leaf 'speed' has categories of float32",
        ),
        (
            lambda c: c["observation"][0].update(dtype="int8", lowest=[0]),
            "leaf 'speed' of shape (1,) has 1 parts, it says 1 lowest categories and 0 counts",
        ),
        (
            lambda c: c["observation"][0].update(dtype="int8", lowest=[100], counts=[29]),
            "leaf 'speed' from 100 to 128 at index 0 do not fit int8",
        ),
        (
            lambda c: c["observation"][0].update(dtype="int8", lowest=[0], counts=[0]),
            "from 0 to -1 at index 0 do not fit int8",
        ),
        (
            lambda c: c["observation"][0].update(dtype="uint64", lowest=[0], counts=[10**30]),
            "do not fit uint64",
        ),
        (lambda c: c["exploration"].update(log_std_max=1e9), "log_std clamp"),
    ],
)
def test_a_contract_that_cannot_be_is_refused_by_part(change, words):
    with pytest.raises(PolicyError) as error:
        unpack(edited(change))
    assert words in str(error.value)


def test_weights_of_another_type_or_not_finite_are_refused():
    doubles = {name: value.astype(np.float64) for name, value in weights().items()}
    with pytest.raises(PolicyError, match="float64"):
        unpack(edited(lambda c: None, doubles))
    broken = weights()
    broken["layer.0.bias"][1] = np.inf
    with pytest.raises(PolicyError, match=r"layer\.0\.bias.*not finite"):
        pack(contract(), broken)
    with pytest.raises(PolicyError, match=r"layer\.0\.bias.*not finite"):
        unpack(edited(lambda c: None, broken))


def test_metadata_that_is_no_text_is_refused():
    header = json.dumps({"__metadata__": {"contract": 5}}).encode()
    with pytest.raises(PolicyError, match="no 'contract'"):
        unpack(struct.pack("<Q", len(header)) + header)


FIXTURES = Path(__file__).parent / "fixtures"


def first_format(change=lambda contract: None):
    """Return the bytes of the first format's file with its contract changed."""
    blob = (FIXTURES / "first_format.policy").read_bytes()
    (length,) = struct.unpack_from("<Q", blob)
    contract = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["contract"])
    change(contract)
    return safetensors.numpy.save(safetensors.numpy.load(blob), metadata={"contract": json.dumps(contract)})


def test_the_first_format_is_converted_and_its_hash_still_holds():
    found, tensors = unpack((FIXTURES / "first_format.policy").read_bytes())
    assert found.format == FORMAT == "tickrate-policy/2"
    assert found.action == BoxAction("float32", (2,), (-1.0, 0.0), (1.0, 4.0))
    assert found.exploration == Exploration(0.6, -4.0, 1.0)
    assert found.program == mlp_program(("scan", "speed", "actions"), (6, 5, 4), "tanh")
    assert (found.policy_version, found.period_s, found.action_buffer_length) == (17, 0.05, 2)
    assert unpack(pack(found, tensors))[0] == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["network"].update(widths=[12, 6, 5, 4]), "network widths [12, 6, 5, 4] do not fit"),
        (lambda c: c["network"].update(widths=[11, 6, 4]), "unexpected ['layer.2.bias'"),
        (lambda c: c["network"].update(widths=[11, 0, 5, 4]), "network widths"),
        (lambda c: c["network"].update(activation="silu"), "silu"),
        (lambda c: c["exploration"].update(epsilon=0.1), "epsilon"),
        (lambda c: c["exploration"].update(noise_hold=2), "noise_hold"),
        (lambda c: c["observation"][0].update(lowest=[0], counts=[3]), "unknown field"),
        (lambda c: c.update(program={"ops": []}), "program"),
    ],
)
def test_the_first_format_takes_only_what_it_had(change, words):
    with pytest.raises(PolicyError) as error:
        unpack(first_format(change))
    assert words in str(error.value)


EVERY_OPERATION = (
    ReadLeaf("camera", "image", 1 / 255, -0.5, (2, 0, 1)),
    Conv2d("image", "conv", 2, (3, 2), (2, 1), (1, 0)),
    Scale("conv", "scaled"),
    Activation("scaled", "active", "elu"),
    Reshape("active", "flat", (24,)),
    ReadLeaf("scan", "history", axes=(1, 0)),
    Conv1d("history", "along", 2, 2),
    Reshape("along", "steps", (4,)),
    Read(("speed",), "speed"),
    ReadOneHot("gear", "gear", (-1, 0), (3, 2)),
    Concat(("flat", "steps", "speed", "gear"), "all"),
    Affine("all", "small", 4),
    LayerNorm("small", "norm"),
    RmsNorm("norm", "root"),
    GruCell("root", "gru", 4, "mind"),
    Add(("gru", "root"), "sum"),
    LstmCell("sum", "lstm", 4, "short", "long"),
    Affine("lstm", "logits", 10),
    ExpectedValue("logits", "values", 2, -1.0, 1.0),
)
MANY = contract(
    observation=(
        LeafSpec("camera", "uint8", (6, 5, 3)),
        LeafSpec("scan", "float64", (3, 2)),
        LeafSpec("speed", "float32", (2,)),
        LeafSpec("gear", "int16", (2,), (-1, 0), (3, 2)),
    ),
    action=MultiDiscreteAction("int64", (2,), (2, 3), (0, -1)),
    head="greedy",
    groups={"actor": ("camera", "scan", "speed", "gear")},
    program=Program(EVERY_OPERATION),
    exploration=Exploration(epsilon=0.5),
)
ODD = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2,
        7,
        255,
        1 << 20,
        1 << 31,
        1 << 63,
        10**30,
        0.5,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        [],
        {},
        [0],
        [1, 1],
        [-1, 2],
        [1 << 40],
        [2] * 40,
        "",
        "x",
        "noise",
        "speed",
        "sum",
        "box",
        "O",
        "a" * 5000,
    ),
    *("int8", "float16", "squashed_gaussian", "categorical", "tickrate-policy/1", "\0", "../x"),
)


def places(plain):
    """Yield (container, key) of everything inside nested plain values."""
    keys = plain if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
    for key in keys:
        yield plain, key
        yield from places(plain[key])


def ones(found):
    shapes = check_contract(found).tensors
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def observation_of(found, batch):
    """Return the lowest category where a leaf has some, else zeros."""
    return {
        leaf.path: np.broadcast_to(
            np.array(leaf.lowest or np.zeros(leaf.size), leaf.dtype).reshape(leaf.shape), (batch, *leaf.shape)
        )
        for leaf in found.observation
    }


def gear(lowest=(-1, 0), counts=(3, 2)):
    """Return the contract with every operation, its leaf ``gear`` saying these categories."""
    *others, last = MANY.observation
    return msgspec.structs.replace(
        MANY, observation=(*others, msgspec.structs.replace(last, lowest=lowest, counts=counts))
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            gear(counts=(3, 3)),
            "reads the leaf 'gear' as [3, 2] categories from [-1, 0] on, the leaf has [3, 3]",
        ),
        (gear(lowest=(0, 0)), "the leaf has [3, 2] from [0, 0] on"),
        (gear((), ()), "the leaf has [] from [] on"),
    ],
)
def test_a_leaf_is_read_as_the_categories_it_has(found, words):
    check_contract(gear())
    with pytest.raises(PolicyError) as error:
        check_contract(found)
    assert words in str(error.value)


def test_a_leaf_without_categories_is_written_as_ever():
    text = json.loads(msgspec.json.encode(contract()))
    assert text["observation"][0] == {"path": "speed", "dtype": "float32", "shape": [1]}


def test_a_contract_that_no_reader_would_take_is_not_written():
    many = 60_000
    found = contract(
        observation=(LeafSpec("grid", "int64", (many,), (10**17,) * many, (2,) * many),),
        groups={"actor": ("grid",)},
        program=mlp_program(("grid",), (2,)),
    )
    tensors = {"layer.0.weight": np.zeros((many, 2), np.float32), "layer.0.bias": np.zeros(2, np.float32)}
    with pytest.raises(PolicyError, match=r"contract has 12\d+ bytes, possible are 1048576"):
        pack(found, tensors)


def test_a_contract_with_every_operation_is_possible():
    assert {type(op) for op in EVERY_OPERATION} == set(get_args(Op))
    policy = Policy(MANY, ones(MANY))
    leaves = observation_of(MANY, 1)
    assert policy.act(leaves, policy.initial_state(1))[0].shape == (1, 2)


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_hostile_contract_is_refused_or_acts(data):
    """Change one to three places of a contract that uses every operation; give it tensors that fit."""
    text = json.loads(msgspec.json.encode(MANY))
    for _ in range(data.draw(st.integers(1, 3))):
        node, key = data.draw(st.sampled_from(list(places(text))))
        match data.draw(st.integers(0, 3)):
            case 0 if isinstance(node, dict):
                del node[key]
            case 1 if isinstance(node, list):
                node.insert(key, node[key])
            case 2:
                other, where = data.draw(st.sampled_from(list(places(text))))
                node[key] = json.loads(json.dumps(other[where]))
            case _:
                node[key] = data.draw(st.sampled_from(ODD))
    try:
        found = contract_from_json(json.dumps(text), None)
        shapes = check_contract(found)
        if sum(math.prod(shape) for shape in shapes.tensors.values()) > 1 << 20 or shapes.work > 1 << 24:
            return
        policy = Policy.from_bytes(pack(found, ones(found)), seed=0)
    except PolicyError:
        return
    leaves = observation_of(found, 2)
    action, _, _ = policy.act(leaves, policy.initial_state(2))
    assert action.shape == (2, *found.action.shape)
    assert action.dtype == found.action.dtype
