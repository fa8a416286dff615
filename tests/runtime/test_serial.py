"""All roles in one process: it learns, repeats itself bit for bit, and continues from a checkpoint."""

import dataclasses

import numpy as np
import pytest
import torch
from runtime_kit import SCHEMA, ScriptedEnvironment, make_learner

from tickrate.algorithms.options import NetworkConfig, OptimiserConfig
from tickrate.algorithms.sac_config import SACConfig
from tickrate.errors import ConfigError, DeviceLost, RunFolderError
from tickrate.policy import Policy
from tickrate.runtime.assembly import LearnerParts
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import LockStepEnvironment
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder, load_state
from tickrate.runtime.serial import run_serial
from tickrate.runtime.worker import EvaluationConfig, WorkerConfig
from tickrate.testing import ProbeEnv
from tickrate.tracking.jsonl import JsonlTracker


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small are slowed down by more threads, and badly so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SMALL = NetworkConfig(hidden=(16, 16))
FAST = OptimiserConfig(learning_rate=1e-2)
SETTINGS = SACConfig(
    actor=SMALL,
    critic=SMALL,
    actor_optimiser=FAST,
    critic_optimiser=FAST,
    temperature_optimiser=FAST,
    batch_size=32,
    initial_temperature=0.02,
)


def train(path, probe, steps, *, seed=0, resume=False, boot=0, evaluate=0, watch=None):
    """Train on a probe environment; return the learner."""
    environment = LockStepEnvironment(ProbeEnv(probe), probe)
    contract = EnvironmentContract.of(environment)
    parts = LearnerParts(
        algorithm="sac",
        settings=SETTINGS,
        replay=ReplayConfig(capacity=2000, gamma=0.9, n_step=1),
        trainer=TrainerConfig(total_steps=steps, start_steps=50, publish_every=5, log_every_s=1e6),
        evaluation_episodes=1,
        seed=seed,
    )
    folder = RunFolder(path)
    if not resume:
        folder.prepare("replace")
    tracker = JsonlTracker(folder.metrics)
    learner = parts.build(contract, folder, tracker, resume=resume)
    config = WorkerConfig(evaluation=EvaluationConfig(every_steps=evaluate))
    extra = {} if watch is None else {"watch": watch}
    run_serial(environment, contract.schema(), learner, config, seed=seed, boot=boot, **extra)
    tracker.close()
    environment.close()
    return learner


def test_it_learns_to_act_on_what_it_observes(tmp_path):
    learner = train(tmp_path / "r", "observed_action", 900, evaluate=300)
    policy = Policy.load_file(learner.folder.latest_policy)
    for sign in (-1.0, 1.0):
        observation = {"value": np.array([[sign]], np.float32)}
        action, _, _ = policy.act(observation, policy.initial_state(1), deterministic=True)
        assert action.item() == pytest.approx(0.5 * sign, abs=0.15)
    assert learner.limiter.updates == 850  # one a step after the first 50, exactly
    assert learner.folder.best_policy.exists()
    assert learner.published.best_score > 0.9


def test_the_same_seed_gives_the_same_weights_bit_for_bit(tmp_path):
    one, two, other = (
        train(tmp_path / name, "chosen_action", 150, seed=seed).algorithm.state()
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)
    assert any(not np.array_equal(value, other[name]) for name, value in one.items())


def test_a_resume_restores_everything_and_goes_on(tmp_path):
    first = train(tmp_path / "r", "chosen_action", 150)
    state, counters = load_state(first.folder.latest_checkpoint())
    assert counters["steps"] == 150
    second = train(tmp_path / "r", "chosen_action", 200, resume=True, boot=1)
    assert second.limiter.steps == 200
    assert second.limiter.updates == 150
    assert second.version > first.version
    assert len(second.replay) == 200
    episodes = [e["episode"] for e in second.episodes if not e["evaluation"]]
    assert episodes[149] == 149
    assert episodes[150] == 1_000_000  # numbered on, not over
    for name, value in first.algorithm.state().items():
        np.testing.assert_array_equal(value, state[name], err_msg=name)


def test_a_resumed_learner_makes_the_very_update_that_the_first_would_have_made(tmp_path):
    first = train(tmp_path / "r", "chosen_action", 150)
    parts = LearnerParts(
        "sac", SETTINGS, ReplayConfig(capacity=2000, gamma=0.9, n_step=1), first.config, 1, seed=77
    )
    environment = LockStepEnvironment(ProbeEnv("chosen_action"), "probe")
    second = parts.build(EnvironmentContract.of(environment), first.folder, first._tracker, resume=True)
    environment.close()
    for learner in (first, second):
        learner.limiter.add_steps(3)
        assert [learner.update_if_due() for _ in range(4)] == [True, True, True, False]
    ours, theirs = first.algorithm.state(), second.algorithm.state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    first = train(tmp_path / "r", "chosen_action", 60)
    wider = dataclasses.replace(SETTINGS, actor=NetworkConfig(hidden=(24, 16)))
    parts = LearnerParts("sac", wider, ReplayConfig(capacity=2000, gamma=0.9, n_step=1), first.config, 1, 0)
    environment = LockStepEnvironment(ProbeEnv("chosen_action"), "probe")
    with pytest.raises(RunFolderError):
        parts.build(EnvironmentContract.of(environment), first.folder, first._tracker, resume=True)
    environment.close()


def test_no_checkpoint_nothing_to_resume(tmp_path):
    folder = RunFolder(tmp_path / "r")
    folder.prepare("refuse")
    with pytest.raises(RunFolderError, match="no complete checkpoint"):
        train(tmp_path / "r", "chosen_action", 60, resume=True)


def test_the_watcher_sees_each_episode_and_may_end_the_run(tmp_path):
    seen = []

    def watch(words, summary):
        seen.append(summary)
        return len([s for s in seen if s]) == 20

    learner = train(tmp_path / "r", "chosen_action", 10_000, watch=watch)
    assert learner.limiter.steps == 20
    assert learner.folder.latest_checkpoint().name == "step-000000000020"


def test_a_run_without_an_end_is_refused(tmp_path):
    learner = make_learner(tmp_path / "r")
    with pytest.raises(ConfigError, match="--steps"):
        run_serial(ScriptedEnvironment(), SCHEMA, learner, WorkerConfig(), seed=0)


def test_a_device_that_dies_for_good_leaves_a_checkpoint(tmp_path):
    def lost(number):
        if number == 2:
            raise DeviceLost("gone")

    learner = make_learner(tmp_path / "r", total_steps=100)
    environment = ScriptedEnvironment(4, on_reset=lost)
    with pytest.raises(DeviceLost):
        run_serial(environment, SCHEMA, learner, WorkerConfig(device_patience_s=0.0), seed=0)
    assert learner.folder.latest_checkpoint().name == "step-000000000008"
    assert environment.events[-1] == "stop"
