"""``tickrate train``: trains on a live environment, your own interface, or a Gymnasium id."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tickrate.cli.training import run_experiment
from tickrate.config.experiment import (
    Experiment,
    as_mapping,
    experiment_file,
    experiment_from_mapping,
    load_experiment,
    override,
    parse_assignments,
)
from tickrate.config.loading import read_yaml
from tickrate.errors import ConfigError
from tickrate.runtime.run_folder import OnExisting, RunFolder


@dataclass(frozen=True)
class TrainOptions:
    """Train a policy on a system that does not wait, or on a simulator.

    Examples:
      tickrate train circuit --minutes 10            the shipped racing game
      tickrate train --env my_game:MyInterface       your own interface, on its clock
      tickrate train --env Pendulum-v1 --steps 10000 any Gymnasium id, in lock-step
      tickrate train mine.yaml --set trainer.updates_per_step=2 --set replay.n_step=1
      tickrate train --resume runs/my-run            go on where a run stopped
      tickrate train --env my_game:MyInterface --offline --demonstrations demos.seg --updates 20000
    """

    file: Annotated[str | None, tyro.conf.Positional] = None
    """Experiment file (YAML), or the name of a shipped one (circuit)."""
    env: str | None = None
    """Environment: circuit, drone, 'module:Class' of an interface, or a Gymnasium id."""
    steps: int | None = None
    """Training steps after which the run ends."""
    minutes: float | None = None
    """Minutes of wall time after which the run ends."""
    seed: int | None = None
    """Seed of networks, sampling, exploration and warm-up."""
    name: str | None = None
    """Name of the run folder inside ./runs."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Any key of the experiment file, as KEY=VALUE with a dotted key; repeat --set for each."""
    offline: bool = False
    """Learn from demonstrations alone; the environment is opened for its spaces, never reset or driven."""
    updates: int | None = None
    """Updates of an offline run."""
    demonstrations: tuple[Path, ...] = ()
    """Segment files of demonstrations (`tickrate record`); without --offline half of each batch is drawn from
    them."""
    contract: Path | None = None
    """Run folder, or its contract.json, whose spaces an offline run takes: no environment need be there."""
    resume: Path | None = None
    """Run folder to continue: replay, networks, optimisers, counters and random states are restored."""
    replace: bool = False
    """Delete the run folder first if it holds a run."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate train``; return the exit code."""
    about = inspect.getdoc(TrainOptions)
    options = tyro.cli(TrainOptions, args=list(arguments), prog="tickrate train", description=about)
    experiment, on_existing = resolve_options(options)
    if options.offline and not experiment.offline:
        raise ConfigError(
            "--offline: the run to resume acts; say with --updates how many updates to make now"
        )
    outcome = run_experiment(experiment, f"tickrate · {experiment.environment.id}", on_existing)
    return 1 if outcome.problems else 0


def resolve_options(options: TrainOptions) -> tuple[Experiment, OnExisting]:
    """Return the experiment that the options describe, and what an existing run folder means.

    Raises:
        ConfigError: if options contradict each other, or name something that is not there.
    """
    if options.resume is not None:
        return _resumed(options, options.resume), "resume"
    if options.file is not None and "=" in options.file:
        raise ConfigError(f"{options.file!r} is no experiment file; write --set before each KEY=VALUE")
    if options.file is not None:
        load_experiment(options.file)  # a mistake in the file is reported as one, before anything is changed
        base: Mapping[str, Any] = read_yaml(experiment_file(options.file))
    elif options.env is not None:
        base = {}
    elif options.contract is not None:
        base = _environment_of(options.contract)
    else:
        raise ConfigError(
            "say what to train on: an experiment file, or --env with circuit, module:Class or an id"
        )
    changes = assignments(options)
    if options.env is not None:
        changes = {"environment.id": options.env} | changes
    return experiment_from_mapping(override(base, changes)), "replace" if options.replace else "refuse"


def _environment_of(contract: Path) -> dict[str, Any]:
    """Return the section that says what a run was for, so that the new policy can be tried there."""
    folder = RunFolder(contract if contract.is_dir() else contract.parent)
    if not folder.experiment.exists():
        raise ConfigError(f"{contract} does not lie in a run folder: say what it is for with --env")
    return {"environment": as_mapping(load_experiment(folder.kept_experiment))["environment"]}


def _resumed(options: TrainOptions, path: Path) -> Experiment:
    if options.file is not None or options.env is not None or options.replace or options.name is not None:
        raise ConfigError(
            "--resume takes the rest from the run folder: only --steps, --minutes, --set go with it"
        )
    changes = assignments(options)
    if fixed := [key for key in changes if key in ("run.seed", "run.name", "run.root", "algorithm.preset")]:
        raise ConfigError(f"a resumed run keeps its {', '.join(fixed)}")
    folder = RunFolder(path.resolve())
    folder.prepare("resume")
    kept = load_experiment(folder.kept_experiment)
    changed = experiment_from_mapping(override(as_mapping(kept), changes))
    run = dataclasses.replace(changed.run, root=str(folder.path.parent), name=folder.path.name)
    return dataclasses.replace(changed, run=run)


def assignments(options: TrainOptions) -> dict[str, Any]:
    """Return the dotted keys that the options set.

    Raises:
        ConfigError: if a ``--set`` has no ``KEY=VALUE`` form, or options do not go together.
    """
    if options.updates is not None and not options.offline:
        raise ConfigError("--updates is for --offline; a run that acts ends by --steps or --minutes")
    if options.contract is not None and not options.offline:
        raise ConfigError("--contract is for --offline; a run that acts opens its environment")
    if options.offline and options.updates is None and options.resume is None:
        raise ConfigError("say with --updates how many updates the offline run is to make")
    named = {
        "trainer.total_steps": options.steps,
        "trainer.time_limit_s": None if options.minutes is None else 60.0 * options.minutes,
        "trainer.offline_updates": options.updates,
        "trainer.offline_contract": None if options.contract is None else str(options.contract.absolute()),
        "replay.demonstrations": [str(path.absolute()) for path in options.demonstrations] or None,
        "run.seed": options.seed,
        "run.name": options.name,
    }
    changes = parse_assignments(options.set)
    return changes | {key: value for key, value in named.items() if value is not None}
