"""Every preset of SAC on every probe environment: what each can be expected to learn, it learns."""

import dataclasses

import numpy as np
import pytest
import torch
from probe_kit import play, random_play, spaces_of
from sac_kit import preset

from tickrate.algorithms.sac import SAC
from tickrate.data.return_scale import ReturnScale
from tickrate.policy import Policy
from tickrate.testing.probes import ProbeEnv

pytestmark = pytest.mark.long

STILL = {"initial_temperature": 1e-3, "learn_temperature": False, "batch_size": 64}
FAST = {f"{part}_optimiser": {"learning_rate": 3e-3} for part in ("actor", "critic")}
ENCODER = {"image_channels": [8], "image_kernels": [4], "image_strides": [4], "image_features": 16}
MEMORY = {"memory": "gru", "memory_units": 16, "sequence_length": 4, "burn_in": 0}


def small(name, probe, **changes):
    """Return a preset with small networks that learn a probe in seconds; everything that makes it what it is
    stays."""
    body = {"hidden": [32, 32]}
    if name in ("crossq", "live", "flashsac"):
        body["batch_norm_momentum"] = 0.1  # the running statistics have to follow within a short test
        if probe in NOTHING_TO_SEE:
            body["batch_norm_epsilon"] = 1e-3
    if name == "flashsac":
        body |= {"hidden": [16], "expansion": 2}
        rate = {"learning_rate": 3e-3, "final_share": 0.5, "decay_updates": 1000}
        changes |= {"actor_optimiser": rate, "critic_optimiser": rate, "value_bins": 31, "value_limit": 3.0}
        changes |= {"target_rate": 0.1}
    elif name not in ("crossq", "live"):
        changes |= {**FAST, "target_rate": 0.05}
    if name == "redq":
        changes["critics"] = 4
    return preset(name, actor=body, critic=body, policy_delay=1, **STILL, **changes)


PRESETS = ["sac", "redq", "droq", "crossq", "live", "flashsac"]
NOTHING_TO_SEE = {"constant_reward", "chosen_action", "chosen_category", "time_limit"}
"""Their observation never changes: batch norm has no spread to divide by."""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def learned(config, env, updates, gamma, solved, steps=800, scale=None):
    """Tell whether a probe is solved within so many updates; it is looked at every 100."""
    replay = random_play(env, steps, gamma=gamma)
    sac = SAC(config, spaces_of(env), env.action_space, seed=0, period_s=0.0, action_buffer_length=0)
    for update in range(1, updates + 1):
        if sac.sequence_length:
            sac.update(replay.sample_sequences(config.batch_size, sac.sequence_length))
        else:
            batch = replay.sample(config.batch_size)
            sac.update(batch if scale is None else scale(batch))
        if update % 100 == 0 and solved(sac, replay):
            return True
    return False


def cases(probes):
    return [pytest.param(name, probe, id=f"{name}-{probe}") for probe in probes for name in PRESETS]


@pytest.mark.parametrize(
    ("name", "probe"), cases(["constant_reward", "observed_reward", "discount", "time_limit"])
)
def test_values(name, probe):
    env = ProbeEnv(probe)

    def solved(sac, replay):
        batch = replay.sample(64)
        networks, transition = sac.networks, sac._loader.load(batch)
        with torch.no_grad():
            features = networks.critic_features(transition.critic).chunk(2)[0]
            values = networks.value_head.mean(networks.values(features, transition.action)).mean(0).numpy()
        expected = [env.probe.value(o, 0.5) for o in batch.observation["value"]]
        return np.abs(values - expected).max() < 0.2

    assert learned(small(name, probe), env, 800, 0.5, solved)


# The best action earns 1 in each step. What blindness earns at best: 0.75 for one answer to two cues, 0.5 for
# standing still, a third or a half for guessing, 0.81 for a cue seen once in four steps, 0.6 in flight.
ENOUGH = {
    "chosen_action": 0.95,
    "observed_action": 0.95,
    "action_buffer": 0.85,
    "actions_in_flight": 0.85,
    "chosen_category": 1.0,
    "observed_category": 1.0,
    "observed_categories": 1.0,
    "category_buffer": 0.95,
    "image": 0.95,
    "memory": 0.92,
}
UPDATES = {"action_buffer": 1200, "actions_in_flight": 1500, "category_buffer": 900, "memory": 800}
GAMMA = {"action_buffer": 0.5, "actions_in_flight": 0.8, "category_buffer": 0.5, "memory": 0.5}


@pytest.mark.parametrize(("name", "probe"), cases(ENOUGH))
def test_actions(name, probe):
    changes = {"image": {"encoder": {**ENCODER, "image_shift": 1}}, "memory": MEMORY}.get(probe, {})
    env = ProbeEnv(probe)
    config = small(name, probe, **changes)
    scale = None
    if config.value_bins and probe == "actions_in_flight":
        scale = ReturnScale(0.8, config.value_limit)  # returns of up to 1 / (1 - 0.8)
        scale.observe(random_play(env, 800).read(np.arange(800)))
    config = dataclasses.replace(config, batch_size=128 if probe == "actions_in_flight" else 64)

    def solved(sac, replay):
        return play(env, Policy.from_bytes(sac.policy_bytes(0))) >= ENOUGH[probe]

    updates, gamma = UPDATES.get(probe, 600), GAMMA.get(probe, 0.9)
    assert learned(config, env, updates, gamma, solved, 1500, scale)
