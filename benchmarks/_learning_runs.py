"""What the benchmarks of learning share: a queue of runs in processes of their own, a CSV file for each.

A run is (contender, task, seed). Its file appears under its name only when it is complete, so that a
benchmark that was stopped goes on with the runs that are missing.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tickrate.config.experiment import Experiment
    from tickrate.runtime.learner import Learner

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
POLL_S = 0.5


@dataclass(frozen=True)
class Run:
    """One training run."""

    contender: str
    """Who learns: a preset of ours, or a peer."""
    task: str
    """What is learned."""
    seed: int
    """Seed of networks, sampling, exploration and environment."""
    steps: int
    """Environment steps."""
    python: str = sys.executable
    """Interpreter that has what the contender needs."""
    folder: Path = RESULTS
    """Where its file goes."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the algorithm beside its preset."""

    @property
    def file(self) -> Path:
        """The complete run's table."""
        return self.folder / f"{self.contender}-{self.task}-{self.seed}-{self.steps}.csv"

    def within(self, folder: Path) -> Run:
        """Return the same run with its file elsewhere."""
        return replace(self, folder=folder)


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a table so that the path holds either nothing or all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(path)


def read_table(path: Path) -> list[dict[str, float]]:
    """Return the rows of a table of numbers."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def train_here(
    experiment: Experiment,
    every: int,
    evaluate: Callable[[int, bytes], None],
    *,
    place: Path | None = None,
    enough: Callable[[int], bool] = lambda steps: False,
) -> Learner:
    """Train in this process, and hand out the policy every so many training steps.

    Args:
        experiment: what to train; a serial run with a limit of steps.
        every: training steps between two calls of ``evaluate``.
        evaluate: called with the number of training steps and the policy of that moment.
        place: run folder, in which an interrupted run goes on; None: a temporary one.
        enough: called with the number of training steps every few seconds; True ends the run.
    """
    from tickrate.cli import assembling
    from tickrate.runtime.contract import EnvironmentContract
    from tickrate.runtime.environments import open_environment
    from tickrate.runtime.episode import Orders
    from tickrate.runtime.run_folder import RunFolder
    from tickrate.runtime.serial import SerialOutlet
    from tickrate.runtime.worker import ControlLoop
    from tickrate.tracking.tracker import MultiTracker

    class Outlet(SerialOutlet):
        due = every
        stop_at = 0.0

        def put_row(self, row: NDArray[np.void]) -> None:
            super().put_row(row)
            while learner.limiter.steps >= self.due:
                evaluate(self.due, learner.algorithm.policy_bytes(learner.version))
                self.due += every
            if time.monotonic() >= self.stop_at:
                self.stop_at = time.monotonic() + 5.0
                self.over = enough(learner.limiter.steps)

        def orders(self) -> Orders:
            return Orders(shutdown=True) if self.over else super().orders()

        over = False

    environment = open_environment(experiment.environment)
    contract = EnvironmentContract.of(environment)
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run" if place is None else place)
        resume = folder.latest_checkpoint() is not None
        if not resume:
            folder.prepare("replace")
        learner = assembling.learner_parts(experiment).build(
            contract, folder, MultiTracker([]), resume=resume
        )
        outlet = Outlet(learner, lambda state, summary: False)
        outlet.due = (learner.limiter.steps // every + 1) * every
        boot = folder.worker("worker-0").next_boot()
        loop = ControlLoop(
            environment,
            contract.schema(),
            outlet,
            experiment.worker,
            boot=boot,
            seed=experiment.run.seed,
        )
        loop.run()
    environment.close()
    return learner


def folder_for(given: Path | None, results: Path, *, quick: bool) -> Path:
    """Return where runs keep their files: short ones never among the published ones, which count as made.

    Args:
        given: what the person asked for, or None.
        results: where the published runs of the script are.
        quick: whether these are short runs.
    """
    return given or (results / "runs" / "quick" if quick else results)


def peer_python(given: str | None, packages: Sequence[str], needed: str) -> str:
    """Return an interpreter that has the peers; make their virtual environment if it is missing.

    Args:
        given: an interpreter to use as it is, or None.
        packages: what to install.
        needed: a module that is there when everything is.
    """
    if given is not None:
        return given
    python = ROOT / ".venv-peer" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        print(f"making {python.parent.parent} with {', '.join(packages)}")
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    probe = subprocess.run([str(python), "-c", f"import {needed}"], stderr=subprocess.DEVNULL, check=False)
    if probe.returncode:
        command = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *packages]
        subprocess.run(command, check=True)
    return str(python)


def run_all(
    runs: Iterable[Run],
    command: Callable[[Run], Sequence[str]],
    *,
    jobs: int,
    limit_s: float,
    threads: int = 1,
) -> list[Run]:
    """Run what has no file yet, so many side by side; return those that failed.

    Args:
        runs: in the order in which they are begun.
        command: what to start for a run, after the interpreter.
        jobs: processes side by side.
        limit_s: seconds after which a run is killed.
        threads: threads of each. One that waits for the other soon sleeps, so that CPU time is time of work.
    """
    runs = list(runs)
    waiting = [run for run in runs if not run.file.exists()]
    if kept := [run.file for run in runs if run.file.exists()]:
        oldest = time.strftime("%d %B %Y", time.localtime(min(file.stat().st_mtime for file in kept)))
        print(
            f"{len(kept)} of {len(runs)} runs were made before (the oldest file is of {oldest}), in "
            f"{kept[0].parent}: delete their tables there, or give another --folder, to make them anew",
            flush=True,
        )
    total, failed = len(waiting), []
    running: dict[subprocess.Popen[bytes], tuple[Run, float]] = {}
    limits = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {
        **os.environ,
        **dict.fromkeys(limits, str(threads)),
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "2000",  # asleep at once, a thread would have to be woken for each small product
        "PYTHONPATH": str(ROOT),
    }
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                process = subprocess.Popen([run.python, *command(run)], env=environment)
                running[process] = (run, time.monotonic())
            for process, (run, began) in list(running.items()):
                took = time.monotonic() - began
                if process.poll() is None and took < limit_s:
                    continue
                process.kill()
                process.wait(timeout=10)
                del running[process]
                good = run.file.exists()
                if not good:
                    failed.append(run)
                done = total - len(waiting) - len(running)
                state = "done" if good else f"FAILED (exit code {process.returncode})"
                print(
                    f"[{done}/{total}] {run.contender} {run.task} {run.seed}: {state} in {took:.0f} s",
                    flush=True,
                )
            time.sleep(POLL_S)
    finally:
        for process in running:
            process.kill()
            process.wait(timeout=10)
    return failed
