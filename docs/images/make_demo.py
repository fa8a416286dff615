"""Draws the README's picture from a run of the demo: the best policy's lap, and how it was learned.

tickrate demo --name picture && python docs/images/make_demo.py runs/picture docs/images/demo.png
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tickrate.config.experiment import load_experiment
from tickrate.games.circuit.picture import draw_line, draw_track
from tickrate.policy import Policy
from tickrate.runtime.environments import LiveEnvironment, open_environment
from tickrate.tools.drive import drive, find_policy


def drive_lap(run: Path) -> tuple[LiveEnvironment, np.ndarray, float]:
    """Drive with the run's best policy until a lap is clean; return environment, line and time."""
    environment = open_environment(load_experiment(run / "experiment.yaml").environment)
    assert isinstance(environment, LiveEnvironment)
    policy = Policy.load_file(find_policy(run))
    laps = drive(environment, policy, 5, deterministic=True, seed=0, interrupted=lambda: False)
    for summary in laps:
        if summary.metrics.get("lap_clean"):
            return environment, environment.env.interface.driven_line(), summary.metrics["lap_time_s"]
    raise SystemExit("no clean lap in five episodes")


def main(run: Path, target: Path) -> None:
    """Drive the lap and draw the picture."""
    environment, line, lap_s = drive_lap(run)
    environment.close()
    episodes = [json.loads(text) for text in (run / "episodes.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(12.0, 4.8), dpi=100, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.15, 1.0))
    track_axis = figure.add_subplot(grid[:, 0])
    draw_track(track_axis, environment.env.interface.track)
    coloured = draw_line(track_axis, line, 30.0)
    figure.colorbar(coloured, ax=track_axis, label="speed (m/s)", shrink=0.7)
    track_axis.set_title(f"the policy that the run chose: {lap_s:.1f} s", fontsize=11)
    metres = figure.add_subplot(grid[0, 1])
    laps = figure.add_subplot(grid[1, 1], sharex=metres)
    for evaluation, colour, name in ((False, "#4477aa", "training"), (True, "#ee6677", "evaluation")):
        chosen = [e for e in episodes if e["evaluation"] == evaluation]
        minutes = [e["wall_s"] / 60 for e in chosen]
        metres.plot(minutes, [10 * e["return"] for e in chosen], "o-", ms=3, lw=1, color=colour, label=name)
        timed = [(e["wall_s"] / 60, e["lap_time_s"]) for e in chosen if e["lap_time_s"] and e["clean"]]
        if timed:
            laps.plot(*zip(*timed, strict=True), "o", ms=4, color=colour)
    metres.set_ylabel("metres driven")
    metres.legend(frameon=False, fontsize=9, loc="lower right")
    laps.set_ylabel("clean lap (s)")
    laps.set_xlabel("minutes of wall time, from the command on")
    for axis in (metres, laps):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.set_xlim(left=0)
    figure.savefig(target)
    print(f"written: {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
