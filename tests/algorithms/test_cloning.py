"""A start by cloning: whom the actor follows, how it turns to the critics, and what the temperature does."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces
from sac_kit import preset

from tickrate.algorithms.sac import SAC
from tickrate.algorithms.sac_config import SACConfig
from tickrate.errors import ConfigError
from tickrate.policy import Policy

SMALL = {"hidden": [32, 32]}
STILL = {"initial_temperature": 1e-3, "learn_temperature": False, "batch_size": 64}
FAST = {f"{part}_optimiser": {"learning_rate": 3e-3} for part in ("actor", "critic")}


def test_a_start_by_imitation_follows_the_demonstrations_alone(make_batch):
    # The demonstrated action is 0.6 at every observation; the other half of each batch says -0.6.
    config = preset("sac", actor=SMALL, critic=SMALL, **STILL, **FAST)
    config = dataclasses.replace(config, cloning_updates=150)
    leaves = {"x": (2,)}
    env_spaces = {"x": spaces.Box(-np.inf, np.inf, (2,))}
    sac = SAC(config, env_spaces, spaces.Box(-1, 1, (1,)), seed=0, period_s=0.0, action_buffer_length=0)
    for step in range(150):
        rows = np.arange(64) - 32  # below 0: demonstrations
        action = np.where(rows < 0, 0.6, -0.6).astype(np.float32)[:, None]
        sac.update(make_batch(64, step, leaves, rows=rows.astype(np.int64), action=action))
    policy = Policy.from_bytes(sac.policy_bytes(0))
    seen = make_batch(32, 999, leaves).observation
    action, _, _ = policy.act(seen, policy.initial_state(32), deterministic=True)
    np.testing.assert_allclose(action, 0.6, atol=0.1)


@pytest.mark.parametrize(
    ("cloning", "fade", "shares"),
    [
        (0, 0, [0, 0, 0]),
        (2, 0, [1, 1, 0, 0]),
        (2, 4, [1, 1, 0.75, 0.5, 0.25, 0, 0]),
        (0, 2, [0.5, 0, 0]),
    ],
)
def test_the_share_of_imitation_falls_evenly_after_the_start(cloning, fade, shares):
    config = SACConfig(cloning_updates=cloning, cloning_fade=fade)
    assert [config.cloning_share(1 + i) for i in range(len(shares))] == shares
    assert config.clones == (cloning + fade > 0)


@pytest.mark.parametrize("name", ["cloning_updates", "cloning_fade"])
def test_negative_lengths_are_refused(name):
    with pytest.raises(ConfigError, match=rf"sac\.{name} is -1: it must be at least 0"):
        SACConfig(**{name: -1})


def twins(make_sac, **options):
    """SAC that only imitates, and one that turns to the critics at its second of four updates."""
    config = preset("sac", actor=SMALL, critic=SMALL, **options)
    alone = make_sac(dataclasses.replace(config, cloning_updates=100))
    turning = make_sac(dataclasses.replace(config, cloning_updates=1, cloning_fade=4))
    return alone, turning


def half_taught(make_batch, seed):
    return make_batch(16, seed, rows=np.arange(16, dtype=np.int64) - 8)


def test_on_the_way_the_loss_is_a_mixture_in_which_both_weigh_alike(make_batch, make_sac):
    alone, turning = twins(make_sac)
    seen = {}

    def watched(values, log_prob, alpha):
        loss = plain(values, log_prob, alpha)
        seen.update(values=values.detach(), alpha=alpha, loss=loss.detach())
        return loss

    plain = turning.functions.actor_loss
    turning.functions = dataclasses.replace(turning.functions, actor_loss=watched)
    for sac in (alone, turning):
        sac.update(half_taught(make_batch, 0))
    assert not seen  # the first update only imitates
    likelihood = float(alone.update(half_taught(make_batch, 1))["actor_loss"])
    mixed = float(turning.update(half_taught(make_batch, 1))["actor_loss"])
    size, climbing = float(seen["values"].abs().mean()), float(seen["loss"].mean())
    assert mixed == pytest.approx(0.25 * climbing + 0.75 * size * likelihood, rel=1e-5)
    assert float(seen["alpha"]) == pytest.approx(0.25 * turning.config.initial_temperature)


def test_once_it_has_turned_the_loss_is_that_of_the_critics_alone(make_batch, make_sac):
    _, turning = twins(make_sac)
    turning.functions = dataclasses.replace(
        turning.functions, actor_loss=lambda values, log_prob, alpha: 0.0 * log_prob + 7.0
    )
    losses = [float(turning.update(half_taught(make_batch, seed))["actor_loss"]) for seed in range(6)]
    assert all(loss != pytest.approx(7.0) for loss in losses[:4])
    assert losses[4:] == pytest.approx([7.0, 7.0])


def test_the_temperature_plays_no_part_while_cloning_and_is_learned_afterwards(make_batch, make_sac):
    def run(temperature, updates):
        _, sac = twins(make_sac, initial_temperature=temperature)
        start = sac.state()
        metrics = [sac.update(half_taught(make_batch, seed)) for seed in range(updates)]
        changed = [name for name, value in sac.state().items() if not np.array_equal(value, start[name])]
        return sac.state(), metrics, [name for name in changed if "alpha" in name]

    (low, low_metrics, moved), (high, high_metrics, _) = run(0.01, 1), run(100.0, 1)
    assert not moved
    assert low_metrics[0]["target_mean"] == high_metrics[0]["target_mean"]
    for name, value in low.items():
        if "alpha" not in name:
            np.testing.assert_array_equal(value, high[name], err_msg=name)
    assert not run(0.01, 4)[2]  # at rest on the way as well: imitation would wind it up
    assert run(0.01, 5)[2]  # now it is learned
    low, high = run(0.01, 2)[0], run(100.0, 2)[0]
    assert any(not np.array_equal(value, high[name]) for name, value in low.items() if "alpha" not in name)


def test_a_run_that_is_resumed_on_the_way_goes_on_alike(make_batch, make_sac):
    _, sac = twins(make_sac)
    for seed in range(2):
        sac.update(half_taught(make_batch, seed))
    _, resumed = twins(make_sac)
    resumed.restore(sac.state())
    for seed in range(2, 6):
        sac.update(half_taught(make_batch, seed))
        resumed.update(half_taught(make_batch, seed))
    for name, value in sac.state().items():
        np.testing.assert_array_equal(value, resumed.state()[name], err_msg=name)
