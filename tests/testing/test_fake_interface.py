import math
import threading

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import DeviceLost
from tickrate.testing import (
    Block,
    End,
    FakeClock,
    FakeInterface,
    NotFinite,
    Raise,
    Return,
    Silent,
    Stale,
    Stall,
    neutral_action,
)


def look(fake: FakeInterface):
    return fake.get_obs_rew_terminated_info()


def send(fake: FakeInterface, value: float) -> None:
    fake.send_control(np.array([value], np.float32))


def test_the_echo_shows_the_applied_command_at_the_next_capture():
    fake = FakeInterface(clock=FakeClock())
    (command,), info = fake.reset()
    assert command == 0.0
    assert info == {}
    send(fake, 0.25)
    (command,), reward, terminated, _ = look(fake)
    assert command == 0.25
    assert reward == 0.0
    assert terminated is False
    assert fake.get_observation_space().contains((command,))


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_lag_is_counted_in_captures(lag):
    fake = FakeInterface(clock=FakeClock(), lag=lag)
    fake.reset()
    seen = []
    for value in (0.1, 0.2, 0.3, 0.4, 0.5):
        send(fake, value)
        seen.append(round(float(look(fake)[0][0][0]), 3))
    expected = [0.0] * (lag - 1) + [0.1, 0.2, 0.3, 0.4, 0.5]
    assert seen == expected[:5]


def test_the_log_holds_times_and_copies():
    clock = FakeClock(start=5.0)
    fake = FakeInterface(clock=clock)
    fake.reset(seed=3)
    reused = np.array([0.5], np.float32)
    fake.send_control(reused)
    clock.advance(0.1)
    reused[0] = -0.5
    fake.send_control(reused)
    fake.send_control(None)
    assert [command.time for command in fake.commands] == [5.0, 5.1]
    assert [float(value[0]) for value in fake.values] == [0.5, -0.5]
    assert fake.none_commands == 1
    assert (fake.reset_times, fake.seeds) == ([5.0], [3])


def test_scripted_behaviours_come_at_the_scripted_call():
    clock = FakeClock()
    error = ValueError("scripted")
    fake = FakeInterface(
        clock=clock,
        on_capture={
            1: Stall(0.3),
            2: Raise(error),
            3: Silent("unplugged"),
            4: NotFinite(),
            5: Return("nonsense"),
            6: End(),
            7: End(truncated=True, reason="lap"),
        },
    )
    look(fake)
    assert clock.now() == 0.3
    with pytest.raises(ValueError, match="scripted") as caught:
        look(fake)
    assert caught.value is error
    with pytest.raises(DeviceLost, match="unplugged"):
        look(fake)
    assert math.isnan(look(fake)[0][0][0])
    assert look(fake)[0] == "nonsense"
    assert look(fake)[2] is True
    _, _, terminated, info = look(fake)
    assert terminated is False
    assert (info["truncated"], info["truncation_reason"]) == (True, "lap")
    assert look(fake)[2] is False


def test_stale_data_keep_their_old_time():
    clock = FakeClock()
    fake = FakeInterface(clock=clock, on_capture={2: Stale(), 3: Stale()})
    first, _, _, info = look(fake)
    assert info["observation_time"] == 0.0
    for _ in range(2):
        clock.advance(1.0)
        send(fake, 0.5)
        observation, _, _, info = look(fake)
        assert observation is first
        assert info["observation_time"] == 0.0
    clock.advance(1.0)
    observation, _, _, info = look(fake)
    assert observation[0] == 0.5
    assert info["observation_time"] == 3.0


def test_resets_and_sends_can_fail_too():
    fake = FakeInterface(clock=FakeClock(), on_reset={2: Silent()}, on_send={1: Raise(OSError("bus error"))})
    fake.reset()
    with pytest.raises(DeviceLost):
        fake.reset()
    with pytest.raises(OSError, match="bus error"):
        send(fake, 0.1)
    assert fake.commands == []  # it was not heard
    with pytest.raises(RuntimeError, match="no such device"):
        FakeInterface(fail=RuntimeError("no such device"))


def test_a_block_holds_the_call_until_it_is_released():
    block = Block(limit_s=30.0)
    fake = FakeInterface(on_capture={1: block})
    done = threading.Event()
    thread = threading.Thread(target=lambda: (look(fake), done.set()))
    thread.start()
    assert not done.wait(0.05)
    block.release.set()
    thread.join(10.0)
    assert done.is_set()


def test_a_reset_and_a_capture_may_take_time():
    clock = FakeClock()
    fake = FakeInterface(clock=clock, reset_s=0.3, capture_s=0.02)
    fake.reset()
    assert clock.now() == 0.3
    look(fake)
    assert clock.now() == pytest.approx(0.32)


def test_any_observation_can_be_scripted():
    fake = FakeInterface(
        clock=FakeClock(),
        observe=lambda device: {"count": len(device.capture_times)},
        observation_space=spaces.Dict({"count": spaces.Discrete(10)}),
        reward=lambda device: float(len(device.capture_times)),
    )
    assert look(fake)[:2] == ({"count": 1}, 1.0)
    assert fake.observation_names() is None
    with pytest.raises(ValueError, match="both"):
        FakeInterface(observe=lambda device: 0)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float32), [0.0, 0.0]),
        (spaces.Box(0.5, 1.0, (1,), np.float32), [0.5]),
        (spaces.Discrete(3, start=4), 4),
        (spaces.MultiDiscrete([3, 2]), [0, 0]),
        (spaces.MultiBinary(2), [0, 0]),
    ],
)
def test_the_neutral_action_is_in_its_space(space, expected):
    action = neutral_action(space)
    assert space.contains(action if action.shape else int(action))
    assert np.array_equal(action, expected)


def test_nested_actions_are_echoed():
    space = spaces.Dict({"steer": spaces.Box(-1.0, 1.0, (1,), np.float32), "gear": spaces.Discrete(3)})
    fake = FakeInterface(clock=FakeClock(), action_space=space)
    fake.send_control({"steer": np.array([0.5], np.float32), "gear": np.int64(2)})
    (command,), *_ = look(fake)
    assert command["steer"] == 0.5
    assert command["gear"] == 2
