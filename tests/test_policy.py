"""A policy acts as its contract says, in numpy, and refuses environments it was not made for."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tickrate.artefact import (
    BoxAction,
    Exploration,
    LeafSpec,
    PolicyContract,
    action_spec,
    check_contract,
)
from tickrate.errors import PolicyError, PolicyMismatch
from tickrate.policy import Actor, Policy
from tickrate.program.spec import Affine, GruCell, Program, Read, mlp_program

LEAVES = {
    "speed": spaces.Box(0, 9, (1,)),
    "scan": spaces.Box(0, 9, (2, 2)),
    "actions": spaces.Box(-1, 1, (2, 2)),
}
ACTIONS = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
CONTRACT = PolicyContract(
    algorithm="sac",
    observation=tuple(LeafSpec(path, "float32", space.shape) for path, space in LEAVES.items()),
    action=BoxAction("float32", (2,), (-1.0, 0.0), (1.0, 4.0)),
    groups={"actor": ("scan", "speed")},
    program=mlp_program(("scan", "speed"), (3, 4)),
    exploration=Exploration(noise_correlation=0.8, log_std_min=-5.0, log_std_max=1.0),
    period_s=0.05,
    action_buffer_length=2,
)


def make(seed=0, contract=CONTRACT, scale=1.0):
    rng = np.random.default_rng(seed)
    widths = (5, 3, 4)
    weights = {}
    for i in range(len(widths) - 1):
        weights[f"layer.{i}.weight"] = scale * rng.standard_normal(
            (widths[i], widths[i + 1]), dtype=np.float32
        )
        weights[f"layer.{i}.bias"] = scale * rng.standard_normal(widths[i + 1], dtype=np.float32)
    return Policy(contract, weights, seed=seed), weights


def observe(batch=1, seed=1):
    rng = np.random.default_rng(seed)
    return {
        path: rng.standard_normal((batch, *space.shape), dtype=np.float32) for path, space in LEAVES.items()
    }


def by_hand(weights, observation):
    x = np.concatenate([observation["scan"].reshape(-1, 4), observation["speed"]], 1).astype(np.float64)
    hidden = np.maximum(x @ weights["layer.0.weight"] + weights["layer.0.bias"], 0)
    return np.split(hidden @ weights["layer.1.weight"] + weights["layer.1.bias"], 2, axis=1)


def scaled(squashed):
    return np.array([-1.0, 0.0]) + (squashed + 1) / 2 * np.array([2.0, 4.0])


@pytest.mark.parametrize("batch", [1, 5])
def test_deterministic_action_hand_worked(batch):
    policy, weights = make()
    observation = observe(batch)
    state = policy.initial_state(batch)
    action, after, extras = policy.act(observation, state, deterministic=True)
    np.testing.assert_allclose(action, scaled(np.tanh(by_hand(weights, observation)[0])), atol=1e-5)
    assert action.shape == (batch, 2)
    assert action.dtype == np.float32
    assert after is state
    assert extras == {}


def test_exploring_action_uses_the_noise_it_returns():
    policy, weights = make()
    observation = observe(3)
    action, state, _ = policy.act(observation, policy.initial_state(3))
    mean, log_std = by_hand(weights, observation)
    expected = np.tanh(mean + np.exp(np.clip(log_std, -5, 1)) * state["noise"])
    np.testing.assert_allclose(action, scaled(expected), atol=1e-4)


def test_noise_is_ar1_of_unit_variance():
    policy, _ = make()
    observation, state = observe(2000), policy.initial_state(2000)
    noise = [state["noise"]]
    for _ in range(20):
        _, state, _ = policy.act(observation, state)
        noise.append(state["noise"])
    series = np.stack(noise).astype(np.float64)
    np.testing.assert_allclose(series.std(axis=(1, 2)), 1.0, atol=0.06)
    neighbours = np.mean(series[1:] * series[:-1])
    two_apart = np.mean(series[2:] * series[:-2])
    assert neighbours == pytest.approx(0.8, abs=0.02)
    assert two_apart == pytest.approx(0.64, abs=0.02)
    assert np.mean(series[:, :, 0] * series[:, :, 1]) == pytest.approx(0.0, abs=0.02)


def test_white_noise_when_the_correlation_is_zero():
    policy, _ = make(contract=msgspec.structs.replace(CONTRACT, exploration=Exploration()))
    state = policy.initial_state(5000)
    _, after, _ = policy.act(observe(5000), state)
    assert np.mean(state["noise"] * after["noise"]) == pytest.approx(0.0, abs=0.03)


def test_what_is_returned_is_not_touched_by_the_next_call():
    policy, _ = make()
    first, state, _ = policy.act(observe(1), policy.initial_state(1))
    kept, kept_noise = first.copy(), state["noise"].copy()
    policy.act(observe(1, seed=2), state)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(state["noise"], kept_noise)


def test_actions_never_leave_the_box():
    policy, _ = make(scale=1e4)
    for step in range(50):
        action, _, _ = policy.act(observe(64, seed=step), policy.initial_state(64))
        assert ACTIONS.low.min() <= action.min()
        assert all(ACTIONS.contains(row) for row in action)


def test_batch_sizes_may_change_between_calls():
    policy, _ = make()
    whole, _, _ = policy.act(observe(6), policy.initial_state(6), deterministic=True)
    for i in range(6):
        row = {path: value[i : i + 1] for path, value in observe(6).items()}
        one, _, _ = policy.act(row, policy.initial_state(1), deterministic=True)
        np.testing.assert_allclose(one, whole[i : i + 1], atol=1e-6)


def test_leaves_of_any_number_type_and_memory_order():
    contract = msgspec.structs.replace(CONTRACT, groups={"actor": ("speed", "scan")})
    policy, _ = make(contract=contract)
    plain = {"speed": np.array([[3.0]], np.float32), "scan": np.array([[[1, 2], [3, 4]]], np.float32)}
    other = {"speed": np.array([[3]], np.int64), "scan": np.asfortranarray(plain["scan"].astype(np.float64))}
    a, _, _ = policy.act(plain, policy.initial_state(1), deterministic=True)
    b, _, _ = policy.act(other, policy.initial_state(1), deterministic=True)
    np.testing.assert_array_equal(a, b)


def test_act_names_the_leaf_that_does_not_fit():
    policy, _ = make()
    with pytest.raises(PolicyMismatch, match="'speed'"):
        policy.act({"scan": observe()["scan"]}, policy.initial_state(1))
    with pytest.raises(PolicyMismatch, match="'speed' has shape"):
        policy.act({**observe(), "speed": np.zeros(1, np.float32)}, policy.initial_state(1))
    with pytest.raises(PolicyMismatch, match="'scan' has shape"):
        policy.act({**observe(), "scan": np.zeros((1, 4), np.float32)}, policy.initial_state(1))


def test_same_seed_same_noise():
    actions = []
    for seed in (4, 4, 5):
        policy = Policy.from_bytes(make()[0].to_bytes(), seed=seed)
        actions.append(policy.act(observe(), policy.initial_state(1))[0])
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])


def test_file_round_trip_is_exact_and_leaves_nothing_else(tmp_path):
    policy, _ = make()
    path = tmp_path / "deep" / "policy.safetensors"
    policy.save_file(path)
    make(seed=1)[0].save_file(path)
    policy.save_file(path)
    again = Policy.load_file(path)
    assert again.contract == policy.contract
    assert again.to_bytes() == policy.to_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["policy.safetensors"]


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    policy, _ = make()
    path = tmp_path / "policy.safetensors"
    policy.save_file(path)

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        make(seed=1)[0].save_file(path)
    assert path.read_bytes() == policy.to_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["policy.safetensors"]


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(make()[0].to_bytes()[:-5])
    with pytest.raises(PolicyError, match=r"policy\.safetensors"):
        Policy.load_file(path)
    with pytest.raises(FileNotFoundError):
        Policy.load_file(tmp_path / "none")


def test_load_takes_newer_weights_between_calls():
    actor: Actor = make()[0]
    newer, _ = make(seed=1)
    before, state, _ = actor.act(observe(), actor.initial_state(1), deterministic=True)
    actor.load(newer.to_bytes())
    after, _, _ = actor.act(observe(), state, deterministic=True)
    expected, _, _ = newer.act(observe(), state, deterministic=True)
    np.testing.assert_array_equal(after, expected)
    assert not np.array_equal(before, after)


def test_load_refuses_another_contract_and_keeps_the_old_weights():
    policy, _ = make()
    old = policy.to_bytes()
    for change in ({"period_s": 0.02}, {"action_buffer_length": 1}, {"groups": {"actor": ("speed", "scan")}}):
        other, _ = make(contract=msgspec.structs.replace(CONTRACT, **change))
        with pytest.raises(PolicyMismatch, match=next(iter(change))):
            policy.load(other.to_bytes())
    with pytest.raises(PolicyError):
        policy.load(old[:100])
    assert policy.to_bytes() == old


def test_check_accepts_the_environment_it_was_made_for_in_any_order():
    policy, _ = make()
    policy.check(dict(reversed(LEAVES.items())), ACTIONS, period_s=0.05, action_buffer_length=2)
    policy.check(LEAVES, ACTIONS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observation": {**LEAVES, "speed": spaces.Box(0, 9, (3,))}}, ("'speed'", "[3]", "[1]")),
        (
            {"observation": {**LEAVES, "scan": spaces.Box(0, 9, (2, 2), np.int16)}},
            ("'scan'", "int16", "float32"),
        ),
        ({"observation": {k: v for k, v in LEAVES.items() if k != "scan"}}, ("'scan'",)),
        ({"observation": {**LEAVES, "gear": spaces.Discrete(5)}}, ("'gear'",)),
        ({"observation": {**LEAVES, "speed": spaces.Text(3)}}, ("'speed'", "Text")),
        ({"action_space": spaces.Discrete(3)}, ("Discrete",)),
        ({"action_space": spaces.Box(-1, 1, (3,))}, ("action", "[3]", "[2]")),
        ({"action_space": spaces.Box(-1, 1, (2,))}, ("low", "[-1.0, -1.0]", "[-1.0, 0.0]")),
        ({"period_s": 0.02}, ("period_s", "0.02", "0.05")),
        ({"action_buffer_length": 4}, ("action_buffer_length", "4", "2")),
    ],
)
def test_check_refuses_another_environment_by_leaf_with_both_values(changes, words):
    policy, _ = make()
    given = {"observation": LEAVES, "action_space": ACTIONS, **changes}
    with pytest.raises(PolicyError) as error:
        policy.check(given.pop("observation"), given.pop("action_space"), **given)
    for word in words:
        assert word in str(error.value)


FIXTURES = Path(__file__).parent / "fixtures"


def test_opens_artefacts_of_earlier_releases():
    # The file and its expected actions were written by the release before the second format.
    policy = Policy.load_file(FIXTURES / "first_format.policy", seed=5)
    expected = json.loads((FIXTURES / "first_format.json").read_text())
    observation = {path: np.array(rows, np.float32) for path, rows in expected["observation"].items()}
    state = policy.initial_state(3)
    action, _, _ = policy.act(observation, state, deterministic=True)
    np.testing.assert_allclose(action, expected["deterministic"], atol=1e-6)
    for row in expected["exploring_with_seed_5"]:
        action, state, _ = policy.act(observation, state)
        np.testing.assert_allclose(action, row, atol=1e-6)


def test_what_was_loaded_in_the_first_format_is_saved_in_the_present_one(tmp_path):
    policy = Policy.load_file(FIXTURES / "first_format.policy")
    policy.save_file(tmp_path / "again.policy")
    blob = (tmp_path / "again.policy").read_bytes()
    assert b"tickrate-policy/2" in blob
    assert b"tickrate-policy/1" not in blob
    assert Policy.from_bytes(blob).contract == policy.contract


def choosing(space, outputs, head="categorical", seed=0, **exploration):
    """Return a policy in a space of choices whose network always says ``outputs``, whatever it sees."""
    contract = PolicyContract(
        algorithm="fixed",
        observation=(LeafSpec("speed", "float32", (1,)),),
        action=action_spec(space),
        head=head,
        groups={"actor": ("speed",)},
        program=mlp_program(("speed",), (len(outputs),)),
        exploration=Exploration(**exploration),
        period_s=0.0,
        action_buffer_length=0,
    )
    weights = {
        "layer.0.weight": np.zeros((1, len(outputs)), np.float32),
        "layer.0.bias": np.array(outputs, np.float32),
    }
    return Policy.from_bytes(Policy(contract, weights).to_bytes(), seed=seed)


SPEED = {"speed": np.zeros((40_000, 1), np.float32)}
ONE_SPEED = {"speed": np.zeros((1, 1), np.float32)}


@pytest.mark.parametrize("head", ["categorical", "greedy"])
@pytest.mark.parametrize(
    ("space", "outputs", "best"),
    [
        (spaces.Discrete(3, start=-1), [0.0, 2.0, 1.0], 0),
        (spaces.Discrete(2, dtype=np.int32), [0.0, 2.0], 1),
        (spaces.MultiDiscrete([2, 3], start=[5, -7]), [1.0, 0.0, 0.0, 0.0, 9.0], [5, -5]),
        (spaces.MultiDiscrete([[2, 2], [1, 3]], dtype=np.uint8), [0, 1, 1, 0, 0, 0, 1, 0], [[1, 0], [0, 1]]),
    ],
)
def test_choices_without_exploration_are_the_largest_in_the_spaces_own_type(head, space, outputs, best):
    policy = choosing(space, outputs, head)
    action, state, extras = policy.act(ONE_SPEED, policy.initial_state(1), deterministic=True)
    assert action.shape == (1, *space.shape)
    assert action.dtype == space.dtype
    np.testing.assert_array_equal(action[0], best)
    assert space.contains(action[0])
    assert (state, extras) == ({}, {})


def test_categorical_choices_come_as_often_as_the_softmax_says():
    policy = choosing(spaces.Discrete(3, start=4), np.log([0.2, 0.5, 0.3]))
    action, _, _ = policy.act(SPEED, policy.initial_state(40_000))
    share = np.bincount(action, minlength=7)[4:] / 40_000
    np.testing.assert_allclose(share, [0.2, 0.5, 0.3], atol=0.01)


def test_the_parts_of_a_multi_discrete_action_are_drawn_independently():
    policy = choosing(spaces.MultiDiscrete([2, 2]), np.log([0.25, 0.75, 0.4, 0.6]))
    action, _, _ = policy.act(SPEED, {})
    np.testing.assert_allclose(action.mean(0), [0.75, 0.6], atol=0.01)
    assert np.mean(action[:, 0] * action[:, 1]) == pytest.approx(0.45, abs=0.01)


def test_epsilon_is_the_share_of_uniform_actions():
    policy = choosing(spaces.Discrete(4, start=1), [0.0, 3.0, 1.0, 2.0], "greedy", epsilon=0.4)
    action, _, _ = policy.act(SPEED, {})
    np.testing.assert_allclose(np.bincount(action)[1:] / 40_000, [0.1, 0.7, 0.1, 0.1], atol=0.01)
    never = choosing(spaces.Discrete(4), [0.0, 3.0, 1.0, 2.0], "greedy")
    assert (never.act(SPEED, {})[0] == 1).all()


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (spaces.Discrete(3), spaces.Discrete(4), ("choices", "[4]", "[3]")),
        (spaces.Discrete(3), spaces.Discrete(3, start=1), ("starts", "[1]", "[0]")),
        (spaces.Discrete(3), spaces.Box(0, 1, (3,)), ("a Box", "a Discrete")),
        (spaces.Discrete(3), spaces.MultiDiscrete([3]), ("a MultiDiscrete", "a Discrete")),
        (spaces.Discrete(3), spaces.Discrete(3, dtype=np.int32), ("int32", "int64")),
        (spaces.MultiDiscrete([2, 1]), spaces.MultiDiscrete([1, 2]), ("choices", "[1, 2]", "[2, 1]")),
        (spaces.MultiDiscrete([2, 1]), spaces.MultiDiscrete([[2, 1]]), ("int64[1, 2]", "int64[2]")),
        (spaces.Discrete(3), spaces.MultiBinary(3), ("MultiBinary",)),
    ],
)
def test_check_refuses_other_choices_with_both_values(mine, theirs, words):
    parts = mine.nvec if isinstance(mine, spaces.MultiDiscrete) else [mine.n]
    policy = choosing(mine, np.zeros(int(np.sum(parts))))
    observation = {"speed": spaces.Box(-1, 1, (1,))}
    policy.check(observation, mine)
    with pytest.raises(PolicyMismatch) as error:
        policy.check(observation, theirs)
    for word in words:
        assert word in str(error.value)


def recurrent(units=2, seed=0):
    """Return a policy with one GRU cell in front of its outputs."""
    program = Program(
        (
            Read(("speed",), "input"),
            GruCell("input", "cell", units, "mind"),
            Affine("cell", "out", 2),
        )
    )
    contract = PolicyContract(
        algorithm="fixed",
        observation=(LeafSpec("speed", "float32", (1,)),),
        action=action_spec(spaces.Box(-1, 1, (1,))),
        groups={"actor": ("speed",)},
        program=program,
        exploration=Exploration(noise_correlation=0.5),
        period_s=0.0,
        action_buffer_length=0,
    )
    rng = np.random.default_rng(seed)
    shapes = check_contract(contract).tensors
    weights = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    return Policy(contract, weights, seed=seed)


def test_a_recurrent_policys_state_goes_from_step_to_step():
    policy, observation = recurrent(), {"speed": np.full((1, 1), 0.5, np.float32)}
    start = policy.initial_state(1)
    assert {name: rows.shape for name, rows in start.items()} == {"noise": (1, 1), "mind": (1, 2)}
    assert not start["mind"].any()
    first, state, _ = policy.act(observation, start, deterministic=True)
    second, later, _ = policy.act(observation, state, deterministic=True)
    assert not np.allclose(first, second)
    assert state["noise"] is start["noise"]  # noise rests while nothing explores
    again, _, _ = policy.act(observation, policy.initial_state(1), deterministic=True)
    np.testing.assert_array_equal(again, first)
    _, explored, _ = policy.act(observation, state)
    np.testing.assert_array_equal(explored["mind"], later["mind"])
    assert explored["noise"] is not start["noise"]


def test_what_the_network_says_is_fresh_and_carries_the_state():
    policy, observation = recurrent(), {"speed": np.full((1, 1), 0.5, np.float32)}
    outputs, state = policy.outputs(observation, policy.initial_state(1))
    kept = outputs.copy()
    later, _ = policy.outputs(observation, state)
    np.testing.assert_array_equal(outputs, kept)
    assert not np.allclose(later, outputs)
    action, _, _ = policy.act(observation, state, deterministic=True)
    np.testing.assert_allclose(action, np.tanh(later[:, :1]), atol=1e-6)


def test_newer_weights_go_on_with_the_state_and_another_state_is_refused():
    policy, observation = recurrent(), {"speed": np.full((1, 1), 0.5, np.float32)}
    _, state, _ = policy.act(observation, policy.initial_state(1))
    policy.load(recurrent(seed=1).to_bytes())
    policy.act(observation, state)
    with pytest.raises(
        PolicyMismatch, match=r"carry the states \{'mind': 3\}; this policy has \{'mind': 2\}"
    ):
        policy.load(recurrent(units=3).to_bytes())
    policy.act(observation, state)
