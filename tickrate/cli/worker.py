"""The role ``worker``: the control process beside the device; imports neither torch nor anything that draws."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

from tickrate.cli.role import begin, end_on_termination, role_parser
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import open_environment
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.supervision import Child, on_parent_exit
from tickrate.runtime.worker import ControlLoop

COMPANION_PATIENCE_S = 10.0
"""Seconds that the companion gets to deliver what is left."""


def main(arguments: Sequence[str]) -> int:
    """Run the control loop of one worker, with its companion beside it, until the launcher goes."""
    parser = role_parser("worker")
    parser.add_argument("--index", type=int, default=0, help="index of the worker")
    options = parser.parse_args(arguments)
    experiment, folder = begin("worker", options.run_dir)
    boot = folder.next_boot()
    stop = threading.Event()
    end_on_termination(stop)
    environment = open_environment(experiment.environment)
    contract = EnvironmentContract.of(environment)
    outlet = SharedOutlet.create(contract)

    def pass_on() -> None:
        stop.wait()
        outlet.block.set("shutdown", 1)

    on_parent_exit(stop.set)
    threading.Thread(target=pass_on, name="tickrate-stop", daemon=True).start()
    companion = Child(
        "companion",
        ["--run-dir", str(folder.path), "--hub", options.hub]
        + ["--shared", str(outlet.folder), "--index", str(options.index), "--boot", str(boot)],
        folder.log(f"companion-{options.index}"),
        threads=1,
    )
    companion.start()
    loop = ControlLoop(
        environment,
        contract.schema(),
        outlet,
        experiment.worker,
        worker=options.index,
        boot=boot,
        seed=experiment.run.seed,
    )
    gc.collect()
    gc.freeze()  # what lives now lives to the end: no collection has to look at it again
    try:
        loop.run()
    finally:
        environment.close()
        companion.close_input()
        companion.wait(COMPANION_PATIENCE_S)
        companion.end(1.0)
        outlet.close(remove=True)
    return 0
