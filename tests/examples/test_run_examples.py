"""Each example runs as a user runs it: as a script, in its own process, with warnings as errors."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: str) -> str:
    """Run an example to its end and return what it printed."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_custom_tcp_game_loses_its_game_and_finds_it_again():
    out = run("custom_tcp_game.py", "--steps", "40")
    assert "the episode ended: device lost: no telemetry" in out
    assert "reconnected" in out
    assert "Hz of 50.00 Hz" in out


def test_drone_flies_to_its_target():
    out = run("drone.py", "--episodes", "1", "--probe", "1")
    assert "act_buf_len of at least" in out
    assert "episode 0: target reached" in out
    assert "Hz of 20.00 Hz" in out


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None,
    reason="stable-baselines3 is not installed (pip install tickrate[sb3])",
)
def test_stable_baselines3_trains_on_both_forms():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(  # its dependencies' own warnings are theirs
        [sys.executable, str(ROOT / "examples" / "sb3_ppo_sac.py"), "--steps", "500"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "PPO, flat observations: 500 steps" in done.stdout
    assert "SAC, dict observations: 500 steps" in done.stdout
