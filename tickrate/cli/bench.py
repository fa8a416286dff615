"""``tickrate bench``: measures how well your live environment keeps its clock on this machine."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from tickrate import clock
from tickrate.cli.check import environment_of
from tickrate.cli.live import sparkline
from tickrate.errors import ConfigError
from tickrate.tools.examine import time_environment


@dataclass(frozen=True)
class BenchOptions:
    """Measure the timing of your live environment. Its default action is sent all the time.

    Examples:
      tickrate bench circuit
      tickrate bench my_game:MyInterface --hz 100 --clock precise
    """

    target: Annotated[str, tyro.conf.Positional]
    """'module:Class' of an interface, a shipped live environment (circuit, drone), or an experiment file."""
    seconds: float = 10.0
    """How long to measure."""
    hz: float | None = None
    """Rate to try instead of the environment's own."""
    clock: Literal["cheap", "precise"] | None = None
    """Way of waiting to try instead of the environment's own."""
    seed: int = 0
    """Seed of the first reset."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate bench``; return the exit code."""
    about = inspect.getdoc(BenchOptions)
    options = tyro.cli(BenchOptions, args=list(arguments), prog="tickrate bench", description=about)
    overrides: dict[str, Any] = {}
    if options.hz is not None:
        if not 0.0 < options.hz < math.inf:
            raise ConfigError(f"--hz is {options.hz}; give a positive rate")
        overrides |= {"time_step_duration": 1 / options.hz, "start_obs_capture": 1 / options.hz}
    if options.clock is not None:
        overrides["clock_mode"] = options.clock
    before = clock.cpu_time()
    summary, parts, lateness = time_environment(
        environment_of(options.target), seconds=options.seconds, seed=options.seed, overrides=overrides
    )
    print(summary)
    cpu_us = 1e6 * (clock.cpu_time() - before) / len(lateness)
    print(f"CPU {cpu_us:.0f} us a step in this process, start and reset included")
    for name, (mean, deviation) in parts.items():
        if mean is not None:
            print(f"{name:<22} {1e3 * mean:8.3f} ms, mean deviation {1e3 * deviation:.3f} ms")
    counts, edges = np.histogram(1e6 * lateness, bins=40)
    print(f"lateness {edges[0]:.0f} us {sparkline(counts.tolist(), 40)} {edges[-1]:.0f} us")
    return 0
