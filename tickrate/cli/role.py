"""What the role commands share: their options, their log, and how they are told to end."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import sys
import threading
from pathlib import Path

from tickrate.config.experiment import (
    Experiment,
    experiment_file,
    experiment_from_mapping,
    load_experiment,
    override,
    parse_assignments,
)
from tickrate.config.loading import read_yaml
from tickrate.errors import ConfigError
from tickrate.runtime.network import DEFAULT_HUB, NetworkConfig, credentials_of
from tickrate.runtime.run_folder import RunFolder


def role_parser(role: str, about: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every role has; the hidden ones are the launcher's."""
    parser = argparse.ArgumentParser(
        prog=f"tickrate {role}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", nargs="?", help="experiment file (YAML), or the name of a shipped one")
    parser.add_argument("--hub", help="address of the hub, tcp/127.0.0.1:PORT or tls/HOST:PORT")
    parser.add_argument("--key", help="credentials file from `tickrate keys add`, for a tls/ address")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any key of the experiment file"
    )
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    return parser


def resolve(options: argparse.Namespace) -> tuple[Experiment, RunFolder]:
    """Return the experiment that the options describe, and its run folder.

    Raises:
        ConfigError: if there is none, or something in it cannot be.
    """
    if options.run_dir is not None:
        folder = RunFolder(options.run_dir)
        experiment = load_experiment(folder.experiment)
    elif options.experiment is not None:
        load_experiment(options.experiment)  # a mistake in the file is reported as one
        values = read_yaml(experiment_file(options.experiment))
        experiment = experiment_from_mapping(override(values, parse_assignments(options.set)))
        folder = RunFolder(experiment.folder)
    else:
        raise ConfigError("name the experiment file; every role of a run is started with the same one")
    if options.run_dir is not None:
        network = NetworkConfig(options.hub or DEFAULT_HUB)  # the launcher's own hub, whatever the file says
    else:
        said = experiment.network
        network = network_of(options, said.hub if said.hub != DEFAULT_HUB else "", said.key)
    return dataclasses.replace(experiment, network=network), folder


def network_of(options: argparse.Namespace, hub: str = "", key: str = "") -> NetworkConfig:
    """Return where the hub is: by ``--hub``, else ``hub``, else what the key file says.

    Raises:
        CredentialsError: if the key file cannot be used.
    """
    network = NetworkConfig(options.hub or hub, options.key or key)
    if not network.hub:
        credentials = credentials_of(network)
        said = "" if credentials is None else credentials.hub
        network = dataclasses.replace(network, hub=said or DEFAULT_HUB)
    return network


def begin_log(role: str) -> None:
    """Log on standard output."""
    line = f"%(asctime)s {role} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format=line)


def end_on_termination(stop: threading.Event, *, launched: bool) -> None:
    """End cleanly on SIGTERM, and on Ctrl-C unless another process started us and will tell us to end."""
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN if launched else lambda number, frame: stop.set())
