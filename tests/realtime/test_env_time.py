"""Lateness: what is waited for, what is reported, what is counted. All on a fake clock."""

import logging
import math

import numpy as np
import pytest

from tickrate.testing import Stall


def act(value=0.0):
    return np.array([value], np.float32)


def run(b, steps, think=0.0):
    infos = []
    for _ in range(steps):
        b.clock.advance(think)
        infos.append(b.env.step(act(0.1))[-1])
    return infos


def periods(device):
    times = [command.time for command in device.commands]
    return np.diff(times)


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_sleeping_errors_do_not_add_up(bench, factor):
    rng = np.random.default_rng(0)
    b = bench(oversleep=lambda: float(rng.uniform(50e-6, 5e-3)), time_step_timeout_factor=factor)
    b.env.reset()
    start = b.device.commands[0].time
    run(b, 10_000)
    late = [c.time - (start + 0.02 * k) for k, c in enumerate(b.device.commands)]
    assert min(late) >= 0.0
    assert max(late) < 6e-3
    assert b.env.timing_summary().overruns == 0


@pytest.mark.parametrize("period", [0.02, 1 / 30, 0.05])
def test_a_coarse_system_timer_keeps_the_mean_period(bench, period):
    """A sleep that always rounds up to 15.6 ms, as on an old Windows: 300 steps stay within 1 %."""
    b = bench(time_step_duration=period, start_obs_capture=period)
    clock, tick = b.clock, 0.0156

    def coarse(deadline):
        if deadline > clock.now():
            clock.advance(math.ceil((deadline - clock.now()) / tick) * tick)
        return clock.now()

    clock.sleep_until = coarse
    b.env.reset()
    run(b, 300)
    assert np.mean(periods(b.device)) == pytest.approx(period, rel=0.01)


def test_thinking_within_the_step_costs_no_lateness(bench):
    b = bench()
    b.env.reset()
    infos = run(b, 20, think=0.019)
    assert all(info["timing"]["lateness"] == pytest.approx(0.0, abs=1e-9) for info in infos)
    assert periods(b.device) == pytest.approx(np.full(20, 0.02))


def test_a_stall_is_exactly_one_overrun_and_info_says_all_of_it(bench):
    b = bench()
    b.env.reset()
    run(b, 5)
    planned = b.device.commands[-1].time + 0.02
    (late,) = run(b, 1, think=0.1)
    timing = late["timing"]
    assert timing["lateness"] == pytest.approx(0.08)
    assert (timing["overrun"], timing["timed_out"], timing["overruns"]) == (True, True, 1)
    assert timing["start"] == pytest.approx(planned + 0.08)  # factor 1: the grid restarts
    (after,) = run(b, 1)
    assert after["timing"]["overrun"] is False
    assert after["timing"]["overruns"] == 1
    assert after["timing"]["start"] == pytest.approx(timing["start"] + 0.02)


def test_a_stalled_capture_is_late_too(bench):
    b = bench(fake={"on_capture": {3: Stall(0.1)}})
    b.env.reset()
    timing = run(b, 3)[-1]["timing"]
    assert timing["lateness"] == pytest.approx(0.1)
    assert timing["overrun"]
    assert timing["capture"] == pytest.approx(100.06)


def test_missed_periods_are_dropped_with_the_phase_kept(bench):
    b = bench(time_step_timeout_factor=10.0)
    b.env.reset()
    start = b.device.commands[0].time
    timing = run(b, 1, think=0.02 * 2.2)[-1]["timing"]
    assert (timing["skipped"], timing["timed_out"], timing["overrun"]) == (1, False, True)
    assert timing["start"] == pytest.approx(start + 0.04)
    assert b.device.commands[-1].time == pytest.approx(start + 0.044)  # at once
    run(b, 1)
    assert b.device.commands[-1].time == pytest.approx(start + 0.06)  # 0.8 of a period later


def test_with_little_left_the_next_point_is_awaited_and_the_observation_is_fresh(bench):
    b = bench(time_step_timeout_factor=10.0)
    b.env.reset()
    start = b.device.commands[0].time
    timing = run(b, 1, think=0.02 * 4.7)[-1]["timing"]
    assert timing["lateness"] == pytest.approx(0.02 * 3.7)
    assert timing["skipped"] == 3
    assert b.device.commands[-1].time == pytest.approx(start + 0.1)
    assert b.device.capture_times[-1] == pytest.approx(start + 0.1)
    assert timing["observation_age"] == pytest.approx(0.0, abs=1e-9)


def test_catch_up_bursts_and_flags_each_late_step(bench):
    b = bench(time_step_timeout_factor=10.0, late_policy="catch_up")
    b.env.reset()
    b.clock.advance(0.02 * 4.7)
    flags = [info["timing"]["overrun"] for info in run(b, 6)]
    assert flags == [True, True, True, False, False, False]
    assert b.env.timing_summary().skipped == 0


def test_a_slow_reset_is_no_overrun(bench):
    b = bench(fake={"reset_s": 0.3})
    for _ in range(4):
        b.env.reset()
        run(b, 3)
    summary = b.env.timing_summary()
    assert (summary.overruns, summary.timeouts, summary.steps) == (0, 0, 12)
    assert summary.achieved_hz == pytest.approx(50.0)
    run(b, 1, think=0.1)
    assert b.env.timing_summary().overruns == 1


def test_a_pause_is_no_overrun(bench):
    b = bench()
    b.env.reset()
    run(b, 2)
    b.env.wait()
    assert b.device.waits == 1
    b.clock.advance(5.0)
    timing = run(b, 1)[-1]["timing"]
    assert (timing["overrun"], timing["timed_out"], timing["lateness"]) == (False, False, 0.0)
    assert b.env.timing_summary().achieved_hz == pytest.approx(50.0)
    run(b, 3)
    assert periods(b.device)[-3:] == pytest.approx([0.02] * 3)


def test_wait_on_done_waits_after_the_safe_action(bench):
    b = bench(wait_on_done=True, ep_max_length=1)
    b.env.reset()
    run(b, 1)
    assert b.device.waits == 1


def test_stop_lets_the_running_step_end(bench):
    b = bench()
    b.env.reset()
    start = b.clock.now()
    b.env.stop()
    assert b.clock.now() == pytest.approx(start + 0.02)


def test_a_device_slower_than_the_period_is_told_once_with_the_achieved_rate(bench, caplog):
    b = bench(fake={"capture_s": 0.05}, time_step_timeout_factor=1.0)
    with caplog.at_level(logging.WARNING, logger="tickrate.realtime"):
        b.env.reset()
        infos = run(b, 100)
        b.env.close()
    warnings = [r for r in caplog.records if "achieved" in r.message]
    assert len(warnings) == 1
    span = infos[-1]["timing"]["start"] - 100.0
    assert b.env.timing_summary().achieved_hz == pytest.approx(100 / span, rel=0.01)
    assert span == pytest.approx(7.0, rel=0.02)  # each step: 20 ms, then the capture takes 50 ms more


def test_keeping_the_rate_warns_of_nothing(bench, caplog):
    b = bench(oversleep=1e-4)
    b.env.reset()
    run(b, 100)
    b.env.close()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_summary_is_that_of_the_lateness(bench):
    late = iter([0.001] * 98 + [0.005, 0.009])
    b = bench(oversleep=lambda: next(late))
    b.env.reset()
    run(b, 100)
    summary = b.env.timing_summary()
    assert summary.p50_s == pytest.approx(0.001)
    assert summary.max_s == pytest.approx(0.009)
    assert 0.004 < summary.p99_s < 0.009
    assert summary.target_hz == pytest.approx(50.0)
    assert "50.00 Hz" in str(summary)


def test_no_garbage_is_collected_within_a_tick(bench):
    import gc

    seen = []
    b = bench(fake={"reward": lambda _: seen.append(gc.isenabled()) or 0.0})
    b.env.reset()
    run(b, 3)
    assert seen == [False, False, False]
    assert gc.isenabled()
    gc.disable()
    try:
        run(b, 1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_observation_time_sets_the_age(bench):
    from tickrate.testing import Stale

    b = bench(fake={"on_capture": {2: Stale(), 3: Stale()}})
    b.env.reset()
    ages = [info["timing"]["observation_age"] for info in run(b, 4)]
    assert ages == pytest.approx([0.0, 0.02, 0.04, 0.0])


def test_a_stale_observation_truncates_and_makes_safe(bench):
    from tickrate.testing import Stale

    b = bench(
        fake={"on_capture": {k: Stale() for k in range(2, 10)}},
        max_observation_age_s=0.05,
        safe_action=act(-1.0),
    )
    b.env.reset()
    for k in range(4):
        *_, terminated, truncated, info = b.env.step(act(0.5))
        assert truncated is (k == 3)
    assert not terminated
    assert "stale observation" in info["truncation_reason"]
    assert b.device.values[-1] == -1.0


def test_polyak_benchmarks_have_the_known_keys_and_right_values(bench):
    b = bench(benchmark=True, fake={"capture_s": 0.002})
    b.env.reset()
    run(b, 50, think=0.005)
    result = b.env.benchmarks()
    assert result["time_step_duration"][0] == pytest.approx(0.02, abs=1e-3)
    assert result["get_obs_duration"][0] == pytest.approx(0.002)
    assert result["inference_duration"][0] == pytest.approx(0.005)
    assert result["send_control_duration"][0] == 0.0
    assert set(result) == {
        "time_step_duration",
        "step_duration",
        "join_duration",
        "inference_duration",
        "send_control_duration",
        "get_obs_duration",
    }


def test_trace_benchmarks_have_the_known_keys(bench):
    b = bench(benchmark=True, benchmark_type="trace")
    b.env.reset()
    run(b, 5)
    result = b.env.benchmarks()
    assert set(result["clock"]) == {
        "start_step",
        "end_step_join",
        "end_step",
        "start_get_obs",
        "end_get_obs",
        "start_send_control",
        "end_send_control",
    }
    assert len(result["clock"]["start_step"]) == 6  # the reset and five steps
    assert len(result["clock"]["start_send_control"]) == 6
    assert len(result["clock"]["start_get_obs"]) == 5
    assert result["deltas"]["time_step_duration"][1:] == pytest.approx([0.02] * 4)


def test_benchmarks_not_asked_for_are_a_clear_error(bench):
    from tickrate.errors import ConfigError

    with pytest.raises(ConfigError, match="benchmark=True"):
        bench().env.benchmarks()
