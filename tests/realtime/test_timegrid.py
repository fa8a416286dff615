"""The grid's arithmetic, worked by hand and at random: no clock, no device."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickrate.realtime.timegrid import TimeGrid


def grid_at_zero(timeout=1.0, policy="skip", period=1.0):
    grid = TimeGrid(period, timeout, policy)
    grid.restart(0.0)
    return grid  # running step: 0 to 1


@pytest.mark.parametrize(
    ("timeout", "policy", "late", "start", "end", "skipped", "timed_out", "wait"),
    [
        (1, "skip", 0.3, 1.0, 2.0, 0, False, False),
        (1, "catch_up", 0.3, 1.0, 2.0, 0, False, False),
        (1, "skip", 1.2, 2.2, 3.2, 0, True, False),
        (1, "catch_up", 1.2, 2.2, 3.2, 0, True, False),
        (10, "skip", 1.2, 2.0, 3.0, 1, False, False),
        (10, "catch_up", 1.2, 1.0, 2.0, 0, False, False),
        (10, "skip", 3.7, 5.0, 6.0, 3, False, True),
        (10, "catch_up", 3.7, 1.0, 2.0, 0, False, False),
        (10, "skip", 0.7, 1.0, 2.0, 0, False, False),  # under one period nothing is dropped or awaited
        (10, "skip", 1.5, 2.0, 3.0, 1, False, False),  # half a period is enough to start
        (10, "skip", 10.0, 11.0, 12.0, 0, True, False),
        (0.5, "skip", 0.6, 1.6, 2.6, 0, True, False),
        (math.inf, "skip", 1000.25, 1001.0, 1002.0, 1000, False, False),
    ],
)
def test_a_late_step_is_followed_as_the_table_says(
    timeout, policy, late, start, end, skipped, timed_out, wait
):
    grid = grid_at_zero(timeout, policy)
    assert grid.settle(1.0 + late) is wait
    assert (grid.skipped, grid.timed_out) == (skipped, timed_out)
    grid.advance(max(grid.due, 1.0 + late) if wait else 1.0 + late)
    assert (grid.start, grid.end) == (pytest.approx(start), pytest.approx(end))


def test_catching_up_runs_short_steps_until_the_grid_is_reached_again():
    grid = grid_at_zero(10, "catch_up")
    now, lengths = 4.7, []
    for _ in range(6):
        now = max(now, grid.due)
        grid.settle(now)
        grid.advance(now)
        lengths.append(max(0.0, grid.end - now))
    assert lengths == pytest.approx([0.0, 0.0, 0.0, 0.3, 1.0, 1.0])


def test_a_hundred_thousand_steps_leave_no_error():
    period = 0.001  # not a binary fraction: adding it up 10^5 times would be off by 1e-11 or more
    grid = TimeGrid(period, 1.0)
    grid.restart(1000.0)
    late = 0.0
    for step in range(1, 100_001):
        now = grid.due + late
        grid.settle(now)
        grid.advance(now)
        late = (step * 7919 % 900) * 1e-6  # always late, by up to 0.9 periods
    assert grid.start == 1000.0 + 100_000 * period


def test_being_late_again_after_dropping_is_measured_from_the_new_plan():
    grid = grid_at_zero(4)
    assert grid.settle(4.7)  # 3.7 late: wait for 5
    assert not grid.settle(5.01)  # 4.01 after the original end, but on time for the plan
    assert not grid.timed_out
    grid.advance(5.01)
    assert (grid.start, grid.end) == (5.0, 6.0)


def test_another_period_begins_with_the_next_step():
    grid = grid_at_zero()
    grid.change(0.25, 2.0)
    assert (grid.start, grid.end) == (0.0, 1.0)
    grid.settle(1.0)
    grid.advance(1.0)
    assert (grid.start, grid.end, grid.timeout) == (1.0, 1.25, 0.5)
    grid.settle(1.25)
    grid.advance(1.25)
    assert (grid.start, grid.end) == (1.25, 1.5)


@given(
    st.lists(st.floats(0.0, 30.0), min_size=1, max_size=50),
    st.sampled_from([0.5, 1.0, 2.0, 10.0, math.inf]),
    st.sampled_from(["skip", "catch_up"]),
)
def test_whatever_the_delays_the_grid_stays_sane(delays, timeout, policy):
    grid = grid_at_zero(timeout, policy)
    origin, now = 0.0, 0.0
    for delay in delays:
        now = max(now, grid.due) + delay
        wait = grid.settle(now)
        if wait:
            assert now <= grid.due <= now + 0.5 + 1e-9
            now = grid.due
            grid.settle(now)
        timed_out = grid.timed_out
        due = grid.due
        grid.advance(now)
        if timed_out:
            assert grid.start == now
            origin = now
        else:
            assert grid.start == due <= now
            phase = (grid.start - origin) % 1.0
            assert min(phase, 1.0 - phase) < 1e-9
            if policy == "skip":
                assert grid.end - now >= min(0.5, 1.0) - 1e-9 or now - due < 1.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((0.0,), "period"), ((-1.0,), "period"), ((math.inf,), "period"), ((1.0, 0.0), "timeout_factor")],
)
def test_impossible_grids_are_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        TimeGrid(*arguments)


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="late_policy"):
        TimeGrid(1.0, 1.0, "hurry")


@pytest.mark.parametrize(
    ("offset", "period", "new_offset", "early"),
    [
        (None, 0.5, 0.5, False),  # at the end of the step it stays at the end
        (None, 3.0, 3.0, False),
        (0.25, 0.5, 0.25, True),
        (0.25, 0.125, 0.125, False),  # the step became too short for it
        (1.0, 2.0, 2.0, False),
    ],
)
def test_the_capture_keeps_its_place_when_the_period_changes(offset, period, new_offset, early):
    grid = TimeGrid(1.0, capture_offset=offset)
    grid.change(period)
    assert (grid.capture_offset, grid.early) == (new_offset, early)


def test_a_refused_change_leaves_the_capture_alone():
    grid = TimeGrid(1.0, capture_offset=0.5)
    with pytest.raises(ValueError, match="positive"):
        grid.change(-1.0)
    assert (grid.period, grid.capture_offset, grid.early) == (1.0, 0.5, True)
