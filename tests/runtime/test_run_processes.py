"""Whole runs in their real processes: ended, killed, resumed, paused, as a person or a bad day would."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tickrate
from tickrate.clock import now, sleep

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

ROOT = Path(tickrate.__file__).parents[1]
DEVICE = '''
import os
import numpy as np
from gymnasium import spaces
from tickrate import RealTimeGymInterface
from tickrate.clock import now

class Device(RealTimeGymInterface):
    """Logs each command with its time; raises when a file says so."""

    def __init__(self):
        self.log = open("commands.log", "a", buffering=1)
        self.steps = 0

    def get_observation_space(self):
        return spaces.Tuple((spaces.Box(-10, 10, (2,), np.float32),))

    def get_action_space(self):
        return spaces.Box(-1, 1, (1,), np.float32)

    def get_default_action(self):
        return np.zeros(1, np.float32)

    def send_control(self, control):
        if control is not None:
            self.log.write(f"{now()} {float(control[0])}\\n")

    def reset(self, seed=None, options=None):
        self.steps = 0
        return (np.zeros(2, np.float32),), {}

    def get_obs_rew_terminated_info(self):
        self.steps += 1
        if os.path.exists("raise"):
            raise ValueError("the left motor is on fire")
        return (np.full(2, self.steps / 100, np.float32),), 1.0, False, {}

    def wait(self):
        pass

    def close(self):
        self.log.close()
'''
OURS = [
    *("--env", "my_device_of_test:Device", "--name", "r"),
    *("--set", "environment.realtime={time_step_duration: 0.02, start_obs_capture: 0.02, ep_max_length: 40}"),
    *(
        "--set",
        "trainer.start_steps=20",
        "--set",
        "trainer.checkpoint_every_s=0.5",
        "--set",
        "replay.capacity=20000",
    ),
    *(
        "--set",
        "algorithm={actor: {hidden: [16, 16]}, critic: {hidden: [16, 16]}}",
        "--set",
        "algorithm.batch_size=16",
    ),
]


class Run:
    """A run of the command in a folder of its own."""

    def __init__(self, folder, *words, **options):
        self.folder = folder / "runs" / "r"
        self.home = folder
        self.output = folder / "output.txt"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tickrate", "train", *words],
                cwd=folder,
                env=environment,
                **{"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT} | options,
            )
        self.seen = set()

    def role(self, name):
        """Return the process of a role, or None."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    line = child.cmdline()
                    self.seen.add(child.pid)
                    if line[1:2] == ["-m"] and line[2:4] in (
                        ["tickrate", name],
                        [f"tickrate.games.{name}", line[3]],
                    ):
                        return child
        return None

    def wait_for(self, condition, what, limit_s=40.0):
        """Wait until ``condition`` is true; fail with everything that was said otherwise."""
        deadline = now() + limit_s
        while not condition():
            assert now() < deadline, f"no {what}\n{self.words}"
            assert self.process.poll() is None or what == "end", (
                f"it ended before there was {what}\n{self.words}"
            )
            sleep(0.05)

    def end(self, number=signal.SIGINT):
        """Press Ctrl-C; return the exit code."""
        for name in ("worker", "trainer", "companion", "circuit"):
            self.role(name)
        self.process.send_signal(number)
        return self.finish()

    def finish(self):
        self.wait_for(lambda: self.process.poll() is not None, "end")
        return self.process.returncode

    def leftovers(self):
        return [pid for pid in self.seen if psutil.pid_exists(pid)]

    @property
    def words(self):
        logs = "".join(f"== {p.name}\n{p.read_text()}" for p in sorted(self.folder.glob("logs/*.log")))
        return self.output.read_text() + logs

    @property
    def episodes(self):
        path = self.folder / "episodes.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    @property
    def commands(self):
        path = self.home / "commands.log"
        return path.read_text().splitlines() if path.exists() else []

    def counters(self):
        newest = max(p for p in (self.folder / "checkpoints").iterdir() if not p.name.startswith("."))
        return json.loads((newest / "counters.json").read_text())

    def checkpoints(self):
        return [p for p in self.folder.glob("checkpoints/step-*")]


@pytest.fixture
def start(tmp_path):
    (tmp_path / "my_device_of_test.py").write_text(DEVICE, encoding="utf-8")
    runs = []

    def begin(*words, **options):
        runs.append(Run(tmp_path, *words, **options))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait(10)


def test_ctrl_c_ends_it_cleanly_and_a_resume_goes_on(start):
    run = start(
        "circuit", "--name", "r", "--set", "trainer.start_steps=100", "--set", "environment.kwargs.speed=4"
    )
    run.wait_for(lambda: len(run.episodes) >= 3, "episodes")
    run.wait_for(lambda: "updates/s" in run.words and "learning:" in run.words, "learning")
    assert run.role("circuit") is not None
    assert run.end() == 0
    assert run.leftovers() == []  # worker, companion, trainer and game are gone
    assert "everything saved in runs/r" in run.words
    first = run.counters()
    assert first["updates"] > 0
    sent = sum(e["steps"] for e in run.episodes if not e["evaluation"])
    assert first["steps"] == sent  # the very last rows came before the last checkpoint
    assert (run.folder / "timing.png").exists()

    more = first["steps"] + 150
    again = start("--resume", "runs/r", "--steps", str(more))
    assert again.finish() == 0
    second = again.counters()
    assert second["steps"] >= more
    assert second["updates"] > first["updates"]
    assert second["version"] > first["version"]
    numbers = [e["episode"] for e in again.episodes if not e["evaluation"]]
    assert numbers == sorted(set(numbers))
    assert {n // 1_000_000 for n in numbers} == {0, 1}
    assert again.leftovers() == []


def test_a_killed_trainer_comes_back_and_acting_goes_on_meanwhile(start):
    run = start(*OURS)
    run.wait_for(run.checkpoints, "checkpoint")
    trainer, worker = run.role("trainer"), run.role("worker")
    before, version = len(run.commands), run.counters()["version"]
    trainer.send_signal(signal.SIGKILL)
    run.wait_for(lambda: "the trainer was killed (code -9); started again" in run.words, "note")
    run.wait_for(lambda: len(run.episodes) and run.role("trainer") is not None, "new trainer")
    assert run.role("trainer").pid != trainer.pid
    run.wait_for(lambda: len(run.commands) > before + 150, "further commands")
    run.wait_for(lambda: run.counters()["version"] > version + 5, "learning from where it stopped")
    assert run.role("worker").pid == worker.pid
    assert run.end() == 0
    steps = run.counters()["steps"]
    assert steps > before
    # Nothing that came after the death is lost: only rows under way at that moment may be.
    times = [float(line.split()[0]) for line in run.commands]
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    assert gaps[len(gaps) // 2] == pytest.approx(0.02, rel=0.2)
    numbers = [e["episode"] for e in run.episodes if not e["evaluation"]]
    assert numbers == sorted(set(numbers))
    assert max(numbers) < 1_000_000


def test_a_killed_worker_comes_back_with_new_episode_numbers(start):
    run = start(*OURS)
    run.wait_for(lambda: len(run.episodes) >= 2 and run.checkpoints(), "episodes")
    run.role("worker").send_signal(signal.SIGKILL)
    run.wait_for(lambda: any(e["episode"] >= 1_000_000 for e in run.episodes), "episodes of the second boot")
    assert "the worker-0 was killed (code -9); started again" in run.words
    run.role("companion").send_signal(signal.SIGKILL)
    many = len(run.episodes) + 3
    run.wait_for(lambda: len(run.episodes) >= many, "episodes after the companion's death")
    assert "the companion ended with code -9; started again" in run.words
    assert run.end() == 0
    assert run.leftovers() == []


def test_of_several_workers_only_the_killed_one_comes_back(start):
    run = start(*OURS, "--set", "run.workers=2")

    def names():
        return {e["worker"] for e in run.episodes}

    run.wait_for(lambda: names() == {"worker-0", "worker-1"}, "episodes of both")
    victim = run.role("worker")
    victim.send_signal(signal.SIGKILL)
    run.wait_for(lambda: any(e["episode"] >= 1_000_000 for e in run.episodes), "episodes of the second boot")
    assert run.words.count("was killed (code -9); started again") == 1
    many = len(run.episodes)
    run.wait_for(lambda: {e["worker"] for e in run.episodes[many:]} == names(), "further episodes of both")
    assert run.end() == 0, run.words
    assert run.leftovers() == []
    boots = {(e["worker"], e["episode"] // 1_000_000) for e in run.episodes}
    assert len(boots) == 3
    keys = [(e["worker"], e["episode"]) for e in run.episodes]
    assert len(keys) == len(set(keys))


def test_an_error_of_the_interface_ends_the_run_with_its_message_and_everything_saved(start):
    run = start(*OURS)
    run.wait_for(run.checkpoints, "checkpoint")
    steps = run.counters()["steps"]
    # The worker may be in an evaluation, which makes no training steps: wait until there are newer ones.
    run.wait_for(lambda: run.episodes and run.episodes[-1]["total_steps"] > steps, "training steps after it")
    made = run.episodes[-1]["total_steps"]
    (run.home / "raise").touch()
    assert run.finish() == 1
    said = run.output.read_text()
    assert "ValueError: the left motor is on fire" in said
    assert "tickrate train: the worker-0 ended with code 1" in said
    assert "started again" not in said
    assert float(run.commands[-1].split()[1]) == 0.0  # the safe action was the last
    assert run.counters()["steps"] >= made, run.words
    assert run.leftovers() == []


def test_a_killed_game_truncates_the_episode_and_the_run_goes_on(start):
    run = start(
        "circuit", "--name", "r", "--set", "trainer.start_steps=50", "--set", "environment.kwargs.speed=4"
    )
    run.wait_for(lambda: run.episodes, "episode")
    game = run.role("circuit")
    game.send_signal(signal.SIGKILL)
    run.wait_for(lambda: any(e["ended"].startswith("device lost") for e in run.episodes), "truncated episode")
    many = len(run.episodes) + 2
    run.wait_for(lambda: len(run.episodes) >= many, "episodes with the new game")
    assert run.role("circuit").pid != game.pid
    assert "started again" not in run.words  # the worker lived through it
    assert run.end() == 0
    assert run.leftovers() == []


def test_the_launcher_s_own_death_ends_everything(start):
    run = start(*OURS)
    run.wait_for(lambda: run.checkpoints() and run.role("companion"), "checkpoint")
    run.role("none")
    run.process.kill()
    run.process.wait(10)
    deadline = now() + 30
    while run.leftovers() and now() < deadline:
        sleep(0.1)
    assert run.leftovers() == []
    assert float(run.commands[-1].split()[1]) == 0.0


def test_keys_pause_and_stop_the_device(start, tmp_path):
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    master, slave = pty.openpty()
    run = start(
        *OURS,
        stdin=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    run.wait_for(lambda: len(run.commands) > 100, "commands")
    for key, order in ((b"p", "pause"), (b"s", "stop_device")):
        os.write(master, key)
        run.wait_for(lambda order=order: f"order to the worker: {order}\n" in run.output.read_text(), "order")
        sleep(0.3)
        paused = len(run.commands)
        assert float(run.commands[-1].split()[1]) == 0.0
        sleep(0.5)
        assert len(run.commands) == paused
        os.write(master, b"p")
        run.wait_for(lambda paused=paused: len(run.commands) > paused + 50, "commands after the pause")
    os.write(master, b"\x03")  # Ctrl-C, as the terminal turns it into a signal
    assert run.finish() == 0
    os.close(master)
    assert any(e["ended"] == "paused" for e in run.episodes)
    assert not re.search(r"Traceback", run.words)
