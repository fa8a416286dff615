"""``tickrate play``: drives with a saved policy."""

from __future__ import annotations

import dataclasses
import inspect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tickrate.cli.training import Interrupts
from tickrate.config.experiment import load_experiment
from tickrate.errors import ConfigError
from tickrate.policy import Policy
from tickrate.runtime.actors import load_saved
from tickrate.runtime.environments import EnvironmentConfig, LiveEnvironment, open_environment
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.run_folder import RunFolder
from tickrate.tools.drive import drive, find_policy, shipped_policy


@dataclass(frozen=True)
class PlayOptions:
    """Drive with a saved policy and report each episode.

    Examples:
      tickrate play circuit                           the trained policy that ships with the racing game
      tickrate play runs/demo-1                       the best policy of a run, on its environment
      tickrate play my.policy --env my_game:MyInterface
    """

    path: Annotated[Path, tyro.conf.Positional]
    """Run folder (its best policy is taken, else the latest), policy file, or ONNX file of
    `tickrate export`."""
    episodes: int = 3
    """Episodes to drive."""
    env: str | None = None
    """Environment, for a policy file that does not lie in a run folder."""
    stochastic: bool = False
    """Act with exploration noise, as in training."""
    seed: int = 0
    """Seed of the first reset and of the noise."""
    picture: bool = False
    """Print the interface's own picture (``render``) after each episode."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate play``; return the exit code."""
    about = inspect.getdoc(PlayOptions)
    options = tyro.cli(PlayOptions, args=list(arguments), prog="tickrate play", description=about)
    file = find_policy(options.path)
    policy = load_saved(file, options.seed)
    environment = open_environment(environment_for(options, file))
    contract = policy.contract
    print(f"policy {file}: version {contract.policy_version}, trained by {contract.algorithm}", flush=True)
    summaries = []
    try:
        with Interrupts() as interrupts:
            episodes = drive(
                environment,
                policy if isinstance(policy, Policy) else file,
                options.episodes,
                deterministic=not options.stochastic,
                seed=options.seed,
                interrupted=interrupts.requested.is_set,
            )
            for number, summary in enumerate(episodes, start=1):
                summaries.append(summary)
                print(f"episode {number}: {describe(summary)}", flush=True)
                if options.picture and isinstance(environment, LiveEnvironment):
                    print(environment.env.render(), flush=True)
        if (timing := environment.timing()) is not None:
            print(timing)
    finally:
        environment.close()
    laps = [s.metrics["lap_time_s"] for s in summaries if "lap_time_s" in s.metrics]
    if laps:
        middle, best = statistics.median(laps), min(laps)
        print(f"laps: {len(laps)} of {len(summaries)}, median {middle:.2f} s, best {best:.2f} s")
    return 0


def describe(summary: EpisodeSummary) -> str:
    """Return one line about an episode."""
    lap = summary.metrics.get("lap_time_s")
    clean = "" if summary.metrics.get("lap_clean", 1.0) else " with contact"
    lap_words = "" if lap is None else f", lap {lap:.2f} s{clean}"
    return f"return {summary.total_return:.2f}, {summary.steps} steps, {summary.ended}{lap_words}"


def environment_for(options: PlayOptions, file: Path) -> EnvironmentConfig:
    """Return the environment to drive: the one asked for, or the one of the run folder that holds the policy.

    Raises:
        ConfigError: if neither is known.
    """
    folder = RunFolder(file.parent)
    if options.env is not None:
        return EnvironmentConfig(id=options.env)
    if file == shipped_policy(str(options.path)):
        return load_experiment(str(options.path)).environment
    if folder.experiment.exists():
        return dataclasses.replace(load_experiment(folder.kept_experiment).environment)
    raise ConfigError(f"{file} does not lie in a run folder: say what to drive with --env")
