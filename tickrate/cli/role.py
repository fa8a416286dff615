"""What the role commands share: their options, their log, and how they are told to end."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from tickrate.config.experiment import Experiment, load_experiment
from tickrate.runtime.run_folder import RunFolder

HUB_PATIENCE_S = 20.0
"""Seconds that a role tries to reach the hub."""


def role_parser(role: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every role has."""
    description = f"The {role} of a run; `train` starts it."
    parser = argparse.ArgumentParser(prog=f"tickrate {role}", description=description)
    parser.add_argument("--run-dir", type=Path, required=True, help="run folder with the resolved experiment")
    parser.add_argument("--hub", required=True, help="address of the hub, tcp/HOST:PORT")
    return parser


def begin(role: str, run_dir: Path) -> tuple[Experiment, RunFolder]:
    """Set up the log on standard output; return the experiment and its folder."""
    line = f"%(asctime)s {role} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format=line)
    folder = RunFolder(run_dir)
    return load_experiment(folder.experiment), folder


def end_on_termination(stop: threading.Event) -> None:
    """End cleanly on SIGTERM; leave Ctrl-C to the process that started us."""
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
