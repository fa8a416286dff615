"""``tickrate data``: takes recorded steps out of runs, and brings others' in."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from tickrate.data.schema import Flag, Rows
from tickrate.errors import ConfigError
from tickrate.tools.exchange import Which, choose, read_rows, write_rows


@dataclass(frozen=True)
class Export:
    """Write the steps of a run, or of a recording, into a file of their own.

    Examples:
      tickrate data export runs/demo-1 --out demos.seg --only takeover
      tickrate data export demos.seg --out demos.npz
      tickrate data export demos.seg --out my-demos-v0        a Minari dataset
    """

    source: tyro.conf.Positional[Path]
    """Run folder, or a segment file; it is only read. The last rows of a run that goes on may be missing."""
    out: Path
    """What to make: .seg (segment file), .npz (plain arrays), or NAME-vN, the folder of a Minari dataset."""
    only: Which = "all"
    """``expert`` or ``takeover``: only episodes in which an expert worker or an operator drove."""


@dataclass(frozen=True)
class Import:
    """Turn plain arrays or a Minari dataset that is on this disk into a segment file to learn from.

    Examples:
      tickrate data import demos.npz --out demos.seg
      tickrate data import ~/.minari/datasets/D4RL/door/human-v2 --out door.seg
    """

    source: tyro.conf.Positional[Path]
    """The .npz file, or the folder of a Minari dataset; nothing is ever downloaded."""
    out: Path
    """The segment file to make, .seg."""


_DESCRIPTION = """Exchange recorded steps with other programs; docs/data.md describes the formats.

Examples:
  tickrate data export runs/demo-1 --out demos.npz
  tickrate data import demos.npz --out demos.seg
"""

_Command = (
    Annotated[Export, tyro.conf.subcommand("export", description=inspect.getdoc(Export))]
    | Annotated[Import, tyro.conf.subcommand("import", description=inspect.getdoc(Import))]
)


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate data``; return the exit code."""
    command: Export | Import = tyro.cli(
        _Command, args=list(arguments), prog="tickrate data", description=_DESCRIPTION
    )
    if isinstance(command, Import) and command.out.suffix != ".seg":
        raise ConfigError(f"{command.out}: an import makes a segment file; call it .seg")
    schema, rows = read_rows(command.source)
    rows = choose(rows, command.only if isinstance(command, Export) else "all")
    left_out = write_rows(command.out, schema, rows)
    print(f"{command.out}: {described(rows)}")
    if left_out:
        print(f"{left_out} episodes were left out: their beginning or end is not there")
    return 0


def described(rows: Rows) -> str:
    """Return how much there is, in a few words."""
    steps = int(np.count_nonzero((rows["flags"] & Flag.FINAL) == 0))
    episodes = len(np.unique(rows[["stream", "episode"]]))
    return f"{steps:,} steps of {episodes:,} episodes"
