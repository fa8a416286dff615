import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import InterfaceError
from tickrate.testing import (
    End,
    FakeClock,
    FakeInterface,
    NotFinite,
    ProbeEnv,
    Raise,
    Return,
    check_environment,
    check_interface,
    require,
)

SPEED = spaces.Tuple((spaces.Box(0.0, 10.0, (1,), np.float32),))


def check(fake: FakeInterface, **kwargs):
    return check_interface(fake, clock=FakeClock(), **kwargs)


def texts(findings) -> str:
    return "\n".join(str(finding) for finding in findings)


def observing(value, space=SPEED, **kwargs) -> FakeInterface:
    return FakeInterface(
        clock=FakeClock(), observe=lambda device: copy.deepcopy(value), observation_space=space, **kwargs
    )


def test_a_good_interface_has_no_findings_and_a_dry_check_moves_nothing():
    fake = FakeInterface(clock=FakeClock())
    assert check(fake, dry=True) == []
    assert fake.commands == []
    assert fake.none_commands == 0
    assert len(fake.reset_times) == 1
    assert len(fake.capture_times) == 5


def test_a_full_check_sends_actions_and_ends_with_the_default_one():
    fake = FakeInterface(clock=FakeClock())
    assert check(fake, dry=False, observations=3) == []
    assert len(fake.commands) == 4
    assert fake.values[-1] == 0.0
    assert all(fake.get_action_space().contains(value) for value in fake.values)


def test_the_default_action_ends_a_full_check_that_fails():
    fake = FakeInterface(clock=FakeClock(), on_capture={2: Raise(OSError("camera gone"))})
    with pytest.raises(OSError, match="camera gone"):
        check(fake, dry=False)
    assert fake.values[-1] == 0.0
    assert len(fake.values) == 3


@pytest.mark.parametrize(
    ("observation", "level", "words"),
    [
        ((np.zeros(2, np.float32),), "error", "shape (2,), expected (1,)"),
        ((np.zeros(1, np.float32), 1.0), "error", "expected 1 elements, got 2"),
        ({"speed": 0.0}, "error", "wrong structure"),
        (("fast",), "error", "return numbers"),
        ((np.array([np.nan], np.float32),), "error", "holds nan"),
        ((np.array([1.0], np.float64),), "warning", "dtype float64, cast to float32"),
        ((np.array([11.0], np.float32),), "warning", "outside"),
    ],
)
def test_a_bad_observation_is_named(observation, level, words):
    found = check(observing(observation))
    assert {finding.level for finding in found} == {level}
    assert words in texts(found)
    if level == "error":
        with pytest.raises(InterfaceError):
            require(found)
    else:
        require(found)


@pytest.mark.parametrize("observation", [[[1.0]], ([1.0],), [np.array([1.0], np.float32)]])
def test_lists_and_tuples_are_both_fine(observation):
    assert check(observing(observation)) == []


def test_integers_do_not_take_floats():
    space = spaces.Tuple((spaces.Box(0, 255, (2,), np.uint8),))
    assert "float64 cannot become uint8" in texts(check(observing((np.zeros(2),), space)))


def test_the_leaf_is_named_by_its_name():
    fake = FakeInterface(clock=FakeClock(), on_capture={2: NotFinite()})
    (finding,) = check(fake)
    assert "'command'" in finding.where


def test_a_reused_array_is_found():
    array = np.zeros(1, np.float32)
    fake = FakeInterface(clock=FakeClock(), observe=lambda device: (array,), observation_space=SPEED)
    (finding,) = check(fake)
    assert finding.level == "warning"
    assert "reuses one array" in finding.message


def test_rewards_and_flags_are_checked():
    assert "reward is nan" in texts(check(FakeInterface(clock=FakeClock(), reward=float("nan"))))
    fake = FakeInterface(clock=FakeClock())
    fake.get_obs_rew_terminated_info = lambda: ((np.zeros(1, np.float32),), "much", 1, None)
    found = texts(check(fake))
    assert "reward is a str" in found
    assert "terminated is a int" in found
    assert "info is a NoneType" in found
    fake.get_obs_rew_terminated_info = lambda: (np.zeros(1, np.float32), 0.0)
    assert "return (observation, reward, terminated, info)" in texts(check(fake))


def test_a_wrong_reset_is_found():
    fake = FakeInterface(clock=FakeClock())
    fake.reset = lambda seed=None, options=None: (np.zeros(1, np.float32),)
    assert "return (observation, info)" in texts(check(fake))


def test_spaces_and_names_are_checked_before_anything_is_called():
    fake = FakeInterface(clock=FakeClock(), default_action=np.array([2.0], np.float32))
    assert "outside" in texts(check(fake))
    fake = FakeInterface(clock=FakeClock())
    fake.get_action_space = lambda: 3
    assert "return a Gymnasium space" in texts(check(fake))
    fake = FakeInterface(clock=FakeClock())
    fake.observation_names = lambda: ["a", "b"]
    assert "['a', 'b'] for 1 leaves" in texts(check(fake))
    assert fake.reset_times == []
    unbounded = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert "not finite" in texts(check(FakeInterface(clock=FakeClock(), action_space=unbounded)))


def test_an_argument_changed_in_place_is_found():
    fake = FakeInterface(clock=FakeClock())
    original = fake.send_control

    def send(control):
        original(control)
        control[:] = 0.0

    fake.send_control = send
    assert "changed its argument" in texts(check(fake, dry=False))


class Shifted(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation + 100.0


def test_environments_are_checked_over_several_episodes():
    assert check_environment(ProbeEnv("discount")) == []
    assert "outside" in texts(check_environment(Shifted(ProbeEnv("discount"))))


def test_scripted_ends_are_what_the_check_sees():
    fake = FakeInterface(clock=FakeClock(), on_capture={1: End(), 2: Return(([1.0],))})
    assert check(fake) == []


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"action_delay": -1}, "info['action_delay']: is -1: give a whole number of steps"),
        ({"observation_delay": 0.5}, "info['observation_delay']: is 0.5"),
        ({"observation_delay": 2, "action_delay": np.int64(1)}, ""),
    ],
)
def test_delays_are_whole_steps(info, words):
    class Telling(FakeInterface):
        def get_obs_rew_terminated_info(self):
            observation, reward, terminated, given = super().get_obs_rew_terminated_info()
            return observation, reward, terminated, given | info

    found = texts(check(Telling(clock=FakeClock())))
    assert words in found
    assert bool(words) == bool(found)


@pytest.mark.parametrize(
    ("frames", "length", "words"),
    [
        ([3, 3, 3], 3, ""),
        ([1, 2, 3], 3, "stacks 'frames': the first history holds different frames"),
        ([3, 3, 3], 2, "says that 'frames' holds 2 frames, but it is of shape (3, 1)"),
    ],
)
def test_a_declared_history_is_one(frames, length, words):
    class Camera(FakeInterface):
        def stacks(self):
            return {"frames": length}

    fake = Camera(
        clock=FakeClock(),
        observe=lambda device: {"frames": np.array(frames, np.uint8)[:, None]},
        observation_space=spaces.Dict({"frames": spaces.Box(0, 9, (3, 1), np.uint8)}),
    )
    found = texts(check(fake))
    assert words in found
    assert bool(words) == bool(found)


def test_what_a_run_cannot_act_in_is_a_warning():
    nested = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 3, (1,), np.int64)))
    found = texts(check(FakeInterface(clock=FakeClock(), action_space=nested)))
    assert "warning: get_action_space: Tuple: a run acts in one array" in found
    assert "warning: action '1': is a Box of int64" in found
