"""Training from Python in one call: what ``tickrate train`` does, with keyword arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tickrate.cli.training import run_experiment
from tickrate.config.experiment import experiment_file, experiment_from_mapping, override
from tickrate.config.loading import read_yaml
from tickrate.errors import ConfigError, RoleFailed
from tickrate.registry import ENVIRONMENTS

_ENDS = {"trainer.total_steps", "trainer.time_limit_s", "trainer.offline_updates"}
"""Keys of which one says when a run ends."""


def train(
    env: str,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    name: str | None = None,
    replace: bool = False,
    **settings: Any,
) -> Path:
    """Train a policy and return the run folder.

    Args:
        env: ``circuit``, ``drone``, ``module:Class`` of your interface, or a Gymnasium id.
        steps: training steps after which the run ends.
        minutes: minutes of wall time after which the run ends.
        seed: seed of networks, sampling, exploration and warm-up.
        name: name of the run folder inside ``./runs``; by default the environment's name and the seed.
        replace: delete the run folder first if it holds a run.
        **settings: keys of the experiment file, each a section (``trainer={"updates_per_step": 2}``) or, with
            ``__`` for the dot, one key (``trainer__updates_per_step=2``).

    Returns:
        Path of the run folder; ``best.policy`` in it is the best policy, if there was an evaluation.

    Raises:
        ConfigError: for a name or a value that cannot be; nothing has been started then.
        RunFolderError: if the run folder holds a run already.
        RoleFailed: if a process of the run failed.
    """
    sections = {key: value for key, value in settings.items() if isinstance(value, dict) and "__" not in key}
    keys = {key.replace("__", "."): value for key, value in settings.items() if key not in sections}
    keys |= {
        f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()
    }
    named = {
        "environment.id": env,
        "trainer.total_steps": steps,
        "trainer.time_limit_s": None if minutes is None else 60.0 * minutes,
        "run.seed": seed,
        "run.name": name,
    }
    given = keys | {key: value for key, value in named.items() if value is not None}
    if steps is None and minutes is None and not given.keys() & _ENDS:
        raise ConfigError("say when to end: give steps or minutes (or trainer__offline_updates)")
    recipe = read_yaml(experiment_file(env)) if env in ENVIRONMENTS else {}
    experiment = experiment_from_mapping(override(recipe, given))
    outcome = run_experiment(experiment, f"tickrate · {env}", "replace" if replace else "refuse")
    if outcome.problems:
        raise RoleFailed("; ".join(outcome.problems), 1)
    return outcome.folder
