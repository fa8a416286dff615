"""``tickrate keys``: makes the keys of a hub, and says who may join it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from tickrate.errors import CredentialsError
from tickrate.wire.credentials import Role
from tickrate.wire.keys_folder import DEFAULT_FOLDER, KeysFolder
from tickrate.wire.name_registry import Entry
from tickrate.wire.zenoh_settings import parse_address, standalone_router_config


@dataclass(frozen=True)
class Init:
    """Make a keys folder on the hub's machine: an authority, and a certificate for the hub.

    Give every host name and IP address that workers and trainer will dial.

    Example:
    tickrate keys init hub.example.org 192.0.2.7
    """

    hosts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Host names and IP addresses of the hub; loopback is always among them."""
    days: float = 365.0
    """Days that the hub's certificate is valid."""
    renew: bool = False
    """Give the hub a new certificate; authority and names stay, and so do the hosts unless given."""
    replace: bool = False
    """Make everything anew; no file given out so far joins any more."""
    keys: Path = DEFAULT_FOLDER
    """The keys folder."""


@dataclass(frozen=True)
class Add:
    """Let a name join: writes one file to carry to its machine. A running hub knows it at once.

    Example:
    tickrate keys add robot-1 --hub tls/hub.example.org:7447
    """

    name: tyro.conf.Positional[str]
    """Name of the worker, trainer or viewer; it can speak under this name only."""
    role: Role | None = None
    """What it may do; default: trainer for the name 'trainer', worker for any other."""
    days: float = 365.0
    """Days that its certificate is valid."""
    hub: str = ""
    """Address of the hub to write into the file, tls/HOST:PORT."""
    out: Path | None = None
    """Where to write the file; default: NAME.tickrate-key in the keys folder."""
    renew: bool = False
    """Make a new file for a name that may join already; the old one stops to work."""
    keys: Path = DEFAULT_FOLDER
    """The keys folder."""


@dataclass(frozen=True)
class Revoke:
    """Shut a name out: a running hub cuts it off within seconds. What it delivered stays.

    Example:
    tickrate keys revoke robot-1
    """

    name: tyro.conf.Positional[str]
    """The name to shut out."""
    keys: Path = DEFAULT_FOLDER
    """The keys folder."""


@dataclass(frozen=True)
class List:
    """Show who may join, until when, and what expires soon.

    Example:
    tickrate keys list
    """

    keys: Path = DEFAULT_FOLDER
    """The keys folder."""


@dataclass(frozen=True)
class RouterConfig:
    """Print a configuration with which a Zenoh router of one's own serves in place of the hub.

    It holds the same certificates, passwords and rules. Print it again and restart the router after each
    change of the keys: only `tickrate hub` follows them by itself.

    Example:
    tickrate keys router-config > router.json5; zenohd --config router.json5
    """

    listen: str = "tls/0.0.0.0:7447"
    """Address that the router listens on."""
    keys: Path = DEFAULT_FOLDER
    """The keys folder."""


_DESCRIPTION = """Say who may join a hub.

Examples:
  tickrate keys init hub.example.org   once, on the hub's machine
  tickrate keys add trainer            one file to carry to the trainer's machine
  tickrate keys add robot-1            one file for each worker
  tickrate keys revoke robot-1         cut off within seconds
  tickrate keys list                   who, and until when

Keep the keys folder on the hub's machine, readable by you alone; carry each file by a way you trust (scp).
"""

_Command = (
    Annotated[Init, tyro.conf.subcommand("init", description=inspect.getdoc(Init))]
    | Annotated[Add, tyro.conf.subcommand("add", description=inspect.getdoc(Add))]
    | Annotated[Revoke, tyro.conf.subcommand("revoke", description=inspect.getdoc(Revoke))]
    | Annotated[List, tyro.conf.subcommand("list", description=inspect.getdoc(List))]
    | Annotated[RouterConfig, tyro.conf.subcommand("router-config", description=inspect.getdoc(RouterConfig))]
)


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate keys``; return the exit code."""
    command: Init | Add | Revoke | List | RouterConfig = tyro.cli(
        _Command,
        args=list(arguments),
        prog="tickrate keys",
        description=_DESCRIPTION,
    )
    match command:
        case Init():
            _init(command)
        case Add():
            _add(command)
        case Revoke():
            KeysFolder(command.keys).revoke(command.name)
            print(f"{command.name} is shut out; a running hub cuts it off within seconds")
        case List():
            _list(command)
        case RouterConfig():
            _router_config(command)
    return 0


def _init(command: Init) -> None:
    if command.renew and command.replace:
        raise CredentialsError("--renew keeps the names and --replace drops them: choose one")
    if not command.hosts and not command.renew:
        raise CredentialsError(
            "give the host names or IP addresses by which others will dial this hub, for example  tickrate "
            "keys init hub.example.org  (or  tickrate keys init localhost  to try it on one machine)"
        )
    existing: Literal["refuse", "renew", "replace"] = "refuse"
    if command.renew or command.replace:
        existing = "renew" if command.renew else "replace"
    folder = KeysFolder.init(command.keys, command.hosts, command.days, existing=existing)
    option = _keys_option(command.keys)
    print(f"the hub's keys are in {folder.path}; they stay on this machine")
    print(f"let the trainer join:   tickrate keys add trainer{option}")
    print(f"let a worker join:      tickrate keys add NAME{option}")
    print(f"open the hub:           tickrate hub --keys {folder.path}")


def _add(command: Add) -> None:
    if command.hub:
        parse_address(command.hub)
    folder = KeysFolder(command.keys)
    file = folder.add(
        command.name,
        command.role,
        days=command.days,
        hub=command.hub,
        renew=command.renew,
        file=command.out,
    )
    role = next(entry.role for entry in folder.hub_files().entries if entry.name == command.name)
    print(f"{command.name} may join as {role}; carry this file to its machine, by a way you trust:")
    print(f"  {file}")
    if role != "viewer":
        name = f"--name {command.name} " if role == "worker" else ""
        hub = command.hub or "tls/HOST:7447"
        print(f"and there:  tickrate {role} EXPERIMENT {name}--hub {hub} --key {file.name}")


def _list(command: List) -> None:
    entries = KeysFolder(command.keys).entries()
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.role:<7}  {_standing(entry)}")
    for entry in entries:
        if entry.warning:
            print(f"warning: {entry.name} {entry.warning}{_keys_option(command.keys)}")


def _standing(entry: Entry) -> str:
    if not entry.live:
        return "revoked"
    return f"{entry.days_left:.0f} days left" if entry.days_left > 0 else "EXPIRED"


def _router_config(command: RouterConfig) -> None:
    folder = KeysFolder(command.keys)
    address = parse_address(command.listen)
    if address.kind != "tls":
        raise CredentialsError(f"a router with keys listens on tls/HOST:PORT, not on {command.listen}")
    files = folder.hub_files()
    passwords = folder.write_passwords(files.entries)
    print(
        "// Made by tickrate keys router-config. Make it again after keys add or revoke, and restart zenohd."
    )
    print(standalone_router_config(address, files, folder.path, passwords))


def _keys_option(folder: Path) -> str:
    return "" if folder == DEFAULT_FOLDER else f" --keys {folder}"
