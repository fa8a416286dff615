"""Interfaces that raise, hang, disconnect or return nonsense: a clear error, a safe device, never a hang."""

import threading
import time

import gymnasium
import numpy as np
import pytest

from tickrate.errors import (
    ActionError,
    ConfigError,
    DeviceLost,
    EpisodeOver,
    InterfaceError,
    InterfaceTimeout,
    ObservationError,
)
from tickrate.realtime import RealTimeGymInterface
from tickrate.testing import Block, FakeInterface, NotFinite, Raise, Return, Silent


def act(value=0.5):
    return np.array([value], np.float32)


SAFE = act(-1.0)


def assert_safe(device):
    assert device.values[-1] == -1.0


def test_an_exception_in_a_capture_reaches_the_caller_as_it_is(bench):
    b = bench(fake={"on_capture": {3: Raise(ZeroDivisionError("the third"))}}, safe_action=SAFE)
    b.env.reset()
    b.env.step(act())
    b.env.step(act())
    with pytest.raises(ZeroDivisionError, match="the third"):
        b.env.step(act())
    assert_safe(b.device)
    with pytest.raises(EpisodeOver):
        b.env.step(act())
    b.env.reset()
    b.env.step(act())


def test_an_exception_in_send_control_reaches_the_caller_and_the_safe_action_is_tried(bench):
    b = bench(fake={"on_send": {2: Raise(OSError("no route"))}}, safe_action=SAFE)
    b.env.reset()
    with pytest.raises(OSError, match="no route"):
        b.env.step(act())
    assert_safe(b.device)


def test_an_exception_in_reset_reaches_the_caller(bench):
    b = bench(fake={"on_reset": {1: Raise(ConnectionRefusedError("127.0.0.1:9000: is the game running?"))}})
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.1:9000"):
        b.env.reset()
    assert b.device.commands == []
    b.env.reset()


@pytest.mark.parametrize("env_id", ["real-time-gym-v1", "real-time-gym-ts-v1", "tickrate/RealTime-v0"])
def test_an_exception_in_the_constructor_reaches_make(env_id):
    config = {"interface": FakeInterface, "interface_kwargs": {"fail": OSError("no such port")}}
    with pytest.raises(OSError, match="no such port"):
        gymnasium.make(env_id, config=config)


def test_a_lost_device_truncates_and_reset_reconnects(bench):
    b = bench(
        fake={"on_capture": {3: Silent("the game stopped sending")}},
        act_buf_len=2,
        reset_act_buf=False,
        safe_action=SAFE,
    )
    b.env.reset()
    b.env.step(act(0.1))
    last, *_ = b.env.step(act(0.2))
    observation, reward, terminated, truncated, info = b.env.step(act(0.3))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["truncation_reason"] == "device lost: the game stopped sending"
    assert observation[0] == last[0]
    assert [round(float(a[0]), 3) for a in observation[1:]] == [0.2, 0.3]
    assert info["final_command"] == -1.0
    assert_safe(b.device)
    b.env.reset()
    assert len(b.device.reset_times) == 2
    assert not b.env.step(act())[3]


def test_a_device_lost_while_sending_truncates_too(bench):
    b = bench(fake={"on_send": {2: Silent("unplugged")}}, safe_action=SAFE)
    b.env.reset()
    *_, truncated, info = b.env.step(act())
    assert truncated
    assert "unplugged" in info["truncation_reason"]


def test_a_device_lost_in_reset_is_the_callers_business(bench):
    b = bench(fake={"on_reset": {1: Silent()}})
    with pytest.raises(DeviceLost):
        b.env.reset()


def test_nan_in_an_observation_never_reaches_the_policy(bench):
    b = bench(fake={"on_capture": {2: NotFinite()}}, safe_action=SAFE)
    b.env.reset()
    b.env.step(act())
    with pytest.raises(ObservationError, match=r"obs\['command'\].*not finite"):
        b.env.step(act())
    assert_safe(b.device)


def test_nan_can_be_bridged_and_is_counted(bench):
    b = bench(fake={"on_capture": {2: NotFinite(), 3: NotFinite(float("inf"))}}, nonfinite_observation="hold")
    b.env.reset()
    b.env.step(act(0.5))
    for _ in range(2):
        observation, *_, info = b.env.step(act(0.7))
        assert observation[0] == 0.0
        assert info["observation_corrections"] == 1
    assert "observation_corrections" not in b.env.step(act(0.7))[-1]
    assert b.env.guard_counts()["observation_held"] == {"command": 2}


def test_nothing_is_held_over_a_reset(bench):
    b = bench(fake={"on_reset": {2: NotFinite()}}, nonfinite_observation="hold")
    b.env.reset()
    b.env.step(act())
    with pytest.raises(ObservationError, match="no finite value came before"):
        b.env.reset()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([np.zeros(2, np.float32)], r"obs\['command'\]: shape \(2,\), expected \(1,\)"),
        ([], "expected 1 elements, got 0"),
        ({"command": 0.0}, "expected a sequence of 1"),
        (None, "expected a sequence of 1"),
        (["fast"], r"obs\['command'\]: dtype <U4, expected float32"),
        ([np.zeros(1, complex)], r"obs\['command'\]: dtype complex128, expected float32"),
    ],
)
def test_a_wrong_observation_names_the_leaf(bench, returned, message):
    b = bench(fake={"on_capture": {1: Return(returned)}}, safe_action=SAFE)
    b.env.reset()
    with pytest.raises(ObservationError, match=message):
        b.env.step(act())
    assert_safe(b.device)


@pytest.mark.parametrize(
    "answer", [None, (1, 2, 3), ((0.0,), float("nan"), False, {}), ((0.0,), 1.0, False, 7)]
)
def test_a_wrong_answer_of_the_interface_is_explained(bench, answer):
    class Odd(FakeInterface):
        def get_obs_rew_terminated_info(self):
            return answer

    b = bench(interface=Odd)
    b.env.reset()
    with pytest.raises(InterfaceError, match="get_obs_rew_terminated_info"):
        b.env.step(act())


def test_a_reset_that_forgets_the_info_is_explained(bench):
    class Odd(FakeInterface):
        def reset(self, seed=None, options=None):
            return [np.zeros(1, np.float32)]

    with pytest.raises(InterfaceError, match=r"reset\(\) must return \(observation, info\)"):
        bench(interface=Odd).env.reset()


def test_an_interface_without_methods_says_which():
    with pytest.raises(NotImplementedError, match="get_observation_space"):
        gymnasium.make("tickrate/RealTime-v0", config={"interface": RealTimeGymInterface})


def test_a_default_action_outside_its_space_is_refused(bench):
    with pytest.raises(ConfigError, match=r"default action .* outside"):
        bench(fake={"default_action": act(2.0)})


def test_nan_and_out_of_range_actions_never_reach_the_device(bench):
    b = bench()
    b.env.reset()
    b.env.step(act(0.25))
    observation, *_, info = b.env.step(act(np.nan))
    assert info["applied_action"] == observation[-1] == 0.25
    observation, *_, info = b.env.step(act(5.0))
    assert info["applied_action"] == observation[-1] == 1.0
    *_, info = b.env.step(act(-np.inf))
    assert info["applied_action"] == 1.0
    assert [float(v[0]) for v in b.device.values] == [0.0, 0.25, 0.25, 1.0, 1.0]
    counts = b.env.guard_counts()
    assert (counts["actions_held"], counts["actions_clipped"]) == (2, 1)


@pytest.mark.parametrize(("bad", "key"), [(np.nan, "nan_action"), (5.0, "out_of_range_action")])
def test_refusing_a_bad_action_makes_the_device_safe(bench, bad, key):
    b = bench(safe_action=SAFE, **{key: "refuse"})
    b.env.reset()
    with pytest.raises(ActionError):
        b.env.step(act(bad))
    assert_safe(b.device)


def test_a_prepro_that_makes_nan_is_stopped(bench):
    b = bench(act_prepro_func=lambda a: a if a <= 0 else a * np.nan, safe_action=SAFE)
    b.env.reset()
    with pytest.raises(ActionError, match="act_prepro_func"):
        b.env.step(act())
    assert_safe(b.device)


def test_a_failing_safe_action_does_not_hide_the_first_error(bench, caplog):
    b = bench(
        fake={"on_capture": {1: Raise(ValueError("first"))}, "on_send": {2: Raise(OSError("second"))}},
    )
    b.env.reset()
    with pytest.raises(ValueError, match="first"):
        b.env.step(act())
    assert "safe action could not be sent" in caplog.text


# -------------------------------------------------------------------------------------- hangs, in real time


def hanging(bench, call, release, **config):
    return bench(
        fake={f"on_{call}": {2: Block(limit_s=30.0, release=release)}},
        clock=None,
        safe_action=SAFE,
        interface_timeout_s=0.2,
        reset_timeout_s=0.2,
        **config,
    )


def step_on(env):
    for _ in range(3):
        env.step(act())


@pytest.mark.parametrize("call_mode", ["auto", "thread"])
@pytest.mark.parametrize("call", ["capture", "send", "reset"])
def test_a_hanging_interface_is_given_up(bench, call, call_mode):
    release = threading.Event()
    b = hanging(bench, call, release, call_mode=call_mode)
    b.env.reset()
    begin = time.monotonic()
    with pytest.raises(InterfaceTimeout, match=r"did not return within 0.2 s"):
        b.env.reset() if call == "reset" else step_on(b.env)
    assert time.monotonic() - begin < 5.0  # far below the 30 s of the hang
    assert_safe(b.device)
    release.set()
    b.env.reset()
    b.env.step(act())


def test_a_hang_is_given_up_in_another_thread_too(bench):
    release = threading.Event()
    b = hanging(bench, "capture", release)
    caught = []

    def drive():
        b.env.reset()
        try:
            for _ in range(3):
                b.env.step(act())
        except InterfaceTimeout as error:
            caught.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join(10.0)
    release.set()
    assert not thread.is_alive()
    assert len(caught) == 1
    assert_safe(b.device)


def test_a_hang_of_an_overlapping_capture_is_given_up(bench):
    release = threading.Event()
    b = hanging(bench, "capture", release, start_obs_capture=0.01)
    b.env.reset()
    with pytest.raises(InterfaceTimeout):
        step_on(b.env)
    assert_safe(b.device)
    release.set()


def test_an_interface_that_swallows_the_interruption_is_interrupted_again(bench):
    class Stubborn(FakeInterface):
        tries = 0

        def get_obs_rew_terminated_info(self):
            while self.tries < 2:
                self.tries += 1
                try:
                    time.sleep(30.0)
                except OSError:
                    continue
            return super().get_obs_rew_terminated_info()

    b = bench(interface=Stubborn, clock=None, interface_timeout_s=0.1)
    b.env.reset()
    begin = time.monotonic()
    b.env.step(act())
    assert b.device.tries == 2
    assert time.monotonic() - begin < 10.0


def test_a_hanging_constructor_is_given_up(bench):
    class Stuck(FakeInterface):
        def __init__(self):
            time.sleep(30.0)

    begin = time.monotonic()
    with pytest.raises(InterfaceTimeout, match="constructor"):
        bench(interface=Stuck, clock=None, reset_timeout_s=0.1, interface_timeout_s=0.1)
    assert time.monotonic() - begin < 5.0


def test_a_time_out_error_of_the_interface_itself_is_not_taken_for_ours(bench):
    b = bench(fake={"on_capture": {1: Raise(TimeoutError("recv"))}}, call_mode="thread")
    b.env.reset()
    with pytest.raises(TimeoutError, match="recv") as caught:
        b.env.step(act())
    assert not isinstance(caught.value, InterfaceTimeout)
