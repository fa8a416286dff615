"""``tickrate record``: records demonstrations, driven by a script, a saved policy or a person."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tickrate.cli.play import describe
from tickrate.cli.training import Interrupts
from tickrate.config.experiment import Experiment, experiment_from_mapping, override, parse_assignments
from tickrate.errors import ConfigError
from tickrate.runtime.environments import open_environment
from tickrate.runtime.episode import EpisodeSummary
from tickrate.tools.record import Limits, Recorded, record


@dataclass(frozen=True)
class RecordOptions:
    """Record demonstrations into a segment file, for `tickrate train --demonstrations`.

    Examples:
      tickrate record my_game:MyInterface --out demos.seg --actor my_drivers:Expert --episodes 10
      tickrate record circuit --out demos.seg --actor runs/demo-1/best.policy --steps 5000
      tickrate record my_game:MyInterface --out demos.seg --takeover my_drivers:Wheel
    """

    env: Annotated[str, tyro.conf.Positional]
    """Environment: circuit, drone, 'module:Class' of an interface, or a Gymnasium id."""
    out: Path
    """Segment file to make."""
    actor: str = ""
    """Who drives: 'module:Class' of an actor, or a saved policy (.policy, or .onnx)."""
    takeover: str = ""
    """'module:Class' of an operator, a person for example, who may drive instead at any step. Without --actor
    the device rests (its default action) while the operator does not drive."""
    episodes: int | None = None
    """Episodes to record; without --episodes and --steps until Ctrl-C."""
    steps: int | None = None
    """Steps to record; the episode that runs then is cut."""
    rows: int | None = None
    """Most rows in the file (a step takes one, an episode one more): the disk is reserved for them. Without
    it, what --steps need, or 100 000."""
    seed: int = 0
    """Seed of the driver and the first reset."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Any key of the sections environment and worker of an experiment file, as KEY=VALUE; repeat --set."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate record``; return the exit code."""
    about = inspect.getdoc(RecordOptions)
    options = tyro.cli(RecordOptions, args=list(arguments), prog="tickrate record", description=about)
    experiment = experiment_of(options)
    limits = Limits(options.episodes, options.steps, options.rows)

    def tell(summary: EpisodeSummary) -> None:
        print(f"episode: {describe(summary)}", flush=True)

    environment = open_environment(experiment.environment)
    try:
        with Interrupts() as interrupts:
            recorded = record(
                environment,
                options.out,
                experiment.worker,
                limits,
                seed=options.seed,
                interrupted=interrupts.requested.is_set,
                tell=tell,
            )
        if (timing := environment.timing()) is not None:
            print(timing)
    finally:
        environment.close()
    print(last_words(recorded, options.out), flush=True)
    return 0


def experiment_of(options: RecordOptions) -> Experiment:
    """Return the experiment whose environment and worker are meant.

    Raises:
        ConfigError: if something in it cannot be, or a key of another section is set.
    """
    changes = parse_assignments(options.set)
    if foreign := [key for key in changes if key.partition(".")[0] not in ("environment", "worker")]:
        raise ConfigError(f"--set {', '.join(foreign)}: a recording has the sections environment and worker")
    given = {"worker.actor": options.actor, "worker.takeover": options.takeover}
    changes |= {"environment.id": options.env, "worker.purpose": "expert"}
    return experiment_from_mapping(override({}, changes | {k: v for k, v in given.items() if v}))


def last_words(recorded: Recorded, out: Path) -> str:
    """Return what came of it, in a line or two."""
    if not recorded.steps:
        return "nothing was recorded"
    words = f"{recorded.steps:,} steps of {recorded.episodes:,} episodes recorded in {out}"
    if recorded.full:
        words += " (the file was full: give it more with --rows)"
    return f"{words}\nlearn from them:  tickrate train --env ... --demonstrations {out}"
