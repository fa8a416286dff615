"""The role ``trainer``: learns from what the workers send."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tickrate.cli import assembling
from tickrate.cli.role import HUB_PATIENCE_S, begin, end_on_termination, role_parser
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner import Learner
from tickrate.runtime.supervision import lower_priority, on_parent_exit
from tickrate.runtime.trainer import Trainer
from tickrate.wire.zenoh_carrier import ZenohCarrier


def main(arguments: Sequence[str]) -> int:
    """Run the trainer until its input closes (the run was stopped) or it is terminated."""
    parser = role_parser("trainer")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument("--started", type=float, help="monotonic time at which the command was given")
    options = parser.parse_args(arguments)
    experiment, folder = begin("trainer", options.run_dir)
    stop = threading.Event()
    end_on_termination(stop)
    on_parent_exit(stop.set)
    lower_priority(experiment.trainer.priority)
    parts = assembling.learner_parts(experiment)
    tracker = assembling.file_trackers(folder)
    carrier = ZenohCarrier(options.hub, timeout_s=HUB_PATIENCE_S)

    def build(contract: EnvironmentContract) -> Learner:
        return parts.build(contract, folder, tracker, resume=options.resume, started=options.started)

    try:
        assembling.load_algorithm(experiment)  # imports its framework while the worker connects and warms up
        Trainer(carrier, folder.wire_name, build, assembling.draw_pictures).run(stop)
    finally:
        tracker.close()
        carrier.close()
    return 0
