"""``tickrate hub``: the place where the roles of a run on several machines meet."""

from __future__ import annotations

import inspect
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from tickrate import clock
from tickrate.errors import CredentialsError
from tickrate.runtime.supervision import keep_memory
from tickrate.wire import certificates
from tickrate.wire.keys_folder import DEFAULT_FOLDER, KeysFolder
from tickrate.wire.zenoh_hub import ZenohHub
from tickrate.wire.zenoh_settings import LOOPBACK, parse_address

LOOK_EVERY_S = 0.5
RETURN_S = 5.0
"""After the hub reopened, the seconds in which roles come back before they are said to have left."""


@dataclass(frozen=True)
class HubOptions:
    """Open a hub: workers and trainer dial it, so it must run where all of them can reach it.

    Without keys it answers on this machine only. It holds no data: it may be stopped and started at any time.

    Examples:
      tickrate hub                                        on this machine, to try things out
      tickrate keys init hub.example.org; tickrate hub --keys tickrate-keys
      tickrate hub --keys tickrate-keys --listen tls/192.0.2.7:7447
    """

    listen: str = ""
    """Address: tcp/127.0.0.1:7447 (default without keys) or tls/0.0.0.0:7447 (default with keys)."""
    keys: Path | None = None
    """The keys folder that says who may join (tickrate keys init makes it)."""


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate hub`` until Ctrl-C or SIGTERM; return the exit code."""
    about = inspect.getdoc(HubOptions)
    options = tyro.cli(HubOptions, args=list(arguments), prog="tickrate hub", description=about)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s")
    keep_memory()
    stop = threading.Event()
    hub, keys = open_hub(options)
    with hub:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: stop.set())
        print("\n".join(_greeting(hub, keys)), flush=True)
        _report_presence(hub, stop, lambda text: logging.getLogger(__name__).info("%s", text))
    print("the hub is closed", flush=True)
    return 0


def open_hub(options: HubOptions) -> tuple[ZenohHub, KeysFolder | None]:
    """Return the hub that the options describe, and its keys.

    Raises:
        WireError: if the address is none, is taken, or needs keys.
        CredentialsError: if address and keys do not go together, or the keys cannot be used.
    """
    default = "tls/0.0.0.0:7447" if options.keys is not None else "tcp/127.0.0.1:7447"
    address = parse_address(options.listen or default, any_port=True)
    if address.kind == "tcp" and options.keys is not None:
        raise CredentialsError(
            f"a hub with keys is encrypted: write --listen tls/{str(address)[4:]}, or leave out --keys"
        )
    needs_keys = options.keys is not None or address.kind == "tls"
    keys = KeysFolder(options.keys or DEFAULT_FOLDER) if needs_keys else None
    return ZenohHub(address.host, address.port, keys, see_presence=True), keys


def _greeting(hub: ZenohHub, keys: KeysFolder | None) -> list[str]:
    """Return where the hub listens and what to type next."""
    address = parse_address(hub.endpoint)
    if keys is None:
        reach, key, who = str(address), "", "open to this machine only"
    else:
        files = keys.hub_files()
        hosts = [h for h in certificates.hosts_of(files.certificate) if h not in LOOPBACK] or ["localhost"]
        everywhere = address.host in ("0.0.0.0", "::")
        reach = str(address._replace(host=hosts[0])) if everywhere else str(address)
        key = " --key NAME.tickrate-key"
        names = ", ".join(entry.name for entry in files.entries) or "nobody yet"
        who = f"open to: {names}"
    lines = [
        f"hub at {hub.endpoint}, {who}",
        *([f"let somebody in:  tickrate keys add NAME --keys {keys.path}"] if keys else []),
        f"a worker:         tickrate worker EXPERIMENT --name NAME --hub {reach}{key}",
        f"the trainer:      tickrate trainer EXPERIMENT --hub {reach}{key.replace('NAME', 'trainer')}",
        "stop the hub with Ctrl-C",
    ]
    for entry in keys.entries() if keys else []:
        if entry.warning:
            lines.append(f"warning: {entry.name} {entry.warning}")
    return lines


def _report_presence(hub: ZenohHub, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Say who comes and goes, until ``stop``."""
    known: frozenset[str] = frozenset()
    reopened, settled = hub.reopened, 0.0
    while not stop.wait(LOOK_EVERY_S):
        if hub.reopened != reopened:
            reopened, settled = hub.reopened, clock.now() + RETURN_S
        present = hub.roster.present
        for key in sorted(present - known):
            say(f"{_who(key)} joined")
        if clock.now() < settled:
            known |= present
            continue
        for key in sorted(known - present):
            say(f"{_who(key)} left")
        known = present


def _who(key: str) -> str:
    _, run, _, name = key.split("/")
    return f"{name} (run {run})"
