"""The trained policy that ships with the racing game: it fits the game, and drives a clean, fast lap."""

from pathlib import Path

import numpy as np
import pytest

from tickrate import trees
from tickrate.cli.play import PlayOptions, environment_for
from tickrate.config.experiment import load_experiment
from tickrate.games.circuit.drivers import PurePursuit
from tickrate.games.circuit.simulation import CircuitSimulation, simulate_lap
from tickrate.games.circuit.track import make_track
from tickrate.policy import Policy
from tickrate.tools.drive import find_policy, shipped_policy


@pytest.fixture(scope="module")
def policy():
    return Policy.load_file(find_policy(Path("circuit")), seed=0)


def test_its_name_finds_policy_and_environment(policy):
    file = shipped_policy("circuit")
    assert file.is_file()
    assert environment_for(PlayOptions(Path("circuit")), file) == load_experiment("circuit").environment
    assert shipped_policy("drone") is None


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circuit").mkdir()
    own = tmp_path / "circuit" / "best.policy"
    own.write_bytes(shipped_policy("circuit").read_bytes())
    assert find_policy(Path("circuit")) == Path("circuit") / "best.policy"


def test_it_drives_a_clean_lap_and_beats_pure_pursuit(policy):
    env = CircuitSimulation("demo")
    leaf_spaces = trees.leaf_spaces(env.observation_space)
    policy.check(leaf_spaces, env.action_space, period_s=0.05, action_buffer_length=env.action_buffer_length)
    observation, _ = env.reset(seed=0)
    state, ended, info = policy.initial_state(1), False, {}
    while not ended:
        batch = {path: np.asarray(value)[None] for path, value in observation.items()}
        action, state, _ = policy.act(batch, state, deterministic=True)
        observation, _, terminated, truncated, info = env.step(action[0])
        ended = terminated or truncated
    assert info["lap_clean"] == 1.0
    track = make_track("demo")
    assert info["lap_time_s"] < simulate_lap(PurePursuit(track), track).time_s
