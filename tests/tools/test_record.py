"""Recording demonstrations: who drives, when it ends, what the file holds, and that the device ends safe."""

import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tickrate import __main__ as command
from tickrate.data import capacity
from tickrate.data.demonstrations import load_demonstrations
from tickrate.data.recordings import read_recording
from tickrate.data.records import Segment
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, DeviceLost
from tickrate.runtime.environments import EnvironmentConfig, LockStepEnvironment, open_environment
from tickrate.runtime.worker import WorkerConfig
from tickrate.testing import FakeClock, ProbeEnv, Raise
from tickrate.tools.record import Limits, Recorded, record

REST, SAFE = 0.25, -0.5
LIVE = EnvironmentConfig(
    id="tickrate.testing:FakeInterface",
    kwargs={"reward": 1.0, "default_action": np.array([REST], np.float32)},
    realtime={
        "time_step_duration": 0.02,
        "start_obs_capture": 0.02,
        "ep_max_length": 4,
        "act_buf_len": 1,
        "safe_action": [SAFE],
    },
)


class Expert:
    """Drives with 0.75."""

    def __init__(self, *, seed, **_):
        self.seed = seed

    def initial_state(self, batch):
        return {}

    def act(self, observation, state, *, deterministic=False):
        return np.full((1, 1), 0.75, np.float32), state, {}

    def load(self, weights):
        raise AssertionError("an expert gets no weights")


class Person:
    """Drives with 0.5 at every second step."""

    def __init__(self, *, action_space, period_s):
        self.steps = 0

    def command(self, observation):
        self.steps += 1
        return [0.5] if self.steps % 2 == 0 else None


@pytest.fixture(autouse=True)
def drivers(monkeypatch):
    module = types.ModuleType("drivers")
    module.Expert, module.Person = Expert, Person
    monkeypatch.setitem(sys.modules, "drivers", module)


def drive(out, config=None, *, interrupted=lambda: False, environment=None, told=None, **limits):
    environment = environment or open_environment(LIVE, FakeClock())
    told = [] if told is None else told
    try:
        return (
            record(
                environment,
                out,
                config or WorkerConfig(purpose="expert", actor="drivers:Expert"),
                Limits(**limits),
                seed=0,
                interrupted=interrupted,
                tell=told.append,
            ),
            told,
        )
    finally:
        assert not hasattr(environment, "env") or safe(environment)
        environment.close()


def safe(environment):
    commands = environment.env.interface.values
    return not commands or commands[-1].item() == SAFE


def flags(rows, flag):
    return ((rows["flags"] & flag) != 0).tolist()


def test_an_expert_is_recorded_episode_by_episode(tmp_path):
    out = tmp_path / "demos.seg"
    recorded, told = drive(out, episodes=2)
    assert recorded == Recorded(episodes=2, steps=8, full=False)
    assert [(s.steps, s.ended, s.total_return) for s in told] == [(4, "truncated", 4.0)] * 2
    schema, rows = read_recording(out)
    assert len(rows) == 2 * 5
    assert [field.name for field in schema.observation] == ["command", "actions"]
    assert rows["step"].tolist() == [0, 1, 2, 3, 4] * 2
    assert rows["action"][:, 0].tolist() == [0.75, 0.75, 0.75, 0.75, 0.0] * 2
    assert flags(rows, Flag.FINAL) == [False, False, False, False, True] * 2
    assert all(flags(rows, Flag.EXPERT))
    assert not any(flags(rows, Flag.EVALUATION))
    assert Segment.open(out).capacity == 10  # cut to its size
    replay = load_demonstrations([out], schema, gamma=0.9, n_step=1, seed=0)
    assert len(replay) == 8


def test_a_person_alone_drives_from_the_device_s_rest(tmp_path):
    drive(tmp_path / "d.seg", WorkerConfig(purpose="expert", takeover="drivers:Person"), episodes=1)
    _, rows = read_recording(tmp_path / "d.seg")
    assert rows["action"][:4, 0].tolist() == [REST, 0.5, REST, 0.5]
    assert flags(rows, Flag.TAKEOVER)[:4] == [False, True, False, True]


def test_a_number_of_steps_cuts_the_last_episode_with_its_final_observation(tmp_path):
    recorded, told = drive(tmp_path / "d.seg", steps=6)
    assert recorded == Recorded(episodes=2, steps=6, full=False)
    assert [s.ended for s in told] == ["truncated", "shutdown"]
    _, rows = read_recording(tmp_path / "d.seg")
    assert rows["step"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert bool(rows["flags"][-1] & Flag.FINAL)


def test_room_for_steps_suffices_when_every_step_is_an_episode(tmp_path):
    environment = LockStepEnvironment(ProbeEnv("constant_reward"), "probe")
    recorded, _ = drive(tmp_path / "d.seg", environment=environment, steps=7)
    assert recorded == Recorded(episodes=7, steps=7, full=False)
    assert len(read_recording(tmp_path / "d.seg")[1]) == 14


@pytest.mark.parametrize("rows", range(2, 12))
def test_a_full_file_ends_the_recording_and_loses_nothing(tmp_path, rows):
    recorded, _ = drive(tmp_path / "d.seg", rows=rows)
    assert recorded.full
    _, kept = read_recording(tmp_path / "d.seg")
    assert rows - 1 <= len(kept) <= rows
    assert (kept["episode"][0], kept["step"][0]) == (0, 0)
    assert bool(kept["flags"][-1] & Flag.FINAL)
    assert (np.count_nonzero(flags(kept, Flag.FINAL)), recorded.steps) == (
        recorded.episodes,
        len(kept) - recorded.episodes,
    )


def test_ctrl_c_ends_it_with_the_device_safe_and_the_rows_kept(tmp_path):
    environment = open_environment(LIVE, FakeClock())
    device = environment.env.interface
    recorded, _ = drive(
        tmp_path / "d.seg", environment=environment, interrupted=lambda: len(device.commands) > 6
    )
    assert 0 < recorded.steps < 8
    assert len(read_recording(tmp_path / "d.seg")[1]) == recorded.steps + recorded.episodes


def test_an_error_leaves_what_was_recorded_and_the_device_safe(tmp_path):
    config = EnvironmentConfig(
        LIVE.id, LIVE.kwargs | {"on_capture": {4: Raise(RuntimeError("broken"))}}, LIVE.realtime
    )
    with pytest.raises(RuntimeError, match="broken"):
        drive(tmp_path / "d.seg", environment=open_environment(config, FakeClock()))
    _, rows = read_recording(tmp_path / "d.seg")
    assert rows["step"].tolist() == [0, 1, 2]  # the steps before the fourth capture
    lost = EnvironmentConfig(
        LIVE.id, LIVE.kwargs | {"on_reset": {1: Raise(DeviceLost("gone"))}}, LIVE.realtime
    )
    expert = WorkerConfig(purpose="expert", actor="drivers:Expert", device_patience_s=0.0)
    with pytest.raises(DeviceLost):
        drive(tmp_path / "e.seg", expert, environment=open_environment(lost, FakeClock()))
    assert not (tmp_path / "e.seg").exists()  # nothing was recorded


def test_what_cannot_work_is_refused_before_anything_is_driven(tmp_path, monkeypatch):
    environment = open_environment(LIVE, FakeClock())

    def refused(message, out="d.seg", config=None, **limits):
        with pytest.raises(ConfigError, match=message):
            drive(tmp_path / out, config, environment=environment, **limits)
        assert environment.env.interface.reset_times == []

    (tmp_path / "there.seg").write_bytes(b"mine")
    refused("exists already", "there.seg")
    assert (tmp_path / "there.seg").read_bytes() == b"mine"
    refused("cannot be written: No such file", "no/folder.seg")
    refused("needs an actor", config=WorkerConfig())
    refused("steps is 0", steps=0)
    refused("rows is 1", rows=1)
    monkeypatch.setattr(capacity, "available_disk", lambda folder: 100_000)
    refused("of the disk of", rows=10**6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["there.seg"]


def test_a_disk_too_full_to_trim_keeps_the_recording_whole(tmp_path, monkeypatch, caplog):
    room = iter([10**9, 0])
    monkeypatch.setattr(capacity, "available_disk", lambda folder: next(room))
    drive(tmp_path / "d.seg", episodes=1, rows=64)
    assert "keeps the size that was reserved" in caplog.text
    assert len(read_recording(tmp_path / "d.seg")[1]) == 5


# --- the command ------------------------------------------------------------------------------------


def test_the_command_records_and_says_what_came_of_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["record", "Pendulum-v1", "--out", "demos.seg", "--actor", "drivers:Expert"]
    assert command.main([*words, "--steps", "30", "--set", "environment.kwargs.g=9.0"]) == 0
    out = capsys.readouterr().out
    assert "episode: return" in out
    assert "30 steps of 1 episodes recorded in demos.seg" in out
    assert "--demonstrations demos.seg" in out
    _, rows = read_recording(Path("demos.seg"))
    assert len(rows) == 31
    assert command.main([*words, "--rows", "10"]) == 2
    assert "exists already" in capsys.readouterr().err
    Path("demos.seg").unlink()
    assert command.main([*words, "--rows", "10"]) == 0
    assert "the file was full: give it more with --rows" in capsys.readouterr().out
    assert command.main([*words[:3], "d.seg"]) == 2
    assert "needs an actor of its own" in capsys.readouterr().err
    assert command.main([*words, "--set", "trainer.start_steps=5"]) == 2
    assert "sections environment and worker" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_killed_recording_is_readable(tmp_path):
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}, {str(Path(__file__).parent)!r}]
from test_record import *
module = types.ModuleType("drivers"); module.Expert = Expert; sys.modules["drivers"] = module
environment = LockStepEnvironment(ProbeEnv("time_limit"), "probe")
made = []
def tell(summary):
    made.append(summary)
    if len(made) == 20: print("enough", flush=True)
out = Path({str(tmp_path / "d.seg")!r})
config = WorkerConfig(purpose="expert", actor="drivers:Expert")
record(environment, out, config, Limits(), seed=0, interrupted=lambda: False, tell=tell)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"enough\n"
        process.kill()
    _, rows = read_recording(tmp_path / "d.seg")
    assert len(rows) >= 20 * 6
