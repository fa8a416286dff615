"""What a person sees: plain lines for pipes, a panel for terminals, and the words in both."""

import io

import pytest
from rich.console import Console

from tickrate.cli import live
from tickrate.cli.live import LiveView, PlainView, best_lap, clock_text, make_view, progress, sparkline
from tickrate.cli.training import effective_values
from tickrate.config.experiment import experiment_from_mapping
from tickrate.runtime.overview import Alarm, WorkerView, whole
from tickrate.runtime.run import RunState
from tickrate.wire import messages


def report(number, *, total=1.0, lap=None, clean=True, evaluation=False, version=3):
    return messages.EpisodeReport(
        run="r",
        worker="worker-0",
        boot=1,
        sequence=number,
        episode=number,
        evaluation=evaluation,
        policy_version=version,
        steps=7,
        return_=total,
        duration_s=1.0,
        ended="lap finished",
        lap_time_s=lap,
        clean=clean,
    )


def state_of(*reports, **metrics):
    state = RunState(elapsed_s=65.0)
    for one in reports:
        state.add_episode(one)
    state.statuses["worker"] = messages.Status(
        run="r", worker="worker-0", boot=1, role="worker", state="acting", text="driving and recording"
    )
    state.statuses["trainer"] = messages.Status(
        run="r",
        worker="trainer",
        boot=1,
        role="trainer",
        state="learning",
        text="40 updates",
        metrics=metrics,
    )
    return state


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=100)


def shown(console):
    text = console.file.getvalue()
    console.file.truncate(0)
    console.file.seek(0)
    return text


def test_plain_lines_say_what_happens_now_and_then(console):
    view = PlainView(console, None, None)
    with view:
        view.show(RunState())
        assert shown(console) == (
            "[0:00] worker: starting | trainer: starting | steps - | - Hz | late p99 - ms | - updates/s\n"
        )
        state = state_of(
            report(1), **{"trainer/steps": 1200.0, "timing/achieved_hz": 19.996, "learn/updates_per_s": 18.0}
        )
        view.show(state)
        assert shown(console) == (
            "[1:05] worker: driving and recording | trainer: learning: 40 updates | steps 1200 | 20.00 Hz | "
            "late p99 - ms | 18.0 updates/s | last return 1.00\n"
        )
        state.elapsed_s += 1.0
        view.show(state)
        assert shown(console) == ""


def test_laps_evaluations_and_notes_are_said_once_each(console):
    view = PlainView(console, None, None)
    state = state_of(report(1), report(2, lap=12.345, clean=False), report(3, evaluation=True, total=2.5))
    state.notes.append("the trainer was killed (code -9); started again")
    view.show(state)
    lines = shown(console).splitlines()
    assert lines[:3] == [
        "[1:05] training episode: return 1.00, 7 steps, lap finished, lap 12.35 s (contact)",
        "[1:05] evaluation episode: return 2.50, 7 steps, lap finished",
        "[1:05] the trainer was killed (code -9); started again",
    ]
    state.add_episode(report(1, evaluation=True))  # numbered anew by a restarted worker
    view.show(state)
    assert shown(console).splitlines() == ["[1:05] evaluation episode: return 1.00, 7 steps, lap finished"]


def test_more_episodes_than_are_kept_do_no_harm(console):
    view = PlainView(console, None, None)
    view.show(state_of(*(report(i, evaluation=True) for i in range(700))))
    assert shown(console).count("evaluation episode") == 500


def test_the_panel_holds_everything(console):
    view = LiveView(console, "the title", 600.0, None)
    state = state_of(
        report(1, total=-3.0),
        report(2, lap=15.0),
        report(3, lap=14.25, evaluation=True, total=9.0),
        **{"timing/lateness_p99_ms": 0.25, "trainer/steps": 12345.0, "learn/policy_lag_versions": 2.0},
    )
    state.notes.append("the worker was killed")
    console.print(view.render(state))
    text = shown(console)
    for words in (
        *("the title", "driving and recording", "learning: 40 updates", "p99 0.25 ms", "steps 12,345"),
        *(
            "lag 2 versions",
            "last 1.0",
            "policy 3: return 9.0",
            "15.00 s",
            "14.25 s",
            "2 so far",
            "1:05 of 10:00",
        ),
        *("the worker was killed", "p pause", "s stop the device at once", "Ctrl-C"),
    ):
        assert words in text, words
    state.paused = True
    console.print(view.render(state))
    assert "p go on" in shown(console)
    console.print(LiveView(console, "t", None, None, keys=False).render(RunState()))
    assert "pause" not in shown(console)


def with_workers(state, *views):
    """Add the trainer's word on workers, and what they say themselves."""
    state.overview = whole("r", None, list(views))
    state.statuses.pop("worker", None)
    for view in views:
        state.statuses[view.name] = messages.Status(
            run="r", worker=view.name, boot=1, role="worker", state="acting", text="driving"
        )
    return state


def view_of(name, **more):
    figures = {"samples_per_s": 20.0, "outbox_rows": 3, "acknowledgement_age_s": 0.5}
    lag = {"policy_lag_versions": 2, "policy_lag_s": 0.75}
    return WorkerView(name=name, connected=True, **(figures | lag | more))


def test_the_panel_of_one_worker_stays_small(console):
    view = LiveView(console, "t", None, None)
    console.print(view.render(with_workers(state_of(), view_of("worker-0"))))
    lines = [line.strip("│ ") for line in shown(console).splitlines()]
    assert lines[1] == "worker-0  driving"
    assert lines[2] == "samples/s 20.0 · outbox 3 rows · acknowledged 0.5 s ago"
    assert lines[3] == "trainer   learning: 40 updates"


def test_the_panel_of_several_workers_has_a_line_for_each_and_its_alarms(console):
    view = LiveView(console, "t", None, None)
    late = Alarm(kind="old_policy", text="acts with a policy 44 s old (alarm at 30 s)")
    state = with_workers(state_of(), view_of("worker-0"), view_of("worker-1", alarms=[late]))
    state.statuses["worker-2"] = messages.Status(
        run="r", worker="worker-2", boot=1, role="worker", state="acting", text="starting"
    )
    console.print(view.render(state))
    lines = [line.strip("│ ") for line in shown(console).splitlines()]
    assert lines[1:5] == [
        "worker    state     samples/s  outbox  acknowledged  policy lag",
        "worker-0  driving   20.0       3 rows  0.5 s ago     2 versions, 0.8 s",
        "worker-1  driving   20.0       3 rows  0.5 s ago     2 versions, 0.8 s",
        "worker-2  starting  -          - rows  -             -",
    ]
    assert "ALARM worker-1: acts with a policy 44 s old (alarm at 30 s)" in lines
    console = Console(file=io.StringIO(), width=100, force_terminal=True, _environ={"TERM": "xterm"})
    console.print(view.render(state))
    assert "\x1b[1;31mALARM worker-1" in console.file.getvalue()


def test_many_workers_are_counted_in_a_plain_line(console):
    views = [view_of(f"worker-{number}") for number in range(5)]
    PlainView(console, None, None).show(with_workers(state_of(), *views))
    assert shown(console).startswith("[1:05] 5 workers | trainer: learning")


def test_plain_lines_tell_an_alarm_when_it_comes_and_when_it_is_over(console):
    view = PlainView(console, None, None)
    state = with_workers(state_of(), view_of("worker-0"), view_of("worker-1"))
    view.show(state)
    assert shown(console).startswith("[1:05] worker-0: driving | worker-1: driving | trainer: learning")
    for seconds, said in ((6, "[1:05] ALARM worker-1: silent for 6 s\n"), (7, "")):
        silent = Alarm(kind="silent", text=f"silent for {seconds} s")
        with_workers(state, view_of("worker-0"), view_of("worker-1", alarms=[silent]))
        view.show(state)
        assert shown(console) == said
    state.overview = None  # the trainer was killed: nothing is known
    view.show(state)
    assert shown(console) == ""
    view.show(with_workers(state, view_of("worker-0"), view_of("worker-1")))
    assert shown(console) == "[1:05] over: worker-1: silent for 7 s\n"


def test_the_panel_is_drawn_in_place():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with LiveView(console, "title", None, 100) as view:
        view.show(state_of(report(1)))
    assert "title" in console.file.getvalue()


def test_plain_lines_where_there_is_no_terminal(monkeypatch):
    for terminal, dumb, kind in ((False, False, PlainView), (True, True, PlainView), (True, False, LiveView)):
        monkeypatch.setattr(
            live,
            "Console",
            lambda t=terminal, d=dumb: Console(force_terminal=t, _environ={"TERM": "dumb" if d else "xterm"}),
        )
        assert isinstance(make_view("t", total_s=None, total_steps=None), kind)


@pytest.mark.parametrize(
    ("total_s", "total_steps", "expected"),
    [
        (None, None, None),
        (130.0, None, (0.5, "1:05 of 2:10")),
        (10.0, None, (1.0, "1:05 of 0:10")),
        (None, 4000, (0.25, "1,000 of 4,000 steps")),
        (10.0, 4000, (0.25, "1,000 of 4,000 steps")),
    ],
)
def test_progress_is_known_when_the_length_is(total_s, total_steps, expected):
    state = state_of(**{"trainer/steps": 1000.0})
    assert progress(state, total_s, total_steps) == expected


def test_small_things():
    assert clock_text(3671.9) == "61:11"
    assert sparkline([0.0, 1.0, 2.0], 2) == "▁█"
    assert sparkline([5.0, 5.0], 9) == "▁▁"
    assert sparkline([], 9) == ""
    assert (
        best_lap(state_of(report(1, lap=9.0, clean=False), report(2, lap=11.0), report(3, lap=10.0))).episode
        == 3
    )
    assert best_lap(RunState()) is None


def test_effective_values_are_those_that_are_used():
    values = {
        "environment": {"id": "circuit"},
        "replay": {"gamma": 0.99, "n_step": 2},
        "trainer": {"updates_per_step": 4},
    }
    text = effective_values(experiment_from_mapping(values))
    assert "gamma 0.99000001 (float32, looks 100 steps ahead)" in text
    assert "4 updates/step from step 500 on, batch 256" in text
    assert text.startswith("sac (live) on circuit, seed 0: ")
    assert "2-step returns, replay 1,000,000" in text
    assert "clamped" not in text


def test_effective_values_say_what_is_clamped_and_what_a_memory_learns_from():
    bins = {"algorithm": {"preset": "sac", "value_bins": 51, "value_limit": 7.5}}
    text = effective_values(experiment_from_mapping(bins))
    assert text.startswith("sac on circuit, seed 0: ")
    assert "values clamped to -7.5 to 7.5 (replay.return_limit would scale returns to fit)" in text
    assert "clamped" not in effective_values(experiment_from_mapping(bins | {"replay": {"return_limit": 5}}))
    rainbow = {"algorithm": {"name": "dqn", "preset": "rainbow", "value_low": 0}}
    text = effective_values(experiment_from_mapping(rainbow))
    assert "power of 0.5 (importance 0.4), values clamped to 0 to 10 (" in text
    text = effective_values(experiment_from_mapping(rainbow | {"trainer": {"total_steps": 9}}))
    assert "(importance from 0.4 to 1)" in text
    assert "EXPLORES" not in text
    still = {"algorithm": rainbow["algorithm"] | {"noisy_policies": False}}
    assert "NOTHING EXPLORES after the warm-up" in effective_values(experiment_from_mapping(still))
    text = effective_values(experiment_from_mapping({"algorithm": {"memory": "gru"}}))
    assert "sequences of 16 steps, replay" in text
