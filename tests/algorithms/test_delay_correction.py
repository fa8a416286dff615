"""The correction for delays: how many steps a delay leaves open, what is drawn anew, and the return, by
hand."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sac_kit import preset

from tickrate.algorithms.delay_correction import DelayCorrection
from tickrate.algorithms.sac import SAC
from tickrate.algorithms.sac_functions import Transition
from tickrate.data.batch import SequenceBatch
from tickrate.errors import ConfigError
from tickrate.nn.features import VECTOR


class Coding:
    """Actions stand in the buffer ten times as large."""

    def buffered(self, action):
        return 10.0 * action


class Networks:
    """A policy that says the sum of the buffer plus its noise, with log-probability -1, -2, ... by call."""

    def __init__(self):
        self.calls = []

    def actor_features(self, inputs):
        return inputs[VECTOR]

    def act(self, features, noise):
        self.calls.append(features.clone())
        return features[:, 1:].sum(1, keepdim=True) + noise, torch.full(
            (len(features),), -float(len(self.calls))
        )


def test_how_many_steps_a_delay_leaves_open():
    correction = DelayCorrection(4, Coding(), None, None)
    real = torch.ones(6, 4, dtype=torch.bool)
    real[4, 2:] = False
    # Of each observation: how many steps old the command in force was. The return may reach step i while
    # command i - 1 - delay is no later than the first one, 0; once it is later, no further step counts.
    delays = torch.tensor(
        [
            [9.0, 0.0, 0.0, 0.0, 0.0],  # at once: command 1 is in force at step 2, so one step only
            [9.0, 1.0, 1.0, 1.0, 1.0],  # at step 2 command 0 is in force, at step 3 command 1
            [9.0, 3.0, 3.0, 3.0, 3.0],  # at step 4 still command 0
            [9.0, 3.0, 0.0, 3.0, 3.0],  # at step 2 command 1 already: what comes after shows it as well
            [9.0, 9.0, 9.0, 9.0, 9.0],  # the episode ends after two steps
            [0.0, 0.0, 1.0, 2.0, 3.0],  # command 0 stays in force
        ]
    )
    assert correction.counts(delays, real).tolist() == [1, 2, 4, 1, 2, 4]


def fragments():
    """Return two fragments of three steps: an observation and a buffer of two actions, oldest first."""
    rows = torch.tensor([[0.5, 1, 2], [0.6, 2, 3], [0.7, 3, 4], [0.8, 4, 5]])
    vector = torch.cat([rows, rows + 100])
    return Transition(
        actor={VECTOR: vector},
        critic={VECTOR: vector},
        action=torch.tensor([[3.0], [4.0], [5.0], [103.0], [104.0], [105.0]]),
        reward=torch.tensor([1.0, 10.0, 100.0, 2.0, 20.0, 200.0]),
        discount=torch.tensor([0.5, 0.5, 0.5, 0.5, 0.0, 0.0]),
        weights=torch.ones(6),
        mask=torch.ones(6),
        sequences=2,
    )


def test_the_return_and_the_buffers_by_hand():
    correction, networks = DelayCorrection(3, Coding(), slice(1, 3), slice(1, 3)), Networks()
    noises = torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]], [[0.5], [0.6]]])
    # Fragment 0 may use three steps, fragment 1 two.
    delays = torch.tensor([[9.0, 9.0, 9.0, 9.0], [9.0, 1.0, 1.0, 1.0]])
    alpha = torch.tensor(0.1)
    transition, action, log_prob = correction(networks, fragments(), delays, noises, alpha)

    # Step 1 sees the buffer as recorded (its newest action, 3, is the one really applied): 2 + 3 + 0.1 = 5.1.
    # Step 2's newest entry becomes 51: 3 + 51 + 0.3 = 54.3. Step 3's both become 51 and 543: 594.5.
    assert networks.calls[0][0].tolist() == pytest.approx([0.6, 2, 3])
    assert networks.calls[1][0].tolist() == pytest.approx([0.7, 3, 51], rel=1e-5)
    assert networks.calls[2][0].tolist() == pytest.approx([0.8, 51, 543], rel=1e-5)
    assert action[0].item() == pytest.approx(594.5, rel=1e-5)
    assert log_prob.tolist() == [-3.0, -2.0]
    # 1 + 0.5 * 10 + 0.25 * 100, and the entropies of the two actions in between: -0.1 * (0.5 * -1 + 0.25 *
    # -2).
    assert transition.reward[0].item() == pytest.approx(31.0 + 0.1)
    assert transition.discount[0].item() == pytest.approx(0.125)
    # Fragment 1: 2 + 0.5 * 20, its second step terminated: discount 0; the entropy of one action in between.
    assert transition.reward[1].item() == pytest.approx(12.0 + 0.1 * 0.5)
    assert transition.discount[1].item() == 0.0
    now, later = transition.critic[VECTOR].chunk(2)
    assert now.tolist() == pytest.approx(np.array([[0.5, 1, 2], [100.5, 101, 102]]))
    assert later[0].tolist() == pytest.approx([0.8, 51, 543], rel=1e-5)
    first = 102 + 103 + 0.2
    assert later[1].tolist() == pytest.approx([100.7, 103, 10 * first], rel=1e-5)
    assert transition.action.tolist() == [[3.0], [103.0]]
    assert transition.sequences == 0


def delayed_world(count, steps, delay, rng):
    """Return fragments of a world in which an action is worth minus its square error, ``delay`` steps
    later."""
    observation = {
        "x": rng.normal(size=(count, steps + 1, 1)).astype(np.float32),
        "timing": np.full((count, steps + 1, 3), float(delay), np.float32),
    }
    applied = rng.uniform(-1, 1, (count, steps + 1 + delay, 1)).astype(np.float32)
    buffers = [applied[:, i : i + delay] for i in range(steps + 1)]
    observation["actions"] = np.stack(buffers, 1)  # at step i: the actions i - delay to i - 1
    due = applied[:, :steps, 0]  # the action of step i is worth something at step i + delay
    return SequenceBatch(
        observation=observation,
        action=applied[:, delay : delay + steps],
        reward=1.0 - (due - 0.5) ** 2,
        discount=np.full((count, steps), 0.7, np.float32),
        mask=np.ones((count, steps), bool),
        first=np.zeros(count, bool),
        ended=np.zeros(count, bool),
        rows=np.arange(count * steps).reshape(count, steps),
    )


SPACES = {
    "x": spaces.Box(-np.inf, np.inf, (1,)),
    "timing": spaces.Box(0, 32, (3,)),
}


def make(buffer=3, **changes):
    small = {"hidden": [32, 32]}
    still = {"initial_temperature": 1e-3, "learn_temperature": False, "batch_size": 64, "target_rate": 0.05}
    rate = {f"{part}_optimiser": {"learning_rate": 3e-3} for part in ("actor", "critic")}
    config = preset("sac", actor=small, critic=small, **still, **rate, **changes)
    where = {"seed": 0, "period_s": 0.0, "action_buffer_length": buffer}
    observed = {**SPACES, "actions": spaces.Box(-1, 1, (buffer, 1))}
    return SAC(config, observed, spaces.Box(-1, 1, (1,)), **where)


def test_a_corrected_learner_finds_the_delayed_answer():
    sac, rng = make(buffer=2, delay_correction=3), np.random.default_rng(0)
    assert sac.sequence_length == 3
    for _ in range(400):
        sac.update(delayed_world(64, 3, 2, rng))
    batch = delayed_world(256, 3, 2, rng)
    transition = sac._loader.load(batch)
    with torch.no_grad():
        features = sac.networks.actor_features(transition.actor)
        action, _ = sac.networks.act(features, torch.zeros(len(features), 1))
    assert action.mean().item() == pytest.approx(0.5, abs=0.15)
    assert action.std().item() < 0.3


def test_a_buffer_too_short_for_the_correction_is_refused():
    with pytest.raises(ConfigError, match="at most 4 steps"):
        make(delay_correction=5)
