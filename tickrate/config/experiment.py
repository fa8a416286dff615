"""The experiment file: one YAML that says what is driven, what learns, and how; every key is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from tickrate import registry
from tickrate.algorithms.protocol import HasTraits, Traits
from tickrate.config.loading import dump_yaml, from_mapping, parse_yaml, read_yaml, to_mapping
from tickrate.errors import ConfigError, suggest
from tickrate.runtime.environments import EnvironmentConfig, is_live
from tickrate.runtime.learner_config import PRIORITY_OPTIONS, ReplayConfig, TrainerConfig
from tickrate.runtime.network import NetworkConfig
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
    """``wall-clock``: roles in processes of their own. ``serial``: all in one process, for simulators and
    debugging. ``auto``: wall-clock for a live environment, serial for a Gymnasium id."""
    workers: int = 1
    """Workers that `tickrate train` starts. In the environment's kwargs ``{index}`` stands for the worker's
    number, from 0 (a port, a device's name)."""

    def __post_init__(self) -> None:
        """Refuse what cannot name a folder or seed a generator."""
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"workers is {self.workers}; give 1 to 64")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be 0 or more")
        if (
            self.name in (".", "..")
            or any(c in self.name for c in "/\\:\0")
            or self.name != self.name.strip()
        ):
            raise ConfigError(f"name is {self.name!r}; give the plain name of a folder inside {self.root!r}")
        if not self.root:
            raise ConfigError("root is empty; give the folder that holds the run folders, e.g. 'runs'")


@dataclass(frozen=True)
class AlgorithmConfig:
    """What learns: the algorithm's name and its own configuration."""

    name: str = "sac"
    """Name in the registry, or ``module:ENTRY`` of your own (`tickrate.registry.AlgorithmEntry`)."""
    preset: str = ""
    """Name of the recipe that the settings began as; empty where the algorithm has none."""
    settings: Any = None
    """The algorithm's own configuration dataclass; its keys stand beside ``name`` in the file."""

    @property
    def traits(self) -> Traits:
        """What the settings say of the algorithm."""
        return self.settings.traits if isinstance(self.settings, HasTraits) else Traits()


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
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Where the hub is, for roles that are started one by one."""
    run: RunConfig = field(default_factory=RunConfig)
    """Files, seed and mode."""

    def __post_init__(self) -> None:
        """Refuse sections that do not go together."""
        if self.worker.synchronous_steps and self.replay.storage == "memory":
            raise ConfigError(
                "worker.synchronous_steps is set, but replay.storage is memory: a killed trainer would wait "
                "for rows of the round that it has taken in and lost; leave replay.storage at auto or journal"
            )

    @property
    def folder(self) -> Path:
        """Path of the run folder."""
        environment = self.environment.id.replace(":", ".").replace("/", "-")
        return Path(self.run.root) / (self.run.name or f"{environment}-seed{self.run.seed}")

    @property
    def serial(self) -> bool:
        """Whether all roles run in one process."""
        return self.run.mode == "serial" or (self.run.mode == "auto" and not is_live(self.environment))

    @property
    def offline(self) -> bool:
        """Whether the run learns from demonstrations alone, without an environment."""
        return self.trainer.offline_updates is not None

    @property
    def journal(self) -> bool:
        """Whether the replay is kept in the run folder's journal."""
        storage = self.replay.storage
        separate = not self.serial or self.worker.synchronous_steps > 0  # never in one process
        return storage == "journal" or (storage == "auto" and separate)


def experiment_from_mapping(values: Mapping[str, Any]) -> Experiment:
    """Build an experiment from nested plain values.

    The preset of the algorithm comes first, key by key in every section; what ``values`` say goes over it.

    Raises:
        ConfigError: for any key, name or value that cannot be; the message names it and the nearest valid
        one.
    """
    sections = [f.name for f in dataclasses.fields(Experiment)]
    for key in values:
        if key not in sections:
            near = suggest(str(key), sections)
            raise ConfigError(f"unknown section {key!r}.{near} There are: {', '.join(sections)}")
    name, entry, preset, settings = _chosen(values.get("algorithm", {}))
    base = _recipe(entry, preset)
    rest = _over({k: v for k, v in _without_priorities(base, values).items() if k != "algorithm"}, values)
    rest.pop("algorithm", None)
    experiment = from_mapping(Experiment, rest)
    _check_offline(experiment)
    chosen = _settings(name, entry, base.get("algorithm", {}), settings, experiment)
    algorithm = AlgorithmConfig(name=name, preset=preset or "", settings=chosen)
    if algorithm.traits.corrects_delays:
        _check_correctable(experiment.environment)
    if algorithm.traits.sequence_length:
        replay = _single_steps(experiment.replay, values.get("replay", {}))
        experiment = dataclasses.replace(experiment, replay=replay)
    return dataclasses.replace(experiment, algorithm=algorithm)


def _without_priorities(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a preset's sections without what belongs to its priorities, where ``values`` turn those off."""
    said = values.get("replay")
    if not isinstance(said, Mapping) or said.get("sampling") != "uniform" or "replay" not in base:
        return dict(base)
    replay = {k: v for k, v in base["replay"].items() if k not in PRIORITY_OPTIONS}
    return {**base, "replay": replay}


def changed_options(algorithm: AlgorithmConfig) -> frozenset[str]:
    """Return the names of the settings that are not what the algorithm's preset says."""
    entry = registry.algorithm(algorithm.name)
    base = _recipe(entry, algorithm.preset or None).get("algorithm", {})
    preset, settings = from_mapping(_settings_kind(entry), base, "algorithm"), algorithm.settings
    names = (f.name for f in dataclasses.fields(settings))
    return frozenset(name for name in names if getattr(settings, name) != getattr(preset, name))


def _single_steps(replay: ReplayConfig, said: Mapping[str, Any]) -> ReplayConfig:
    """Return the replay for an algorithm that learns from sequences of single steps."""
    if said.get("n_step", 1) != 1:
        raise ConfigError(
            f"replay.n_step is {replay.n_step}, but with algorithm.memory or algorithm.delay_correction "
            "batches are sequences of single steps: leave replay.n_step out"
        )
    return dataclasses.replace(replay, n_step=1)


def _check_correctable(environment: EnvironmentConfig) -> None:
    """Refuse delays that hide from a correction which command was in force at a reward."""
    delays = environment.delays
    if delays is not None and delays.hides_commands:
        raise ConfigError(
            f"algorithm.delay_correction is on with environment.delays of {delays}: an observation that is "
            "late says how old the command was then, not which one is in force at the reward. Delay either "
            "alone, or commands by a fixed number of steps"
        )


def _check_offline(experiment: Experiment) -> None:
    if not experiment.offline:
        return
    if not experiment.replay.demonstrations:
        raise ConfigError(
            "trainer.offline_updates is set, but replay.demonstrations names no file to learn from"
        )
    if experiment.replay.demonstration_share != ReplayConfig.demonstration_share:
        raise ConfigError(
            "replay.demonstration_share is set, but with trainer.offline_updates everything is drawn from "
            "demonstrations"
        )


def _chosen(values: Any) -> tuple[str, registry.AlgorithmEntry, str | None, dict[str, Any]]:
    """Return name, entry, preset and remaining settings of an ``algorithm`` section."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"algorithm is {values!r}; expected a section such as {{name: sac, preset: crossq}}"
        )
    settings = dict(values)
    name = str(settings.pop("name", "sac"))
    entry = registry.algorithm(name)
    if not entry.presets and "preset" not in settings:
        return name, entry, None, settings
    preset = settings.pop("preset", next(iter(entry.presets), None))
    if preset not in entry.presets:
        near = suggest(str(preset), entry.presets)
        if others := [other for other, its in registry.ALGORITHMS.items() if preset in its.presets]:
            near = f" It is one of {others[0]}: set algorithm.name to {others[0]} as well"
        raise ConfigError(f"algorithm.preset is {preset!r}; {name} has {list(entry.presets)}.{near}")
    return name, entry, str(preset), settings


def _recipe(entry: registry.AlgorithmEntry, preset: str | None) -> dict[str, Any]:
    """Return the sections of a preset's file."""
    if preset is None:
        return {}
    package, _, path = entry.presets[preset].partition(":")
    values = parse_yaml(
        resources.files(package).joinpath(path).read_text(encoding="utf-8"), entry.presets[preset]
    )
    if not isinstance(values, dict) or not values.keys() <= {"algorithm", "replay", "trainer"}:
        raise ConfigError(
            f"preset {entry.presets[preset]}: expected the sections algorithm, replay and trainer"
        )
    return values


def _over(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``values`` over it, key by key in sections that both have."""
    result = dict(base)
    for key, value in values.items():
        both = isinstance(result.get(key), Mapping) and isinstance(value, Mapping)
        result[key] = _over(result[key], value) if both else value
    return result


def _settings(
    name: str,
    entry: registry.AlgorithmEntry,
    base: Mapping[str, Any],
    settings: Mapping[str, Any],
    experiment: Experiment,
) -> Any:
    """Return the algorithm's settings: what ``settings`` say over ``base``, the preset's."""
    kind = _settings_kind(entry)
    before = from_mapping(kind, base, "algorithm")
    usual = {
        f.name: None if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(kind)
    }
    result = from_mapping(kind, _over(base, settings), "algorithm")
    for option, switch in entry.used_only_with.items():
        changed = option in settings and getattr(result, option) not in (
            getattr(before, option),
            usual[option],
        )
        section, _, key = switch.rpartition(".")
        if changed and not getattr(getattr(experiment, section) if section else result, key):
            raise ConfigError(
                f"algorithm.{option} is set, but {name} does not use it here: "
                f"{section or 'algorithm'}.{key} is off"
            )
    return result


def _settings_kind(entry: registry.AlgorithmEntry) -> Any:
    """Return the class of an algorithm's settings; your own is looked at before it is relied on."""
    kind = registry.resolve(entry.config)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ConfigError(f"{entry.config} is {kind!r}: an algorithm's settings are a frozen dataclass")
    if "batch_size" not in (f.name for f in dataclasses.fields(kind)):
        raise ConfigError(f"{entry.config} has no batch_size: the trainer samples that many transitions")
    return kind


def experiment_file(source: str | Path) -> Path:
    """Return the experiment file that ``source`` means: a path, or the name of a shipped one (``circuit``).

    Raises:
        ConfigError: if there is none.
    """
    path = Path(source)
    shipped = {p.stem: p for p in sorted(PRESETS.glob("*.yaml"))}
    if path.is_file():
        return path
    if str(source) in shipped:
        return shipped[str(source)]
    raise ConfigError(
        f"there is no file {str(source)!r} and no shipped experiment of that name; shipped are "
        f"{list(shipped)}.{suggest(str(source), shipped)}"
    )


def load_experiment(source: str | Path) -> Experiment:
    """Read an experiment file, or one of the shipped ones by name (``circuit``).

    Raises:
        ConfigError: if there is no such file, or anything in it is wrong.
    """
    path = experiment_file(source)
    values = read_yaml(path)  # its errors name the file
    try:
        return experiment_from_mapping(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Return dotted keys and values of ``KEY=VALUE`` texts, for `override`.

    Raises:
        ConfigError: if one has not that form.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {text!r} is not of the form KEY=VALUE, e.g. trainer.updates_per_step=2")
        changes[key] = parse_yaml(value, f"the value of --set {key}")
    return changes


def override(values: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with dotted keys set (``{"trainer.start_steps": 100}``), checked when loaded.

    Apply it to what a file says, not to a resolved experiment: there every key of the algorithm is written
    out, and another preset would change nothing.
    """
    result: dict[str, Any] = dict(values)
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
    algorithm = experiment.algorithm
    preset = {"preset": algorithm.preset} if algorithm.preset else {}
    values["algorithm"] = {"name": algorithm.name, **preset, **to_mapping(algorithm.settings)}
    return values


def dump_experiment(experiment: Experiment) -> str:
    """Return the resolved experiment as YAML text that `load_experiment` reads back to an equal one."""
    return dump_yaml(as_mapping(experiment))
