"""Exploration noise is held for as many steps as the truncated zeta distribution says, row by row."""

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tickrate.artefact import Exploration, LeafSpec, PolicyContract, action_spec
from tickrate.errors import PolicyError, PolicyMismatch
from tickrate.policy import Policy
from tickrate.program.spec import mlp_program

WEIGHTS = {"layer.0.weight": np.zeros((1, 4), np.float32), "layer.0.bias": np.zeros(4, np.float32)}


def policy_with(seed=3, **exploration):
    """Return a policy whose mean is 0 and whose standard deviation is 1, whatever it sees."""
    contract = PolicyContract(
        algorithm="fixed",
        observation=(LeafSpec("speed", "float32", (1,)),),
        action=action_spec(spaces.Box(-1, 1, (2,))),
        groups={"actor": ("speed",)},
        program=mlp_program(("speed",), (4,)),
        exploration=Exploration(**exploration),
        period_s=0.05,
        action_buffer_length=0,
    )
    return Policy.from_bytes(Policy(contract, WEIGHTS).to_bytes(), seed=seed)


def explored(policy, batch, steps):
    """Return the noise behind the actions, ``(steps, batch, 2)``, and the last state."""
    observation, state, noise = {"speed": np.zeros((batch, 1), np.float32)}, policy.initial_state(batch), []
    for _ in range(steps):
        action, state, _ = policy.act(observation, state)
        np.testing.assert_allclose(action, np.tanh(state["noise"]), atol=1e-6)
        noise.append(state["noise"])
    return np.stack(noise), state


def test_holds_are_as_long_as_the_zeta_weights_say():
    # Weights 1, 1/4, 1/9, 1/16 are 144, 36, 16, 9 of 205. The first two holds of each row end within 8 steps.
    noise, _ = explored(policy_with(noise_hold=4), 40_000, 9)
    changed = (noise[1:] != noise[:-1]).all(axis=2)
    np.testing.assert_array_equal(changed, (noise[1:] != noise[:-1]).any(axis=2))
    first = 1 + changed.argmax(axis=0)
    step = np.arange(1, 9)[:, None]
    second = 1 + (changed & (step > first)).argmax(axis=0) - first
    expected = np.array([144, 36, 16, 9]) / 205
    for lengths in (first, second):
        np.testing.assert_allclose(np.bincount(lengths, minlength=5)[1:] / 40_000, expected, atol=0.01)
    both = np.mean((first == 1) & (second == 1))
    assert both == pytest.approx(expected[0] ** 2, abs=0.01)  # the second is drawn anew


def test_the_usual_hold_of_sixteen_steps():
    noise, _ = explored(policy_with(noise_hold=16), 5000, 17)
    changed = (noise[1:] != noise[:-1]).any(axis=2)
    assert changed.any(axis=0).all()  # none is held for longer than 16
    weights = 1.0 / np.arange(1, 17) ** 2
    shares = np.bincount(1 + changed.argmax(axis=0), minlength=17)[1:] / 5000
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.02)


def test_noise_has_unit_variance_and_rows_and_parts_are_independent():
    noise, _ = explored(policy_with(noise_hold=4), 20_000, 6)
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.04)
    np.testing.assert_allclose(noise.std(axis=1), 1.0, atol=0.03)
    assert np.mean(noise[:, :, 0] * noise[:, :, 1]) == pytest.approx(0.0, abs=0.02)
    assert np.mean(noise[:, 1:] * noise[:, :-1]) == pytest.approx(0.0, abs=0.02)


def test_the_state_says_how_long_the_noise_still_holds():
    policy = policy_with(noise_hold=16)
    observation, state = {"speed": np.zeros((64, 1), np.float32)}, policy.initial_state(64)
    assert {name: (rows.dtype.name, rows.shape) for name, rows in state.items()} == {
        "noise": ("float32", (64, 2)),
        "noise_left": ("int64", (64,)),
    }
    assert not state["noise_left"].any()
    for _ in range(20):
        before = {name: rows.copy() for name, rows in state.items()}
        _, after, _ = policy.act(observation, state)
        held = before["noise_left"] > 0
        np.testing.assert_array_equal((after["noise"] == before["noise"]).all(axis=1), held)
        np.testing.assert_array_equal(after["noise_left"][held], before["noise_left"][held] - 1)
        assert ((after["noise_left"] >= 0) & (after["noise_left"] < 16)).all()
        for name, rows in before.items():
            np.testing.assert_array_equal(state[name], rows)  # what was given is not touched
        _, rested, _ = policy.act(observation, after, deterministic=True)
        assert rested is after  # noise rests while nothing explores
        state = after


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_without_a_hold_noise_is_bit_for_bit_what_it_was(rho):
    noise, state = explored(policy_with(seed=7, noise_correlation=rho), 3, 4)
    assert state.keys() == {"noise"}
    rng = np.random.default_rng(7)
    expected = rng.standard_normal((3, 2), dtype=np.float32)
    for found in noise:
        fresh = rng.standard_normal((3, 2), dtype=np.float32)
        expected = np.float32(np.sqrt(1 - rho**2)) * fresh + np.float32(rho) * expected if rho else fresh
        np.testing.assert_array_equal(found, expected)


def test_the_same_seed_holds_the_same_noise():
    runs = [explored(policy_with(seed, noise_hold=4), 5, 10)[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_newer_weights_hold_on_and_others_are_refused():
    policy, observation = policy_with(noise_hold=4), {"speed": np.zeros((1, 1), np.float32)}
    _, state, _ = policy.act(observation, policy.initial_state(1))
    policy.load(policy_with(noise_hold=9).to_bytes())
    policy.act(observation, state)
    with pytest.raises(PolicyMismatch, match=r"carry the states \{\}; this policy has \{'noise_left': 1\}"):
        policy.load(policy_with().to_bytes())
    with pytest.raises(PolicyMismatch, match=r"carry the states \{'noise_left': 1\}; this policy has \{\}"):
        policy_with().load(policy.to_bytes())


def test_a_head_that_does_not_hold_noise_refuses_the_option():
    contract = msgspec.structs.replace(
        policy_with().contract, action=action_spec(spaces.Discrete(4)), head="greedy"
    )
    Policy(contract, WEIGHTS)
    held = msgspec.structs.replace(contract, exploration=Exploration(noise_hold=2))
    with pytest.raises(PolicyError, match="noise_hold is set, but the head 'greedy' does not use it"):
        Policy(held, WEIGHTS)
