"""The control loop acts, records, swaps weights at ticks, evaluates on the one device, and leaves it safe."""

import numpy as np
import pytest
from runtime_kit import SCHEMA, RecordingOutlet, ScriptedEnvironment, policy_bytes

from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, DeviceLost, PolicyMismatch
from tickrate.runtime import episode, supervision, worker
from tickrate.runtime.episode import plain_numbers
from tickrate.runtime.warmup import WarmupConfig
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig

OFF = EvaluationConfig(every_steps=0)


@pytest.fixture
def time(monkeypatch):
    """A clock for everything the loop asks; sleeping moves it."""

    class Time:
        now, slept = 1000.0, []

        def sleep(self, seconds):
            self.slept.append(seconds)
            self.now += seconds

    time = Time()
    time.slept = []
    for module in (worker, supervision):
        monkeypatch.setattr(module.clock, "now", lambda: time.now)
        monkeypatch.setattr(module.clock, "sleep", time.sleep)
    return time


def make(env, outlet, *, evaluation=OFF, **options):
    names = ("worker", "boot", "seed", "max_steps")
    loop_options = {name: options.pop(name) for name in names if name in options}
    return ControlLoop(env, SCHEMA, outlet, WorkerConfig(evaluation=evaluation, **options), **loop_options)


def test_warm_up_until_weights_come_then_the_policy():
    outlet = RecordingOutlet(stop_after_steps=6)
    env = ScriptedEnvironment(
        6, on_step=lambda n: n == 2 and setattr(outlet, "weights", (4, policy_bytes(4, 0.5)))
    )
    make(env, outlet, warmup=WarmupConfig(low=(-0.25,), high=(-0.25,))).run()
    # Row 2's step puts the weights there; they act from the observation that it returns on.
    assert env.actions[:3] == [-0.25] * 3
    np.testing.assert_allclose(env.actions[3:], 0.5, atol=1e-6)
    assert outlet.column("policy_version")[:6] == [0, 0, 0, 4, 4, 4]


def test_new_weights_act_in_mid_episode_and_each_row_names_its_own():
    outlet = RecordingOutlet(stop_after_steps=6)
    outlet.weights = (1, policy_bytes(1, 0.1))
    env = ScriptedEnvironment(
        100, on_step=lambda n: n == 2 and setattr(outlet, "weights", (7, policy_bytes(7, 0.7)))
    )
    make(env, outlet, warmup=WarmupConfig(low=(0.0,), high=(0.0,))).run()
    versions = outlet.column("policy_version")[:6]
    assert versions == [1, 1, 1, 7, 7, 7]
    np.testing.assert_allclose(env.actions, [0.1, 0.1, 0.1, 0.7, 0.7, 0.7], atol=1e-6)
    assert {int(row["episode"]) for row in outlet.rows} == {0}


def test_rows_hold_what_was_told_to_the_device():
    outlet = RecordingOutlet(stop_after_steps=2)
    # The command that an ended episode leaves behind is no choice of the policy: it never enters a record.
    info = {"applied_action": np.array([0.125]), "final_command": np.array([-1.0])}
    make(ScriptedEnvironment(2, info=info), outlet).run()
    assert [row["action"].item() for row in outlet.rows[:2]] == [0.125, 0.125]


def test_rows_hold_the_policys_own_action_where_no_guard_changed_it():
    outlet = RecordingOutlet(stop_after_steps=2)
    env = ScriptedEnvironment(2, info={"final_command": np.array([-1.0])})
    make(env, outlet).run()
    recorded = [row["action"].item() for row in outlet.rows[:2]]
    np.testing.assert_allclose(recorded, env.actions[:2], atol=1e-6)


def test_episodes_are_numbered_by_boot_and_only_the_first_reset_is_seeded():
    outlet = RecordingOutlet(stop_after_episodes=3)
    env = ScriptedEnvironment(1)
    make(env, outlet, boot=2, worker=5).run()
    assert [s.episode for s in outlet.summaries] == [2_000_000, 2_000_001, 2_000_002]
    assert env.seeds[0] is not None
    assert env.seeds[1:] == [None, None]
    assert set(outlet.column("stream")) == {5}


def test_a_summary_says_how_the_episode_went():
    outlet = RecordingOutlet(stop_after_episodes=2)
    info = {"lap_time_s": 3.5, "ok": True, "word": "x", "bad": float("nan"), "score": np.float32(2.0), 3: 1.0}
    make(ScriptedEnvironment(2, 3, truncates=True, info=info), outlet).run()
    first, second = outlet.summaries
    assert (first.steps, first.total_return, first.training_steps) == (2, 2.0, 2)
    assert (second.steps, second.total_return, second.training_steps) == (3, 3.0, 5)
    assert first.ended == "truncated"
    assert first.metrics == {"lap_time_s": 3.5, "ok": 1.0, "score": 2.0}
    assert first.score == 2.0


def test_what_a_report_cannot_carry_is_left_out():
    info = {f"n{i}": i for i in range(500)} | {"x" * 200: 1.0, "": 2.0}
    assert list(plain_numbers(info)) == [f"n{i}" for i in range(episode.MAX_METRICS)]
    outlet = RecordingOutlet(stop_after_episodes=1)
    reason = "device lost: " + "no answer " * 100
    make(ScriptedEnvironment(1, truncates=True, info={"truncation_reason": reason}), outlet).run()
    assert outlet.summaries[0].ended == reason[: episode.MAX_REASON_LETTERS]


# --- evaluation ---------------------------------------------------------------------------------------------


def test_evaluation_uses_the_same_device_between_training_episodes_with_frozen_weights():
    """The fake device refuses a second open: there is one environment, opened once (training is not cut)."""
    opened = []

    class OneDevice(ScriptedEnvironment):
        def __init__(self, *lengths, **options):
            assert not opened, "the device is open already"
            opened.append(self)
            super().__init__(*lengths, **options)

    outlet = RecordingOutlet(stop_after_episodes=4)
    outlet.weights = (1, policy_bytes(1, 0.1))
    newer = {5: (2, policy_bytes(2, 0.2))}  # arrives at the second step of the evaluation

    def on_step(number):
        outlet.weights = newer.get(number, outlet.weights)

    env = OneDevice(4, on_step=on_step)
    make(env, outlet, evaluation=EvaluationConfig(every_steps=3, episodes=1)).run()
    assert [s.evaluation for s in outlet.summaries] == [False, True, False, True]
    assert [s.policy_version for s in outlet.summaries] == [1, 1, 2, 2]
    evaluation = [row for row in outlet.rows if row["flags"] & Flag.EVALUATION]
    assert {int(row["episode"]) for row in evaluation} == {1, 3}
    assert {int(row["policy_version"]) for row in evaluation if not row["flags"] & Flag.FINAL} == {1, 2}
    first = [int(row["policy_version"]) for row in evaluation if row["episode"] == 1][:4]
    assert first == [1, 1, 1, 1]
    lengths = [sum(r["episode"] == e for r in outlet.rows) for e in range(4)]
    assert lengths == [5, 5, 5, 5]  # no episode was cut for the sake of another
    assert "stop" not in env.events[:-1]
    assert outlet.summaries[-1].training_steps == 8  # evaluation steps are not training steps


def test_no_evaluation_before_there_is_a_policy_or_when_switched_off():
    for evaluation in (EvaluationConfig(every_steps=1), OFF):
        outlet = RecordingOutlet(stop_after_episodes=3)
        make(ScriptedEnvironment(2), outlet, evaluation=evaluation).run()
        assert not any(s.evaluation for s in outlet.summaries)


@pytest.mark.parametrize(
    ("episodes", "scores", "kinds"),
    [
        (3, [5, 1, 9, 3, 2, 9], "tEEEtEEEt"),  # worst 1, then worst 2: each episode could still win
        (2, [5, 5, 4, 9, 6], "tEEtEtEE"),  # after 5 and 5, a 4 has lost and the second episode is saved
    ],
)
def test_the_rest_of_an_evaluation_is_skipped_once_it_cannot_win(episodes, scores, kinds):
    class Outlet(RecordingOutlet):
        evaluating = False

        def put_state(self, state):
            self.evaluating = state.startswith("evaluating")

    outlet, given = Outlet(stop_after_episodes=len(kinds)), iter(scores)
    outlet.weights = (1, policy_bytes(1))
    env = ScriptedEnvironment(1, info=lambda *_: {"score": next(given) if outlet.evaluating else 0.0})
    make(env, outlet, evaluation=EvaluationConfig(every_steps=1, episodes=episodes)).run()
    assert "".join("E" if s.evaluation else "t" for s in outlet.summaries) == kinds


@pytest.mark.parametrize(
    ("after_best", "kinds"),
    [
        # One step an episode, an evaluation every 8 steps. Then a training episode scores above the first
        # evaluation (5): that is worth an early look, two steps after it at the soonest.
        (True, "ttttttttEttEtttt"),
        (False, "ttttttttEttttttt"),
    ],
)
def test_a_training_episode_better_than_the_best_evaluation_is_looked_at_early(after_best, kinds):
    scores = iter([0, 0, 0, 0, 0, 0, 0, 0, 5, 7, 7, 9, 1, 1, 1, 1] if after_best else [0] * 8 + [5] + [7] * 7)
    outlet = RecordingOutlet(stop_after_episodes=len(kinds))
    outlet.weights = (1, policy_bytes(1))
    env = ScriptedEnvironment(1, info=lambda *_: {"score": float(next(scores))})
    evaluation = EvaluationConfig(every_steps=8, after_best=after_best)
    loop = make(env, outlet, evaluation=evaluation)
    loop._best_score = 0.0  # something was evaluated before: the first training episodes beat nothing
    loop.run()
    assert "".join("E" if s.evaluation else "t" for s in outlet.summaries) == kinds


# --- pauses, ends, losses -----------------------------------------------------------------------------------


def test_a_pause_makes_the_device_safe_first_and_cuts_the_episode(time):
    outlet = RecordingOutlet(stop_after_episodes=2)
    env = ScriptedEnvironment(5, on_step=lambda n: setattr(outlet, "paused", n == 1))
    sleep = time.sleep
    worker.clock.sleep = lambda s: (sleep(s), setattr(outlet, "paused", False))  # the person goes on
    stop, rows_at_stop = env.stop_device, []
    env.stop_device = lambda: (rows_at_stop.append(len(outlet.rows)), stop())
    make(env, outlet).run()
    assert rows_at_stop[0] == 2  # safe before even the final row is written
    assert outlet.summaries[0].ended == "paused"
    assert outlet.summaries[0].steps == 2
    assert [int(r["flags"]) for r in outlet.rows[:3]] == [0, 0, Flag.FINAL]
    assert env.events[:4] == ["reset", "step", "step", "stop"]
    assert "paused, device safe" in outlet.states
    assert outlet.summaries[1].ended == "terminated"


def test_shutdown_in_mid_episode_leaves_the_device_safe():
    outlet = RecordingOutlet(stop_after_steps=2)
    env = ScriptedEnvironment(50)
    make(env, outlet).run()
    assert len(env.actions) == 2
    assert env.events[-1] == "stop"
    assert outlet.summaries[-1].ended == "shutdown"
    assert outlet.states[-1] == "stopped, device safe"


def test_an_episode_cut_before_its_first_step_leaves_nothing():
    outlet = RecordingOutlet()
    env = ScriptedEnvironment(5, on_reset=lambda n: setattr(outlet, "shutdown", True))
    make(env, outlet).run()
    assert outlet.rows == outlet.summaries == []
    assert env.events == ["reset", "stop"]


def test_an_exception_of_the_interface_reaches_the_caller_with_the_device_safe():
    def boom(number):
        if number == 3:
            raise RuntimeError("the gripper is jammed")

    env, outlet = ScriptedEnvironment(50, on_step=boom), RecordingOutlet()
    with pytest.raises(RuntimeError, match="the gripper is jammed"):
        make(env, outlet).run()
    assert env.events[-1] == "stop"
    assert len(outlet.rows) == 3


def test_a_lost_device_is_reset_again_with_growing_pauses(time):
    def lost(number):
        if number < 4:
            raise DeviceLost("no answer")

    outlet = RecordingOutlet(stop_after_episodes=1)
    make(ScriptedEnvironment(2, on_reset=lost), outlet).run()
    assert sum(time.slept) == pytest.approx(0.25 + 0.5 + 1.0 + 2.0, abs=0.1)
    assert outlet.states.count("device lost, trying again: no answer") == 4
    assert outlet.summaries[0].ended == "terminated"


def test_a_device_that_stays_away_is_given_up(time):
    def lost(number):
        raise DeviceLost("no answer")

    env = ScriptedEnvironment(on_reset=lost)
    with pytest.raises(DeviceLost, match="no answer"):
        make(env, RecordingOutlet(), device_patience_s=10.0).run()
    assert 5.0 < time.now - 1000.0 <= 10.0
    assert env.events == ["stop"]


def test_shutdown_ends_the_wait_for_a_lost_device(time):
    outlet = RecordingOutlet()

    def lost(number):
        outlet.shutdown = number == 2
        raise DeviceLost("no answer")

    make(ScriptedEnvironment(on_reset=lost), outlet).run()
    assert outlet.states[-1] == "stopped, device safe"


def test_old_weights_stop_acting_until_newer_ones_come(time):
    outlet = RecordingOutlet(stop_after_episodes=2)
    outlet.weights = (1, policy_bytes(1))
    env = ScriptedEnvironment(8, on_step=lambda n: setattr(time, "now", time.now + 1.0))
    sleep, waits = time.sleep, []

    def wait(seconds):
        sleep(seconds)
        waits.append(env.events[-1])
        if len(waits) == 3:
            outlet.weights = (2, policy_bytes(2))

    worker.clock.sleep = wait
    make(env, outlet, max_policy_age_s=3.5).run()
    first = outlet.summaries[0]
    assert (first.ended, first.cut) == ("policy lost", True)
    assert waits == ["stop"] * 3
    assert any(state.startswith("weights older than 3.5 s") for state in outlet.states)
    assert outlet.summaries[1].policy_version == 2


def test_the_age_limit_neither_stops_the_warm_up_nor_swaps_weights_in_an_evaluation(time):
    outlet = RecordingOutlet(stop_after_episodes=2)
    env = ScriptedEnvironment(6, on_step=lambda n: setattr(time, "now", time.now + 1.0))
    make(env, outlet, max_policy_age_s=2.0).run()
    assert [s.ended for s in outlet.summaries] == ["terminated"] * 2

    outlet = RecordingOutlet(stop_after_episodes=2)
    outlet.weights = (1, policy_bytes(1))

    def on_step(number):
        time.now += 1.0
        outlet.weights = (number + 2, policy_bytes(number + 2))  # the trainer is alive and well

    env = ScriptedEnvironment(6, on_step=on_step)
    make(env, outlet, max_policy_age_s=2.0, evaluation=EvaluationConfig(every_steps=1)).run()
    assert [s.evaluation for s in outlet.summaries] == [False, True]
    assert [s.ended for s in outlet.summaries] == ["terminated"] * 2
    versions = {int(r["policy_version"]) for r in outlet.rows if r["flags"] == Flag.EVALUATION}
    assert len(versions) == 1


# --- playing ------------------------------------------------------------------------------------------------


def test_play_yields_each_episode_and_makes_the_device_safe():
    outlet = RecordingOutlet()
    outlet.weights = (1, policy_bytes(1, 0.5))
    env = ScriptedEnvironment(2)
    summaries = list(make(env, outlet).play(3, deterministic=True))
    assert [s.steps for s in summaries] == [2, 2, 2]
    np.testing.assert_allclose(env.actions, 0.5, atol=1e-6)
    assert env.events[-1] == "stop"


def test_a_policy_for_another_environment_is_refused_before_anything_moves():
    outlet = RecordingOutlet()
    outlet.weights = (1, policy_bytes(1))
    env = ScriptedEnvironment()
    env.period_s = 0.05
    with pytest.raises(PolicyMismatch, match="period_s"):
        list(make(env, outlet).play(1, deterministic=True))
    assert env.events == []


@pytest.mark.parametrize(
    "settings",
    [
        lambda: EvaluationConfig(every_steps=-1),
        lambda: EvaluationConfig(episodes=0),
        lambda: WorkerConfig(device_patience_s=-1.0),
        lambda: WorkerConfig(max_policy_age_s=float("nan")),
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        settings()
