"""``train --offline``: learns from a file without touching the environment, and goes on by acting."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console

from tickrate import __main__ as command
from tickrate.cli import training
from tickrate.cli.train import TrainOptions, assignments, resolve_options
from tickrate.config.experiment import experiment_from_mapping, load_experiment
from tickrate.data.records import Segment
from tickrate.errors import ConfigError
from tickrate.policy import Policy
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import LockStepEnvironment
from tickrate.runtime.lock_file import LockFile
from tickrate.runtime.recorder import Recorder
from tickrate.runtime.run_folder import RunFolder
from tickrate.testing import ProbeEnv

ID = "tickrate-test/Offline-v0"
SMALL = [
    *("--set", "algorithm.preset=sac", "--set", "algorithm.actor.hidden=[16,16]"),
    *("--set", "algorithm.batch_size=32", "--set", "algorithm.actor_optimiser.learning_rate=0.02"),
    *("--set", "algorithm.initial_temperature=0.02", "--set", "replay.capacity=1000"),
    *("--set", "replay.gamma=0.9", "--set", "replay.n_step=1"),
]


class Untouchable(ProbeEnv):
    """Has spaces, and must not be asked for more."""

    driven = False

    def reset(self, *, seed=None, options=None):
        assert type(self).driven, "an offline run reset the environment"
        return super().reset(seed=seed, options=options)


@pytest.fixture(autouse=True, scope="module")
def probe_id():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gymnasium.register(ID, lambda **kwargs: Untouchable("observed_action"))
    yield
    gymnasium.registry.pop(ID)
    torch.set_num_threads(threads)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Untouchable, "driven", False)
    return tmp_path


def demonstrations(path, steps=400):
    """Record random actions on the probe, whose reward is best where the action has half the observation."""
    environment = LockStepEnvironment(ProbeEnv("observed_action"), "probe")
    schema = EnvironmentContract.of(environment).schema()
    segment = Segment.create(path, schema, 2 * steps)
    recorder = Recorder(schema, 0, 0, lambda row: segment.append(row.reshape(1)))
    rng = np.random.default_rng(0)
    made = 0
    while made < steps:
        recorder.begin(environment.reset(seed=made)[0])
        ended = False
        while not ended:
            action = rng.uniform(-1, 1, environment.action_space.shape).astype(np.float32)
            observation, reward, terminated, truncated, _ = environment.step(action)
            recorder.step(action, reward, terminated, truncated, observation)
            ended = terminated or truncated
            made += 1
    segment.close()
    environment.close()


def counters(folder):
    return json.loads((sorted((folder / "checkpoints").iterdir())[-1] / "counters.json").read_text())


def test_it_learns_from_a_file_alone_and_leaves_what_a_run_leaves(home, capsys):
    demonstrations(home / "demos.seg")
    words = ["train", "--env", ID, *SMALL, "--offline", "--demonstrations", "demos.seg", "--name", "r"]
    assert command.main([*words, "--updates", "400"]) == 0
    out = capsys.readouterr().out
    folder = home / "runs" / "r"
    assert "400 updates offline, batch 32" in out
    assert "100% of each batch from demonstrations" in out
    assert "400 of 400 updates" in out
    assert "ended after 400 updates offline, everything saved in runs/r" in out
    assert (counters(folder)["updates"], counters(folder)["offline_updates"]) == (0, 400)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == lines[-1]["learn/updates"] == 400
    assert np.isfinite(lines[-1]["learn/critic_loss"])
    policy = Policy.load_file(folder / "latest.policy")
    assert policy.contract.policy_version >= 1
    for sign in (-1.0, 1.0):
        observation = {"value": np.array([[sign]], np.float32)}
        action, _, _ = policy.act(observation, policy.initial_state(1), deterministic=True)
        assert action.item() == pytest.approx(0.5 * sign, abs=0.15)

    assert command.main(["train", "--resume", "runs/r"]) == 2
    assert "has made 400 updates offline, its limit is 400" in capsys.readouterr().err
    assert command.main(["train", "--resume", "runs/r", "--offline", "--updates", "402"]) == 0
    assert counters(folder)["offline_updates"] == 402

    Untouchable.driven = True
    more = ["--steps", "60", "--set", "trainer.offline_updates=null", "--set", "trainer.start_steps=20"]
    assert command.main(["train", "--resume", "runs/r", *more]) == 0
    after = counters(folder)
    assert (after["steps"], after["updates"], after["offline_updates"]) == (60, 40, 402)
    assert after["version"] > policy.contract.policy_version


def test_spaces_may_come_from_a_run_folder(home, capsys):
    demonstrations(home / "demos.seg", 40)
    words = ["train", *SMALL, "--offline", "--demonstrations", "demos.seg"]
    assert command.main([*words, "--env", ID, "--updates", "3", "--name", "one"]) == 0
    assert command.main([*words, "--contract", "runs/one", "--updates", "2", "--name", "two"]) == 0
    experiment = load_experiment(home / "runs" / "two" / "experiment.yaml")
    assert experiment.environment.id == ID  # so that `tickrate play runs/two` knows what to drive
    nowhere = [*words, "--env", "no/Such-v0", "--updates", "2"]
    assert command.main([*nowhere, "--contract", "runs/one/contract.json", "--name", "three"]) == 0
    capsys.readouterr()
    assert command.main([*nowhere, "--contract", "runs", "--name", "four"]) == 2
    assert "neither a run folder with contract.json" in capsys.readouterr().err
    assert command.main([*words, "--contract", "demos.seg", "--updates", "2"]) == 2
    assert "does not lie in a run folder" in capsys.readouterr().err
    assert not (home / "runs" / "four").exists()


def test_ctrl_c_ends_it_with_a_checkpoint(home, capsys, monkeypatch):
    demonstrations(home / "demos.seg", 40)

    class Pressed(training.Interrupts):
        def __enter__(self):
            self.requested.set()
            return super().__enter__()

    words = ["train", "--env", ID, *SMALL, "--offline", "--demonstrations", "demos.seg", "--name", "r"]
    assert command.main([*words, "--updates", "2"]) == 0
    monkeypatch.setattr(training, "Interrupts", Pressed)
    assert command.main(["train", "--resume", "runs/r", "--offline", "--updates", "1000000"]) == 0
    assert 2 <= counters(home / "runs" / "r")["offline_updates"] < 1000
    assert "everything saved" in capsys.readouterr().out


def test_in_a_terminal_there_is_a_progress_bar(home, monkeypatch, capsys):
    demonstrations(home / "demos.seg", 40)
    monkeypatch.setattr(training, "Console", lambda: Console(force_terminal=True, width=100))
    words = ["train", "--env", ID, *SMALL, "--offline", "--demonstrations", "demos.seg", "--name", "r"]
    assert command.main([*words, "--updates", "5"]) == 0
    assert "5/5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offline": True, "env": ID}, "say with --updates"),
        ({"updates": 5, "env": ID}, "--updates is for --offline"),
        ({"contract": Path("x"), "env": ID}, "--contract is for --offline"),
        ({"offline": True, "updates": 5, "env": ID}, "replay.demonstrations names no file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        resolve_options(TrainOptions(**options))


def test_options_become_keys():
    options = TrainOptions(env=ID, offline=True, updates=7, demonstrations=(Path("a.seg"), Path("/b.seg")))
    changes = assignments(options)
    files = [str(Path("a.seg").absolute()), "/b.seg"]  # so that the run is resumed from any folder
    assert changes == {"trainer.offline_updates": 7, "replay.demonstrations": files}
    assert resolve_options(options)[0].replay.demonstrations == tuple(files)


@pytest.mark.parametrize(
    ("trainer", "replay", "message"),
    [
        ({"offline_updates": 5, "total_steps": 9}, {"demonstrations": ["a"]}, "total_steps is 9"),
        ({"offline_contract": "runs/x"}, {}, "does nothing without offline_updates"),
        ({"offline_updates": 5}, {}, "names no file"),
        (
            {"offline_updates": 5},
            {"demonstrations": ["a"], "demonstration_share": 0.3},
            "everything is drawn from demonstrations",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(trainer, replay, message):
    with pytest.raises(ConfigError, match=message):
        experiment_from_mapping({"trainer": trainer, "replay": replay})


def test_an_offline_run_has_no_roles(home, capsys):
    file = home / "mine.yaml"
    file.write_text("trainer: {offline_updates: 5}\nreplay: {demonstrations: [a.seg]}\n")
    assert command.main(["trainer", "mine.yaml"]) == 2
    assert "an offline run has no roles" in capsys.readouterr().err


def test_a_folder_that_a_trainer_uses_is_left_alone(home, capsys):
    demonstrations(home / "demos.seg", 40)
    words = ["train", "--env", ID, *SMALL, "--offline", "--demonstrations", "demos.seg", "--name", "r"]
    assert command.main([*words, "--updates", "2"]) == 0
    folder = RunFolder(home / "runs" / "r")
    with LockFile(folder.lock, "the run folder"):
        assert command.main(["train", "--resume", "runs/r", "--offline", "--updates", "4"]) == 2
    assert "is in use" in capsys.readouterr().err
    assert counters(folder.path)["offline_updates"] == 2
