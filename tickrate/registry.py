"""Names to ``module:attribute`` strings for environments and algorithms; imports nothing until asked to."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tickrate.errors import ConfigError, suggest

ActionKind = Literal["box", "choices"]


@dataclass(frozen=True)
class EnvironmentEntry:
    """A live environment that the package ships.

    Attributes:
        config: ``module:function`` that takes the environment's keyword arguments and returns the
            configuration of a `RealTimeEnv`.
        summary: one line for lists.
        policy: a trained policy that ships with it, as ``package:path``; empty: none.
    """

    config: str
    summary: str
    policy: str = ""


@dataclass(frozen=True)
class AlgorithmEntry:
    """A learning algorithm: one of the package, or your own, named ``module:ENTRY`` in the experiment file.

    Attributes:
        config: ``module:Class`` of its frozen configuration dataclass, which has at least a ``batch_size``. A
            command that only reads the experiment imports that module: keep the framework out of it.
        build: ``module:Class`` of the algorithm (`tickrate.algorithms.protocol.Algorithm`), made as
            ``Class(config, leaf_spaces, action_space, seed=, period_s=, action_buffer_length=)``.
        limit_threads: ``module:function`` that takes the number of threads its framework may use; empty where
            there is nothing to limit.
        presets: named recipes, each a YAML file of an experiment's sections ``algorithm``, ``replay`` and
            ``trainer``, given as ``package:path``; the first is the default. None: the configuration's own
            defaults.
        summary: one line for lists.
        used_only_with: options that do something only while another one, a switch, is on: option -> switch,
            another option of the algorithm, or one of another section (``replay.demonstrations``).
        used_only_for: options that do something only with one kind of action space: option -> ``box`` or
            ``choices`` (Discrete and MultiDiscrete).
    """

    config: str
    build: str
    limit_threads: str = ""
    presets: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    used_only_with: Mapping[str, str] = field(default_factory=dict)
    used_only_for: Mapping[str, ActionKind] = field(default_factory=dict)


ENVIRONMENTS: dict[str, EnvironmentEntry] = {
    "circuit": EnvironmentEntry(
        "tickrate.games.circuit.interface:circuit_config",
        "2D racing game in its own process, never paused: 19 LIDAR beams, speed, steering and pedal",
        "tickrate.games.circuit:circuit.policy",
    ),
    "drone": EnvironmentEntry(
        "tickrate.games.drone:drone_config",
        "remote-controlled drone behind a slow, jittery radio link",
    ),
}

ALGORITHMS: dict[str, AlgorithmEntry] = {
    "sac": AlgorithmEntry(
        "tickrate.algorithms.sac_config:SACConfig",
        "tickrate.algorithms.sac:SAC",
        "torch:set_num_threads",
        {
            name: f"tickrate.config:presets/algorithms/{name}.yaml"
            for name in ("live", "sac", "crossq", "redq", "droq", "flashsac")
        },
        "soft actor-critic, and what grew out of it: REDQ, DroQ, CrossQ, FlashSAC",
        {
            "target_rate": "target_network",
            "target_entropy_per_dim": "learn_temperature",
            "target_entropy_share": "learn_temperature",
            "temperature_optimiser": "learn_temperature",
            "value_limit": "value_bins",
            "cloning_updates": "replay.demonstrations",
            "cloning_fade": "replay.demonstrations",
        },
        {
            "target_entropy_per_dim": "box",
            "final_target_entropy_per_dim": "box",
            "target_entropy_share": "choices",
            "log_std_offset": "box",
            "log_std_min": "box",
            "log_std_max": "box",
            "noise_correlation": "box",
            "noise_hold": "box",
        },
    ),
    "dqn": AlgorithmEntry(
        "tickrate.algorithms.dqn_config:DQNConfig",
        "tickrate.algorithms.dqn:DQN",
        "torch:set_num_threads",
        {name: f"tickrate.config:presets/algorithms/{name}.yaml" for name in ("dqn", "rainbow")},
        "deep Q-learning for choices, and what grew out of it, up to Rainbow",
        {
            "value_low": "value_bins",
            "value_high": "value_bins",
            "noise_scale": "noisy",
            "noisy_policies": "noisy",
        },
    ),
}


def resolve(target: str) -> Any:
    """Import and return what ``module:attribute`` names.

    Raises:
        ConfigError: if the text has no such form, or the module or the attribute does not exist.
    """
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute or module_name.startswith("."):
        raise ConfigError(f"{target!r} is not of the form 'module:attribute', e.g. 'my_game:MyInterface'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        hint = "Run from the folder that holds it, or install it"
        if module_name.endswith(".py"):
            hint = f"Leave the ending out: {module_name.removesuffix('.py')}:{attribute}"
        raise ConfigError(f"cannot import {module_name!r} (for {target!r}): {error}. {hint}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = suggest(attribute, vars(module))
        raise ConfigError(f"module {module_name!r} has no {attribute!r}.{near}") from None


def algorithm(name: str) -> AlgorithmEntry:
    """Return the entry of an algorithm, given by its name or, of your own, as ``module:ENTRY``.

    Raises:
        ConfigError: if there is none of that name (names the nearest), or what stands there is no entry.
    """
    if ":" in name:
        entry = resolve(name)
        if not isinstance(entry, AlgorithmEntry):
            raise ConfigError(
                f"the algorithm {name!r} is {entry!r}, not an AlgorithmEntry. Write in its module ENTRY = "
                "tickrate.registry.AlgorithmEntry(config='my_module:MyConfig', build='my_module:Mine') "
                "and give 'my_module:ENTRY'"
            )
        return entry
    if name not in ALGORITHMS:
        near = suggest(name, ALGORITHMS)
        raise ConfigError(
            f"unknown algorithm {name!r}; there are {sorted(ALGORITHMS)}.{near} "
            "Your own is given as 'module:ENTRY'"
        )
    return ALGORITHMS[name]
