"""``tickrate.train`` is the command in one call."""

import gymnasium
import pytest
import torch

from tickrate.api import train
from tickrate.config.experiment import load_experiment
from tickrate.errors import ConfigError, RunFolderError
from tickrate.policy import Policy
from tickrate.testing import ProbeEnv


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    gymnasium.register("tickrate-test/Api-v0", lambda **kwargs: ProbeEnv("chosen_action"))
    yield
    gymnasium.registry.pop("tickrate-test/Api-v0")
    torch.set_num_threads(threads)


def test_it_trains_and_returns_the_run_folder(capsys):
    folder = train(
        "tickrate-test/Api-v0",
        steps=60,
        seed=3,
        name="mine",
        trainer={"start_steps": 20},
        algorithm={"preset": "sac", "actor": {"hidden": [8]}, "critic": {"hidden": [8]}, "batch_size": 8},
        replay__gamma=0.9,
    )
    assert folder.as_posix() == "runs/mine"
    assert Policy.load_file(folder / "latest.policy").contract.algorithm
    experiment = load_experiment(folder / "experiment.yaml")
    assert (experiment.trainer.start_steps, experiment.replay.gamma, experiment.run.seed) == (20, 0.9, 3)
    assert "everything saved" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match="holds a run already"):
        train("tickrate-test/Api-v0", steps=60, name="mine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give steps or minutes"),
        ({"steps": 5, "trainer__start_step": 1}, "Did you mean 'start_steps'"),
        ({"steps": 5, "trainr": {"start_steps": 1}}, "Did you mean 'trainer'"),
        ({"steps": 5, "oops": 1}, "unknown section 'oops'"),
        ({"minutes": 0}, "time_limit_s is 0"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        train("tickrate-test/Api-v0", **settings)
