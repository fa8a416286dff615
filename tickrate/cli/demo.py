"""``tickrate demo``: a live racing game and a policy that learns it, in one command."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from tickrate.cli.training import run_experiment
from tickrate.config.experiment import experiment_file, experiment_from_mapping, override
from tickrate.config.loading import read_yaml


@dataclass(frozen=True)
class DemoOptions:
    """Start a racing game that is never paused, drive it at 20 Hz, and learn while driving.

    The first clean lap came after 81 to 271 s in five runs on two cores; now and then it takes longer.
    """

    minutes: float = 10.0
    """Minutes of wall time, from the command on."""
    seed: int = 0
    """Seed of networks, sampling, exploration and warm-up."""
    track: str = "demo"
    """Which track to drive."""
    speed: float = 1.0
    """How much faster than the wall's clock the game's runs; the steps get shorter by the same factor."""
    name: str | None = None
    """Name of the run folder inside ./runs; by default the next free demo-N."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate demo``; return the exit code."""
    about = inspect.getdoc(DemoOptions)
    options = tyro.cli(DemoOptions, args=list(arguments), prog="tickrate demo", description=about)
    changes = {
        "environment.kwargs.track": options.track,
        "environment.kwargs.speed": options.speed,
        "trainer.time_limit_s": 60.0 * options.minutes,
        "run.seed": options.seed,
        "run.name": options.name or free_name(Path("runs"), "demo"),
    }
    experiment = experiment_from_mapping(override(read_yaml(experiment_file("circuit")), changes))
    outcome = run_experiment(experiment, f"tickrate demo · track {options.track}, a car learns to lap")
    return 1 if outcome.problems else 0


def free_name(root: Path, stem: str) -> str:
    """Return ``stem-N`` with the smallest N that no folder in ``root`` has."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return f"{stem}-{number}"
