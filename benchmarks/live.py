"""Claim: on a game that is never paused the default preset laps sooner than SAC, and faster in the end.

The circuit at 20 Hz from 19 LIDAR beams, on the wall clock, 30 minutes a run, 3 seeds, `sac` against the
default preset; everything else is the shipped experiment. For each run: the time to the first clean lap,
counted from the command, and the median of five further laps driven with the policy that the run chose. There
is no bar; a preset that loses says so here. Lateness is printed, so that a reader sees whether runs disturbed
each other.

Runs are resumed one by one: a run folder that has ended is read, not driven again.

    python benchmarks/live.py                     3 hours; --side-by-side 2 halves that on two quiet cores
    python benchmarks/live.py --quick             one seed of each, 6 minutes: first laps only
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import _learning_runs as learning
import demo_learns as demo

DEFAULT = "default"
FOLDER = learning.RESULTS / "live"


def name_of(preset: str, seed: int) -> str:
    return f"{preset}-{seed}"


def start(folder: Path, preset: str, seed: int, minutes: float) -> subprocess.Popen[bytes]:
    """Start a run as a user would, in a folder of its own."""
    command = [sys.executable, "-m", "tickrate", "train", "circuit", "--minutes", str(minutes)]
    command += ["--seed", str(seed), "--name", name_of(preset, seed), "--replace"]
    if preset != DEFAULT:
        command += ["--set", f"algorithm.preset={preset}"]
    with (folder / f"{name_of(preset, seed)}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def table(run: learning.Run, outcome: demo.Outcome) -> None:
    """Keep what a run came to."""
    laps = [demo.seconds(lap) for lap in outcome.further]
    row = {
        "first_lap_s": outcome.first_lap_s or "nan",
        "first_lap_steps": outcome.first_lap_steps or "nan",
        "best_lap_s": outcome.best_lap_s or "nan",
        "median_further_s": outcome.median_s or "nan",
        "further_finished": sum(lap != "-" for lap in laps),
        "late_p50_ms": outcome.lateness_ms.get("p50", "nan"),
        "late_p99_ms": outcome.lateness_ms.get("p99", "nan"),
        "cores": round(outcome.cores, 2),
    }
    learning.write_table(run.file, [row])


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed of each, 6 minutes: first laps only")
    parser.add_argument("--check", action="store_true", help="exit 1 if a run made no lap at all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--side-by-side", type=int, default=1, help="runs at the same time")
    parser.add_argument("--presets", nargs="+", default=[DEFAULT, "sac"])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where tables and runs are")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.minutes = 1, 6.0
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{platform.platform()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    runs = [
        learning.Run(preset, f"circuit-{options.minutes:g}min", seed, 0, folder=options.folder)
        for seed in range(options.seeds)
        for preset in options.presets
    ]
    missing = [run for run in runs if not run.file.exists()]
    for begin in range(0, len(missing), options.side_by_side):
        group = missing[begin : begin + options.side_by_side]
        processes = [start(options.folder, run.contender, run.seed, options.minutes) for run in group]
        cores = demo.watch(processes, 60.0 * options.minutes + 180.0)
        for run, used in zip(group, cores, strict=True):
            place = options.folder / "runs" / name_of(run.contender, run.seed)
            outcome = demo.read_outcome(place, run.seed, used)
            if not options.quick and (place / "best.policy").exists():
                outcome.further = demo.further_laps(place)
            table(run, outcome)
            print(f"{name_of(run.contender, run.seed)}: {learning.read_table(run.file)[0]}", flush=True)
    print("| preset | seed | first clean lap (s) | steps | best lap (s) | median of 5 (s) | late p99 (ms) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    firsts: dict[str, list[float]] = {preset: [] for preset in options.presets}
    for run in runs:
        row = learning.read_table(run.file)[0]
        firsts[run.contender].append(row["first_lap_s"])
        print(
            f"| {run.contender} | {run.seed} | {row['first_lap_s']:.0f} | {row['first_lap_steps']:.0f} | "
            f"{row['best_lap_s']:.2f} | {row['median_further_s']:.2f} | {row['late_p99_ms']:.2f} |"
        )
    medians = {preset: statistics.median(values) for preset, values in firsts.items()}
    print("median seconds to the first clean lap: " + ", ".join(f"{p} {m:.0f}" for p, m in medians.items()))
    lapped = all(value == value for value in firsts[options.presets[0]])
    return 0 if lapped or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
