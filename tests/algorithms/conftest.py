"""Batches and small learners for the tests of algorithms."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.algorithms.sac import SAC
from tickrate.data.batch import Batch


@pytest.fixture
def make_batch():
    """Return ``make(size, seed, leaves, action_size, **columns)``: a random batch, parts replaced."""

    def make(size=16, seed=0, leaves=None, action_size=2, **columns):
        rng = np.random.default_rng(seed)
        leaves = leaves or {"speed": (1,), "scan": (3,)}

        def observation():
            return {
                path: rng.standard_normal((size, *shape)).astype(np.float32) for path, shape in leaves.items()
            }

        parts = {
            "observation": observation(),
            "action": rng.uniform(-1, 1, (size, action_size)).astype(np.float32),
            "reward": rng.standard_normal(size).astype(np.float32),
            "discount": np.full(size, 0.99, np.float32),
            "next_observation": observation(),
            "rows": np.arange(size, dtype=np.int64),
        }
        return Batch(**{**parts, **columns})

    return make


@pytest.fixture
def make_sac():
    """Return ``make(config, leaves, action_size, low, high, **options)``: SAC on unbounded leaves."""

    def make(config, leaves=None, action_size=2, low=-1.0, high=1.0, **options):
        leaves = leaves or {"speed": (1,), "scan": (3,)}
        observation_spaces = {path: spaces.Box(-np.inf, np.inf, shape) for path, shape in leaves.items()}
        defaults = {"seed": 0, "period_s": 0.05, "action_buffer_length": 2}
        return SAC(
            config, observation_spaces, spaces.Box(low, high, (action_size,)), **{**defaults, **options}
        )

    return make
