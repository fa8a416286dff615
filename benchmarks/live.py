"""Claim: on a game that is never paused the default preset laps faster in the end than SAC does.

The circuit at 20 Hz from 19 LIDAR beams, on the wall clock, 30 minutes a run, 3 seeds, `sac` against the
default preset; everything else is the shipped experiment. For each run: the time to the first clean lap,
counted from the command, and the median of five further laps driven with the policy that the run chose. There
is no bar; of the first lap nothing is claimed, it is a matter of luck. Lateness is printed, so that a reader
sees whether runs disturbed each other.

Runs are resumed one by one: each has a file in benchmarks/results/live when it is complete.

    python benchmarks/live.py                     75 minutes, three runs side by side on two cores
    python benchmarks/live.py --quick             one seed of each, 6 minutes: first laps only
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import _circuit_runs as circuit
import _learning_runs as learning

DEFAULT = "default"
FOLDER = learning.RESULTS / "live"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed of each, 6 minutes: first laps only")
    parser.add_argument("--check", action="store_true", help="exit 1 if a run made no lap at all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--side-by-side", type=int, default=3, help="runs at the same time; six were too many for two cores"
    )
    parser.add_argument("--presets", nargs="+", default=[DEFAULT, "sac"])
    parser.add_argument(
        "--folder",
        type=Path,
        help="where tables and runs are; by default results, with --quick a folder of its own there",
    )
    options = parser.parse_args()
    options.folder = learning.folder_for(options.folder, FOLDER, quick=options.quick)
    if options.quick:
        options.seeds, options.minutes = 1, 6.0
    print(f"{platform.platform()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    runs = [
        learning.Run(preset, f"circuit-{options.minutes:g}min", seed, 0, folder=options.folder)
        for seed in range(options.seeds)
        for preset in options.presets
    ]
    settings = {
        preset: [] if preset == DEFAULT else [f"algorithm.preset={preset}"] for preset in options.presets
    }
    circuit.drive(
        runs, settings, options.minutes, side_by_side=options.side_by_side, further=not options.quick
    )
    print(circuit.TABLE_HEAD)
    for run in runs:
        print(circuit.row(run))
    firsts = {
        preset: [learning.read_table(run.file)[0]["first_lap_s"] for run in runs if run.contender == preset]
        for preset in options.presets
    }
    medians = {preset: statistics.median(values) for preset, values in firsts.items()}
    print("median seconds to the first clean lap: " + ", ".join(f"{p} {m:.0f}" for p, m in medians.items()))
    lapped = all(value == value for values in firsts.values() for value in values)
    return 0 if lapped or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
