"""What the README shows works as it stands there."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from tickrate.__main__ import main
from tickrate.clock import now, sleep
from tickrate.wire.zenoh_carrier import ZenohHub

ROOT = Path(__file__).parents[1]


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.fixture
def robot(tmp_path, monkeypatch):
    """A folder with the README's interface in it, as a user would save it."""
    (tmp_path / "my_robot.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_robot", None)


def test_the_custom_interface_keeps_the_contract(robot, capsys):
    assert main(["check", "my_robot:Pendulum", "--dry"]) == 0
    assert "all good" in capsys.readouterr().out


def test_the_custom_interface_is_a_gymnasium_environment(robot):
    code = blocks("python")[1].replace("Pendulum", "__import__('my_robot').Pendulum")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    env = names["env"]
    assert isinstance(env, gymnasium.Env)
    with contextlib.closing(env):
        observation, _ = env.reset(seed=0)
        assert list(observation) == ["angle", "actions"]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_custom_interface_trains_with_the_commands_shown(robot, capsys):
    train = next(line for line in blocks("bash")[1].splitlines() if line.startswith("tickrate train"))
    words = [*train.split()[1:], "--steps", "80", "--set", "trainer.start_steps=40"]
    words += ["--set", "worker.evaluation.every_steps=20", "--set", "environment.realtime.ep_max_length=20"]
    assert main(words) == 0
    play = next(line for line in blocks("bash")[1].splitlines() if line.startswith("tickrate play"))
    assert main([*play.split()[1:], "--episodes", "1"]) == 0
    assert "episode 1: return" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(150)
def test_the_three_terminals_train_together(tmp_path, monkeypatch, capsys):
    """As it stands there, at another port, because several tests may run at once."""
    monkeypatch.chdir(tmp_path)
    (lines,) = [block.splitlines() for block in blocks("bash") if block.startswith("tickrate hub")]
    commands = [line.split("#")[0].split() for line in lines]
    assert [words[1] for words in commands] == ["hub", "trainer", "worker", "status"]
    with ZenohHub() as free:
        address = free.endpoint
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    roles = []
    try:
        for words in commands[:3]:
            option = ["--listen" if words[1] == "hub" else "--hub", address]
            with (tmp_path / f"{words[1]}.log").open("w") as log:
                command = [sys.executable, "-m", *words, *option]
                roles.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        deadline = now() + 90
        while now() < deadline:
            main([*commands[3][1:], "--hub", address, "--json"])
            out = capsys.readouterr().out
            state = json.loads(out) if out else {"workers": []}
            if state["workers"] and (state["workers"][0]["steps"] or 0) >= 40:
                break
            sleep(0.2)
        assert [worker["name"] for worker in state["workers"]] == ["car-1"], out
        assert state["trainer"]["state"] == "collecting"
        assert state["workers"][0]["rows_lost"] == 0
        for role in reversed(roles):
            role.send_signal(signal.SIGINT)
            assert role.wait(30) == 0
    finally:
        for role in roles:
            role.kill()
            role.wait()
    assert (tmp_path / "runs" / "circuit-seed0" / "journal.seg").exists()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_training_script_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = blocks("python")[2]
    assert len(code.strip().splitlines()) <= 12
    code = code.replace('"circuit"', '"Pendulum-v1"').replace("minutes=5", "steps=900")
    exec(compile(code, "README.md", "exec"), {"__name__": "script"})
    assert (tmp_path / "runs" / "Pendulum-v1-seed0" / "latest.policy").exists()
    assert "best policy:" in capsys.readouterr().out


def test_the_picture_is_there():
    assert (ROOT / "docs" / "images" / "demo.png").stat().st_size > 10_000
