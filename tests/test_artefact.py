"""Bytes that are no policy are refused, each for its own reason, before anything is done with them."""

import json
import pickle
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from tickrate.artefact import (
    FORMAT,
    BoxAction,
    Exploration,
    LeafSpec,
    PolicyContract,
    pack,
    read_contract,
    unpack,
)
from tickrate.errors import PolicyError
from tickrate.program.spec import mlp_program


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
    # Only free-text fields of the contract may differ; no flip may change a weight or raise anything else.
    blob = pack(contract(), weights())
    for position in range(0, len(blob), 3):
        changed = bytearray(blob)
        changed[position] ^= 0x5A
        try:
            _, tensors = unpack(bytes(changed))
        except PolicyError:
            continue
        for name, value in weights().items():
            np.testing.assert_array_equal(tensors[name], value)


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
        (lambda c: c.update(program={"ops": []}), "program"),
    ],
)
def test_the_first_format_takes_only_what_it_had(change, words):
    with pytest.raises(PolicyError) as error:
        unpack(first_format(change))
    assert words in str(error.value)
