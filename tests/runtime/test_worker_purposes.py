"""Experts, test workers, actors of one's own, synchronous mode, held workers: what each does or not."""

import sys
import types
from typing import ClassVar

import numpy as np
import pytest
from runtime_kit import ACTIONS, LEAVES, SCHEMA, RecordingOutlet, ScriptedEnvironment, policy_bytes

from tickrate.config.experiment import dump_experiment, experiment_from_mapping
from tickrate.config.loading import parse_yaml
from tickrate.data.checksums import Verdict
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, PolicyMismatch
from tickrate.policy import Policy
from tickrate.runtime import episode, supervision, worker
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.episode import Orders
from tickrate.runtime.remote import RemoteConfig
from tickrate.runtime.serial import run_serial
from tickrate.runtime.warmup import WarmupConfig
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig
from tickrate.tools.export import export_onnx

OFF = EvaluationConfig(every_steps=0)


class OwnActor:
    """An actor of another framework: its weights are the bytes of one number, its action is that number."""

    made: ClassVar[list] = []

    def __init__(self, *, leaf_spaces, action_space, period_s, action_buffer_length, seed):
        assert (leaf_spaces, action_space, period_s, action_buffer_length) == (LEAVES, ACTIONS, 0.0, 0)
        assert isinstance(seed, int)
        self.action, self.loads = -0.5, []
        OwnActor.made.append(self)

    def initial_state(self, batch):
        return {}

    def act(self, observation, state, *, deterministic=False):
        assert observation["place"].shape == (1, 2)
        return np.full((1, 1), self.action, np.float32), state, {}

    def load(self, weights):
        self.loads.append(weights)
        self.action = float(weights)


class NoActor:
    def __init__(self, **_):
        pass


@pytest.fixture(autouse=True)
def own_module(monkeypatch):
    module = types.ModuleType("own_actors")
    module.OwnActor, module.NoActor, module.number = OwnActor, NoActor, (lambda: 3)
    monkeypatch.setitem(sys.modules, "own_actors", module)
    OwnActor.made.clear()


@pytest.fixture
def time(monkeypatch):
    class Time:
        now = 1000.0

        def sleep(self, seconds):
            self.now += seconds
            self.on_sleep()

        def on_sleep(self):
            pass

    time = Time()
    for module in (worker, supervision):
        monkeypatch.setattr(module.clock, "now", lambda: time.now)
        monkeypatch.setattr(module.clock, "sleep", lambda seconds: time.sleep(seconds))
    return time


def make(env, outlet, *, evaluation=OFF, schema=SCHEMA, start_steps=0, **options):
    config = WorkerConfig(evaluation=evaluation, **options)
    return ControlLoop(env, schema, outlet, config, start_steps=start_steps)


# --- experts ------------------------------------------------------------------------------------------------


def test_an_expert_drives_with_its_own_actor_from_the_start_and_its_rows_say_so():
    outlet, env = RecordingOutlet(stop_after_episodes=3), ScriptedEnvironment(2)
    outlet.weights = (5, b"0.75")  # there for the others: an expert takes none
    evaluation = EvaluationConfig(every_steps=1)
    make(env, outlet, purpose="expert", actor="own_actors:OwnActor", evaluation=evaluation).run()
    assert env.actions == [-0.5] * 6
    assert OwnActor.made[0].loads == []
    assert not any(summary.evaluation for summary in outlet.summaries)
    x = int(Flag.EXPERT)
    assert outlet.column("flags") == [x, x | Flag.TERMINATED, x | Flag.FINAL] * 3
    assert set(outlet.column("policy_version")) == {0}
    assert "driving as an expert and recording" in outlet.states


def test_an_expert_may_drive_with_a_saved_policy(tmp_path):
    path = tmp_path / "best.policy"
    path.write_bytes(policy_bytes(9, 0.25))
    outlet, env = RecordingOutlet(stop_after_steps=3), ScriptedEnvironment(9)
    make(env, outlet, purpose="expert", actor=str(path)).run()
    np.testing.assert_allclose(env.actions, 0.25, atol=1e-6)
    env.period_s = 0.05
    with pytest.raises(PolicyMismatch, match="period_s"):
        make(env, outlet, purpose="expert", actor=str(path))
    with pytest.raises(ConfigError, match="there is no file"):
        make(env, outlet, purpose="expert", actor=str(tmp_path / "gone.policy"))


def test_an_expert_may_drive_with_an_onnx_file_alone(tmp_path):
    path = tmp_path / "best.onnx"
    export_onnx(Policy.from_bytes(policy_bytes(9, 0.25)), path)
    outlet, env = RecordingOutlet(stop_after_steps=3), ScriptedEnvironment(9)
    make(env, outlet, purpose="expert", actor=str(path)).run()
    np.testing.assert_allclose(env.actions, 0.25, atol=1e-6)
    env.period_s = 0.05
    with pytest.raises(PolicyMismatch, match="period_s"):
        make(env, outlet, purpose="expert", actor=str(path))
    with pytest.raises(ConfigError, match="there is no file"):
        make(env, outlet, purpose="expert", actor=str(tmp_path / "gone.onnx"))
    with pytest.raises(ConfigError, match="only a worker of purpose 'expert'"):
        make(env, outlet, actor=str(path))


# --- an actor of one's own --------------------------------------------------------------------------------


def test_another_actor_replaces_the_warm_up_with_the_first_weights_and_takes_newer_ones():
    outlet = RecordingOutlet(stop_after_steps=7)
    arriving = {1: (3, b"0.25"), 4: (8, b"0.5")}
    env = ScriptedEnvironment(9, on_step=lambda n: n in arriving and setattr(outlet, "weights", arriving[n]))
    warmup = WarmupConfig(low=(-1.0,), high=(-1.0,))
    make(env, outlet, actor="own_actors:OwnActor", warmup=warmup).run()
    assert env.actions == [-1.0, -1.0, 0.25, 0.25, 0.25, 0.5, 0.5]
    assert outlet.column("policy_version")[:7] == [0, 0, 3, 3, 3, 8, 8]
    assert len(OwnActor.made) == 1
    assert OwnActor.made[0].loads == [b"0.25", b"0.5"]


@pytest.mark.parametrize(
    ("actor", "message"),
    [
        ("own_actors:OwnActr", "Did you mean 'OwnActor'"),
        ("own_actors:NoActor", "has no initial_state, act, load"),
        ("own_actors:number", "cannot be made"),
        ("own_actors", "not of the form 'module:attribute'"),
    ],
)
def test_what_is_no_actor_is_refused_before_anything_moves(actor, message):
    env = ScriptedEnvironment()
    with pytest.raises(ConfigError, match=message):
        make(env, RecordingOutlet(), purpose="expert", actor=actor)
    assert env.events == []


# --- test workers -------------------------------------------------------------------------------------------


def test_a_test_worker_only_evaluates_and_takes_weights_between_episodes(time):
    outlet = RecordingOutlet(stop_after_episodes=3)
    waits = []

    def on_sleep():
        waits.append(env.events[-1])
        if len(waits) == 2:
            outlet.weights = (1, policy_bytes(1, 0.1))

    def on_step(number):
        if number == 1:  # in the middle of its first episode
            outlet.weights = (2, policy_bytes(2, 0.2))

    time.on_sleep = on_sleep
    env = ScriptedEnvironment(3, on_step=on_step)
    make(env, outlet, purpose="test").run()
    assert waits == ["stop", "stop"]  # no warm-up: the device stays safe until there is something to test
    assert all(summary.evaluation for summary in outlet.summaries)
    assert [summary.policy_version for summary in outlet.summaries] == [1, 2, 2]
    np.testing.assert_allclose(env.actions, [0.1] * 3 + [0.2] * 6, atol=1e-6)
    assert all(row["flags"] & Flag.EVALUATION for row in outlet.rows)
    assert outlet.summaries[-1].training_steps == 0
    assert "testing: device safe, waiting for the first weights" in outlet.states
    assert "testing policy 2" in outlet.states


# --- synchronous mode ---------------------------------------------------------------------------------------


def test_a_synchronous_worker_waits_for_newer_weights_after_so_many_steps(time):
    outlet = RecordingOutlet(stop_after_episodes=4)
    outlet.weights = (1, policy_bytes(1))
    began = []

    def on_sleep():
        began.append(time.now)
        assert env.events[-1] == "stop"
        if time.now - began[0] > 25.0:
            outlet.weights = (2, policy_bytes(2))

    time.on_sleep = on_sleep
    # The weights come in the first step: 4 steps are fewer than 5, but 8 are not.
    env = ScriptedEnvironment(4)
    make(env, outlet, synchronous_steps=5).run()
    # One wait after 8 steps with version 1; version 2 comes in it and acts for two episodes.
    assert env.events == [*(["reset", *["step"] * 4] * 2), "stop", *(["reset", *["step"] * 4] * 2), "stop"]
    waited = [state for state in outlet.states if state.startswith("synchronous: 8 steps with policy 1")]
    assert waited[0].endswith("device safe, waiting for newer weights")
    assert [state[-10:] for state in waited[1:]] == ["(for 10 s)", "(for 20 s)"]
    assert [s.ended for s in outlet.summaries] == ["terminated"] * 4
    assert outlet.summaries[3].policy_version == 2


def test_the_warm_up_is_a_round_of_start_steps_more(time):
    """5 + 6 steps are not there after two episodes of 4; after three the first policy has to come."""
    outlet, env = RecordingOutlet(stop_after_episodes=5), ScriptedEnvironment(4)

    def on_sleep():
        assert len(env.actions) == 12
        outlet.weights = (1, policy_bytes(1, 0.3))

    time.on_sleep = on_sleep
    make(env, outlet, synchronous_steps=6, start_steps=5).run()
    assert env.events.count("stop") == 2  # in the wait and at the end: 8 steps with version 1 end the run
    assert outlet.column("policy_version") == [0] * 15 + [1] * 10
    assert "synchronous: 12 steps with policy 0, device safe, waiting for newer weights" in outlet.states


def test_the_last_row_before_a_wait_ends_the_round_and_no_other_row_does(time):
    """Rounds of 5 steps and more: an episode of 6; of 2 and 4; of 3, cut by a pause at its fifth step."""
    outlet = RecordingOutlet(stop_after_episodes=6)
    outlet.weights = (1, policy_bytes(1))

    def on_sleep():
        if outlet.paused:
            outlet.paused = False  # the pause is over; the wait begins
        else:
            outlet.weights = (outlet.weights[0] + 1, policy_bytes(1))

    time.on_sleep = on_sleep
    env = ScriptedEnvironment(
        *(6, 2, 4, 9, 1), on_step=lambda n: setattr(outlet, "paused", n == 16), truncates=True
    )
    make(env, outlet, synchronous_steps=5).run()
    ends = [row for row in outlet.rows if row["flags"] & Flag.ROUND_END]
    assert all(row["flags"] & Flag.FINAL for row in ends)
    assert [(int(row["episode"]), int(row["step"])) for row in ends] == [(0, 6), (2, 4), (3, 5)]
    assert [summary.ended for summary in outlet.summaries][3] == "paused"
    assert [int(row["policy_version"]) for row in ends] == [1, 2, 3]


def test_a_synchronous_worker_evaluates_after_its_wait_and_marks_no_evaluation(time):
    outlet = RecordingOutlet(stop_after_episodes=4)
    outlet.weights = (1, policy_bytes(1))
    time.on_sleep = lambda: setattr(outlet, "weights", (outlet.weights[0] + 1, policy_bytes(1)))
    env = ScriptedEnvironment(4)
    evaluation = EvaluationConfig(every_steps=3, after_best=False)
    make(env, outlet, synchronous_steps=4, evaluation=evaluation).run()
    # Four steps with version 1, the wait, and then what came in it is evaluated before it trains.
    kinds = [(summary.evaluation, summary.policy_version) for summary in outlet.summaries]
    assert kinds == [(False, 1), (True, 2), (False, 2), (True, 3)]
    ends = [row for row in outlet.rows if row["flags"] & Flag.ROUND_END]
    assert [int(row["policy_version"]) for row in ends] == [1, 2]
    assert not any(row["flags"] & Flag.EVALUATION for row in ends)


def test_a_shutdown_ends_the_wait(time):
    outlet, env = RecordingOutlet(), ScriptedEnvironment(4)
    outlet.weights = (1, policy_bytes(1))
    time.on_sleep = lambda: setattr(outlet, "shutdown", True)
    make(env, outlet, synchronous_steps=2).run()
    assert len(env.actions) == 4
    assert outlet.states[-1] == "stopped, device safe"


# --- held ---------------------------------------------------------------------------------------------------


def test_a_held_worker_cuts_the_episode_with_the_device_safe_and_goes_on_when_it_may(time):
    class Outlet(RecordingOutlet):
        hold = ""

        def orders(self):
            orders = super().orders()
            return Orders(paused=orders.paused, shutdown=orders.shutdown, hold=self.hold)

    outlet = Outlet(stop_after_episodes=2)
    env = ScriptedEnvironment(3, on_step=lambda n: n == 1 and setattr(outlet, "hold", "outbox full"))
    waits = []

    def on_sleep():
        waits.append(env.events[-1])
        outlet.hold = "" if len(waits) == 3 else outlet.hold

    time.on_sleep = on_sleep
    make(env, outlet).run()
    assert outlet.summaries[0].ended == "held"
    assert outlet.summaries[0].cut
    assert "held" in episode.CUT_REASONS
    assert [int(row["flags"]) for row in outlet.rows[:3]] == [0, 0, Flag.FINAL]
    assert waits == ["stop"] * 3
    assert "held, device safe: outbox full" in outlet.states
    assert outlet.summaries[1].ended == "terminated"


# --- checksums ----------------------------------------------------------------------------------------------


def test_in_checksum_mode_the_replay_can_prove_every_transition():
    contract = EnvironmentContract.of(ScriptedEnvironment(), checksum=True)
    schema = contract.schema()
    outlet = RecordingOutlet(stop_after_episodes=3)
    info = {"applied_action": np.array([0.1])}  # a float64 that no float32 equals
    make(ScriptedEnvironment(3, info=info), outlet, schema=schema, checksum=True).run()
    replay = Replay(schema, 100)
    replay.add(schema.rows_from_bytes(b"".join(row.tobytes() for row in outlet.rows)))
    assert replay.verify(np.arange(12)).tolist() == [*[Verdict.EQUAL] * 3, Verdict.UNKNOWN] * 3


def test_a_schema_of_the_other_mode_is_refused():
    with pytest.raises(ConfigError, match="checksum is True"):
        make(ScriptedEnvironment(), RecordingOutlet(), checksum=True)
    schema = EnvironmentContract.of(ScriptedEnvironment(), checksum=True).schema()
    with pytest.raises(ConfigError, match="checksum is False"):
        make(ScriptedEnvironment(), RecordingOutlet(), schema=schema)


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"purpose": "expert"}, "an expert worker needs an actor"),
        ({"actor": "runs/x/best.policy"}, "only a worker of purpose 'expert' drives with one"),
        ({"actor": "a:B", "remote": {"enabled": True}}, "the remote side acts"),
        ({"purpose": "test", "synchronous_steps": 5}, "does not train"),
        ({"synchronous_steps": -1}, "synchronous_steps is -1"),
        ({"synchronous_steps": 5, "max_policy_age_s": 3}, "synchronous_steps and max_policy_age_s are both"),
        ({"synchronous_steps": 5, "remote": {"enabled": True}}, "synchronous_steps and remote.enabled are"),
        ({"takeover_max_step": 0.1}, "takeover names no operator"),
        ({"takeover": "a:B", "takeover_max_step": -1}, "takeover_max_step is -1"),
        ({"chunks": {"horizon": 8}}, "our own policy answers with single actions"),
        ({"chunks": {"horizon": 0}}, "horizon is 0"),
        ({"chunks": {"threshold": 1.5}}, "threshold is 1.5"),
        ({"remote": {"deadline_s": 0}}, "deadline_s is 0"),
        ({"remote": {"deadline_s": 2, "lost_after_s": 1}}, "lost_after_s is 1"),
        ({"purpose": "trian"}, "worker.purpose is 'trian'.*Did you mean 'train'"),
        ({"chunks": {"fallback": "halt"}}, "worker.chunks.fallback is 'halt'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        experiment_from_mapping({"worker": settings})


def test_all_options_survive_being_written():
    settings = {
        "purpose": "train",
        "actor": "a:B",
        "takeover": "c:D",
        "takeover_max_step": 0.1,
        "synchronous_steps": 400,
        "checksum": True,
        "chunks": {"horizon": 16, "threshold": 0.25, "fallback": "safe", "background": False},
        "remote": {"deadline_s": 0.02, "fallback": "default", "lost_after_s": 3},
    }
    experiment = experiment_from_mapping({"worker": settings})
    assert experiment.worker.chunks.horizon == 16
    assert experiment_from_mapping(parse_yaml(dump_experiment(experiment), "here")) == experiment


@pytest.mark.parametrize("settings", [{"purpose": "test"}, {"synchronous_steps": 3}])
def test_one_process_refuses_what_needs_separate_roles(settings):
    learner = types.SimpleNamespace(config=types.SimpleNamespace(total_steps=5, time_limit_s=None))
    with pytest.raises(ConfigError, match="in one process"):
        run_serial(ScriptedEnvironment(), SCHEMA, learner, WorkerConfig(**settings), seed=0)


def test_remote_inference_needs_a_companion():
    with pytest.raises(ConfigError, match="no companion"):
        make(ScriptedEnvironment(), RecordingOutlet(), remote=RemoteConfig(enabled=True))
