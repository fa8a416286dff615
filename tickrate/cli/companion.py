"""The role ``companion``: owns a worker's disk and network; and draining an outbox without acting."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tickrate.cli.role import begin_log
from tickrate.config.experiment import Experiment, load_experiment
from tickrate.errors import RunFolderError, WireError
from tickrate.runtime.companion import POLL_S, Companion, drain
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.courier import Courier, Purpose
from tickrate.runtime.network import HubWatch, compression_for, open_carrier
from tickrate.runtime.outbox import Outbox
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.run_folder import RunFolder, WorkerFolder
from tickrate.runtime.supervision import keep_memory, on_parent_exit
from tickrate.runtime.weights_file import WeightsFile
from tickrate.runtime.worker_config import WorkerConfig
from tickrate.wire.carrier import Carrier

_log = logging.getLogger(__name__)

INFERENCE_POLL_S = 0.0005
"""A worker waits for each answer of remote inference: its companion looks twice a millisecond."""
HANDOVER_PATIENCE_S = 15.0
"""Seconds that the companion before this one gets to let go of the outbox."""


def main(arguments: Sequence[str]) -> int:
    """Run the companion of a worker until the control process has ended and all is delivered."""
    parser = argparse.ArgumentParser(prog="tickrate companion", description="The companion of a worker.")
    parser.add_argument("--worker-dir", type=Path, required=True, help="the worker's folder")
    parser.add_argument("--run", required=True, help="name of the run on the wire")
    parser.add_argument("--name", required=True, help="name of the worker")
    parser.add_argument("--shared", type=Path, required=True, help="folder of the worker's shared memory")
    parser.add_argument("--left", type=Path, help="memory that a killed worker and companion may have left")
    options = parser.parse_args(arguments)
    begin_log("companion")
    keep_memory()
    place = WorkerFolder(options.worker_dir)
    experiment = load_experiment(place.experiment)
    control_ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when its worker does, after the last rows are out
    on_parent_exit(control_ended.set)
    outlet = SharedOutlet.attach(options.shared)
    with ExitStack() as cleanup:
        # Of a killed worker nobody else would remove the memory. Rows that could not be committed keep it,
        # for the next start.
        cleanup.callback(lambda: outlet.close(remove=control_ended.is_set() and outlet.rows.pending() == 0))
        outbox = Outbox(place.path, outlet.schema, experiment.worker.outbox, patience_s=HANDOVER_PATIENCE_S)
        cleanup.callback(outbox.close)
        # Without files there is no lock either: the companion before this one may still use that memory.
        if options.left is not None and experiment.worker.outbox.storage == "disk":
            take_over(options.left, outbox)
        carrier = cleanup.enter_context(open_carrier(experiment.network))
        courier = _courier(
            experiment, outbox, outlet.contract, options.run, options.name, experiment.worker.purpose, carrier
        )
        weights = WeightsFile(place.policy, outbox.life)
        if (kept := weights.read()) is not None and kept[0] > outlet.weights.version():
            outlet.weights.write(*kept)
        try:
            poll_s = INFERENCE_POLL_S if experiment.worker.remote.enabled else POLL_S
            watch = cleanup.enter_context(HubWatch(experiment.network, carrier))
            companion = Companion(
                outlet, outbox, courier, options.run, weights.keep, watch.reason, poll_s=poll_s
            )
            companion.takes_weights = takes_weights(experiment.worker)
            companion.run(control_ended)
        except WireError as error:
            print(error, flush=True)
            return 2
    return 0


def take_over(left: Path, outbox: Outbox) -> None:
    """Commit the rows that a worker left in memory when it was killed together with its companion."""
    try:
        outlet = SharedOutlet.attach(left)
    except WireError:
        shutil.rmtree(left, ignore_errors=True)  # half made, or already half removed
        return
    if outlet.schema.digest() == outbox.schema.digest():
        rows = outlet.rows.pop(outlet.rows.capacity)
        outbox.append(rows)
        if len(rows):
            _log.warning("%d rows were left in memory by a killed worker: they are committed now", len(rows))
    outlet.close(remove=True)


def takes_weights(config: WorkerConfig) -> bool:
    """Tell whether the worker acts with the trainer's weights, and does so itself."""
    return config.purpose != "expert" and not config.remote.enabled


def check_drainable(place: WorkerFolder) -> None:
    """Check that a worker's folder has something that could be delivered.

    Raises:
        RunFolderError: if not.
    """
    if not place.contract.exists():
        raise RunFolderError(
            f"{place.path} holds no outbox: start --drain in the folder, and with the --name, of the worker"
        )


def drain_outbox(
    experiment: Experiment, folder: RunFolder, place: WorkerFolder, name: str, stop: threading.Event
) -> int:
    """Deliver what a worker's outbox holds, without touching the device; return the exit code.

    Raises:
        Refused: if the trainer takes nothing from this worker.
    """
    contract = EnvironmentContract.from_dict(json.loads(place.contract.read_text(encoding="utf-8")))
    with ExitStack() as cleanup:
        config = experiment.worker.outbox
        outbox = Outbox(place.path, contract.schema(), config, patience_s=HANDOVER_PATIENCE_S)
        cleanup.callback(outbox.close)
        if outbox.pending == 0:
            _log.info("nothing to deliver: all rows of %s are acknowledged", name)
            return 0
        carrier = cleanup.enter_context(open_carrier(experiment.network))
        courier = _courier(experiment, outbox, contract, folder.wire_name, name, "drain", carrier)
        watch = cleanup.enter_context(HubWatch(experiment.network, carrier))
        done = drain(outbox, courier, stop, lambda text: _log.info("%s %s", text, watch.reason()))
        _log.info("all delivered" if done else f"{outbox.pending} rows are still undelivered")
        return 0 if done else 1


def _courier(
    experiment: Experiment,
    outbox: Outbox,
    contract: EnvironmentContract,
    run: str,
    name: str,
    purpose: Purpose,
    carrier: Carrier,
) -> Courier:
    compression = compression_for(experiment.network, experiment.worker.compression)
    return Courier(carrier, outbox, contract, run, name, purpose=purpose, compression=compression)
