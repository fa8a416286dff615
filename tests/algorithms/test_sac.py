"""One SAC update: what it computes with, what it leaves alone, what it survives, and what comes back."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sac_kit import preset
from watch_kit import HOST_WAITS, Operations

from tickrate.algorithms.sac import SAC
from tickrate.errors import ConfigError, PolicyError, RunFolderError
from tickrate.nn.features import VECTOR
from tickrate.policy import Policy
from tickrate.tracking import check_keys

SMALL = {"actor": {"hidden": [16, 16]}, "critic": {"hidden": [16, 16]}, "batch_size": 16}
RECIPES = {name: preset(name, **SMALL) for name in ("sac", "live")}
RESIDUAL = {part: {"hidden": [8], "expansion": 2} for part in ("actor", "critic")}
WITH_BINS = {**RECIPES, "flashsac": preset("flashsac", **RESIDUAL, batch_size=16, value_bins=11)}


@pytest.fixture(params=list(RECIPES))
def config(request):
    return RECIPES[request.param]


def test_an_update_never_asks_the_device_for_a_value(config, make_sac, make_batch):
    sac = make_sac(config)
    with Operations() as operations:
        for step in range(2 * config.policy_delay):
            metrics = sac.update(make_batch(seed=step))
    assert "baddbmm" in operations.counts, "the watch saw no operator: it is blind"
    assert not HOST_WAITS & operations.counts.keys()
    with Operations() as operations:
        float(metrics["critic_loss"])
    assert HOST_WAITS & operations.counts.keys(), "the watch does not see float()"


def test_no_gradient_is_computed_that_nobody_uses(make_sac, make_batch):
    sac = make_sac(RECIPES["sac"])
    with Operations() as operations:
        sac.update(make_batch())
    # Products, of the critics' 3 layers only the first 2, as the last has one output. Forward: actor on s',
    # target critics, critics, actor on s, critics. Backward: critics 2 weights and 1 input; in the actor's
    # step critics 2 inputs and no weight, actor 3 weights and 2 inputs.
    assert operations.counts["baddbmm"] == 3 + 2 + 2 + 3 + 2
    assert operations.counts["bmm"] == (2 + 1) + 2 + (3 + 2)


def test_the_actors_step_leaves_the_critics_alone(make_sac, make_batch):
    frozen = make_sac(preset("live", **SMALL, policy_delay=1000))
    both = make_sac(preset("live", **SMALL, policy_delay=1))
    for sac in (frozen, both):
        sac.update(make_batch())
    for a, b in zip(
        frozen.networks.critics.state_dict().values(),
        both.networks.critics.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(a, b), "weights and running statistics of the critics belong to the critics' step"


def test_the_actor_moves_at_every_third_critic_update(make_sac, make_batch):
    sac = make_sac(RECIPES["live"])
    weights = sac.networks.actor.body.layers[0].weight
    moved = []
    for step in range(6):
        before = weights.detach().clone()
        sac.update(make_batch(seed=step))
        moved.append(not torch.equal(before, weights))
    assert moved == [False, False, True, False, False, True]


def test_acting_for_the_target_does_not_move_the_actors_statistics(make_sac, make_batch):
    sac = make_sac(preset("live", **SMALL, policy_delay=2))
    statistics = sac.networks.actor.body.norms[0].running_mean
    sac.update(make_batch())
    assert not statistics.any()
    sac.update(make_batch())
    assert statistics.any()


def test_actions_are_scaled_from_environment_units(make_sac, make_batch):
    seen = {}

    def values(networks, transition, features, next_action):
        seen["action"] = transition.action
        return functions.values(networks, transition, features, next_action)

    sac = make_sac(RECIPES["sac"], low=-1.0, high=3.0)
    functions = sac.functions
    sac.functions = type(functions)(values=values)
    sac.update(make_batch(size=3, action=np.array([[-1.0, 3.0], [1.0, 1.0], [2.0, 0.0]], np.float32)))
    torch.testing.assert_close(seen["action"], torch.tensor([[-1.0, 1.0], [0.0, 0.0], [0.5, -0.5]]))
    # -1 nat a component of the scaled action; each component is stretched by 2: log 2 more nats.
    assert sac.target_entropy == pytest.approx(2 * (-1.0 + np.log(2.0)))


def test_a_fixed_temperature_stays(make_sac, make_batch):
    sac = make_sac(preset("sac", **SMALL, learn_temperature=False, initial_temperature=0.3))
    for step in range(3):
        metrics = sac.update(make_batch(seed=step))
    assert float(metrics["alpha"]) == pytest.approx(0.3)


def test_critic_reads_leaves_that_the_actor_does_not(make_sac, make_batch):
    config = preset("sac", **SMALL, groups={"actor": ("scan",), "critic": ("scan", "speed")})
    sac = make_sac(config)
    sac.update(make_batch())
    policy = Policy.from_bytes(sac.policy_bytes(0))
    assert policy.contract.groups == {"actor": ("scan",), "critic": ("scan", "speed")}
    action, _, _ = policy.act({"scan": np.zeros((1, 3), np.float32)}, policy.initial_state(1))
    assert action.shape == (1, 2)


def test_same_seed_same_learner_and_another_seed_another(config, make_sac, make_batch):
    states = []
    for seed in (5, 5, 6):
        sac = make_sac(config, seed=seed)
        for step in range(3):
            sac.update(make_batch(seed=step))
        states.append(sac.state())
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(np.array_equal(states[0][name], states[2][name]) for name in states[0])


@pytest.mark.parametrize("normalise", [False, True])
def test_resume_after_200_updates_is_bit_equal(config, normalise, make_sac, make_batch):
    changed = replace(config, normalise_observations=normalise)
    sac = make_sac(changed)
    sac.observe(make_batch(100).observation)
    for step in range(200):
        sac.update(make_batch(seed=step))
    saved = sac.state()
    fresh = make_sac(changed, seed=99)
    fresh.restore(saved)
    assert fresh.policy_bytes(1) == sac.policy_bytes(1)
    for step in range(200, 204):
        first, second = sac.update(make_batch(seed=step)), fresh.update(make_batch(seed=step))
        for name in ("critic_loss", "q_mean", "target_mean"):
            assert torch.equal(first[name], second[name])
    after, resumed = sac.state(), fresh.state()
    assert after.keys() == resumed.keys()
    for name in after:
        np.testing.assert_array_equal(after[name], resumed[name], err_msg=name)
    assert saved["updates"] == 200, "state() must be a copy, not a view"


def test_a_state_that_does_not_fit_changes_nothing(config, make_sac, make_batch):
    sac = make_sac(config)
    sac.update(make_batch())
    before = sac.state()
    other = make_sac(config, seed=9).state()
    broken = [
        {name: value for name, value in other.items() if name != "optimiser/alpha/0/mean"},
        {**other, "networks/critic_of_old": np.zeros(1, np.float32)},
        {**other, "networks/log_alpha": np.zeros(2, np.float32)},
    ]
    words = ["optimiser/alpha/0/mean", "networks/critic_of_old", "networks/log_alpha"]
    for state, word in zip(broken, words, strict=True):
        with pytest.raises(RunFolderError, match=word):
            sac.restore(state)
        for name, value in sac.state().items():
            np.testing.assert_array_equal(value, before[name])


def test_the_state_of_one_recipe_does_not_fit_another(make_sac):
    with pytest.raises(RunFolderError, match="another configuration"):
        make_sac(RECIPES["live"]).restore(make_sac(RECIPES["sac"]).state())


@pytest.mark.parametrize("leaf", ["reward", "observation", "next_observation", "action"])
def test_a_batch_that_is_not_finite_is_skipped_and_counted(config, leaf, make_sac, make_batch, caplog):
    sac = make_sac(config)
    sac.update(make_batch())
    before = sac.state()
    batch = make_batch(seed=1)
    column = getattr(batch, leaf)
    (column["scan"] if isinstance(column, dict) else column)[3] = np.nan
    with caplog.at_level(logging.WARNING):
        first, second = sac.update(batch), sac.update(batch)
    assert (first["skipped_updates"], second["skipped_updates"]) == (1, 2)
    assert len(caplog.records) == 1, "told once, counted afterwards"
    if isinstance(column, dict):
        assert "scan" in caplog.text
    after = sac.state()
    assert after.pop("skipped") == 2
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name])
    assert np.isfinite(float(sac.update(make_batch(seed=2))["critic_loss"]))


def test_a_skipped_batch_leaves_priorities_as_they_were(config, make_sac, make_batch):
    # They would be those of the batch before otherwise, given to the rows of this one.
    sac = make_sac(config)
    sac.update(make_batch())
    assert np.isfinite(sac.priorities()).all()
    sac.update(make_batch(size=8, reward=np.full(8, np.nan, np.float32)))
    assert sac.priorities().shape == (8,)
    assert np.isnan(sac.priorities()).all()


def test_a_loss_that_is_not_finite_changes_no_weight(config, make_sac, make_batch):
    sac = make_sac(config)
    sac.update(make_batch())
    before = {name: value.clone() for name, value in sac.networks.critics.named_parameters()}
    sac.update(make_batch(reward=np.full(16, 3e38, np.float32)))  # finite; its square is not
    for name, value in sac.networks.critics.named_parameters():
        assert torch.equal(value, before[name])


def test_a_bad_step_is_named_and_leaves_weights_moments_and_statistics(config, make_sac, make_batch):
    sac = make_sac(config)
    for step in range(3):
        sac.update(make_batch(seed=step))
    before = sac.state()
    assert sac.faults() == []
    sac.update(make_batch(seed=3, reward=np.full(16, 3e38, np.float32)))  # finite; its square is not
    after = sac.state()
    of_critics = [name for name in before if "/critics" in name]
    assert len(of_critics) > 10
    for name in of_critics:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert sac.faults() == [
        "1 step down critic_loss skipped: critic_loss was not finite, or too large to square"
    ]
    assert sac.faults() == []
    assert np.isfinite(float(sac.update(make_batch(seed=4))["critic_loss"]))
    assert not np.array_equal(
        sac.state()["networks/critics.body.layers.0.weight"], before["networks/critics.body.layers.0.weight"]
    )


@pytest.mark.parametrize("reading", [1e15, 1e20, 3e38])
@pytest.mark.parametrize("name", list(WITH_BINS))
def test_one_huge_reading_disables_no_input_and_freezes_nothing(name, make_sac, make_batch, reading):
    sac = make_sac(WITH_BINS[name])
    for step in range(3):
        sac.update(make_batch(seed=step))
    glitch = make_batch(seed=3)
    glitch.observation["speed"][0] = glitch.next_observation["speed"][1] = reading
    sac.update(glitch)
    for name, array in sac.state().items():
        assert array.dtype.kind != "f" or np.isfinite(array).all(), name
    temperature = sac.networks.log_alpha.item()
    for step in range(4, 8):
        sac.update(make_batch(seed=step))
    assert sac.networks.log_alpha.item() != temperature
    ends = make_batch(seed=9)
    ends.observation["speed"][:] = np.where(np.arange(16) < 8, -1.0, 1.0)[:, None]
    ends.observation["scan"][:] = 0.0
    policy = Policy.from_bytes(sac.policy_bytes(0))
    outputs = policy.act(ends.observation, policy.initial_state(16), deterministic=True)[0]
    assert np.abs(outputs[0] - outputs[-1]).max() > 1e-3


def test_a_bad_gradient_is_named_too(make_sac, make_batch):
    sac = make_sac(RECIPES["sac"])
    sac.update(make_batch())
    with torch.no_grad():
        sac.networks.actor.body.layers[1].bias[0, 0, 0] = float("inf")
    sac.update(make_batch(seed=1))
    assert any("actor_loss" in sentence for sentence in sac.faults())


def test_a_diverged_policy_is_not_handed_out(config, make_sac):
    sac = make_sac(config)
    with torch.no_grad():
        sac.networks.actor.body.layers[1].weight[0, 0, 0] = float("nan")
    with pytest.raises(PolicyError, match=r"layer\.1\.weight.*diverged"):
        sac.policy_bytes(0)


def test_folded_policy_equals_the_torch_actor(config, make_sac, make_batch):
    changed = replace(config, normalise_observations=True)
    sac = make_sac(changed, low=-2.0, high=0.5)
    rng = np.random.default_rng(0)
    sac.observe({"speed": rng.normal(9, 3, (64, 1)), "scan": rng.normal(1, 0.5, (64, 3))})
    for step in range(30):
        sac.update(make_batch(seed=step))
    policy = Policy.from_bytes(sac.policy_bytes(7), seed=0)
    assert policy.contract.policy_version == 7
    batch = make_batch(1000, seed=5)
    flat = torch.from_numpy(np.concatenate([batch.observation["speed"], batch.observation["scan"]], 1))
    with torch.no_grad():
        features = sac.networks.actor_features({VECTOR: flat})
        expected, _ = sac.networks.act(features, torch.zeros(1000, 2))
    action, _, _ = policy.act(batch.observation, policy.initial_state(1000), deterministic=True)
    np.testing.assert_allclose(action, -0.75 + 1.25 * expected.numpy(), atol=1e-5)

    white = Policy.from_bytes(make_sac(replace(config, noise_correlation=0.0)).policy_bytes(0), seed=3)
    noisy, state, _ = white.act(batch.observation, white.initial_state(1000))
    reference = make_sac(config)
    with torch.no_grad():
        expected, _ = reference.networks.act(flat, torch.from_numpy(state["noise"]))
    np.testing.assert_allclose(noisy, expected.numpy(), atol=1e-5)


def test_normalisation_without_observations_is_an_error(make_sac, make_batch):
    sac = make_sac(preset("sac", **SMALL, normalise_observations=True))
    with pytest.raises(ConfigError, match="observe"):
        sac.update(make_batch())


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.array([-1, 0], np.float32), np.array([1, 0], np.float32)),
        spaces.Box(0, 5, (2,), np.int32),
    ],
)
def test_action_spaces_that_sac_cannot_act_in_are_refused(space):
    with pytest.raises(ConfigError):
        SAC(
            RECIPES["sac"],
            {"x": spaces.Box(-1, 1, (1,))},
            space,
            seed=0,
            period_s=0.0,
            action_buffer_length=0,
        )


def test_the_page_lists_every_metric_that_is_reported(config, make_sac, make_batch):
    sac = make_sac(config)
    for _ in range(3):
        metrics = sac.update(make_batch())
    text = (Path(__file__).parents[2] / "docs" / "algorithms" / "sac.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"<!-- metrics: (.*) -->", text)
    assert {f"learn/{name}" for name in metrics} == set(listed.split())
    check_keys(listed.split())
