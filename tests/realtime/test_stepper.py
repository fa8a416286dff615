"""Captures that overlap with thinking, and which thread calls what. Real threads, real time."""

import threading
import time

import numpy as np
import pytest

from tickrate.testing import Raise


def act(value=0.5):
    return np.array([value], np.float32)


def overlapping(bench, **more):
    fake = {"capture_s": 0.02} | more.pop("fake", {})
    return bench(fake=fake, clock=None, time_step_duration=0.05, start_obs_capture=0.025, **more)


def test_a_slow_capture_overlaps_with_thinking(bench):
    """25 ms of thinking and 20 ms of capture fit into 50 ms only side by side."""
    b = overlapping(bench)
    b.env.reset()
    for _ in range(6):
        time.sleep(0.03)
        *_, info = b.env.step(act())
    times = [command.time for command in b.device.commands]
    assert np.median(np.diff(times)) == pytest.approx(0.05, rel=0.1)
    offsets = np.array(b.device.capture_times) - times[:6]
    assert np.median(offsets) == pytest.approx(0.025, rel=0.2)
    assert info["timing"]["observation_age"] == pytest.approx(
        0.005, abs=0.005
    )  # data are from the capture's end


def test_one_persistent_thread_captures(bench):
    idents = set()
    b = overlapping(bench, fake={"reward": lambda _: idents.add(threading.get_ident()) or 0.0})
    b.env.reset()
    before = threading.active_count()
    for _ in range(4):
        b.env.step(act())
    assert len(idents) == 1
    assert threading.get_ident() not in idents
    assert threading.active_count() == before
    b.env.close()
    assert threading.active_count() < before


def test_the_default_captures_in_the_callers_thread(bench):
    idents = set()
    b = bench(clock=None, fake={"reward": lambda _: idents.add(threading.get_ident()) or 0.0})
    b.env.reset()
    b.env.step(act())
    assert idents == {threading.get_ident()}


def test_an_exception_in_an_overlapping_capture_reaches_step(bench):
    b = overlapping(bench, fake={"on_capture": {2: Raise(ZeroDivisionError("two"))}}, safe_action=act(-1.0))
    b.env.reset()
    b.env.step(act())
    with pytest.raises(ZeroDivisionError, match="two"):
        b.env.step(act())
    assert b.device.values[-1] == -1.0


def test_a_reset_drops_the_capture_that_is_under_way(bench):
    b = overlapping(bench, fake={"on_capture": {1: Raise(ZeroDivisionError("of the old episode"))}})
    b.env.reset()
    b.env.reset()
    observation, *_ = b.env.step(act())
    assert observation[0] == 0.0


@pytest.mark.parametrize("call_mode", ["auto", "thread"])
def test_wait_render_and_stop_get_along_with_an_overlapping_capture(bench, call_mode):
    b = overlapping(bench, call_mode=call_mode)
    b.env.reset()
    b.env.step(act(0.1))
    b.env.render()
    b.env.render(join_thread=True)
    observation, *_ = b.env.step(act(0.2))
    assert observation[0] == np.float32(0.1)  # the capture under way was kept
    b.env.stop()
    b.env.wait()
    observation, *_, info = b.env.step(act(0.3))
    assert observation[0] == np.float32(0.2)
    assert not info["timing"]["overrun"]
    assert b.device.waits == 1


def test_everything_works_from_another_thread(bench):
    b = bench(clock=None, time_step_duration=0.01, start_obs_capture=0.01)
    seen = []

    def drive():
        b.env.reset()
        for k in range(5):
            seen.append(float(b.env.step(act(k / 10))[0][0][0]))
        b.env.close()

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
    assert seen == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.3])
    assert [round(float(v[0]), 3) for v in b.device.values] == [0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.0]


def test_thread_mode_calls_everything_from_one_thread(bench):
    idents = set()
    b = bench(
        clock=None,
        call_mode="thread",
        fake={"reward": lambda _: idents.add(threading.get_ident()) or 0.0},
        act_prepro_func=lambda a: a,
    )
    send = b.device.send_control
    b.device.send_control = lambda control: idents.add(threading.get_ident()) or send(control)
    b.env.reset()
    for _ in range(3):
        b.env.step(act())
    assert len(idents) == 1
    assert threading.get_ident() not in idents


def test_ctrl_c_while_a_thread_works_leaves_the_next_call_clean(bench):
    import signal

    release = threading.Event()

    def slow(_):
        release.wait(1.0 if not release.is_set() else 0.0)
        return 0.0

    b = bench(clock=None, call_mode="thread", fake={"reward": slow})
    b.env.reset()
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        b.env.step(act())
    timer.join()
    release.set()
    b.env.reset()
    observation, *_ = b.env.step(act(0.25))
    observation, *_ = b.env.step(act(0.5))
    assert observation[0] == 0.25
