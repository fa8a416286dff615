"""What the benchmarks that drive the circuit on the wall clock share: runs side by side, a table for each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import _learning_runs as learning
import demo_learns as demo

TABLE_HEAD = (
    "| who | seed | first clean lap (s) | steps | best lap (s) | median of 5 (s) | finished | late p99 (ms) |"
    "\n| --- |" + " --- |" * 7
)


def name_of(run: learning.Run) -> str:
    return f"{run.contender}-{run.seed}"


def drive(
    runs: Sequence[learning.Run],
    settings: Mapping[str, Sequence[str]],
    minutes: float,
    *,
    side_by_side: int,
    further: bool,
) -> None:
    """Make the runs that have no file yet, and their files.

    Args:
        runs: what to drive; the game's experiment with the settings of the contender.
        settings: of each contender, as they are given to ``--set``.
        minutes: wall time of a run.
        side_by_side: runs at the same time.
        further: drive five further laps with the policy that a run chose.
    """
    missing = [run for run in runs if not run.file.exists()]
    for begin in range(0, len(missing), side_by_side):
        group = missing[begin : begin + side_by_side]
        processes = [_start(run, settings[run.contender], minutes) for run in group]
        cores = demo.watch(processes, 60.0 * minutes + 180.0)
        for run, used in zip(group, cores, strict=True):
            place = run.folder / "runs" / name_of(run)
            outcome = demo.read_outcome(place, run.seed, used)
            if further and (place / "best.policy").exists():
                outcome.further = demo.further_laps(place)
            _keep(run, outcome)
            print(f"{name_of(run)}: {learning.read_table(run.file)[0]}", flush=True)


def row(run: learning.Run) -> str:
    """Return a line of the table that `TABLE_HEAD` begins."""
    found = learning.read_table(run.file)[0]
    return (
        f"| {run.contender} | {run.seed} | {found['first_lap_s']:.0f} | {found['first_lap_steps']:.0f} | "
        f"{found['best_lap_s']:.2f} | {found['median_further_s']:.2f} | "
        f"{found['further_finished']:.0f} of {demo.FURTHER_LAPS} | {found['late_p99_ms']:.2f} |"
    )


def _start(run: learning.Run, settings: Sequence[str], minutes: float) -> subprocess.Popen[bytes]:
    """Start a run as a user would, in a folder of its own."""
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tickrate", "train", "circuit", "--minutes", str(minutes)]
    command += ["--seed", str(run.seed), "--name", name_of(run), "--replace"]
    for setting in settings:
        command += ["--set", setting]
    with _log(run).open("wb") as log:
        return subprocess.Popen(
            command, cwd=run.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def _log(run: learning.Run) -> Path:
    place = run.folder / "runs"
    place.mkdir(exist_ok=True)
    return place / f"{name_of(run)}.log"


def _keep(run: learning.Run, outcome: demo.Outcome) -> None:
    """Keep what a run came to."""
    laps = [demo.seconds(lap) for lap in outcome.further]
    found = {
        "first_lap_s": outcome.first_lap_s or "nan",
        "first_lap_steps": outcome.first_lap_steps or "nan",
        "best_lap_s": outcome.best_lap_s or "nan",
        "median_further_s": outcome.median_s or "nan",
        "further_finished": sum(lap != "-" for lap in laps),
        "late_p50_ms": outcome.lateness_ms.get("p50", "nan"),
        "late_p99_ms": outcome.lateness_ms.get("p99", "nan"),
        "cores": round(outcome.cores, 2),
    }
    learning.write_table(run.file, [found])
