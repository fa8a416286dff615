"""Clocks on a faked operating system: deadlines, margins, refusals. No test measures the machine."""

import ctypes
import threading

import pytest

from tickrate import clock as clock_module
from tickrate.clock import CheapClock, PreciseClock, make_clock


class System:
    """A machine whose time moves by sleeping (late by `lateness`) and by looking at the clock."""

    def __init__(self, lateness=0.0, look=1e-7, round_to=0.0):
        self.time, self.lateness, self.look, self.round_to = 1000.0, lateness, look, round_to
        self.sleeps = []

    def now(self):
        self.time += self.look
        return self.time

    def sleep(self, seconds):
        assert seconds > 0
        if self.round_to:
            seconds = -(-seconds // self.round_to) * self.round_to
        late = self.lateness() if callable(self.lateness) else self.lateness
        self.sleeps.append(seconds)
        self.time += seconds + late


@pytest.fixture
def system(monkeypatch):
    def make(**options):
        machine = System(**options)
        monkeypatch.setattr(clock_module, "now", machine.now)
        monkeypatch.setattr(clock_module.time, "sleep", machine.sleep)
        return machine

    return make


@pytest.mark.parametrize("mode", ["cheap", "precise"])
def test_a_deadline_that_has_passed_costs_no_sleep(system, mode):
    machine = system()
    assert make_clock(mode).sleep_until(999.0) == pytest.approx(1000.0)
    assert machine.sleeps == []


def test_the_cheap_clock_sleeps_once_and_is_late_by_the_systems_lateness(system):
    machine = system(lateness=100e-6)
    assert CheapClock().sleep_until(1000.05) - 1000.05 == pytest.approx(100e-6, abs=1e-6)
    assert len(machine.sleeps) == 1


def test_the_cheap_clock_never_returns_early(system):
    late = iter([-0.01, -0.002, 0.0])
    machine = system(lateness=lambda: next(late))  # a sleep that ends too early is taken up again
    assert CheapClock().sleep_until(1000.05) >= 1000.05
    assert len(machine.sleeps) == 3


@pytest.mark.parametrize("period", [0.02, 1 / 30])
@pytest.mark.parametrize("mode", ["cheap", "precise"])
def test_a_coarse_timer_keeps_the_mean_period_on_absolute_deadlines(system, mode, period):
    machine = system(round_to=0.0156)
    clock, start = make_clock(mode), machine.time
    for k in range(1, 301):
        clock.sleep_until(start + k * period)
    assert (machine.time - start) / 300 == pytest.approx(period, rel=0.01)


def test_the_precise_clock_meets_the_deadline_and_spins_only_the_margin(system):
    machine = system(lateness=80e-6)
    clock = PreciseClock()
    for k in range(1, 200):
        after = clock.sleep_until(1000.0 + 0.002 * k)
        assert after - (1000.0 + 0.002 * k) < 1e-6
    assert sum(machine.sleeps) > 199 * (0.002 - 80e-6 - clock.MARGIN_MAX)


def test_the_margin_follows_the_lateness_within_its_bounds(system):
    lateness = 10e-6
    machine = system(lateness=lambda: lateness, look=1e-6)
    clock = PreciseClock()

    def run(steps):
        for _ in range(steps):
            clock.sleep_until(machine.time + 0.01)

    run(3000)
    assert clock.margin == pytest.approx(clock.MARGIN_MIN)
    lateness = 150e-6
    run(300)
    assert 145e-6 < clock.margin < 160e-6
    lateness = 5e-3
    run(300)
    assert clock.margin == clock.MARGIN_MAX


def test_the_margin_settles_at_a_high_quantile(system):
    import random

    rng = random.Random(0)
    machine = system(lateness=lambda: rng.uniform(50e-6, 150e-6))
    clock = PreciseClock()
    missed = 0
    for step in range(20_000):
        deadline = machine.time + 0.002
        late = clock.sleep_until(deadline) - deadline > 5e-7
        missed += late if step >= 2000 else 0
    assert missed / 18_000 == pytest.approx(clock.SHRINK / (1 + clock.SHRINK), rel=0.25)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="exact"):
        make_clock("exact")


@pytest.mark.parametrize("mode", ["cheap", "precise"])
def test_the_slack_is_lowered_once_in_each_thread(monkeypatch, mode):
    calls = []
    monkeypatch.setattr(clock_module, "lower_timer_slack", lambda: calls.append(threading.get_ident()))
    clock = make_clock(mode)
    clock.sleep_until(0.0)
    clock.sleep_until(0.0)
    thread = threading.Thread(target=clock.sleep_until, args=(0.0,))
    thread.start()
    thread.join()
    assert len(calls) == 2
    assert len(set(calls)) == 2


def test_other_systems_say_plainly_that_they_cannot(monkeypatch):
    monkeypatch.setattr(clock_module.sys, "platform", "win32")
    for grant in (
        clock_module.lower_timer_slack(),
        clock_module.request_realtime_scheduling(50),
        clock_module.request_locked_memory(),
    ):
        assert not grant.granted
        assert "win32" in grant.reason


class Refusing:
    def __init__(self, *_, **__):
        pass

    def prctl(self, *_):
        ctypes.set_errno(1)
        return -1

    def mlockall(self, *_):
        ctypes.set_errno(12)
        return -1


def test_a_refusal_says_what_would_allow_it(monkeypatch):
    monkeypatch.setattr(clock_module.sys, "platform", "linux")
    monkeypatch.setattr(clock_module.ctypes, "CDLL", Refusing)

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(clock_module.os, "sched_setscheduler", refuse, raising=False)
    assert "refused" in clock_module.lower_timer_slack().reason
    assert "CAP_SYS_NICE" in clock_module.request_realtime_scheduling(50).reason
    assert "memlock" in clock_module.request_locked_memory().reason


def test_the_environment_logs_a_refusal(monkeypatch, caplog):
    from tickrate.clock import Grant
    from tickrate.realtime import RealTimeEnv, env
    from tickrate.testing import FakeClock, FakeInterface

    monkeypatch.setattr(env, "request_realtime_scheduling", lambda _: Grant(False, "not you"))
    with RealTimeEnv({"interface": FakeInterface, "realtime_priority": 50}, clock=FakeClock()) as made:
        made.reset()
    assert "realtime_priority: not you" in caplog.text
