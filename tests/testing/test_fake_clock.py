import pytest

from tickrate.testing import FakeClock


def test_a_sleep_jumps_to_the_deadline_and_is_logged():
    clock = FakeClock(start=10.0)
    assert clock.sleep_until(10.5) == 10.5
    assert clock.now() == 10.5
    assert clock.sleeps == [10.5]


def test_a_deadline_that_has_passed_costs_nothing():
    clock = FakeClock(start=10.0, oversleep=0.25)
    assert clock.sleep_until(9.0) == 10.0
    assert clock.sleep_until(10.0) == 10.0
    assert clock.sleeps == []


def test_oversleep_is_added_to_each_real_sleep():
    clock = FakeClock(oversleep=0.25)
    assert clock.sleep_until(1.0) == 1.25
    assert clock.sleep_until(2.0) == 2.25  # the deadline is absolute: lateness does not add up
    lateness = iter([0.5, 0.125])
    clock = FakeClock(oversleep=lambda: next(lateness))
    assert [clock.sleep_until(1.0), clock.sleep_until(2.0)] == [1.5, 2.125]


def test_advance_moves_forward_only():
    clock = FakeClock()
    assert clock.advance(1.5) == 1.5
    assert clock.advance(0.0) == 1.5
    for seconds in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="forward"):
            clock.advance(seconds)
    assert clock.now() == 1.5
