"""The role ``worker``: the control process beside the device; it loads no torch and draws nothing."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing

from tickrate import clock
from tickrate.cli.role import begin, end_on_termination, role_parser
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import open_environment
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.supervision import Child, on_parent_exit
from tickrate.runtime.worker import ControlLoop

COMPANION_PATIENCE_S = 10.0
"""Seconds that the companion gets to deliver what is left."""
MAX_COMPANIONS = 4
"""How often a companion is started before the worker gives up."""
LOOK_EVERY_S = 0.2

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the control loop of one worker, with its companion beside it, until the launcher goes."""
    parser = role_parser("worker")
    parser.add_argument("--index", type=int, default=0, help="index of the worker")
    options = parser.parse_args(arguments)
    experiment, folder = begin("worker", options.run_dir)
    boot = folder.next_boot()
    stop = threading.Event()
    end_on_termination(stop)
    on_parent_exit(stop.set)
    # At the end the environment is closed first, then the companion delivers what is left.
    with ExitStack() as afterwards, closing(open_environment(experiment.environment)) as environment:
        contract = EnvironmentContract.of(environment)
        outlet = SharedOutlet.create(contract)
        afterwards.callback(outlet.close, remove=True)
        loop = ControlLoop(
            environment,
            contract.schema(),
            outlet,
            experiment.worker,
            worker=options.index,
            boot=boot,
            seed=experiment.run.seed,
        )
        companion = Child(
            "companion",
            [
                *("--run-dir", str(folder.path), "--hub", options.hub),
                *("--shared", str(outlet.folder), "--index", str(options.index)),
            ],
            folder.log(f"companion-{options.index}"),
            threads=1,
        )
        guard = _Guard(companion, outlet, stop)
        guard.start()
        afterwards.callback(guard.finish)
        gc.collect()
        gc.freeze()  # what lives now lives to the end: no collection has to look at it again
        loop.run()
    if guard.gave_up:
        _log.error("the companion ended %d times; see %s", companion.starts, companion.log)
    return 1 if guard.gave_up else 0


class _Guard:
    """Keeps the companion alive beside the control loop, and passes the wish to stop on to it.

    Orders reach the control loop through the companion, so without one there would be no pause: a companion
    that cannot be kept alive ends the worker.
    """

    def __init__(self, companion: Child, outlet: SharedOutlet, stop: threading.Event) -> None:
        self._companion, self._outlet, self._stop = companion, outlet, stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tickrate-guard", daemon=True)
        self.gave_up = False

    def start(self) -> None:
        """Start the companion and the watch over it."""
        self._companion.start()
        self._thread.start()

    def finish(self) -> None:
        """Let the companion deliver what is left, and end it."""
        self._done.set()
        self._stop.set()
        self._thread.join()
        self._companion.close_input()
        self._companion.wait(COMPANION_PATIENCE_S)
        self._companion.end(1.0)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            if self._companion.running:
                continue
            if self._companion.starts >= MAX_COMPANIONS:
                self.gave_up = True
                break
            _log.warning("the companion ended with code %s; started again", self._companion.exit_code)
            clock.sleep(LOOK_EVERY_S)
            self._companion.start()
        if not self._done.is_set():
            self._outlet.block.set("shutdown", 1)
