"""Order of commands and observations, the action buffer, and what a reset does to both."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ConfigError, EpisodeOver
from tickrate.testing import End, FakeInterface


def act(value):
    return np.array([value], np.float32)


def sent(device):
    return [round(float(value[0]), 6) for value in device.values]


def numbers(entries):
    return [round(float(entry[0]), 6) for entry in entries]


def test_an_observation_shows_the_command_before_the_one_being_given(bench):
    b = bench()
    b.env.reset()
    rng = np.random.default_rng(0)
    actions = [act(value) for value in rng.uniform(-1, 1, 200)]
    before = act(0.0)  # the default action, sent by reset
    for action in actions:
        observation, *_ = b.env.step(action)
        assert observation[0] == before
        assert observation[-1] == action
        before = action


def test_rewards_are_aligned_with_observations(bench):
    b = bench(fake={"reward": lambda device: float(device.applied[0])})
    b.env.reset()
    assert b.env.step(act(0.5))[1] == 0.0
    assert b.env.step(act(0.25))[1] == pytest.approx(0.5)


def test_a_command_goes_out_at_the_start_of_the_next_step(bench):
    b = bench()
    b.env.reset()
    start = b.clock.now()
    for k in range(3):
        b.env.step(act(0.1 * k))
    assert [c.time for c in b.device.commands] == pytest.approx(
        [start, start + 0.02, start + 0.04, start + 0.06]
    )
    assert b.device.capture_times == pytest.approx([start + 0.02, start + 0.04, start + 0.06])


def test_an_early_capture_without_a_thread_happens_within_the_step(bench):
    b = bench(start_obs_capture=0.015, async_threading=False)
    b.env.reset()
    start = b.clock.now()
    b.env.step(act(0.1))
    assert b.device.capture_times == pytest.approx([start + 0.015])
    assert b.device.commands[-1].time == pytest.approx(start + 0.02)


def test_the_buffer_copies_a_reused_array(bench):
    b = bench(act_buf_len=3)
    b.env.reset()
    action = act(0.0)
    for value in (0.1, 0.2, 0.3):
        action[0] = value
        observation, *_ = b.env.step(action)
    action[0] = 9.0
    assert numbers(observation[1:]) == [0.1, 0.2, 0.3]
    assert sent(b.device) == [0.0, 0.1, 0.2, 0.3]


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_changing_a_returned_observation_changes_no_later_one(bench, form):
    shared = np.array([0.5], np.float32)
    b = bench(
        fake={"observe": lambda _: [shared], "observation_space": spaces.Tuple((spaces.Box(-1, 1, (1,)),))},
        act_buf_len=2,
        obs_format=form,
    )
    b.env.reset()
    first, *_ = b.env.step(act(0.1))
    for leaf in first.values() if form == "dict" else first:
        leaf[...] = 77.0
    second, *_ = b.env.step(act(0.2))
    if form == "dict":
        assert second["0"] == 0.5
        assert numbers(second["actions"]) == [0.1, 0.2]
    else:
        assert numbers(second) == [0.5, 0.1, 0.2]
    assert sent(b.device) == [0.0, 0.1, 0.2]


def test_the_device_cannot_change_the_buffer(bench):
    class Greedy(FakeInterface):
        def send_control(self, control):
            control[...] = 5.0

    b = bench(interface=Greedy, act_buf_len=2)
    b.env.reset()
    b.env.step(act(0.1))
    observation, *_ = b.env.step(act(0.2))
    assert numbers(observation[1:]) == [0.1, 0.2]


def test_step_none_sends_nothing_and_repeats_the_last_entry(bench):
    b = bench(act_buf_len=3)
    b.env.reset()
    b.env.step(act(0.4))
    b.env.step(None)
    observation, *_, info = b.env.step(None)
    assert numbers(observation[1:]) == [0.4, 0.4, 0.4]
    assert sent(b.device) == [0.0, 0.4]
    assert b.device.none_commands == 0
    assert "applied_action" not in info


def test_the_final_observation_ends_with_the_given_action_and_the_buffer_with_the_told_one(bench):
    b = bench(fake={"on_capture": {2: End()}}, act_buf_len=2, reset_act_buf=False, safe_action=act(-1.0))
    b.env.reset()
    b.env.step(act(0.4))
    observation, _, terminated, truncated, info = b.env.step(act(0.7))
    assert (terminated, truncated) == (True, False)
    assert numbers(observation[1:]) == [0.4, 0.7]
    assert info["final_command"] == -1.0
    assert "applied_action" not in info
    assert sent(b.device) == [0.0, 0.4, -1.0]
    observation, _ = b.env.reset()
    assert numbers(observation[1:]) == [0.4, 0.0]


def test_ep_max_length_truncates(bench):
    b = bench(ep_max_length=2)
    b.env.reset()
    assert b.env.step(act(0.1))[2:4] == (False, False)
    assert b.env.step(act(0.2))[2:4] == (False, True)
    with pytest.raises(EpisodeOver):
        b.env.step(act(0.3))
    assert isinstance(EpisodeOver(""), RuntimeError)


def test_terminated_wins_over_truncated(bench):
    b = bench(fake={"on_capture": {2: End()}}, ep_max_length=2)
    b.env.reset()
    b.env.step(act(0.1))
    assert b.env.step(act(0.1))[2:4] == (True, False)


def test_an_interface_may_truncate(bench):
    b = bench(fake={"on_capture": {1: End(truncated=True, reason="out of time")}})
    b.env.reset()
    *_, terminated, truncated, info = b.env.step(act(0.1))
    assert (terminated, truncated, info["truncation_reason"]) == (False, True, "out of time")


def test_step_before_reset_is_refused(bench):
    with pytest.raises(EpisodeOver, match="reset"):
        bench().env.step(act(0.0))


def test_last_act_on_reset_keeps_the_flow(bench):
    b = bench(last_act_on_reset=True, reset_act_buf=False, act_buf_len=2, ep_max_length=2)
    b.env.reset()
    b.env.step(act(0.1))
    b.env.step(act(0.2))  # truncated: 0.2 goes out with the reset
    assert sent(b.device) == [0.0, 0.1]
    before = b.device.commands[-1].time
    observation, _ = b.env.reset()
    assert sent(b.device) == [0.0, 0.1, 0.2]
    assert numbers(observation[1:]) == [0.1, 0.2]
    assert b.device.commands[-1].time == pytest.approx(before + 0.02)  # the phase is kept
    b.env.step(act(0.3))
    assert b.device.commands[-1].time == pytest.approx(before + 0.04)


def test_last_act_on_reset_with_a_slow_reset_restarts_the_grid(bench):
    b = bench(fake={"reset_s": 0.1}, last_act_on_reset=True, reset_act_buf=False, ep_max_length=1)
    b.env.reset()
    b.env.step(act(0.2))
    b.env.reset()
    restarted = b.device.commands[-1].time
    b.env.step(act(0.3))
    assert b.clock.now() == pytest.approx(restarted + 0.02)


def test_reset_act_buf_fills_the_buffer(bench):
    b = bench(act_buf_len=3)
    b.env.reset()
    b.env.step(act(0.5))
    observation, _ = b.env.reset()
    assert numbers(observation[1:]) == [0.0, 0.0, 0.0]


def test_a_reset_in_mid_episode_keeps_the_applied_action_as_history(bench):
    b = bench(act_buf_len=3, reset_act_buf=False)
    b.env.reset()
    b.env.step(act(0.5))  # sent and in force
    observation, _ = b.env.reset()
    assert numbers(observation[1:]) == [0.0, 0.5, 0.0]


def test_set_default_action_is_what_reset_sends(bench):
    b = bench()
    b.env.set_default_action(act(0.25))
    b.env.reset()
    assert sent(b.device) == [0.25]
    with pytest.raises(ConfigError, match="default action"):
        b.env.set_default_action(act(3.0))


def test_act_prepro_func_changes_what_is_sent_and_not_the_buffer(bench):
    b = bench(act_prepro_func=lambda action: action * 10)
    b.env.reset()
    observation, *_ = b.env.step(act(0.5))
    assert sent(b.device)[-1] == 5.0
    assert observation[-1] == 0.5


def test_obs_prepro_func_sees_no_action_buffer_in_reset_and_step_alike(bench):
    seen = []

    def prepro(observation):
        seen.append(len(observation))
        return [np.concatenate([observation[0], observation[0]])]

    space = spaces.Tuple((spaces.Box(-1, 1, (2,)),))
    b = bench(act_buf_len=3, obs_prepro_func=prepro, obs_prepro_space=space)
    observation, _ = b.env.reset()
    assert b.env.observation_space.contains(observation)
    observation, *_ = b.env.step(act(0.5))
    assert b.env.observation_space.contains(observation)
    assert seen == [1, 1]


def test_lock_step_sends_each_action_once_and_shows_its_effect(bench):
    b = bench(real_time=False, act_buf_len=2)
    b.env.reset()
    begin = b.clock.now()
    for value in (0.1, 0.2, 0.3):
        observation, *_ = b.env.step(act(value))
        assert observation[0] == act(value)
    assert sent(b.device) == [0.1, 0.2, 0.3]
    assert numbers(observation[1:]) == [0.2, 0.3]
    assert b.clock.now() == begin


def test_lock_step_and_real_time_see_the_same_sequence_one_step_apart(bench):
    """An instantaneous device: lock-step observes a command's effect one step earlier, as documented."""
    rng = np.random.default_rng(3)
    actions = [act(v) for v in rng.uniform(-1, 1, 50)]

    def run(real_time):
        b = bench(real_time=real_time)
        b.env.reset()
        return [float(b.env.step(action)[0][0][0]) for action in actions]

    assert run(True)[1:] == run(False)[:-1]


def test_set_ep_max_length_and_set_start_obs_capture(bench):
    b = bench(async_threading=False)
    b.env.reset()
    b.env.set_ep_max_length(1)
    assert b.env.step(act(0.1))[3]
    with pytest.raises(ConfigError, match="start_obs_capture"):
        b.env.set_start_obs_capture(0.03)
    b.env.set_start_obs_capture(0.005)
    b.env.set_ep_max_length(10)
    b.env.reset()
    start = b.clock.now()
    b.env.step(act(0.1))
    assert b.device.capture_times[-1] == pytest.approx(start + 0.005)
    with pytest.raises(ConfigError, match="ep_max_length"):
        b.env.set_ep_max_length(0)


def test_set_time_step_duration_begins_with_the_next_step(bench):
    b = bench()
    b.env.reset()
    start = b.clock.now()
    b.env.set_time_step_duration(0.1)
    for _ in range(3):
        b.env.step(act(0.1))
    assert b.device.capture_times == pytest.approx([start + 0.02, start + 0.12, start + 0.22])
    with pytest.raises(ConfigError, match="period"):
        b.env.set_time_step_duration(0.0)
