"""The role ``worker``: the control process beside the device; it loads no torch and draws nothing."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing

from tickrate import clock
from tickrate.cli.companion import check_drainable, drain_outbox
from tickrate.cli.role import begin_log, end_on_termination, resolve, role_parser
from tickrate.config.experiment import Experiment, dump_experiment
from tickrate.data.storage import require_room
from tickrate.errors import Refused
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import EnvironmentConfig, open_environment
from tickrate.runtime.lock_file import LockFile
from tickrate.runtime.network import name_of
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.peers import check_worker_name
from tickrate.runtime.run_folder import RunFolder, WorkerFolder
from tickrate.runtime.supervision import Child, on_parent_exit
from tickrate.runtime.worker import ControlLoop

COMPANION_PATIENCE_S = 10.0
"""Seconds that the companion gets to deliver what is left."""
MAX_COMPANIONS = 4
"""How often in a row a companion is started again before the worker gives up."""
STEADY_S = 60.0
"""A companion that has lived so long begins a new row of attempts."""
LOOK_EVERY_S = 0.2
WORD_EVERY_S = 10.0
REFUSED_CODE = 2
"""Exit code of a companion that the trainer takes nothing from."""

ABOUT = """Act on a device, and send what happens to the trainer.

  tickrate worker mine.yaml                                    hub on this machine
  tickrate worker mine.yaml --name arm-1 --hub tls/hub.example.org:7447 --key arm-1.tickrate-key
  tickrate worker mine.yaml --name arm-1 --drain               deliver what is left, without acting

The device is not touched before a trainer has welcomed the worker once. After that it acts whether hub and
trainer are there or not: what it records waits in its outbox on the disk."""

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the control loop of one worker, with its companion beside it, until it is told to end."""
    parser = role_parser("worker", ABOUT)
    parser.add_argument(
        "--name", help="name of this worker in the run; by default that of its key, or worker-0"
    )
    parser.add_argument("--index", type=int, default=0, help="number of this worker, {index} in the kwargs")
    parser.add_argument("--drain", action="store_true", help="deliver what the outbox holds, and end")
    options = parser.parse_args(arguments)
    begin_log("worker")
    experiment, folder = resolve(options)
    name = name_of(experiment.network, options.name) or f"worker-{options.index}"
    check_worker_name(name)
    place = folder.worker(name)
    if options.drain:
        check_drainable(place)
    launched = options.run_dir is not None
    stop = threading.Event()
    end_on_termination(stop, launched=launched)
    if launched:
        on_parent_exit(stop.set)
    place.make()
    with LockFile(place.lock, f"the worker {name!r} of {folder.path}"):
        if options.drain:
            return drain_outbox(experiment, folder, place, name, stop)
        place.keep(place.experiment, dump_experiment(experiment).encode())
        return _act(experiment, folder, place, name, options, stop)


def _act(
    experiment: Experiment,
    folder: RunFolder,
    place: WorkerFolder,
    name: str,
    options: argparse.Namespace,
    stop: threading.Event,
) -> int:
    boot = place.next_boot()
    launched = options.run_dir is not None
    config = numbered(experiment.environment, options.index)
    # At the end the environment is closed first, then the companion delivers what is left.
    with ExitStack() as afterwards, closing(open_environment(config)) as environment:
        contract = EnvironmentContract.of(environment, checksum=experiment.worker.checksum)
        if launched:  # the trainer is on this machine and not ready yet; the device would move for nothing
            require_room(
                folder.journal if experiment.journal else None,
                contract.schema(),
                experiment.replay.capacity,
                prioritised=experiment.replay.sampling == "prioritised",
            )
        place.keep(place.contract, json.dumps(contract.to_dict()).encode())
        left = place.left_memory()
        outlet = SharedOutlet.create(contract)
        place.keep(place.memory, str(outlet.folder).encode())
        # Rows that the companion could not commit stay there for the next start.
        afterwards.callback(lambda: outlet.close(remove=outlet.rows.pending() == 0))
        loop = ControlLoop(
            environment,
            contract.schema(),
            outlet,
            experiment.worker,
            worker=options.index,
            boot=boot,
            seed=experiment.run.seed,
            start_steps=experiment.trainer.start_steps,
            link=outlet,
        )
        companion = Child(
            "companion",
            [
                *("--worker-dir", str(place.path), "--run", folder.wire_name, "--name", name),
                *("--shared", str(outlet.folder)),
                *(("--left", str(left)) if left is not None else ()),
            ],
            folder.log(f"companion-{name}"),
            threads=1,
        )
        guard = _Guard(companion, outlet, stop)
        guard.start()
        afterwards.callback(guard.finish)
        gc.collect()
        gc.freeze()  # what lives now lives to the end: no collection has to look at it again
        if launched:
            loop.run()
        elif _welcomed(outlet, name, stop):
            _log.info("%s acts now; Ctrl-C ends it with the device safe", name)
            loop.run()
    if guard.refusal:
        raise Refused(guard.refusal)
    if guard.gave_up:
        _log.error("the companion ended %d times; see %s", companion.starts, companion.log)
    return 1 if guard.gave_up else 0


def numbered(config: EnvironmentConfig, index: int) -> EnvironmentConfig:
    """Return the environment with ``{index}`` in the texts of its kwargs replaced by the worker's number."""

    def fill(value: object) -> object:
        if isinstance(value, str):
            return value.replace("{index}", str(index))
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return dataclasses.replace(config, kwargs={key: fill(value) for key, value in config.kwargs.items()})


def _welcomed(outlet: SharedOutlet, name: str, stop: threading.Event) -> bool:
    """Wait until a trainer has welcomed this worker, or has done so at an earlier start; say what for."""
    next_word = 0.0
    while not stop.is_set() and not outlet.block.get("shutdown"):
        if outlet.block.get("welcomed"):
            return True
        if clock.now() >= next_word:
            next_word = clock.now() + WORD_EVERY_S
            _log.info("%s has not touched the device; waiting: %s", name, outlet.link_text())
        clock.sleep(LOOK_EVERY_S / 4)
    return False


class _Guard:
    """Keeps the companion alive beside the control loop, and passes the wish to stop on to it.

    Orders reach the control loop through the companion, so without one there would be no pause: a companion
    that cannot be kept alive ends the worker.
    """

    def __init__(self, companion: Child, outlet: SharedOutlet, stop: threading.Event) -> None:
        self._companion, self._outlet, self._stop = companion, outlet, stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tickrate-guard", daemon=True)
        self._attempts, self._started_at = 1, clock.now()
        self.gave_up = False
        self.refusal = ""

    def start(self) -> None:
        """Start the companion and the watch over it."""
        self._companion.start()
        self._thread.start()

    def finish(self) -> None:
        """Let the companion deliver what is left, and end it."""
        self._done.set()
        self._stop.set()
        self._thread.join()
        self._outlet.block.set("shutdown", 1)  # an end in order: the companion takes its time to deliver
        if not self._companion.running and self._companion.exit_code not in (0, REFUSED_CODE):
            self._companion.start()  # it was killed: what is in the shared memory belongs into the outbox
        self._companion.close_input()
        self._companion.wait(COMPANION_PATIENCE_S)
        self._companion.end(1.0)
        if self._companion.exit_code == REFUSED_CODE:
            self.refusal = self._companion.last_words(1)

    def _watch(self) -> None:
        next_word = clock.now() + WORD_EVERY_S
        while not self._stop.wait(LOOK_EVERY_S):
            if self._outlet.block.get("welcomed") and clock.now() >= next_word:
                next_word = clock.now() + WORD_EVERY_S
                _log.info("%s; the way out: %s", self._outlet.state_text(), self._outlet.link_text())
            if self._companion.running:
                continue
            if self._companion.exit_code == REFUSED_CODE:
                break
            if clock.now() - self._started_at > STEADY_S:
                self._attempts = 0
            if self._attempts >= MAX_COMPANIONS:
                self.gave_up = True
                break
            _log.warning("the companion ended with code %s; started again", self._companion.exit_code)
            self._attempts, self._started_at = self._attempts + 1, clock.now()
            self._companion.start()
        if not self._done.is_set():
            self._outlet.block.set("shutdown", 1)
