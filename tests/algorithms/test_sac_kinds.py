"""Every kind of SAC finds what its probes hide: presets, categories, images, memory, demonstrations."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from probe_kit import play, random_play, spaces_of
from sac_kit import preset
from watch_kit import Operations

from tickrate.algorithms.sac import SAC
from tickrate.data.batch import SequenceBatch
from tickrate.data.return_scale import ReturnScale
from tickrate.errors import ConfigError
from tickrate.policy import Policy
from tickrate.testing.probes import ProbeEnv

LONG = pytest.mark.long
SMALL = {"hidden": [32, 32]}
STILL = {"initial_temperature": 1e-3, "learn_temperature": False, "batch_size": 64}
FAST = {f"{part}_optimiser": {"learning_rate": 3e-3} for part in ("actor", "critic")}
NORM = {"actor": {**SMALL, "batch_norm_momentum": 0.1}, "critic": {**SMALL, "batch_norm_momentum": 0.1}}
MEMORY_OF_8 = {"memory": "gru", "memory_units": 8, "sequence_length": 8, "burn_in": 0}
TINY_RESIDUAL = {"hidden": [16], "expansion": 2, "batch_norm_momentum": 0.1}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(config, env, buffer=0):
    return SAC(config, spaces_of(env), env.action_space, seed=0, period_s=0.0, action_buffer_length=buffer)


def learn(config, probe, updates, steps=500, scale=None, **options):
    env = ProbeEnv(probe)
    replay = random_play(env, steps, **options)
    sac = make(config, env)
    for _ in range(updates):
        if sac.sequence_length:
            batch = replay.sample_sequences(config.batch_size, sac.sequence_length)
        else:
            batch = replay.sample(config.batch_size)
        sac.update(batch if scale is None else scale(batch))
    return play(env, Policy.from_bytes(sac.policy_bytes(0)))


REDQ = preset("redq", actor=SMALL, critic=SMALL, **STILL, **FAST, critics=4, policy_delay=2, target_rate=0.05)
DROQ = preset("droq", actor=SMALL, critic=SMALL, **STILL, **FAST, policy_delay=2, target_rate=0.05)
CROSSQ = preset("crossq", **NORM, **STILL, policy_delay=1)
FLASH = preset(
    "flashsac",
    actor=TINY_RESIDUAL,
    critic=TINY_RESIDUAL,
    **STILL,
    value_bins=21,
    value_limit=2.0,
    target_rate=0.1,
    policy_delay=1,
    actor_optimiser={"learning_rate": 3e-3, "final_share": 0.5, "decay_updates": 500},
    critic_optimiser={"learning_rate": 3e-3, "final_share": 0.5, "decay_updates": 500},
)
PLAIN = preset("sac", actor=SMALL, critic=SMALL, **STILL, **FAST, target_rate=0.05)


# The right answer earns 1 a step; the best constant action earns 0.75.
@pytest.mark.parametrize(("config", "updates"), [(REDQ, 400), (DROQ, 500), (CROSSQ, 500), (FLASH, 500)])
def test_each_preset_sees_what_it_acts_on(config, updates):
    assert learn(config, "observed_action", updates, gamma=0.9) > 0.95


@pytest.mark.parametrize(
    ("probe", "updates"), [("chosen_category", 200), ("observed_category", 300), ("observed_categories", 400)]
)
def test_categories_are_chosen(probe, updates):
    assert learn(PLAIN, probe, updates, gamma=0.9) == 1.0


@pytest.mark.parametrize("probe", ["discount", pytest.param("constant_reward", marks=LONG)])
def test_distributional_values_are_those_of_the_probe(probe):
    env = ProbeEnv(probe)
    gamma = 0.5
    replay = random_play(env, 500, gamma=gamma)
    sac = make(dataclasses.replace(FLASH, value_limit=3.0, value_bins=31), env)
    for _ in range(500):
        sac.update(replay.sample(64))
    batch = replay.sample(64)
    networks = sac.networks
    transition = sac._loader.load(batch)
    with torch.no_grad():
        features = networks.critic_features(transition.critic).chunk(2)[0]
        values = networks.value_head.mean(networks.values(features, transition.action)).mean(0).numpy()
    expected = [env.probe.value(o, gamma) for o in batch.observation["value"]]
    np.testing.assert_allclose(values, expected, atol=0.25)


@pytest.mark.long
def test_returns_are_scaled_for_a_distribution():
    # Rewards of 40 and less: without the scale all of them lie beyond the distribution's limit of 2.
    scale = ReturnScale(0.9, 2.0)
    rows = random_play(ProbeEnv("observed_action"), 100).read(np.arange(100))
    scale.observe(rows[rows["step"] == 0])
    assert learn(FLASH, "observed_action", 400, scale=scale, gamma=0.9) > 0.95


TINY_CNN = {"image_channels": [8], "image_kernels": [4], "image_strides": [4], "image_features": 16}
IMAGES = preset(
    "sac",
    actor=SMALL,
    critic=SMALL,
    encoder={**TINY_CNN, "image_shift": 1},
    **STILL,
    **FAST,
    target_rate=0.05,
)


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=LONG)])
def test_an_image_reaches_actor_and_critic(shared):
    config = dataclasses.replace(IMAGES, shared_encoder=shared)
    assert learn(config, "image", 350 if shared else 250, gamma=0.9) > 0.95


@pytest.mark.parametrize(("shared", "passes"), [(True, 2), (False, 4)])
def test_an_image_is_encoded_once_by_each_network_that_reads_it(shared, passes):
    # Critics and target once. An actor with an encoder of its own: for the target, and to be learned.
    env = ProbeEnv("image")
    batch = random_play(env, 100).sample(8)
    sac = make(dataclasses.replace(IMAGES, shared_encoder=shared), env)
    with Operations() as operations:
        sac.update(batch)
    assert operations.counts["convolution"] == passes


# The cue is seen once: without memory the best is 0.75 in three of four steps, 0.81 a step.
@pytest.mark.parametrize(("memory", "updates"), [("gru", 600), pytest.param("lstm", 900, marks=LONG)])
def test_a_memory_keeps_what_was_seen_once(memory, updates):
    settings = {"memory": memory, "memory_units": 16, "sequence_length": 4, "burn_in": 0}
    config = preset("sac", actor=SMALL, critic=SMALL, **settings, **STILL, **FAST, target_rate=0.05)
    assert learn(config, "memory", updates, steps=800, gamma=0.5) > 0.93


@pytest.mark.long
def test_without_a_memory_it_is_lost():
    without = preset("sac", actor=SMALL, critic=SMALL, **STILL, **FAST, target_rate=0.05)
    assert learn(without, "memory", 300, steps=800, gamma=0.5) < 0.85


@pytest.mark.long
def test_only_all_actions_in_flight_solve_a_delay():
    config = dataclasses.replace(PLAIN, batch_size=128)
    with_buffer = learn(config, "actions_in_flight", 1500, steps=1500, gamma=0.8)
    without = learn(config, "hidden_in_flight", 800, steps=1500, gamma=0.8)
    assert with_buffer > 0.85
    assert without < 0.75


@pytest.mark.parametrize("kind", ["sequences", "categories", "image"])
def test_a_resume_is_bit_equal_for_each_kind(kind):
    probe, changes = {
        "sequences": ("memory", {"memory": "gru", "memory_units": 8, "sequence_length": 4, "burn_in": 1}),
        "categories": ("observed_categories", {}),
        "image": ("image", {"encoder": {"image_channels": [4], "image_kernels": [4], "image_strides": [4]}}),
    }[kind]
    env = ProbeEnv(probe)
    config = preset("droq", actor=SMALL, critic=SMALL, **STILL, policy_delay=1, **changes)
    replay = random_play(env, 100)
    sac, fresh = make(config, env), make(config, env)

    def batch():
        return replay.sample_sequences(8, 4) if sac.sequence_length else replay.sample(8)

    for _ in range(3):
        sac.update(batch())
    fresh.restore(sac.state())
    for _ in range(3):
        same = batch()
        sac.update(same)
        fresh.update(same)
    after, resumed = sac.state(), fresh.state()
    for name, value in after.items():
        np.testing.assert_array_equal(value, resumed[name], err_msg=name)


def sequences(padding):
    """Four sequences of two real steps and six of padding, whose observations are ``padding``."""
    observation = np.ones((4, 9, 1), np.float32)
    observation[:, 3:] = padding
    mask = np.zeros((4, 8), bool)
    mask[:, :2] = True
    return SequenceBatch(
        observation={"value": observation},
        action=np.zeros((4, 8, 1), np.float32),
        reward=np.zeros((4, 8), np.float32),
        discount=np.where(mask, np.float32(0.9), np.float32(0.0)),
        mask=mask,
        first=np.ones(4, bool),
        ended=np.ones(4, bool),
        rows=np.arange(32).reshape(4, 8),
        extras={},
    )


def test_rows_that_are_no_steps_count_in_nothing_that_is_learned_or_told():
    config = preset("sac", actor=SMALL, critic=SMALL, **MEMORY_OF_8)
    told = []
    for padding in (0.0, 50.0):
        sac = make(config, ProbeEnv("observed_action"))
        metrics = sac.update(sequences(padding))
        told.append([{k: float(v) for k, v in metrics.items()}, sac.priorities(), sac.state()])
    assert told[0][0] == pytest.approx(told[1][0], rel=1e-5)
    np.testing.assert_allclose(told[0][1], told[1][1], rtol=1e-5)
    for name, array in told[0][2].items():
        np.testing.assert_allclose(array, told[1][2][name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("first", "ended", "real", "learned"),
    [
        (True, False, 8, range(8)),  # from the episode's first step on there is nothing to fill with
        (True, True, 2, range(2)),
        (False, False, 8, range(3, 8)),
        (False, True, 4, range(3, 4)),
        (False, True, 3, []),  # teaches nothing, and never will
        (False, False, 3, []),  # nor does this, but more of it is to come
    ],
)
def test_what_fills_the_memory_is_not_learned_from(first, ended, real, learned):
    config = preset("sac", actor=SMALL, critic=SMALL, **{**MEMORY_OF_8, "burn_in": 3})
    batch = sequences(0.0)  # all begin an episode, and have two steps
    batch.first[1], batch.ended[1] = first, ended
    batch.mask[1] = np.arange(8) < real
    sac = make(config, ProbeEnv("observed_action"))
    transition = sac._loader.load(batch)
    count = 3 * 2 + len(learned)
    expected = np.zeros((4, 8), np.float32)
    expected[[0, 2, 3], :2] = expected[1, list(learned)] = 32 / count
    np.testing.assert_allclose(transition.mask.view(4, 8), expected)
    np.testing.assert_allclose(transition.weights.view(4, 8), expected)
    sac.update(batch)
    priorities = sac.priorities()
    assert (priorities[[0, 2, 3]] > 0).all()
    assert np.isnan(priorities[1]) == (not learned and not ended)
    assert (priorities[1] == 0.0) == (not learned and ended)


def test_a_batch_of_nothing_but_filling_is_learned_from_as_it_is():
    config = preset("sac", actor=SMALL, critic=SMALL, **{**MEMORY_OF_8, "burn_in": 3})
    batch = sequences(0.0)
    batch.first[:] = False
    transition = make(config, ProbeEnv("observed_action"))._loader.load(batch)
    np.testing.assert_allclose(transition.mask.view(4, 8), batch.mask * np.float32(4.0))  # 8 of 32 rows


@pytest.mark.parametrize("burn_in", [0, 3])
def test_the_beginning_of_an_episode_is_learned_whatever_the_burn_in(burn_in):
    config = preset("sac", actor=SMALL, critic=SMALL, **STILL, **FAST, **{**MEMORY_OF_8, "burn_in": burn_in})
    assert learn(config, "observed_action", 250, steps=400) > 0.9  # each of its episodes is short


@pytest.mark.parametrize("choice", [-1, 0, 4, 7])
def test_a_batch_with_a_choice_that_does_not_exist_is_skipped(choice, caplog):
    env = ProbeEnv("observed_category")  # 1, 2 and 3
    replay = random_play(env, 50)
    sac = make(preset("sac", actor=SMALL, critic=SMALL, batch_size=8), env)
    batch = replay.sample(8)
    batch.action[3] = choice
    assert sac.update(batch)["skipped_updates"] == 1
    assert "categories that do not exist, in ['action']" in caplog.text
    sac.update(replay.sample(8))
    assert sac.updates == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder": {"history_leaves": ["value"] * 2}}, "names a leaf twice"),
        ({"shared_encoder": True}, "neither an image, a history nor a memory"),
        (
            {"encoder": {"image_shift": 1, "image_features": 8}},
            "encoder.image_shift, encoder.image_features: set",
        ),
    ],
)
def test_options_for_what_is_not_observed_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        make(preset("sac", **changes), ProbeEnv("observed_action"))


ASYMMETRIC = {
    "eye": spaces.Box(0, 255, (1, 16, 16), np.uint8),
    "scan": spaces.Box(0, 1, (8, 4)),
    "speed": spaces.Box(-9, 9, (1,)),
}


def made_for(leaves, buffer=0, **changes):
    config = preset("sac", actor=SMALL, critic=SMALL, **changes)
    return SAC(config, leaves, spaces.Box(-1, 1, (2,)), seed=0, period_s=0.0, action_buffer_length=buffer)


def test_only_the_critic_may_read_a_history(make_batch):
    layers = {"image_channels": [4], "image_kernels": [4], "image_strides": [4], "history_leaves": ["scan"]}
    groups = {"actor": ["eye", "speed"], "critic": ["eye", "scan", "speed"]}
    sac = made_for(ASYMMETRIC, encoder=layers, groups=groups)
    batch = make_batch(8, leaves={"scan": (8, 4), "speed": (1,)})
    for observation in (batch.observation, batch.next_observation):
        observation["eye"] = np.zeros((8, 1, 16, 16), np.uint8)
    assert np.isfinite(float(sac.update(batch)["critic_loss"]))
    assert "scan" not in str(Policy.from_bytes(sac.policy_bytes(0)).contract.groups["actor"])
    with pytest.raises(ConfigError, match=r"which no observation group reads"):
        made_for(ASYMMETRIC, encoder=layers, groups={"actor": ["eye"], "critic": ["eye"]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder": {"history_leaves": ["actions"]}}, "must be a vector"),
        ({"groups": {"actor": ["timing"], "critic": ["timing"]}}, "neither group reads the leaf 'actions'"),
    ],
)
def test_a_correction_that_could_rewrite_nothing_is_refused(changes, words):
    leaves = {"actions": spaces.Box(-1, 1, (5, 2)), "timing": spaces.Box(0, 32, (3,))}
    made_for(leaves, 5, delay_correction=4)
    with pytest.raises(ConfigError, match=words):
        made_for(leaves, 5, delay_correction=4, **changes)


def test_what_a_correction_needs_is_asked_for():
    env = ProbeEnv("observed_action")
    with pytest.raises(ConfigError, match="'timing' and 'actions'"):
        make(preset("sac", delay_correction=3), env)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compilation_and_precision_act_and_are_told():
    env = ProbeEnv("observed_action")
    replay = random_play(env, 200)
    config = preset("sac", actor=SMALL, critic=SMALL, **STILL, compile="default", mixed_precision=True)
    sac, plain = make(config, env), make(dataclasses.replace(config, compile="off"), env)
    assert sac.effects() == []
    for _ in range(3):
        batch = replay.sample(64)
        told, expected = sac.update(batch), plain.update(batch)
    assert sac._acceleration.graphs == 2
    assert sac._acceleration.breaks == 0
    torch.testing.assert_close(told["critic_loss"], expected["critic_loss"], rtol=0.05, atol=1e-3)
    (sentence,) = sac.effects()
    assert sentence == (
        "compile default: 2 graphs compiled, 0 breaks; networks computed in torch.bfloat16, "
        "losses in torch.float32"
    )
    assert sac.effects() == []
    assert all(p.dtype == torch.float32 for p in sac.networks.parameters())
