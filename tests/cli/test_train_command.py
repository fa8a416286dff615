"""``train`` in one process on a Gymnasium id, its options, resuming, and ``play`` on what it left."""

import json

import gymnasium
import pytest
import torch

from tickrate import __main__ as command
from tickrate.cli import training
from tickrate.cli.train import TrainOptions, assignments, resolve_options
from tickrate.config.experiment import load_experiment
from tickrate.errors import ConfigError, RunFolderError
from tickrate.testing import ProbeEnv

SMALL = [
    *("--set", "algorithm.actor.hidden=[16,16]", "--set", "algorithm.batch_size=16"),
    *("--set", "trainer.start_steps=20", "--set", "replay.capacity=1000"),
]


@pytest.fixture(autouse=True, scope="module")
def probe_ids():
    threads = torch.get_num_threads()
    gymnasium.register(
        "tickrate-test/Probe-v0", lambda **kwargs: ProbeEnv(kwargs.pop("probe", "action_buffer"))
    )
    yield
    gymnasium.registry.pop("tickrate-test/Probe-v0")
    torch.set_num_threads(threads)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words):
    return command.main(["train", "--env", "tickrate-test/Probe-v0", *SMALL, *words])


def counters(folder):
    return json.loads((sorted((folder / "checkpoints").iterdir())[-1] / "counters.json").read_text())


def test_train_then_refuse_resume_and_play(home, capsys):
    assert train("--steps", "100", "--name", "r", "--set", "worker.evaluation.every_steps=40") == 0
    out = capsys.readouterr().out
    folder = home / "runs" / "r"
    assert "run folder: runs/r" in out
    assert "gamma 0.995000005 (float32, looks 200 steps ahead), 3-step returns" in out
    assert "1 updates/step from step 20 on, batch 16" in out
    assert "everything saved in runs/r" in out
    assert counters(folder)["steps"] == 100
    names = {p.name for p in folder.iterdir()}
    assert {
        "experiment.yaml",
        "metrics.jsonl",
        "episodes.jsonl",
        "learning_curve.png",
        "latest.policy",
    } <= names
    assert (folder / "best.policy").exists()
    assert list((folder / "tensorboard").iterdir())
    assert load_experiment(folder / "experiment.yaml").algorithm.settings.actor.hidden == (16, 16)

    assert train("--steps", "100", "--name", "r") == 2
    assert "holds a run already" in capsys.readouterr().err
    assert command.main(["train", "--resume", "runs/r"]) == 2
    assert "has made 100 steps, its limit is 100: give it more with --steps 200" in capsys.readouterr().err
    assert load_experiment(folder / "experiment.yaml").trainer.total_steps == 100

    assert command.main(["train", "--resume", "runs/r", "--steps", "130"]) == 0
    after = counters(folder)
    assert (after["steps"], after["updates"]) == (130, 110)
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    assert [e["episode"] // 1_000_000 for e in lines if not e["evaluation"]][-1] == 1
    capsys.readouterr()

    assert command.main(["play", "runs/r", "--episodes", "2", "--picture"]) == 0
    out = capsys.readouterr().out
    assert "best.policy: version" in out
    assert "episode 2: return" in out
    assert "16 steps, truncated" in out
    played = [line for line in out.splitlines() if line.startswith("episode")]
    assert command.main(["export", "runs/r"]) == 0
    assert command.main(["play", "runs/r/best.onnx", "--episodes", "2"]) == 0
    out = capsys.readouterr().out
    assert "best.onnx: version" in out
    assert [line for line in out.splitlines() if line.startswith("episode")] == played
    assert command.main(["play", "runs/r/latest.policy", "--env", "Pendulum-v1"]) == 2
    assert "leaf 'value'" in capsys.readouterr().err

    assert train("--steps", "30", "--name", "r", "--replace") == 0
    assert counters(folder)["steps"] == 30
    assert not (folder / "best.policy").exists()


def test_a_resume_that_is_refused_late_changes_nothing_for_the_next(home, capsys):
    """Networks of another shape are found out when they are restored, behind everything else."""
    assert train("--steps", "30", "--name", "r") == 0
    before = load_experiment(home / "runs" / "r" / "experiment.yaml")
    for change in ("algorithm.critics=3", "replay.gamma=0.5", "algorithm.critics=4"):
        assert command.main(["train", "--resume", "runs/r", "--steps", "40", "--set", change]) == 2
    assert "expected float32[4" in capsys.readouterr().err
    assert command.main(["train", "--resume", "runs/r", "--steps", "50"]) == 0
    after = load_experiment(home / "runs" / "r" / "experiment.yaml")
    assert after.algorithm == before.algorithm
    assert (after.replay, after.trainer.total_steps) == (before.replay, 50)
    assert counters(home / "runs" / "r")["steps"] == 50


def test_a_learner_in_this_process_logs_where_a_trainer_would(home):
    assert train("--steps", "30", "--name", "r", "--set", "algorithm.mixed_precision=true") == 0
    log = (home / "runs" / "r" / "logs" / "trainer.log").read_text(encoding="utf-8")
    told = "networks computed in torch.bfloat16, losses in torch.float32"
    assert log.count(told) == 1
    assert command.main(["train", "--resume", "runs/r", "--steps", "40"]) == 0
    log = (home / "runs" / "r" / "logs" / "trainer.log").read_text(encoding="utf-8")
    assert log.count(told) == 2  # by what it computes in now, not by what it was before the first update


@pytest.mark.parametrize("device", ["cuda:99", "no-device", "meta"])
def test_a_device_that_cannot_be_used_is_named(home, capsys, device):
    assert train("--steps", "30", "--set", f"trainer.device={device}") == 2
    assert f"the device '{device}' (trainer.device) cannot be used here" in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_an_option_for_another_kind_of_actions_is_refused(home, capsys):
    words = ["train", "--env", "CartPole-v1", "--steps", "30", "--set", "algorithm.log_std_max=1"]
    assert command.main(words) == 2
    assert (
        "algorithm.log_std_max is set, but sac does not use it where the actions" in capsys.readouterr().err
    )
    assert train("--steps", "30", "--set", "algorithm.target_entropy_share=0.5") == 2
    assert "algorithm.target_entropy_share is set" in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_a_run_that_died_among_its_last_updates_is_not_complete(home):
    assert train("--steps", "60", "--name", "r") == 0
    folder = home / "runs" / "r"
    newest = sorted((folder / "checkpoints").iterdir())[-1] / "counters.json"
    values = json.loads(newest.read_text())
    assert (values["steps"], values["updates"]) == (60, 40)
    newest.write_text(json.dumps(values | {"updates": 39}))
    assert command.main(["train", "--resume", "runs/r"]) == 0
    assert counters(folder)["updates"] >= 40


def test_an_environment_that_cannot_be_made_leaves_no_folder(home, capsys):
    assert (
        command.main(["train", "--env", "Pendulum-v1", "--steps", "9", "--set", "environment.kwargs.x=1"])
        == 2
    )
    assert "kwargs {'x': 1}" in capsys.readouterr().err
    assert list(home.iterdir()) == []


def test_ctrl_c_ends_a_serial_run_with_a_checkpoint(home, capsys, monkeypatch):
    class Pressed(training.Interrupts):
        def __enter__(self):
            self.requested.set()
            return super().__enter__()

    monkeypatch.setattr(training, "Interrupts", Pressed)
    assert train("--steps", "100000", "--name", "r") == 0
    assert counters(home / "runs" / "r")["steps"] < 1000
    assert "go on learning" in capsys.readouterr().out


def test_a_second_ctrl_c_does_not_wait():
    with training.Interrupts() as interrupts:
        interrupts._note(2, None)
        assert interrupts.requested.is_set()
        with pytest.raises(KeyboardInterrupt):
            interrupts._note(2, None)


def test_options_become_keys():
    options = TrainOptions(
        file="circuit", steps=10, minutes=2.0, seed=4, name="n", set=("replay.gamma=0.9", "run.root=out")
    )
    experiment, on_existing = resolve_options(options)
    assert on_existing == "refuse"
    assert (experiment.trainer.total_steps, experiment.trainer.time_limit_s) == (10, 120.0)
    assert (experiment.run.seed, experiment.folder.as_posix()) == (4, "out/n")
    assert experiment.replay.gamma == 0.9
    assert experiment.worker.warmup.hold == (3, 11)  # from the file
    assert resolve_options(TrainOptions(env="drone", replace=True))[1] == "replace"


def test_the_last_word_has_the_named_option():
    assert (
        assignments(TrainOptions(steps=5, set=("trainer.total_steps=9", "x.y=1e-3")))["trainer.total_steps"]
        == 5
    )
    assert assignments(TrainOptions(set=("x.y=1e-3", "z=a=b"))) == {"x.y": 1e-3, "z": "a=b"}


def test_another_preset_of_a_shipped_file_is_taken():
    options = TrainOptions(file="circuit", set=("algorithm.preset=sac",))
    assert resolve_options(options)[0].algorithm.settings.target_network


def test_a_resumed_run_keeps_what_it_is(home):
    for text in ("run.name=x", "run.root=x", "algorithm.preset=sac"):
        with pytest.raises(ConfigError, match="keeps its"):
            resolve_options(TrainOptions(resume=home, set=(text,)))
    with pytest.raises(RunFolderError):
        resolve_options(TrainOptions(resume=home))
