"""The role ``infer``: acts for workers whose policy is too large for the device's machine."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tickrate.cli.role import begin_log, end_on_termination, resolve, role_parser
from tickrate.runtime.actors import make_actor
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.inference import InferenceServer
from tickrate.runtime.inference_role import InferenceRole
from tickrate.runtime.network import open_carrier
from tickrate.runtime.supervision import on_parent_exit

ABOUT = """Answer the observations of workers with actions, for policies too large for the device's machine.

  tickrate infer mine.yaml --hub tls/hub.example.org:7447 --key trainer.tickrate-key

In the experiment file: worker.remote.enabled: true, with a deadline and a fallback action. The actor is the
one that worker.actor names, or the trainer's own policy."""


def main(arguments: Sequence[str]) -> int:
    """Answer requests until told to end."""
    parser = role_parser("infer", ABOUT)
    options = parser.parse_args(arguments)
    begin_log("infer")
    experiment, folder = resolve(options)
    stop = threading.Event()
    launched = options.run_dir is not None
    end_on_termination(stop, launched=launched)
    if launched:
        on_parent_exit(stop.set)
    target, seed = experiment.worker.actor, experiment.run.seed

    def make_server(contract: EnvironmentContract) -> InferenceServer:
        return InferenceServer(lambda weights: make_actor(target, contract, weights, seed), contract)

    with open_carrier(experiment.network) as carrier:
        InferenceRole(carrier, folder.wire_name, make_server).run(stop)
    return 0
