"""A learner is put together from names; a symmetry is taken as the interface declares it, or refused."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces
from runtime_kit import CONTRACT, ListTracker

from tickrate.algorithms.sac_config import SACConfig
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError
from tickrate.runtime.assembly import LearnerParts, mirror_of
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder


def declaring(mirror):
    return dataclasses.replace(CONTRACT, mirror=mirror)


def test_the_declared_symmetry_is_used():
    mirror = mirror_of(declaring({"observation": {"place": [[1, 0], None]}, "action": [-1.0]}))
    place = np.array([[1, 2], [3, 4]], np.float32)
    batch = Batch(
        observation={"place": place.copy()},
        action=np.array([[0.5], [0.5]], np.float32),
        reward=np.zeros(2, np.float32),
        discount=np.ones(2, np.float32),
        next_observation={"place": place.copy()},
        extras={},
        rows=np.arange(2),
    )
    mirrored = mirror(batch)
    assert mirrored.observation["place"].tolist() == [[2, 1], [3, 4]]
    assert mirrored.action.ravel().tolist() == [-0.5, 0.5]
    assert mirror_of(CONTRACT) is None


def test_the_action_buffer_is_mirrored_as_the_actions_are():
    buffer = spaces.Box(-1.0, 1.0, (2, 1), np.float32)
    leaves = {**CONTRACT.leaf_spaces, "actions": buffer}
    declared = {"observation": {"place": [None, [-1, 1]]}, "action": [-1.0]}
    contract = dataclasses.replace(CONTRACT, leaf_spaces=leaves, action_buffer_length=2, mirror=declared)
    observation = {
        "place": np.array([[1, 2], [3, 4]], np.float32),
        "actions": np.array([[[0.1], [0.2]], [[0.3], [0.4]]], np.float32),
    }
    batch = Batch(
        observation=observation,
        action=np.array([[0.5], [0.5]], np.float32),
        reward=np.zeros(2, np.float32),
        discount=np.ones(2, np.float32),
        next_observation={path: leaf.copy() for path, leaf in observation.items()},
        extras={},
        rows=np.arange(2),
    )
    mirrored = mirror_of(contract)(batch)
    for seen in (mirrored.observation, mirrored.next_observation):
        np.testing.assert_array_equal(
            seen["actions"], np.array([[[-0.1], [-0.2]], [[0.3], [0.4]]], np.float32)
        )


def test_an_action_buffer_that_is_not_observed_needs_no_mirror():
    declared = {"observation": {"actions": [None, [-1]]}, "action": [-1.0]}
    assert mirror_of(declaring(declared)) is not None


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        ({}, "must return"),
        ({"observation": {}}, "must return"),
        ({"observation": [1], "action": [1]}, "must return"),
        ({"observation": {"place": [[1, 0]]}, "action": [1]}, "must return"),
        ({"observation": {"plaice": [[1, 0], None]}, "action": [1]}, "Did you mean 'place'"),
        ({"observation": {"place": [[1, 1], None]}, "action": [1]}, "no permutation"),
    ],
)
def test_a_symmetry_of_another_form_is_refused(mirror, message):
    with pytest.raises(ConfigError, match=message):
        mirror_of(declaring(mirror))


def test_a_replay_that_does_not_fit_into_memory_is_refused(tmp_path):
    folder = RunFolder(tmp_path / "r")
    folder.prepare("refuse")
    contract = EnvironmentContract(
        {"place": spaces.Box(-1, 1, (2,), np.float32)}, CONTRACT.action_space, 0.0, 0, None
    )
    parts = LearnerParts("sac", SACConfig(), ReplayConfig(capacity=10**13), TrainerConfig(), 1, 0)
    with pytest.raises(ConfigError, match=r"10,?000,?000,?000,?000"):
        parts.build(contract, folder, ListTracker(), resume=False)
