"""The contract of an environment survives the way to the trainer, and hostile descriptions are refused."""

import copy
import dataclasses
import json

import numpy as np
import pytest
from gymnasium import spaces
from runtime_kit import CONTRACT, ScriptedEnvironment

from tickrate.errors import ConfigError, MessageError, RecordError
from tickrate.realtime.spaces import buffer_space
from tickrate.runtime.contract import EnvironmentContract

BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)
LEAVES = {
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "mixed": spaces.Box(np.array([0, -1], np.float32), np.array([1, np.inf], np.float32)),
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "scalar": spaces.Box(-2.0, 2.0, (), np.float64),
    "huge": spaces.Box(-(2**62) - 1, 2**62 + 1, (2,), np.int64),
    "gear": spaces.Discrete(6, start=-1),
    "switches": spaces.MultiBinary(4),
    "dials": spaces.MultiDiscrete(np.array([3, 5]), start=np.array([0, 2])),
    "a/nested": spaces.Box(0.0, 1.0, (2,), np.float32),
    "actions": spaces.Box(-1.0, 1.0, (2, 1), np.float32),
}


def travel(contract):
    return EnvironmentContract.from_dict(json.loads(json.dumps(contract.to_dict())))


def test_all_kinds_of_spaces_come_back_equal():
    mirror = {"observation": {"mixed": (np.array([1, 0]), None)}, "action": np.array([-1.0])}
    sent = EnvironmentContract(LEAVES, BOX, 0.05, 2, mirror)
    back = travel(sent)
    assert list(back.leaf_spaces) == list(LEAVES)
    for path, space in LEAVES.items():
        assert back.leaf_spaces[path] == space, path
        assert back.leaf_spaces[path].dtype == space.dtype
    assert back.action_space == BOX
    assert (back.period_s, back.action_buffer_length) == (0.05, 2)
    assert back.mirror == {"observation": {"mixed": [[1, 0], None]}, "action": [-1.0]}
    assert back.schema().digest() == sent.schema().digest()


@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(4, start=-2),
        spaces.Discrete(3, dtype=np.int32),
        spaces.MultiDiscrete([3, 2], start=[0, 5]),
        spaces.MultiDiscrete([[3, 2], [4, 5]], dtype=np.int16),
        spaces.MultiBinary(4),
    ],
)
def test_actions_of_categories_come_back_equal(action):
    sent = EnvironmentContract({"actions": buffer_space(action, 2)}, action, 0.05, 2, None)
    back = travel(sent)
    assert back.action_space == action
    assert back.action_space.dtype == action.dtype
    assert back.leaf_spaces == sent.leaf_spaces
    assert back.difference(sent) == ""
    assert back.schema() == sent.schema()


def test_another_choice_of_categories_is_a_difference():
    here = EnvironmentContract({"speed": BOX}, spaces.Discrete(3), 0.05, 0, None)
    there = EnvironmentContract({"speed": BOX}, spaces.Discrete(3, start=1), 0.05, 0, None)
    assert "Discrete(3) here and Discrete(3, start=1) there" in here.difference(there)


def test_of_an_environment():
    contract = EnvironmentContract.of(ScriptedEnvironment())
    assert contract == CONTRACT


def test_a_space_that_cannot_be_told_is_refused():
    contract = EnvironmentContract({"words": spaces.Text(5)}, BOX, 0.0, 0, None)
    with pytest.raises(ConfigError, match="Text"):
        contract.to_dict()


def change(path, value):
    def apply(data):
        node = data
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        return data

    return apply


HOSTILE = {
    "no object": lambda data: [1],
    "text": lambda data: "contract",
    "nothing": lambda data: {},
    "no leaves": change(["observation"], []),
    "leaves no list": change(["observation"], {"a": 1}),
    "leaf no object": change(["observation", 0], 3),
    "too many leaves": lambda data: data | {"observation": data["observation"] * 300},
    "a leaf twice": lambda data: data | {"observation": data["observation"][:1] * 2},
    "negative shape": change(["observation", 0, "shape"], [-1]),
    "huge shape": change(["observation", 0, "shape"], [10**6, 10**6]),
    "many axes": change(["observation", 0, "shape"], [1] * 40),
    "much in all": lambda data: (
        data
        | {"observation": [data["observation"][0] | {"path": str(i), "shape": [1 << 24]} for i in range(3)]}
    ),
    "object dtype": change(["observation", 0, "dtype"], "object"),
    "no dtype": change(["observation", 0, "dtype"], "fish"),
    "dtype that numpy would evaluate": change(["observation", 0, "dtype"], "f8,("),
    "dtype no text": change(["observation", 0, "dtype"], ["f8"]),
    "structured dtype": change(["observation", 0, "dtype"], "i4,i4"),
    "text bound": change(["observation", 0, "low"], "low"),
    "nested bound": change(["observation", 0, "low"], [[1.0], [2.0]]),
    "short bound": change(["observation", 1, "low"], [1.0]),
    "null bound": change(["observation", 0, "high"], None),
    "bounds crossed": change(["observation", 4, "low"], 2**62 + 5),
    "bound too large": change(["observation", 2, "high"], 10**30),
    "empty Discrete": change(["observation", 5, "high"], -2),
    "unknown kind": change(["observation", 0, "kind"], "graph"),
    "discrete with a shape": change(["observation", 0, "kind"], "discrete"),
    "action unbounded": lambda data: data | {"action": data["observation"][0]},
    "action of whole numbers": lambda data: data | {"action": data["observation"][4]},
    "action empty": change(["action", "shape"], [0]),
    "action of no category": lambda data: (
        data | {"action": {"kind": "discrete", "shape": [], "dtype": "int64", "low": 3, "high": 2}}
    ),
    "categories beyond all numbers": change(["observation", 5, "high"], 2**62),
    "categories of floats": change(["observation", 5, "dtype"], "float32"),
    "endless period": change(["period_s"], float("inf")),
    "negative period": change(["period_s"], -1.0),
    "period text": change(["period_s"], "soon"),
    "long buffer": change(["action_buffer_length"], 10**9),
    "mirror text": change(["mirror"], "yes"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_descriptions_are_message_errors(case):
    good = EnvironmentContract(LEAVES, BOX, 0.05, 2, None).to_dict()
    with pytest.raises(MessageError, match="not the contract of an environment"):
        EnvironmentContract.from_dict(HOSTILE[case](copy.deepcopy(good)))


def test_checksums_are_part_of_the_contract_and_off_in_older_descriptions():
    checked = EnvironmentContract.of(ScriptedEnvironment(), checksum=True)
    back = travel(checked)
    assert back.checksum
    assert [field.name for field in back.schema().extras] == ["checksum"]
    assert back.schema().digest() == checked.schema().digest() != CONTRACT.schema().digest()
    older = CONTRACT.to_dict()
    del older["checksum"]
    assert EnvironmentContract.from_dict(older) == CONTRACT
    with pytest.raises(MessageError, match="checksum 'yes'"):
        EnvironmentContract.from_dict(CONTRACT.to_dict() | {"checksum": "yes"})


def test_a_declared_history_travels_and_is_stored_once():
    image = spaces.Box(0, 255, (4, 8, 8), np.uint8)
    contract = EnvironmentContract(
        {"image": image, "speed": spaces.Box(0, 1, (1,), np.float32)},
        spaces.Box(-1, 1, (1,), np.float32),
        0.05,
        0,
        None,
        stacks={"image": 4},
    )
    again = EnvironmentContract.from_dict(json.loads(json.dumps(contract.to_dict())))
    assert again.stacks == {"image": 4}
    schema = again.schema()
    assert schema.digest() == contract.schema().digest()
    field = schema.observation[0]
    assert (field.name, field.shape, field.stack, field.nbytes) == ("image", (8, 8), 4, 64)
    assert contract.difference(again) == ""
    assert "'o/image' is" in contract.difference(dataclasses.replace(contract, stacks={}))


@pytest.mark.parametrize(
    ("stacks", "words"), [({"image": 3}, "holds 3 frames, but its shape is"), ({"sound": 2}, "not observed")]
)
def test_a_history_that_is_none_is_refused(stacks, words):
    leaves = {"image": spaces.Box(0, 255, (4, 8, 8), np.uint8)}
    contract = EnvironmentContract(leaves, spaces.Box(-1, 1, (1,), np.float32), 0.05, 0, None, stacks=stacks)
    with pytest.raises(RecordError, match=words):
        contract.schema()
