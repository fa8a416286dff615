"""An exported policy acts as the policy does, says what it was made for, and nothing else is accepted."""

import hashlib

import msgspec
import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces
from torch import nn

from tickrate.artefact import Exploration, LeafSpec, PolicyContract, action_spec, leaf_spec
from tickrate.artefact.container import unpack
from tickrate.errors import PolicyError, PolicyMismatch
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.nn.encoders import ObservationEncoder
from tickrate.nn.export import ProgramWriter
from tickrate.nn.recurrent import RecurrentLayer
from tickrate.onnx.actor import OnnxPolicy
from tickrate.onnx.graph import onnx_bytes
from tickrate.onnx.names import ACTION, CONTRACT, CONTRACT_HASH, OUTPUTS
from tickrate.policy import Actor, Policy
from tickrate.program.spec import mlp_program
from tickrate.tools.export import check_parity, export_onnx, random_observation

BOX = spaces.Box(
    np.array([[-1.0], [0.0]], np.float64), np.array([[1.0], [400.0]], np.float64), dtype=np.float64
)
SPEED = {"speed": spaces.Box(-9, 9, (3,)), "keys": spaces.MultiBinary(2)}


def policy_of(writer, observation_spaces, action_space, head="squashed_gaussian", **exploration):
    program, weights = writer.finish()
    contract = PolicyContract(
        algorithm="test",
        observation=tuple(leaf_spec(path, space) for path, space in observation_spaces.items()),
        action=action_spec(action_space),
        head=head,
        groups={"actor": tuple(observation_spaces)},
        program=program,
        exploration=Exploration(**exploration),
        period_s=0.05,
        action_buffer_length=2,
        policy_version=3,
    )
    return Policy(contract, weights, seed=0)


def small(action_space=BOX, head="squashed_gaussian", seed=0, **exploration):
    torch.manual_seed(seed)
    contract = action_spec(action_space)
    outputs = 2 * contract.size if isinstance(action_space, spaces.Box) else sum(contract.choices)
    writer = ProgramWriter()
    writer.module(nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, outputs)), writer.read(SPEED))
    return policy_of(writer, SPEED, action_space, head, **exploration)


LEAVES = {
    "eye": spaces.Box(0, 255, (9, 10, 3), np.uint8),
    "scan": spaces.Box(-1, 1, (6, 4), np.float64),
    "speed": spaces.Box(-9, 9, (3,)),
    "gear": spaces.Discrete(5, start=-3),
    "actions": spaces.MultiDiscrete([[2, 2], [1, 2]], np.uint16, start=[[0, 7], [1, 65534]]),
    "flag": spaces.Box(0, 1, (), np.int16),
}
CATEGORIES = {"gear": ([-3], [5]), "actions": ([0, 7, 1, 65534], [2, 2, 1, 2])}


def write_everything(writer):
    """Write a network that uses every operation."""
    torch.manual_seed(1)
    image = writer.read_leaf("eye", scale=1 / 255, shift=-0.5, axes=(2, 0, 1))
    image = writer.module(nn.Conv2d(3, 4, (3, 2), (2, 1), (1, 0)), image)
    image = writer.module(nn.ELU(), image)
    image = writer.scale(image, torch.rand(4) + 0.5, torch.randn(4))
    image = writer.reshape(writer.module(nn.Conv2d(4, 2, 3, padding=1), image), (90,))
    scan = writer.module(nn.Sequential(nn.Conv1d(4, 3, 3), nn.Tanh()), writer.read_leaf("scan", axes=(1, 0)))
    flat = writer.concat([image, writer.reshape(scan, (12,)), writer.read(["speed", "flag"])])
    flat = writer.concat([flat, *(writer.read_one_hot(path, *CATEGORIES[path]) for path in CATEGORIES)])
    x = writer.module(nn.Sequential(nn.Linear(118, 8), nn.LayerNorm(8), nn.SiLU(), nn.RMSNorm(8)), flat)
    normed = writer.activation(writer.scale(x, torch.rand(8), torch.randn(8)), "relu")
    x = writer.add(x, writer.module(nn.Linear(8, 8), normed))
    for kind in ("gru", "lstm"):
        layer = RecurrentLayer(kind, 8, 8, generator=torch.Generator().manual_seed(2), name=kind)
        x = writer.module(layer, x)
    return writer.expected_value(writer.module(nn.Linear(8, 15), x), 3, -2.0, 5.0)


@pytest.mark.parametrize(
    ("space", "head"),
    [
        (spaces.Discrete(5, start=-2), "greedy"),
        (spaces.MultiDiscrete([[2], [3]], dtype=np.int32, start=[[4], [5]]), "categorical"),
    ],
)
def test_every_operation_and_kind_of_choice_over_fifty_steps_with_a_reset(space, head, tmp_path):
    writer = ProgramWriter()
    write_everything(writer)
    policy = policy_of(writer, LEAVES, space, head)
    kinds = {type(op).__name__ for op in policy.contract.program.ops}
    assert len(kinds) == 16
    difference = export_onnx(policy, tmp_path / "a" / "p.onnx")
    assert 0.0 < difference < 1e-5
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["p.onnx"]
    exported = OnnxPolicy.load_file(tmp_path / "a" / "p.onnx")
    assert set(exported.initial_state(2)) == {"gru", "lstm", "lstm.cell"}


def test_an_encoder_of_images_and_histories_with_continuous_actions(tmp_path):
    leaves = {**LEAVES, "eye": spaces.Box(0, 255, (2, 30, 30), np.uint8)}
    del leaves["gear"], leaves["actions"]
    config = EncoderConfig(
        image_channels=(4, 8), image_kernels=(5, 3), image_strides=(3, 2), history_leaves=("scan",)
    )
    encoder = ObservationEncoder(config, leaves, generator=torch.Generator().manual_seed(0))
    writer = ProgramWriter()
    torch.manual_seed(2)
    writer.module(nn.Linear(encoder.features, 4), encoder.write(writer))
    policy = policy_of(writer, leaves, BOX)
    export_onnx(policy, tmp_path / "p.onnx")
    observation = random_observation(policy.contract, 3, np.random.default_rng(4))
    mine, _, _ = policy.act(observation, policy.initial_state(3), deterministic=True)
    exported = OnnxPolicy.load_file(tmp_path / "p.onnx")
    theirs, _, _ = exported.act(observation, exported.initial_state(3), deterministic=True)
    assert theirs.dtype == np.float64
    assert theirs.shape == (3, 2, 1)
    np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)


def exported_of(policy, seed=0):
    return OnnxPolicy(onnx_bytes(*unpack(policy.to_bytes())), seed=seed)


@pytest.mark.parametrize(
    ("space", "head", "exploration"),
    [
        (BOX, "squashed_gaussian", {"noise_correlation": 0.7}),
        (BOX, "squashed_gaussian", {"noise_hold": 4}),
        (spaces.Discrete(4), "categorical", {}),
        (spaces.Discrete(4), "greedy", {"epsilon": 0.5}),
    ],
)
def test_exploration_is_that_of_the_policy(space, head, exploration):
    policy = small(space, head, **exploration)
    exported: Actor = exported_of(policy)
    policy = Policy.from_bytes(policy.to_bytes(), seed=0)
    observation = random_observation(policy.contract, 50, np.random.default_rng(1))
    mine, theirs = policy.initial_state(50), exported.initial_state(50)
    for _ in range(5):
        action, mine, _ = policy.act(observation, mine)
        exported_action, theirs, extras = exported.act(observation, theirs)
        np.testing.assert_allclose(exported_action, action, rtol=1e-4, atol=1e-4)
        assert extras == {}


def test_the_file_is_ordinary_onnx_with_the_contract_in_its_metadata():
    policy = small()
    model = onnx.load_from_string(onnx_bytes(*unpack(policy.to_bytes())))
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["leaf/speed", "leaf/keys"]
    assert [o.name for o in model.graph.output] == [ACTION, OUTPUTS]
    metadata, digest = model.metadata_props
    assert metadata.key == CONTRACT
    assert msgspec.json.decode(metadata.value, type=PolicyContract) == policy.contract
    assert digest.key == CONTRACT_HASH
    assert digest.value == hashlib.sha256(metadata.value.encode()).hexdigest()


def test_a_contract_that_was_changed_in_the_file_is_refused():
    def widen(model):
        model.metadata_props[0].value = model.metadata_props[0].value.replace('"high":[1.0', '"high":[9.0')

    blob = onnx_bytes(*unpack(small().to_bytes()))
    wider = changed(blob, widen)
    assert wider != blob
    with pytest.raises(PolicyError, match="it is damaged or was edited"):
        OnnxPolicy(wider)
    OnnxPolicy(changed(wider, lambda model: model.metadata_props.pop()))  # as earlier releases wrote it


def changed(model, change):
    model = onnx.load_from_string(model)
    change(model)
    return model.SerializeToString()


def scale_weights(model, factor):
    (weight,) = (t for t in model.graph.initializer if t.name == "tensor/layer.1.weight")
    weight.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(factor), weight.name)
    )


def test_a_file_that_acts_otherwise_fails_the_parity_check(tmp_path, monkeypatch):
    policy = small()
    blob = onnx_bytes(*unpack(policy.to_bytes()))
    assert check_parity(policy, OnnxPolicy(blob)) < 1e-5
    wrong = changed(blob, lambda m: scale_weights(m, 1.0001))
    with pytest.raises(PolicyError, match=r"parity: outputs differ by .* at step 0"):
        check_parity(policy, OnnxPolicy(wrong))
    monkeypatch.setattr("tickrate.tools.export.onnx_bytes", lambda *_: wrong)
    with pytest.raises(PolicyError, match="parity"):
        export_onnx(policy, tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == []


def swap_argmax(model):
    for node in model.graph.node:
        if node.op_type == "ArgMax":
            node.op_type = "ArgMin"


def test_another_choice_fails_the_parity_check():
    policy = small(spaces.Discrete(4), "greedy")
    wrong = changed(onnx_bytes(*unpack(policy.to_bytes())), swap_argmax)
    with pytest.raises(PolicyError, match=r"parity: choice \d of part 0"):
        check_parity(policy, OnnxPolicy(wrong))


def test_a_state_that_is_carried_wrongly_fails_the_parity_check():
    writer = ProgramWriter()
    layer = RecurrentLayer("gru", 3, 4, generator=torch.Generator().manual_seed(0))
    x = writer.module(layer, writer.read(["speed"]))
    writer.module(nn.Linear(4, 4), x)
    leaves = {"speed": SPEED["speed"]}
    policy = policy_of(writer, leaves, BOX)
    blob = onnx_bytes(*unpack(policy.to_bytes()))
    check_parity(policy, OnnxPolicy(blob))

    def zero_state_weight(model):
        (weight,) = (t for t in model.graph.initializer if t.name == "tensor/gru.0.state_weight")
        weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros((4, 12), np.float32), weight.name))

    with pytest.raises(PolicyError, match="at step 1,"):  # at step 0 the state is zero
        check_parity(policy, OnnxPolicy(changed(blob, zero_state_weight)))


def test_check_is_that_of_the_policy():
    exported = exported_of(small())
    exported.check(SPEED, BOX, period_s=0.05, action_buffer_length=2)
    with pytest.raises(PolicyMismatch, match=r"period_s is 0\.02"):
        exported.check(SPEED, BOX, period_s=0.02)
    with pytest.raises(PolicyMismatch, match="'speed'"):
        exported.check({**SPEED, "speed": spaces.Box(-9, 9, (4,))}, BOX)


def test_what_does_not_fit_is_named_when_acting():
    exported = exported_of(small())
    good = random_observation(exported.contract, 2, np.random.default_rng(0))
    state = exported.initial_state(2)
    with pytest.raises(PolicyMismatch, match="'keys'"):
        exported.act({"speed": good["speed"]}, state)
    with pytest.raises(PolicyMismatch, match=r"'keys' has shape \(1, 2\)"):
        exported.act({**good, "keys": good["keys"][:1]}, state)
    with pytest.raises(PolicyMismatch, match=r"'speed' has shape"):
        exported.act({**good, "speed": good["speed"][0]}, state)


def test_a_category_that_does_not_exist_is_refused_when_acting():
    writer, gears = ProgramWriter(), {"gear": spaces.Discrete(3, start=-1)}
    writer.affine(
        writer.read_one_hot("gear", [-1], [3]), torch.tensor([[1.0] * 4, [2.0] * 4, [4.0] * 4]), None
    )
    exported = exported_of(policy_of(writer, gears, BOX))
    outputs, _ = exported.outputs({"gear": np.array([1, -1, 0])}, {})
    np.testing.assert_array_equal(outputs[:, 0], [4, 1, 2])
    for value, words in (
        (2, "holds 2 in part 0"),
        (-2, "holds -2"),
        (0.5, "holds 0.5"),
        (np.nan, "holds nan"),
    ):
        with pytest.raises(PolicyMismatch, match=f"leaf 'gear' {words}"):
            exported.act({"gear": np.array([0, value])}, exported.initial_state(2))


def test_newer_files_are_taken_and_others_refused():
    exported, newer = exported_of(small()), small(seed=1)
    observation = random_observation(newer.contract, 2, np.random.default_rng(0))
    exported.load(onnx_bytes(*unpack(newer.to_bytes())))
    mine, _, _ = newer.act(observation, newer.initial_state(2), deterministic=True)
    theirs, _, _ = exported.act(observation, exported.initial_state(2), deterministic=True)
    np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)
    with pytest.raises(PolicyMismatch, match="action"):
        exported.load(onnx_bytes(*unpack(small(spaces.Discrete(4), "greedy").to_bytes())))
    with pytest.raises(PolicyError):
        exported.load(newer.to_bytes())


def set_metadata(model, value):
    del model.metadata_props[:]
    if value is not None:
        onnx.helper.set_model_props(model, {CONTRACT: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: set_metadata(m, None), "no 'tickrate.contract' in its metadata"),
        (lambda m: set_metadata(m, "{}"), "policy format ''"),
        (lambda m: set_metadata(m, "[" * 5000), "cannot be read"),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 4),
            "has the inputs {'leaf/speed': ('float32', (4,))",
        ),
        (lambda m: setattr(m.graph.input[1], "name", "leaf/other"), "no ONNX file that can be run"),
        (lambda m: m.graph.output.pop(), "has the outputs"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(change, words):
    blob = onnx_bytes(*unpack(small().to_bytes()))
    with pytest.raises(PolicyError) as error:
        OnnxPolicy(changed(blob, change))
    assert words in str(error.value)


def test_a_file_of_another_policys_contract_is_refused():
    other = small(spaces.Discrete(4), "greedy").contract
    blob = onnx_bytes(*unpack(small().to_bytes()))
    text = msgspec.json.encode(other).decode()
    with pytest.raises(PolicyError, match="has the outputs"):
        OnnxPolicy(changed(blob, lambda m: set_metadata(m, text)))


@pytest.mark.parametrize("blob", [b"", b"junk", b"\x08\x08" * 50], ids=["empty", "junk", "fields"])
def test_bytes_that_are_no_model_are_refused_and_the_file_named(tmp_path, blob):
    path = tmp_path / "p.onnx"
    path.write_bytes(blob)
    with pytest.raises(PolicyError, match=r"p\.onnx"):
        OnnxPolicy.load_file(path)


def test_random_observations_have_every_leafs_type():
    contract = PolicyContract(
        algorithm="x",
        observation=(
            LeafSpec("a", "uint8", (40, 40)),
            LeafSpec("b", "bool", (9,)),
            LeafSpec("c", "int64", ()),
            LeafSpec("d", "int8", (2, 1), (-2, 5), (3, 2)),
        ),
        action=action_spec(BOX),
        groups={"actor": ("a", "b", "c", "d")},
        program=mlp_program(("a", "b", "c", "d"), (4,)),
        exploration=Exploration(),
        period_s=0.0,
        action_buffer_length=0,
    )
    found = random_observation(contract, 20, np.random.default_rng(0))
    assert {name: (v.dtype.name, v.shape) for name, v in found.items()} == {
        "a": ("uint8", (20, 40, 40)),
        "b": ("bool", (20, 9)),
        "c": ("int64", (20,)),
        "d": ("int8", (20, 2, 1)),
    }
    assert [set(part.ravel()) for part in np.moveaxis(found["d"], 1, 0)] == [{-2, -1, 0}, {5, 6}]
    assert (found["a"].min(), found["a"].max()) == (0, 255)
    assert set(found["b"].ravel()) == {False, True}


@pytest.mark.parametrize("place", ["weights.bin", "../weights.bin"])
def test_weights_in_another_file_are_never_read(tmp_path, monkeypatch, place):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / place).write_bytes(bytes(1000))

    def move_out(model):
        (weight,) = (t for t in model.graph.initializer if t.name == "tensor/layer.1.weight")
        size = len(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", place), ("offset", "0"), ("length", str(size))):
            weight.external_data.add(key=key, value=value)

    with pytest.raises(PolicyError, match="no ONNX file that can be run"):
        OnnxPolicy(changed(onnx_bytes(*unpack(small().to_bytes())), move_out))
