"""A policy says the categories it was trained with: other ones are refused by the check and when acting."""

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tickrate.artefact import Exploration, LeafSpec, PolicyContract, action_spec, leaf_spec
from tickrate.errors import PolicyMismatch
from tickrate.policy import Policy
from tickrate.program.spec import Affine, Concat, Program, Read, ReadOneHot

GEARS = {"gear": spaces.Discrete(3, start=-1), "modes": spaces.MultiDiscrete([2, 2], np.int8)}


def geared(seed=0, **changes):
    """Return a policy that reads a gear as one-hot and two modes as plain numbers."""
    program = Program(
        (
            ReadOneHot("gear", "hot", (-1,), (3,)),
            Read(("modes",), "modes"),
            Concat(("hot", "modes"), "input"),
            Affine("input", "out", 2),
        )
    )
    contract = PolicyContract(
        algorithm="fixed",
        observation=tuple(leaf_spec(path, space) for path, space in GEARS.items()),
        action=action_spec(spaces.Box(-1, 1, (1,))),
        groups={"actor": ("gear", "modes")},
        program=program,
        exploration=Exploration(),
        period_s=0.0,
        action_buffer_length=0,
    )
    weights = {
        "out.weight": np.array([[1, 0], [2, 0], [3, 0], [10, 0], [20, 0]], np.float32),
        "out.bias": np.zeros(2, np.float32),
    }
    return Policy(msgspec.structs.replace(contract, **changes), weights, seed=seed)


def test_a_leaf_says_the_categories_of_its_space():
    gear, modes = geared().contract.observation
    assert gear == LeafSpec("gear", "int64", (), (-1,), (3,))
    assert modes == LeafSpec("modes", "int8", (2,), (0, 0), (2, 2))
    grid = spaces.MultiDiscrete([[2], [3]], start=[[4], [5]])
    assert leaf_spec("grid", grid) == LeafSpec("grid", "int64", (2, 1), (4, 5), (2, 3))
    for plain in (
        spaces.MultiBinary(3),
        spaces.Box(0, 3, (2,), np.int64),
        spaces.MultiDiscrete([2] * 65_537),
    ):
        assert leaf_spec("x", plain).counts == ()


def test_a_category_is_its_own_column():
    policy = geared()
    observation = {"gear": np.array([1, -1, 0]), "modes": np.array([[0, 0], [1, 0], [0, 1]], np.int8)}
    outputs, _ = policy.outputs(observation, {})
    np.testing.assert_array_equal(outputs[:, 0], [3, 1 + 10, 2 + 20])


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_category_that_does_not_exist_is_refused_when_acting(deterministic):
    policy = geared()
    state = policy.initial_state(2)
    observation = {"gear": np.array([1, 2]), "modes": np.zeros((2, 2), np.int8)}
    with pytest.raises(
        PolicyMismatch, match=r"leaf 'gear' holds 2 in part 0: the policy knows the categories -1 to 1 there"
    ):
        policy.act(observation, state, deterministic=deterministic)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            spaces.Discrete(4, start=-1),
            "of the categories -1 to 2 in the environment, made of the categories -1 to 1",
        ),
        (spaces.Discrete(3), "of the categories 0 to 2 in the environment, made of the categories -1 to 1"),
        (spaces.Box(-1, 1, (), np.int64), "of no categories in the environment"),
    ],
)
def test_check_refuses_other_categories(space, words):
    policy = geared()
    box = spaces.Box(-1, 1, (1,))
    policy.check(GEARS, box)
    with pytest.raises(PolicyMismatch, match="leaf 'gear' is made") as error:
        policy.check({**GEARS, "gear": space}, box)
    assert words in str(error.value)
    with pytest.raises(
        PolicyMismatch, match="leaf 'modes' is made of the categories 0 to 1, 0 to 2 in the env"
    ):
        policy.check({**GEARS, "modes": spaces.MultiDiscrete([2, 3], np.int8)}, box)


def test_a_file_from_before_categories_were_said_takes_any_number_of_them():
    gear, _ = geared().contract.observation
    old = geared(observation=(gear, LeafSpec("modes", "int8", (2,))))
    assert b"modes" in old.to_bytes()
    again, box = Policy.from_bytes(old.to_bytes()), spaces.Box(-1, 1, (1,))
    again.check({**GEARS, "modes": spaces.MultiDiscrete([2, 9], np.int8)}, box)
    again.load(geared().to_bytes())  # newer weights say them
    with pytest.raises(PolicyMismatch):
        again.check({**GEARS, "modes": spaces.MultiDiscrete([2, 9], np.int8)}, box)


def test_newer_weights_for_other_categories_are_refused():
    gear, modes = geared().contract.observation
    other = geared(observation=(gear, msgspec.structs.replace(modes, counts=(2, 3))))
    with pytest.raises(PolicyMismatch, match="another observation"):
        geared().load(other.to_bytes())
