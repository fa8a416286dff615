"""The offset between two clocks, worked by hand."""

import math

import pytest

from tickrate.wire.clock_offset import WINDOW, ClockOffset


def test_an_hour_off_is_measured_through_a_symmetric_way():
    """Sent at 10.000 here; received at 3610.004, answered at 3610.010 there; back at 10.014 here."""
    offset = ClockOffset()
    assert (offset.seconds, offset.rtt_s) == (None, None)
    offset.add(10.000, 3610.004, 3610.010, 10.014)
    assert offset.seconds == pytest.approx(3600.0)  # ((3600.004) + (3599.996)) / 2
    assert offset.rtt_s == pytest.approx(0.008)  # 14 ms under way, 6 of them spent there


def test_the_shortest_round_trip_is_believed():
    offset = ClockOffset()
    offset.add(0.0, 100.5, 100.5, 0.6)  # 0.5 s there, 0.1 s back: wrong by 0.2
    assert offset.seconds == pytest.approx(100.2)
    offset.add(1.0, 101.01, 101.01, 1.02)
    assert offset.seconds == pytest.approx(100.0)
    offset.add(2.0, 102.9, 102.9, 3.0)
    assert offset.seconds == pytest.approx(100.0)


def test_old_round_trips_are_forgotten():
    offset = ClockOffset()
    offset.add(0.0, 100.001, 100.001, 0.002)
    for second in range(1, WINDOW + 1):  # the clocks drift by 1 ms a second
        drift = second / 1000
        offset.add(second, second + 100.05 + drift, second + 100.05 + drift, second + 0.1)
    assert 100.0009 < offset.seconds < 100.0641  # one of those left, though the first was the shortest


def test_another_machine_s_clock_replaces_the_old_one_at_once():
    offset = ClockOffset()
    for second in range(10):
        offset.add(second, second + 3600.0, second + 3600.0, second + 0.001)
    offset.add(20.0, 25.0, 25.0, 20.5)  # the trainer was moved to another machine
    assert offset.seconds == pytest.approx(4.75)


@pytest.mark.parametrize(
    "times",
    [
        (5.0, 10.0, 10.0, 4.9),  # back before it was sent
        (5.0, 10.0, 9.9, 5.1),  # answered before it was received
        (5.0, 10.0, 10.5, 5.1),  # longer there than away
        (5.0, math.nan, 10.0, 5.1),
        (5.0, math.inf, math.inf, 5.1),
    ],
)
def test_times_that_cannot_be_are_left_out(times):
    offset = ClockOffset()
    offset.add(*times)
    assert offset.seconds is None
