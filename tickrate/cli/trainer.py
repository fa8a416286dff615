"""The role ``trainer``: learns from what the workers send."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from tickrate.cli import assembling
from tickrate.cli.role import begin_log, end_on_termination, resolve, role_parser
from tickrate.config.experiment import Experiment
from tickrate.errors import ConfigError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner import Learner
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.lock_file import LockFile
from tickrate.runtime.network import HubWatch, open_carrier
from tickrate.runtime.run_folder import OnExisting, RunFolder, write_atomically
from tickrate.runtime.supervision import keep_memory, lower_priority, on_parent_exit, yield_session
from tickrate.runtime.trainer import Trainer

ABOUT = """Learn from what workers send, wherever they are.

  tickrate trainer mine.yaml                                   hub on this machine
  tickrate trainer mine.yaml --hub tls/hub.example.org:7447 --key trainer.tickrate-key
  tickrate trainer mine.yaml --resume                          go on with the run, or begin it

It waits for a hub and for workers as long as it takes, and says what it waits for. Ctrl-C saves and ends."""

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the trainer until it is told to end or the run has reached its limit."""
    parser = role_parser("trainer", ABOUT)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--resume", action="store_true", help="go on with the run; begin it if there is none")
    choice.add_argument("--replace", action="store_true", help="delete the run that the folder holds first")
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    begin_log("trainer")
    experiment, folder = resolve(options)
    if experiment.offline:
        raise ConfigError(
            "trainer.offline_updates is set: an offline run has no roles, start it with `tickrate train`"
        )
    launched = options.run_dir is not None
    stop = threading.Event()
    end_on_termination(stop, launched=launched)
    if launched:
        on_parent_exit(stop.set)
        resume = bool(options.resume)
    else:
        resume = _prepare(options, experiment, folder)
    keep_memory()
    lower_priority(experiment.trainer.priority)
    if not launched and experiment.trainer.priority == "idle":
        yield_session()
    parts = assembling.learner_parts(experiment)
    with ExitStack() as cleanup:
        cleanup.enter_context(LockFile(folder.lock, f"the run folder {folder.path}"))
        ledger = cleanup.enter_context(Ledger(folder.ledger, 1 + secrets.randbits(52)))
        tracker = assembling.file_trackers(folder)
        cleanup.callback(tracker.close)
        carrier = cleanup.enter_context(open_carrier(experiment.network))
        watch = cleanup.enter_context(HubWatch(experiment.network, carrier))

        def build(contract: EnvironmentContract) -> Learner:
            learner = parts.build(contract, folder, tracker, resume=resume, started=options.started)
            write_atomically(folder.contract, json.dumps(contract.to_dict()).encode())
            return learner

        assembling.load_algorithm(experiment)  # imports its framework while the worker connects and warms up
        trainer = Trainer(
            carrier,
            folder.wire_name,
            ledger,
            build,
            assembling.draw_pictures,
            diagnose=watch.reason,
            lag_alarm_s=experiment.trainer.policy_lag_alarm_s,
            contract=EnvironmentContract.load(folder.contract) if resume else None,
        )
        trainer.run(stop, end_when_finished=not launched)
    return 0


def _prepare(options: argparse.Namespace, experiment: Experiment, folder: RunFolder) -> bool:
    """Make the run folder as the person chose; return whether there is a run to resume."""
    resume = bool(options.resume) and folder.experiment.exists() and folder.resumable
    on_existing: OnExisting = (
        "resume" if resume else "replace" if options.replace and folder.path.exists() else "refuse"
    )
    folder = assembling.prepare_folder(experiment, on_existing, device=False)
    _log.info("run folder: %s; %s", folder.path, "going on" if resume else "a new run")
    _log.info("hub: %s", experiment.network.hub)
    write_atomically(folder.hub, experiment.network.hub.encode())  # so that `tickrate status RUN` finds it
    return resume
