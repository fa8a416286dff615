"""The role ``companion``: owns a worker's network."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tickrate.cli.role import HUB_PATIENCE_S, begin, role_parser
from tickrate.runtime.companion import Companion
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.supervision import on_parent_exit
from tickrate.wire.zenoh_carrier import ZenohCarrier


def main(arguments: Sequence[str]) -> int:
    """Run the companion of a worker until the control process has ended and all is delivered."""
    parser = role_parser("companion")
    parser.add_argument("--shared", type=Path, required=True, help="folder of the worker's shared memory")
    parser.add_argument("--index", type=int, default=0, help="index of the worker")
    options = parser.parse_args(arguments)
    _, folder = begin("companion", options.run_dir)
    control_ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when its worker does, after the last rows are out
    on_parent_exit(control_ended.set)
    outlet = SharedOutlet.attach(options.shared)
    try:
        carrier = ZenohCarrier(options.hub, timeout_s=HUB_PATIENCE_S)
        try:
            Companion(outlet, carrier, folder.wire_name, options.index).run(control_ended)
        finally:
            carrier.close()
    finally:
        outlet.close(remove=control_ended.is_set())  # of a killed worker nobody else would remove it
    return 0
