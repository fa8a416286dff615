"""``tickrate export``: writes a saved policy as an ONNX file."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tickrate import registry
from tickrate.errors import ConfigError
from tickrate.policy import Policy
from tickrate.tools.drive import find_policy


@dataclass(frozen=True)
class ExportOptions:
    """Write a saved policy as an ONNX file, after a check that it acts as the policy does.

    Examples:
      tickrate export runs/demo-1                     best.onnx beside the best policy of a run
      tickrate export my.policy --out robot.onnx
    """

    path: Annotated[Path, tyro.conf.Positional]
    """Run folder (its best policy is taken, else the latest) or policy file."""
    out: Path | None = None
    """File to write; beside the policy, with the ending .onnx, when omitted."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate export``; return the exit code."""
    about = inspect.getdoc(ExportOptions)
    options = tyro.cli(ExportOptions, args=list(arguments), prog="tickrate export", description=about)
    file = find_policy(options.path)
    if file.suffix == ".onnx":
        raise ConfigError(f"{file} is an ONNX file already: give the policy that it was made from")
    policy = Policy.load_file(file)
    target = options.out or file.with_suffix(".onnx")
    export_onnx = registry.resolve("tickrate.tools.export:export_onnx")  # needs an extra; --help does not
    difference = export_onnx(policy, target)
    contract = policy.contract
    print(f"policy {file}: version {contract.policy_version}, trained by {contract.algorithm}")
    print(f"wrote {target}: {target.stat().st_size} bytes; largest relative difference {difference:.1e}")
    return 0
