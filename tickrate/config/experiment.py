"""The experiment file: one YAML that says what is driven, what learns, and how; every key is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from tickrate import registry
from tickrate.config.loading import from_mapping, read_yaml, to_mapping
from tickrate.errors import ConfigError, suggest
from tickrate.runtime.environments import EnvironmentConfig, is_live
from tickrate.runtime.learner import ReplayConfig, TrainerConfig
from tickrate.runtime.worker import WorkerConfig

PRESETS = Path(__file__).parent / "presets"
"""Experiment files that ship with the package."""

Mode = Literal["auto", "wall-clock", "serial"]


@dataclass(frozen=True)
class RunConfig:
    """Where the run keeps its files, and how its roles are laid out."""

    name: str = ""
    """Name of the run's folder; empty: the environment's name and the seed."""
    root: str = "runs"
    """Folder that holds the run folders."""
    seed: int = 0
    """Seed of networks, sampling, exploration and warm-up. A live system is not repeatable all the same."""
    mode: Mode = "auto"
    """``wall-clock``: roles in processes of their own. ``serial``: all in one process, for simulators and debugging.
    ``auto``: wall-clock for a live environment, serial for a Gymnasium id."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """What learns: the algorithm's name and its own configuration."""

    name: str = "sac"
    """Name in the registry."""
    settings: Any = None
    """The algorithm's own configuration dataclass; its keys stand beside ``name`` in the file."""


@dataclass(frozen=True)
class Experiment:
    """Everything that defines a run."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    """What is driven."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """What learns."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """What keeps the transitions."""
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    """How to act."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """How the trainer spends its time."""
    run: RunConfig = field(default_factory=RunConfig)
    """Files, seed and mode."""

    @property
    def folder(self) -> Path:
        """Path of the run folder."""
        name = self.run.name or f"{self.environment.id.replace(':', '.').replace('/', '-')}-seed{self.run.seed}"
        return Path(self.run.root) / name

    @property
    def serial(self) -> bool:
        """Whether all roles run in one process."""
        return self.run.mode == "serial" or (self.run.mode == "auto" and not is_live(self.environment))


def experiment_from_mapping(values: Mapping[str, Any]) -> Experiment:
    """Build an experiment from nested plain values.

    Raises:
        ConfigError: for any key, name or value that cannot be; the message names it and the nearest valid one.
    """
    sections = [f.name for f in dataclasses.fields(Experiment)]
    for key in values:
        if key not in sections:
            raise ConfigError(f"unknown section {key!r}.{suggest(str(key), sections)} There are: {', '.join(sections)}")
    rest = {key: value for key, value in values.items() if key != "algorithm"}
    experiment = from_mapping(Experiment, rest)
    return dataclasses.replace(experiment, algorithm=_algorithm(values.get("algorithm", {})))


def _algorithm(values: Any) -> AlgorithmConfig:
    if not isinstance(values, Mapping):
        raise ConfigError(f"algorithm is {values!r}; expected a section such as {{name: sac, preset: crossq}}")
    settings = dict(values)
    name = settings.pop("name", "sac")
    entry = registry.algorithm(str(name))
    kind = registry.resolve(entry.config)
    preset = settings.pop("preset", entry.presets[0])
    if preset not in entry.presets:
        near = suggest(str(preset), entry.presets)
        raise ConfigError(f"algorithm.preset is {preset!r}; {name} has {list(entry.presets)}.{near}")
    base = to_mapping(getattr(kind, preset)())
    return AlgorithmConfig(name=str(name), settings=from_mapping(kind, base | settings, "algorithm"))


def load_experiment(source: str | Path) -> Experiment:
    """Read an experiment file, or one of the shipped presets by name (``circuit``).

    Raises:
        ConfigError: if there is no such file, or anything in it is wrong.
    """
    path = Path(source)
    if not path.exists() and path.suffix == "":
        shipped = {p.stem: p for p in sorted(PRESETS.glob("*.yaml"))}
        if str(source) not in shipped:
            raise ConfigError(
                f"there is no file {str(source)!r} and no shipped experiment of that name; shipped are {list(shipped)}."
                f"{suggest(str(source), shipped)}"
            )
        path = shipped[str(source)]
    try:
        return experiment_from_mapping(read_yaml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def override(values: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with dotted keys set (``{"trainer.start_steps": 100}``); keys are checked on loading."""
    result: dict[str, Any] = {k: (dict(v) if isinstance(v, Mapping) else v) for k, v in values.items()}
    for dotted, value in assignments.items():
        node = result
        *parents, last = dotted.split(".")
        for name in parents:
            child = node.get(name)
            node[name] = dict(child) if isinstance(child, Mapping) else {}
            node = node[name]
        node[last] = value
    return result


def as_mapping(experiment: Experiment) -> dict[str, Any]:
    """Return the resolved experiment as plain nested values."""
    values: dict[str, Any] = to_mapping(experiment)
    values["algorithm"] = {"name": experiment.algorithm.name, **to_mapping(experiment.algorithm.settings)}
    return values


def dump_experiment(experiment: Experiment) -> str:
    """Return the resolved experiment as YAML text that `load_experiment` reads back to an equal one."""
    return yaml.safe_dump(as_mapping(experiment), sort_keys=False, allow_unicode=True)
