"""``tickrate status``: who is connected, what arrives, and how old the policies are that act."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tickrate import clock
from tickrate.cli.worker_lines import alarm_lines, number, printable, worker_lines
from tickrate.config.loading import from_mapping, read_yaml
from tickrate.errors import ConfigError, HubUnreachable
from tickrate.runtime.courier import TRAINER
from tickrate.runtime.inference_role import NAME as INFERENCE
from tickrate.runtime.network import NetworkConfig, credentials_of, open_carrier
from tickrate.runtime.overview import Overview, to_json, whole
from tickrate.runtime.run_folder import RunFolder
from tickrate.runtime.run_watch import RunWatch
from tickrate.wire.carrier import Carrier
from tickrate.wire.diagnosis import diagnose

ABOUT = """Show how the runs at a hub stand: who is connected, samples/s, outboxes, policy lag, alarms.

  tickrate status                                  all runs at the hub on this machine
  tickrate status runs/circuit-seed0               the run of `tickrate train` in this folder
  tickrate status circuit-seed0 --hub tls/hub.example.org:7447 --key me.tickrate-key
  tickrate status circuit-seed0 --watch            drawn anew every second, until Ctrl-C
  tickrate status circuit-seed0 --json             one JSON object, for dashboards (docs/protocol.md)

Exit code: 0 if a trainer was heard, 1 if not, 2 for a mistake."""

HUB_PATIENCE_S = 5.0
"""How long to wait for the hub."""
LISTEN_S = 1.2
"""How long to listen at least: roles speak every half second."""
LISTEN_MOST_S = 3.0
"""And at most, while somebody who is present has not been heard."""
POLL_S = 0.05
DRAW_EVERY_S = 1.0
LINES_EVERY_S = 5.0
"""Seconds between two looks of ``--watch``, in a terminal and elsewhere."""


@dataclass(frozen=True)
class Target:
    """What to look at.

    Attributes:
        network: where the hub is.
        name: name of the run on the wire, None for all.
        folder: the run folder that told both, if one did.
    """

    network: NetworkConfig
    name: str | None = None
    folder: Path | None = None


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate status``; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tickrate status", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", help="name of a run, or a run folder; all runs if left out")
    parser.add_argument("--hub", help="address of the hub, tcp/127.0.0.1:PORT or tls/HOST:PORT")
    parser.add_argument("--key", help="credentials file from `tickrate keys add`, for a tls/ address")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (with --watch, one a line)"
    )
    parser.add_argument("--watch", action="store_true", help="go on until Ctrl-C")
    options = parser.parse_args(arguments)
    target = find(options.run, options.hub, options.key)
    try:
        with open_carrier(target.network) as carrier:
            _await_hub(carrier, target.network)
            return _look(RunWatch(carrier), target, as_json=options.json, on=options.watch)
    except HubUnreachable as error:
        if target.folder is None or options.hub is not None:
            raise
        return _not_running(target, error, as_json=options.json)


def find(run: str | None, hub: str | None, key: str | None) -> Target:
    """Return what the words of a person mean.

    Raises:
        ConfigError: if the run folder's files cannot be read.
        CredentialsError: if the credentials cannot.
    """
    given = {name: value for name, value in (("hub", hub), ("key", key)) if value is not None}
    if key is not None and hub is None and (told := credentials_of(NetworkConfig(key=key))) and told.hub:
        given["hub"] = told.hub  # the file may say where it is for
    if run is None:
        return Target(NetworkConfig(**given))
    for path in (Path(run), Path("runs") / run):
        folder = RunFolder(path)
        if folder.experiment.exists() or folder.hub.exists():
            return Target(_network(folder, given), folder.wire_name, path)
    if "/" in run or "\\" in run:
        raise ConfigError(f"{run} is no run folder: there is neither experiment.yaml nor hub in it")
    name = RunFolder(Path(run)).wire_name
    return Target(NetworkConfig(**given), run if run.startswith("run-") else name)


def _network(folder: RunFolder, given: dict[str, str]) -> NetworkConfig:
    """Return where the hub of a run folder is: the launcher's own, or what its experiment says."""
    if folder.hub.exists():
        try:
            return NetworkConfig(**({"hub": folder.hub.read_text(encoding="utf-8").strip()} | given))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{folder.hub} cannot be read: {error}") from error
    said = read_yaml(folder.experiment).get("network") or {}
    return from_mapping(NetworkConfig, {**said, **given}, "network")


def _await_hub(carrier: Carrier, network: NetworkConfig) -> None:
    """Wait until the hub is reached.

    Raises:
        WireError: if it is not, in time; says why.
    """
    deadline = clock.now() + HUB_PATIENCE_S
    while not carrier.connected:
        if clock.now() > deadline:
            reason = diagnose(network.hub, credentials_of(network))
            raise reason or HubUnreachable(f"no hub answered at {network.hub} in time; try again")
        clock.sleep(POLL_S)


# --- looking ---------------------------------------------------------------------------------------------


def _look(watch: RunWatch, target: Target, *, as_json: bool, on: bool) -> int:
    """Show what is heard, once or until Ctrl-C; return the exit code."""
    listen(watch, target.name)
    if as_json and target.name is None and len(watch.runs()) > 1:
        raise ConfigError(f"there are {len(watch.runs())} runs at this hub, name one: {_names(watch)}")
    console = Console()
    try:
        if on and not as_json and console.is_terminal and not console.is_dumb_terminal:
            _redraw(watch, target, console)
        while True:
            _print(watch, target, console, as_json=as_json)
            if not on:
                break
            _wait(watch, LINES_EVERY_S)
    except KeyboardInterrupt:
        if not on:
            raise
    return 0 if any(state.trainer is not None for state in states(watch, target.name)) else 1


def listen(watch: RunWatch, name: str | None) -> None:
    """Listen until everybody who is present was heard, within limits."""
    begin = clock.now()
    while (passed := clock.now() - begin) < LISTEN_MOST_S:
        watch.poll()
        runs = watch.runs() if name is None else [name]
        heard = name is None or watch.overview(name).trainer is not None
        if passed > LISTEN_S and heard and all(watch.complete(run) for run in runs):
            break
        clock.sleep(POLL_S)


def _wait(watch: RunWatch, seconds: float) -> None:
    until = clock.now() + seconds
    while clock.now() < until:
        watch.poll()
        clock.sleep(POLL_S)


def _redraw(watch: RunWatch, target: Target, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(Group(*report(watch, target)), refresh=True)
            _wait(watch, DRAW_EVERY_S)


def _print(watch: RunWatch, target: Target, console: Console, *, as_json: bool) -> None:
    if as_json:
        print(to_json(_one(watch, target.name)).decode(), flush=True)
        return
    for line in report(watch, target):
        console.print(line, highlight=False, soft_wrap=True)


def _one(watch: RunWatch, name: str | None) -> Overview:
    return next(iter(states(watch, name)), whole(name, None, []))


def _not_running(target: Target, error: HubUnreachable, *, as_json: bool) -> int:
    """Tell that nothing answers where the folder says that the run's hub is."""
    if as_json:
        print(to_json(whole(target.name, None, [])).decode())
    else:
        print(f"the run in {target.folder} is not running: its hub is gone ({error})", file=sys.stderr)
    return 1


def states(watch: RunWatch, name: str | None) -> list[Overview]:
    """Return how the run of a name stands, or all runs of which anything was heard."""
    return [watch.overview(run) for run in watch.runs() if name in (None, run)]


# --- words -----------------------------------------------------------------------------------------------


def report(watch: RunWatch, target: Target) -> list[Text]:
    """Return the lines that a person sees."""
    found = states(watch, target.name)
    lines: list[Text] = []
    if not found:
        what = "nobody is" if target.name is None else f"nobody of run {target.name!r} is"
        others = f"; runs here: {_names(watch)}" if watch.runs() else ""
        lines.append(Text(f"{what} at {target.network.hub}{others}"))
    for state in found:
        lines += [Text()] * bool(lines)
        lines += _run_lines(state, target.network.hub, watch.present(state.run or ""))
    if watch.left_out:
        lines.append(Text(f"left out a message: {printable(watch.left_out)}", style="yellow"))
    return lines


def _run_lines(state: Overview, hub: str, present: Sequence[str]) -> list[Text]:
    lines = [Text(f"{printable(state.run or '')} at {hub}", style="bold")]
    trainer = state.trainer
    if trainer is not None:
        about = f"{trainer.state}: {trainer.text}"
        lines.append(Text(f"trainer  {printable(about)}  ({printable(trainer.host)})"))
        lines.append(Text(_figures(state)))
    elif TRAINER in present:
        lines.append(Text("trainer  is connected, but has not spoken for some seconds", style="yellow"))
    else:
        lines.append(Text("trainer  none is connected; workers keep what they record", style="yellow"))
    if INFERENCE in present:
        lines.append(Text("inference  is connected"))
    if state.workers:
        lines += worker_lines(state.workers)
    else:
        lines.append(Text("no worker is connected"))
    return [*lines, *alarm_lines(state)]


def _figures(state: Overview) -> str:
    trainer = state.trainer
    metrics = {} if trainer is None else trainer.metrics
    connected = sum(worker.connected for worker in state.workers)
    return " · ".join(
        [
            f"{connected} of {len(state.workers)} workers connected",
            f"{sum(worker.samples_per_s or 0.0 for worker in state.workers):.1f} samples/s",
            f"steps {number(metrics.get('trainer/steps'), ',.0f')}",
            f"{number(metrics.get('learn/updates_per_s'), '.1f')} updates/s",
            f"policy {'-' if trainer is None else trainer.policy_version}",
        ]
    )


def _names(watch: RunWatch) -> str:
    return ", ".join(printable(run) for run in watch.runs()) or "none"
