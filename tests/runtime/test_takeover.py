"""A scripted operator takes over and gives back: rows tell exactly when, and the command never jumps."""

import sys
import types

import numpy as np
import pytest
from gymnasium import spaces
from runtime_kit import SCHEMA, RecordingOutlet, ScriptedEnvironment, policy_bytes

from tickrate.data.schema import Flag
from tickrate.errors import ActionError, ConfigError
from tickrate.runtime.takeover import Takeover, make_takeover
from tickrate.runtime.warmup import WarmupConfig
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig


class Scripted:
    """Drives with 0.75 on the steps 10 to 19 of each episode; the observation holds the step's number."""

    def __init__(self, *, action_space, period_s):
        assert isinstance(action_space, spaces.Box)
        assert period_s == 0.0

    def command(self, observation):
        return [0.75] if 10 <= observation["place"][1] <= 19 else None


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    module = types.ModuleType("operators")
    module.Scripted, module.Nobody = Scripted, lambda **_: object()
    module.wrong = lambda: None
    monkeypatch.setitem(sys.modules, "operators", module)


def drive(*, evaluation=False, info=None, steps=30, **options):
    outlet = RecordingOutlet(stop_after_episodes=1)
    env = ScriptedEnvironment(steps, info=info)
    evaluations = EvaluationConfig(every_steps=0)
    warmup = WarmupConfig(low=(-0.25,), high=(-0.25,))
    config = WorkerConfig(evaluation=evaluations, warmup=warmup, **options)
    loop = ControlLoop(env, SCHEMA, outlet, config)
    loop.run()
    return env, outlet


def test_the_rows_hold_the_operators_actions_and_the_flag_exactly_where_the_operator_drove():
    env, outlet = drive(takeover="operators:Scripted")
    expected = [-0.25] * 10 + [0.75] * 10 + [-0.25] * 10
    assert env.actions == expected
    rows = outlet.rows[:30]
    assert [row["action"].item() for row in rows] == expected
    assert [n for n, row in enumerate(rows) if row["flags"] & Flag.TAKEOVER] == list(range(10, 20))
    assert outlet.summaries[0].metrics == {"takeover_steps": 10.0}


def test_no_command_moves_faster_than_the_limit_at_either_handover():
    env, outlet = drive(takeover="operators:Scripted", takeover_max_step=0.25)
    # From -0.25 to 0.75 in four steps of 0.25, and back in four after step 19.
    up, down = [0.0, 0.25, 0.5, 0.75], [0.5, 0.25, 0.0, -0.25]
    expected = [-0.25] * 10 + up + [0.75] * 6 + down + [-0.25] * 6
    np.testing.assert_allclose(env.actions, expected, atol=1e-6)
    assert np.abs(np.diff(env.actions)).max() <= 0.25 + 1e-6
    rows = outlet.rows[:30]
    np.testing.assert_allclose([row["action"].item() for row in rows], expected, atol=1e-6)
    # The policy drives again from step 20 on, also while its command is being reached.
    assert [n for n, row in enumerate(rows) if row["flags"] & Flag.TAKEOVER] == list(range(10, 20))


def test_the_limit_starts_from_what_the_device_was_really_told():
    def info(episode, step):  # step counts from 1: a guard held the command of step 9 at 0.5
        return {"applied_action": np.array([0.5])} if step == 10 else {}

    env, outlet = drive(takeover="operators:Scripted", takeover_max_step=0.125, info=info)
    assert outlet.rows[9]["action"].item() == 0.5
    np.testing.assert_allclose(env.actions[10:12], [0.625, 0.75])


def test_once_the_wanted_command_is_reached_the_driver_is_free():
    commands = iter([None, [1.0], [1.0], [-1.0], None])
    operator = types.SimpleNamespace(command=lambda observation: next(commands))
    takeover = Takeover(operator, spaces.Box(-1.0, 1.0, (1,), np.float32), max_step=0.5)
    told = []
    for _ in range(4):
        action, _ = takeover.choose({}, np.array([0.0], np.float32), 0)
        takeover.applied(action)
        told.append(action.item())
    assert told == [0.0, 0.5, 1.0, -1.0]
    takeover.begin()  # a new episode: no command to come from
    assert takeover.choose({}, np.array([0.75], np.float32), 0) == (0.75, 0)


def test_an_operator_overrides_a_fallback_and_commands_stay_in_bounds():
    operator = types.SimpleNamespace(command=lambda observation: 3.0 * np.ones(1))
    takeover = Takeover(operator, spaces.Box(-1.0, 1.0, (1,), np.float32), max_step=0.0)
    action, flags = takeover.choose({}, np.zeros(1, np.float32), int(Flag.FALLBACK))
    assert (action.item(), action.dtype, flags) == (1.0, np.float32, Flag.TAKEOVER)


@pytest.mark.parametrize("command", [[0.0, 0.0], [np.nan], "left", 0.5])
def test_a_command_that_is_no_action_is_refused(command):
    operator = types.SimpleNamespace(command=lambda observation: command)
    takeover = Takeover(operator, spaces.Box(-1.0, 1.0, (1,), np.float32), max_step=0.0)
    with pytest.raises(ActionError, match="the operator's command"):
        takeover.choose({}, np.zeros(1, np.float32), 0)


def test_an_interface_that_is_overridden_by_itself_sets_the_flag():
    def info(episode, step):
        return {"takeover": True, "applied_action": np.array([0.5])} if step == 3 else {"takeover": False}

    _, outlet = drive(info=info, steps=5)
    assert [int(row["flags"]) for row in outlet.rows[:4]] == [0, 0, Flag.TAKEOVER, 0]
    assert outlet.rows[2]["action"].item() == 0.5


def test_an_evaluation_with_help_is_no_score_of_the_policy():
    outlet = RecordingOutlet(stop_after_episodes=2)
    outlet.weights = (1, policy_bytes(1))
    config = WorkerConfig(takeover="operators:Scripted", evaluation=EvaluationConfig(every_steps=1))
    loop = ControlLoop(ScriptedEnvironment(12), SCHEMA, outlet, config)
    loop.run()
    assert [summary.evaluation for summary in outlet.summaries] == [False, True]
    assert outlet.summaries[1].metrics["takeover_steps"] == 2.0
    assert loop._best_score == -np.inf


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("operators:Nobody", r"no method command\(observation\)"),
        ("operators:wrong", "was called with action_space and period_s"),
        ("operators:Scriptd", "Did you mean 'Scripted'"),
    ],
)
def test_what_is_no_operator_is_refused(target, message):
    with pytest.raises(ConfigError, match=message):
        make_takeover(target, spaces.Box(-1.0, 1.0, (1,)), 0.0, 0.0)
    assert make_takeover("", spaces.Box(-1.0, 1.0, (1,)), 0.0, 0.0) is None
