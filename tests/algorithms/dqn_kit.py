"""Small DQNs and batches for the tests of algorithms."""

import numpy as np
from gymnasium import spaces

from tickrate.algorithms.dqn import DQN
from tickrate.config.experiment import experiment_from_mapping
from tickrate.data.batch import Batch

GEARS = spaces.Discrete(3, start=-1)
DIALS = spaces.MultiDiscrete([2, 4], start=[0, 3])
VECTORS = {"speed": spaces.Box(-np.inf, np.inf, (1,)), "scan": spaces.Box(-np.inf, np.inf, (3,))}
MIXED = {
    "eye": spaces.Box(0, 255, (1, 12, 12), np.uint8),
    "speed": spaces.Box(-9, 9, (2,)),
    "actions": spaces.MultiDiscrete([3, 3], start=[-1, -1]),
    "beams": spaces.Box(-np.inf, np.inf, (6, 4)),
    "keys": spaces.MultiBinary(2),
    "mode": spaces.Discrete(4, start=2),
}
SMALL_ENCODER = {
    "image_channels": [4, 4],
    "image_kernels": [4, 3],
    "image_strides": [2, 1],
    "image_features": 8,
    "image_shift": 1,
    "history_leaves": ["beams"],
    "history_features": 5,
}


def preset(name="dqn", **changes):
    """Return the settings of one of DQN's presets, made small, with changes as in an experiment file."""
    small = {"network": {"hidden": [16, 16]}, "batch_size": 16, "target_every": 3}
    section = {"name": "dqn", "preset": name, **small, **changes}
    return experiment_from_mapping({"algorithm": section}).algorithm.settings


def make(config, observation_spaces=VECTORS, action_space=GEARS, **options):
    """Return DQN on a few leaves."""
    defaults = {"seed": 0, "period_s": 0.05, "action_buffer_length": 2}
    return DQN(config, observation_spaces, action_space, **{**defaults, **options})


def batch_of(size=16, seed=0, observation_spaces=VECTORS, action_space=GEARS, **columns):
    """Return a random batch, parts replaced."""
    rng = np.random.default_rng(seed)

    def leaf(space):
        if isinstance(space, spaces.Box) and space.dtype.kind == "f":
            return rng.standard_normal((size, *space.shape)).astype(space.dtype)
        space.seed(int(rng.integers(1 << 30)))
        return np.stack([space.sample() for _ in range(size)])

    def leaves():
        return {path: leaf(space) for path, space in observation_spaces.items()}

    parts = {
        "observation": leaves(),
        "action": leaf(action_space),
        "reward": rng.standard_normal(size).astype(np.float32),
        "discount": np.full(size, 0.99, np.float32),
        "next_observation": leaves(),
        "rows": np.arange(size, dtype=np.int64),
    }
    return Batch(**{**parts, **columns})
