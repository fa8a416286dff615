"""``tickrate check``: examines your interface before anything is trained on it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from tickrate import registry
from tickrate.config.experiment import load_experiment
from tickrate.errors import ConfigError, suggest
from tickrate.runtime.environments import EnvironmentConfig, is_live
from tickrate.testing.contracts import Finding
from tickrate.tools.examine import examine


@dataclass(frozen=True)
class CheckOptions:
    """Examine your interface: spaces, contract, timing, delays and rewards.

    Without --dry it sends random actions to the device. With --dry it sends no command and resets at most
    once.

    Examples:
      tickrate check my_game:MyInterface --dry
      tickrate check my_experiment.yaml
      tickrate check circuit
    """

    target: Annotated[str, tyro.conf.Positional]
    """'module:Class' of an interface, a shipped live environment (circuit, drone), or an experiment file."""
    dry: bool = False
    """Send no command and reset at most once."""
    steps: int = 100
    """Steps to drive with random actions, to see timing and rewards."""
    seed: int = 0
    """Seed of the reset and of the random actions."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate check``; return 0 if the contract is kept, 1 if not."""
    about = inspect.getdoc(CheckOptions)
    options = tyro.cli(CheckOptions, args=list(arguments), prog="tickrate check", description=about)
    errors = 0
    config = environment_of(options.target)
    for topic, seen in examine(config, dry=options.dry, steps=options.steps, seed=options.seed):
        errors += isinstance(seen, Finding) and seen.level == "error"
        print(f"{topic:<16} {seen}", flush=True)
    print("not good yet: see the errors above" if errors else "all good")
    return 1 if errors else 0


def environment_of(target: str) -> EnvironmentConfig:
    """Return the live environment that a target names.

    Raises:
        ConfigError: if it names none.
    """
    is_file = target.endswith((".yaml", ".yml"))
    config = load_experiment(target).environment if is_file else EnvironmentConfig(id=target)
    if not is_live(config):
        raise ConfigError(
            f"{config.id!r} is no live environment: give 'module:Class' of an interface, circuit, drone, "
            f"or an experiment file.{suggest(config.id, registry.ENVIRONMENTS)}"
        )
    return config
