"""One DQN update: what it computes with, what it leaves alone, what it survives, and what comes back."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from dqn_kit import DIALS, GEARS, MIXED, SMALL_ENCODER, VECTORS, batch_of, make, preset
from gymnasium import spaces
from watch_kit import HOST_WAITS, Operations

from tickrate.errors import ConfigError, PolicyError, RunFolderError
from tickrate.nn.features import VECTOR
from tickrate.onnx.actor import OnnxPolicy
from tickrate.policy import Policy
from tickrate.tools.export import export_onnx

RECIPES = {name: preset(name) for name in ("dqn", "rainbow")}
NETWORKS = {
    "duelling": preset(duelling=True),
    "soft": preset(target_every=1, target_rate=0.1),
    "dropout": preset(network={"hidden": [16, 16], "norm": "layer", "dropout": 0.1}),
    "batch norm": preset(duelling=True, network={"hidden": [16, 16], "norm": "batch"}),
    "residual": preset(duelling=True, value_bins=7, network={"kind": "residual", "hidden": [8, 8]}),
    "plain": preset(double=False, loss="squared"),
}
ALL = {**RECIPES, **NETWORKS}


@pytest.fixture(params=list(RECIPES))
def config(request):
    return RECIPES[request.param]


@pytest.mark.parametrize("name", ALL)
def test_an_update_never_asks_the_device_for_a_value(name):
    dqn = make(ALL[name])
    with Operations() as operations:
        for step in range(4):
            metrics = dqn.update(batch_of(seed=step, weights=np.ones(16, np.float32)))
    assert "baddbmm" in operations.counts, "the watch saw no operator: it is blind"
    assert not HOST_WAITS & operations.counts.keys()
    with Operations() as operations:
        float(metrics["q_loss"])
    assert HOST_WAITS & operations.counts.keys(), "the watch does not see float()"


def weights_of(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_hard_target_is_copied_at_every_third_update():
    dqn = make(preset(target_every=3))
    equal = []
    for step in range(6):
        dqn.update(batch_of(seed=step))
        equal.append(same(weights_of(dqn.networks.target), weights_of(dqn.networks.online)))
    assert equal == [False, False, True, False, False, True]


def test_a_soft_target_goes_a_tenth_of_the_way_at_each_update():
    dqn = make(ALL["soft"])
    before = weights_of(dqn.networks.target)
    dqn.update(batch_of())
    for old, new, now in zip(
        before, weights_of(dqn.networks.target), weights_of(dqn.networks.online), strict=True
    ):
        torch.testing.assert_close(new, old + 0.1 * (now - old))


def test_the_loss_is_that_of_the_actions_taken():
    dqn = make(preset(loss="squared", double=False))
    batch = batch_of(size=3, discount=np.zeros(3, np.float32), action=np.array([-1, 0, 1]))
    rows = torch.from_numpy(np.concatenate([batch.observation["speed"], batch.observation["scan"]], 1))
    with torch.no_grad():
        values = dqn.networks.online.advantages(rows)[0]
    wrong = values[[0, 1, 2], [0, 1, 2]].numpy() - batch.reward
    metrics = dqn.update(batch)
    assert float(metrics["q_loss"]) == pytest.approx(0.5 * float(np.mean(wrong**2)), rel=1e-5)
    assert float(metrics["td_error"]) == pytest.approx(np.abs(wrong).mean(), rel=1e-5)
    np.testing.assert_allclose(dqn.priorities(), np.abs(wrong), rtol=1e-4)


def test_a_row_of_weight_zero_teaches_nothing():
    weights = np.array([1, 1, 0], np.float32)
    batch = batch_of(size=3, weights=weights)
    other = batch_of(size=3, weights=weights, reward=batch.reward + np.array([0, 0, 5], np.float32))
    first, second = make(RECIPES["dqn"]), make(RECIPES["dqn"])
    first.update(batch)
    second.update(other)
    assert same(weights_of(first.networks.online), weights_of(second.networks.online))
    assert second.priorities()[2] > first.priorities()[2] + 2.0


def test_priorities_of_parts_are_added_and_never_negative():
    dqn = make(preset(loss="squared"), action_space=DIALS)
    with pytest.raises(RuntimeError, match="before the first update"):
        dqn.priorities()
    batch = batch_of(size=5, action_space=DIALS, discount=np.zeros(5, np.float32))
    rows = torch.from_numpy(np.concatenate([batch.observation["speed"], batch.observation["scan"]], 1))
    with torch.no_grad():
        values = dqn.networks.online.advantages(rows)[0].numpy()
    lines = np.arange(5)
    first, second = values[lines, batch.action[:, 0]], values[lines, 2 + batch.action[:, 1] - 3]
    dqn.update(batch)
    expected = np.abs(first - batch.reward) + np.abs(second - batch.reward)
    np.testing.assert_allclose(dqn.priorities(), expected, rtol=1e-4)
    rainbow = make(RECIPES["rainbow"])
    rainbow.update(batch_of())
    assert (rainbow.priorities() >= 0.0).all()
    assert rainbow.priorities().shape == (16,)


def test_epsilon_falls_with_the_updates_and_travels_in_the_policy():
    dqn = make(preset(epsilon={"start": 0.9, "end": 0.1, "updates": 4}))
    found = []
    for step in range(6):
        found.append(Policy.from_bytes(dqn.policy_bytes(step)).contract.exploration.epsilon)
        metrics = dqn.update(batch_of(seed=step))
    assert found == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1])
    assert metrics["epsilon"] == pytest.approx(0.1)


def test_a_policy_may_carry_one_draw_of_the_noise():
    dqn = make(RECIPES["rainbow"])
    dqn.update(batch_of())
    before = dqn.state()
    one, again, other = (Policy.from_bytes(dqn.policy_bytes(version)) for version in (1, 1, 2))
    observation = batch_of(seed=5).observation
    said = [policy.outputs(observation, policy.initial_state(16))[0] for policy in (one, again, other)]
    np.testing.assert_array_equal(said[0], said[1])
    assert not np.allclose(said[0], said[2])
    for name, value in dqn.state().items():
        np.testing.assert_array_equal(value, before[name], err_msg=f"{name}: a policy changed the learner")


def flat(batch, paths):
    return torch.from_numpy(np.concatenate([batch.observation[path] for path in paths], 1))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("space", [GEARS, DIALS], ids=["one part", "two parts"])
def test_the_policy_says_the_values_of_the_mean_weights(name, space):
    config = {**ALL, "rainbow": preset("rainbow", noisy_policies=False)}[name]
    dqn = make(config, action_space=space)
    for step in range(5):
        dqn.update(batch_of(seed=step, action_space=space))
    policy = Policy.from_bytes(dqn.policy_bytes(7), seed=0)
    assert (policy.contract.algorithm, policy.contract.head) == ("dqn", "greedy")
    batch = batch_of(100, seed=9, action_space=space)
    rows = torch.from_numpy(np.concatenate([batch.observation["speed"], batch.observation["scan"]], 1))
    with torch.no_grad():
        expected = dqn.head.mean(dqn.networks.online({VECTOR: rows})).numpy()
    said, _ = policy.outputs(batch.observation, policy.initial_state(100))
    np.testing.assert_allclose(said, expected, atol=1e-5)
    action, _, _ = policy.act(batch.observation, policy.initial_state(100), deterministic=True)
    parts = np.split(expected, np.cumsum(dqn.choices)[:-1], axis=1)
    best = np.stack([part.argmax(1) for part in parts], 1) + np.ravel(space.start)
    np.testing.assert_array_equal(action.reshape(100, -1), best)


def test_images_histories_and_categories_reach_network_policy_and_onnx(tmp_path):
    config = preset(duelling=True, encoder=SMALL_ENCODER, normalise_observations=True)
    dqn = make(config, MIXED, DIALS)
    dqn.observe(batch_of(50, 1, MIXED, DIALS).observation)
    for step in range(3):
        dqn.update(batch_of(16, step, MIXED, DIALS))
    policy = Policy.from_bytes(dqn.policy_bytes(0), seed=0)
    batch = batch_of(100, 9, MIXED, DIALS)
    columns = [batch.observation["speed"]]
    for path, low, count in (("actions", [-1, -1], 3), ("keys", None, 2), ("mode", [2], 4)):
        leaf = batch.observation[path].reshape(100, -1)
        columns.append(leaf if low is None else np.eye(count)[leaf - low].reshape(100, -1))
    vector = torch.from_numpy(np.concatenate(columns, 1).astype(np.float32))
    assert vector.shape[1] == 2 + 6 + 2 + 4
    pictures = {path: torch.from_numpy(batch.observation[path]) for path in ("eye", "beams")}
    online = dqn.networks.online
    with torch.no_grad():
        features = torch.cat([dqn.networks.normaliser(vector), online.features.encoder(pictures)], 1)
        shared = online.trunk(features)[0]
        advantages = online.advantages(shared)[0]
        parts = [part - part.mean(1, keepdim=True) for part in advantages.split([2, 4], 1)]
        expected = online.values(shared)[0] + torch.cat(parts, 1)
    said, _ = policy.outputs(batch.observation, policy.initial_state(100))
    np.testing.assert_allclose(said, expected.numpy(), atol=1e-5)
    for leaf in MIXED:  # each of them matters
        changed = {**batch.observation, leaf: batch_of(100, 10, MIXED, DIALS).observation[leaf]}
        assert not np.allclose(policy.outputs(changed, policy.initial_state(100))[0], said), leaf
    assert export_onnx(policy, tmp_path / "p.onnx") < 1e-5
    exported = OnnxPolicy.load_file(tmp_path / "p.onnx")
    np.testing.assert_allclose(exported.outputs(batch.observation, {})[0], said, atol=1e-5)


def test_only_the_named_leaves_are_read():
    dqn = make(preset(groups={"actor": ["scan"]}))
    dqn.update(batch_of())
    policy = Policy.from_bytes(dqn.policy_bytes(0))
    assert policy.contract.groups == {"actor": ("scan",)}
    action, _, _ = policy.act({"scan": np.zeros((1, 3), np.float32)}, policy.initial_state(1))
    assert action.shape == (1,)


@pytest.mark.parametrize("name", ALL)
def test_resume_is_bit_equal(name):
    config = ALL[name]
    dqn = make(config)
    for step in range(50):
        dqn.update(batch_of(seed=step))
    saved = dqn.state()
    fresh = make(config, seed=99)
    fresh.restore(saved)
    assert fresh.policy_bytes(1) == dqn.policy_bytes(1)
    for step in range(50, 55):
        first, second = dqn.update(batch_of(seed=step)), fresh.update(batch_of(seed=step))
        assert torch.equal(first["q_loss"], second["q_loss"])
        np.testing.assert_array_equal(dqn.priorities(), fresh.priorities())
    after, resumed = dqn.state(), fresh.state()
    assert after.keys() == resumed.keys()
    for key in after:
        np.testing.assert_array_equal(after[key], resumed[key], err_msg=key)
    assert saved["updates"] == 50, "state() must be a copy, not a view"


def test_resume_brings_the_statistics_of_the_inputs_back():
    config = preset(normalise_observations=True)
    dqn, fresh = make(config), make(config, seed=9)
    with pytest.raises(ConfigError, match="observe"):
        dqn.update(batch_of())
    dqn.observe(batch_of(20).observation)
    fresh.restore(dqn.state())
    for each in (dqn, fresh):
        each.observe(batch_of(7, seed=3).observation)
        each.update(batch_of(seed=4))
    assert all(np.array_equal(value, fresh.state()[name]) for name, value in dqn.state().items())


def test_an_update_sees_normalised_vectors():
    dqn = make(preset(normalise_observations=True))
    batch = batch_of(500)
    batch.observation["scan"][:] = 7.0 + 3.0 * batch.observation["scan"]
    dqn.observe(batch.observation)
    seen, functions = [], dqn.functions
    dqn.functions = replace(
        functions, outputs=lambda n, t: (seen.append(t.halves()[0][VECTOR]), functions.outputs(n, t))[1]
    )
    dqn.update(batch)
    torch.testing.assert_close(seen[0].mean(0), torch.zeros(4), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(seen[0].std(0, correction=0), torch.ones(4), atol=1e-4, rtol=0.0)


def test_a_state_that_does_not_fit_changes_nothing(config):
    dqn = make(config)
    dqn.update(batch_of())
    before, other = dqn.state(), make(config, seed=9).state()
    name = next(name for name in other if name.startswith("networks/target"))
    for broken in ({k: v for k, v in other.items() if k != name}, {**other, name: np.zeros(1, np.float32)}):
        with pytest.raises(RunFolderError, match=name):
            dqn.restore(broken)
        for key, value in dqn.state().items():
            np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize("where", ["reward", "observation", "next_observation", "action"])
def test_a_batch_with_an_impossible_value_is_skipped_and_counted(config, where, caplog):
    dqn = make(config)
    dqn.update(batch_of())
    before = dqn.state()
    batch = batch_of(seed=1)
    column = getattr(batch, where)
    (column["scan"] if isinstance(column, dict) else column)[3] = 2 if where == "action" else np.nan
    with caplog.at_level(logging.WARNING):
        first, second = dqn.update(batch), dqn.update(batch)
    assert (first["skipped_updates"], second["skipped_updates"]) == (1, 2)
    assert len(caplog.records) == 1, "told once, counted afterwards"
    after = dqn.state()
    assert after.pop("skipped") == 2
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name])
    assert np.isfinite(float(dqn.update(batch_of(seed=2))["q_loss"]))


def test_a_category_that_does_not_exist_or_a_history_that_is_not_finite_is_skipped():
    dqn = make(preset(encoder=SMALL_ENCODER), MIXED)
    for path, value in (("mode", 6), ("mode", 1), ("actions", 2), ("beams", np.inf)):
        batch = batch_of(16, 0, MIXED)
        batch.observation[path][3] = value
        dqn.update(batch)
    assert dqn.state()["skipped"] == 4
    assert dqn.updates == 0


def test_a_loss_that_is_not_finite_changes_no_weight_and_is_told(caplog):
    dqn = make(preset(loss="squared"))
    dqn.update(batch_of())
    before = weights_of(dqn.networks.online)
    assert dqn.faults() == []
    dqn.update(batch_of(reward=np.full(16, 3e38, np.float32)))  # finite; its square is not
    assert same(before, weights_of(dqn.networks.online))
    (fault,) = dqn.faults()
    assert "q_loss" in fault
    assert dqn.faults() == []


def test_unit_weights_keep_their_length():
    dqn = make(preset(network={"hidden": [8], "norm": "batch", "unit_weights": True}))
    for step in range(3):
        dqn.update(batch_of(seed=step))
    for network in (dqn.networks.online, dqn.networks.target):
        lengths = torch.linalg.vector_norm(network.advantages.layers[0].weight, dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_a_diverged_policy_is_not_handed_out(config):
    dqn = make(config)
    with torch.no_grad():
        next(dqn.networks.online.advantages.parameters()).fill_(float("nan"))
    with pytest.raises(PolicyError, match="diverged"):
        dqn.policy_bytes(0)


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2), spaces.Discrete(1 << 17)], ids=str
)
def test_action_spaces_that_dqn_cannot_act_in_are_refused(space):
    with pytest.raises(ConfigError, match="the action space is"):
        make(RECIPES["dqn"], action_space=space)


@pytest.mark.parametrize(
    ("leaves", "changes", "words"),
    [
        (VECTORS, {"groups": {"actor": ["scam"]}}, "Did you mean 'scan'"),
        (VECTORS, {"encoder": {"history_leaves": ["scam"]}}, "Did you mean 'scan'"),
        (VECTORS, {"groups": {"actor": ["scan", "scan"]}}, "twice"),
        ({"word": spaces.Text(4)}, {}, "'word' is a Text"),
        ({"many": spaces.Discrete(1 << 20)}, {}, "at most 65536"),
    ],
)
def test_leaves_that_cannot_be_read_are_named(leaves, changes, words):
    with pytest.raises(ConfigError) as error:
        make(preset(**changes), leaves)
    assert words in str(error.value)


def test_a_skipped_batch_leaves_priorities_as_they_were():
    dqn = make(preset())
    dqn.update(batch_of())
    assert np.isfinite(dqn.priorities()).all()
    dqn.update(batch_of(8, reward=np.full(8, np.nan, np.float32)))
    assert dqn.priorities().shape == (8,)
    assert np.isnan(dqn.priorities()).all()


def test_mixed_precision_acts_and_is_told():
    config = preset("dqn")
    dqn, plain = make(replace(config, mixed_precision=True)), make(config)
    assert dqn.effects() == []
    told, expected = dqn.update(batch_of()), plain.update(batch_of())
    assert told["q_loss"].dtype == torch.float32
    torch.testing.assert_close(told["q_loss"], expected["q_loss"], rtol=0.05, atol=1e-3)
    assert not torch.equal(told["q_loss"], expected["q_loss"])
    assert dqn.effects() == [
        "compile off: 0 graphs compiled, 0 breaks; networks computed in torch.bfloat16, "
        "losses in torch.float32"
    ]
    assert dqn.effects() == plain.effects() == []
    assert all(p.dtype == torch.float32 for p in dqn.networks.parameters())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compilation_acts_and_is_told():
    config = preset("dqn")
    dqn, plain = make(replace(config, compile="default")), make(config)
    for step in range(3):
        told, expected = dqn.update(batch_of(seed=step)), plain.update(batch_of(seed=step))
    torch.testing.assert_close(told["q_loss"], expected["q_loss"])
    assert dqn.effects() == [
        "compile default: 1 graphs compiled, 0 breaks; networks computed in torch.float32, "
        "losses in torch.float32"
    ]
