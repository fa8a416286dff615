"""The command itself: help, mistakes, exit codes, and that it finds a user's module from any folder."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import tickrate
from tickrate import __main__ as command
from tickrate.errors import ConfigError, DeviceLost, RoleFailed

SCRIPT = Path(sysconfig.get_path("scripts")) / "tickrate"
ROOT = Path(tickrate.__file__).parents[1]


def run(*arguments, cwd, launcher=(sys.executable, "-m", "tickrate")):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*launcher, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_help_lists_the_commands(capsys):
    for words in ([], ["--help"], ["help"]):
        assert command.main(words) == 0
        out = capsys.readouterr().out
        for name in command.COMMANDS:
            assert f"  {name}" in out
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == tickrate.__version__


@pytest.mark.parametrize("name", command.COMMANDS)
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as end:
        command.main([name, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: tickrate {name}" in out
    if name != "demo":
        assert f"tickrate {name} " in out.split("usage:")[1].split("\n", 1)[1]  # an example
    for line in out.splitlines():
        assert line.count(f" tickrate {name} ") <= 1  # each example on a line of its own


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "worker",
            ["tickrate worker mine.yaml --name arm-1 --hub tls/", "--key", "--drain", "not touched before"],
        ),
        (
            "trainer",
            ["tickrate trainer mine.yaml --resume", "--hub", "--key", "--replace", "says what it waits"],
        ),
        ("companion", ["--worker-dir", "--shared", "--run", "--name"]),
    ],
)
def test_each_role_explains_itself(name, words, capsys):
    with pytest.raises(SystemExit) as end:
        command.main([name, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: tickrate {name}" in out
    assert "--run-dir" not in out  # the launcher's own
    for word in words:
        assert word in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trian"], 2, "unknown command 'trian'. Did you mean 'train'?"),
        (["train"], 2, "say what to train on"),
        (["train", "circut"], 2, "Did you mean 'circuit'"),
        (["train", "a=1"], 2, "write --set before each"),
        (
            ["train", "--env", "Pendulum-v1", "--steps", "10", "--set", "trainer.start_step=3"],
            2,
            "'start_steps'",
        ),
        (["train", "--env", "Pendulum-v1", "--set", "oops"], 2, "not of the form KEY=VALUE"),
        (["train", "--env", "Pendulum-v1", "--set", "trainer.threads=[1"], 2, "no valid YAML"),
        (["train", "--env", "Pendulum-v1"], 2, "--steps"),
        (["train", "--env", "Pendulum-v1", "--steps", "10", "--set", "algorithm.name=dqn"], 2, "Box"),
        (["train", "--env", "Pendulm-v1", "--steps", "10"], 2, "Pendulm"),
        (["train", "--env", "no_module_of_mine:X"], 2, "cannot import 'no_module_of_mine'"),
        (
            ["train", "circuit", "--set", "environment.realtime.time_step_duraton=1"],
            2,
            "'time_step_duration'",
        ),
        (["train", "--resume", "runs/none"], 2, "holds no run to resume"),
        (["train", "--resume", "runs/none", "--env", "circuit"], 2, "--resume takes the rest"),
        (["train", "--resume", "runs/none", "--seed", "3"], 2, "keeps its run.seed"),
        (["play", "runs/none"], 2, "neither a policy file nor a run folder"),
        (["check", "circut"], 2, "Did you mean 'circuit'"),
        (["check", "Pendulum-v1"], 2, "no live environment"),
        (["bench", "Pendulum-v1"], 2, "no live environment"),
        (["game", "chess"], 2, "the games are: circuit"),
        (["worker"], 2, "name the experiment file"),
        (["trainer"], 2, "name the experiment file"),
        (["worker", "circut"], 2, "Did you mean 'circuit'"),
        (["trainer", "none.yaml"], 2, "none.yaml"),
        (["worker", "circuit", "--name", "../../x"], 2, "a worker cannot be called '../../x'"),
        (["worker", "circuit", "--name", "trainer"], 2, "a worker cannot be called 'trainer'"),
        (["worker", "circuit", "--drain"], 2, "holds no outbox: start --drain in the folder"),
        (["worker", "circuit", "--set", "worker.outbox.max_byte=1"], 2, "'max_bytes'"),
    ],
)
def test_a_mistake_is_one_plain_message_and_exit_code_2(words, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.parametrize(
    "words", [["train", "--stepz", "3"], ["demo", "--minuts", "1"], ["train", "--steps", "many"]]
)
def test_a_misspelt_option_is_exit_code_2_with_the_nearest(words, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    out = capsys.readouterr()
    assert {"--stepz": "--steps", "--minuts": "--minutes", "--steps": "many"}[words[1]] in out.err + out.out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bad"), 2),
        (DeviceLost("gone"), 2),
        (RoleFailed("the worker ended", 1), 1),
        (RoleFailed("the worker ended", -9), 1),
        (RoleFailed("the worker ended", 2), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error, code, monkeypatch, capsys):
    def fail(words):
        raise error

    monkeypatch.setattr(command.registry, "resolve", lambda target: fail)
    assert command.main(["train"]) == code
    assert "tickrate train: " in capsys.readouterr().err


MINE = """
import numpy as np
from gymnasium import spaces
from tickrate import RealTimeGymInterface

class Mine(RealTimeGymInterface):
    def get_observation_space(self):
        return spaces.Tuple((spaces.Box(-1, 1, (1,), np.float32),))
    def get_action_space(self):
        return spaces.Box(-1, 1, (1,), np.float32)
    def get_default_action(self):
        return np.zeros(1, np.float32)
    def send_control(self, control):
        print("SENT")
    def reset(self, seed=None, options=None):
        return (np.zeros(1, np.float32),), {}
    def get_obs_rew_terminated_info(self):
        return (np.zeros(1, np.float32),), 0.0, False, {}
    def wait(self):
        pass
"""


@pytest.mark.parametrize("launcher", ["module", "script"])
def test_it_finds_an_interface_in_the_folder_it_is_run_from(tmp_path, launcher):
    (tmp_path / "my_own_game.py").write_text(MINE, encoding="utf-8")
    if launcher == "script" and not SCRIPT.exists():
        pytest.skip("the package is not installed here")
    how = (sys.executable, "-m", "tickrate") if launcher == "module" else (str(SCRIPT),)
    code, out, err = run("check", "my_own_game:Mine", "--dry", cwd=tmp_path, launcher=how)
    assert code == 0, err + out
    assert "interface        Mine" in out
    assert "SENT" not in out


def test_commands_load_no_torch_before_they_need_it(tmp_path):
    script = "import sys, tickrate.__main__ as m; m.main(['--help']); import tickrate.cli.train as t"
    done = subprocess.run(
        [sys.executable, "-c", script + "; assert 'torch' not in sys.modules"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
