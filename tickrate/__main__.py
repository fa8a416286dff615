"""The command ``tickrate``: finds the subcommand and hands over, importing only what that one needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tickrate import __version__, registry
from tickrate.errors import RoleFailed, TickrateError, suggest
from tickrate.runtime.supervision import join_path

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("tickrate.cli.demo:main", "start the racing game and learn to drive it, live, in one command"),
    "train": (
        "tickrate.cli.train:main",
        "train on your interface, a shipped live environment or a Gymnasium id",
    ),
    "status": ("tickrate.cli.status:main", "show who is connected, what arrives, policy lag and alarms"),
    "play": ("tickrate.cli.play:main", "drive with a saved policy and report each episode"),
    "export": ("tickrate.cli.export:main", "write a saved policy as an ONNX file"),
    "record": ("tickrate.cli.record:main", "record demonstrations, driven by a script, a policy or a person"),
    "data": ("tickrate.cli.data:main", "export and import recorded steps"),
    "check": ("tickrate.cli.check:main", "examine your interface: spaces, timing, delays, rewards"),
    "hub": ("tickrate.cli.hub:main", "open the place where workers and trainer of several machines meet"),
    "keys": ("tickrate.cli.keys:main", "say who may join a hub: make, add, revoke and list keys"),
    "trainer": ("tickrate.cli.trainer:main", "learn from what workers send, wherever they are"),
    "worker": ("tickrate.cli.worker:main", "act on a device and send what happens to the trainer"),
    "infer": ("tickrate.cli.infer:main", "act for workers whose policy is too large for their machine"),
    "bench": ("tickrate.cli.bench:main", "measure the timing of your live environment"),
}
"""Subcommands for people: name -> (where it is, one line of help)."""

ROLES: dict[str, str] = {
    "companion": "tickrate.cli.companion:main",
    "game": "tickrate.cli.game:main",
}
"""Subcommands that others start, one process each."""


def usage() -> str:
    """Return the help text of the command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            f"tickrate {__version__}: train neural policies on systems that do not wait",
            "",
            "usage: tickrate COMMAND [options]      (tickrate COMMAND --help tells more)",
            "",
            *lines,
            "",
            "First steps:  tickrate demo                        watch a car learn to lap",
            "              tickrate check my_game:MyInterface   look at your own system",
            "              tickrate train --env my_game:MyInterface",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit code.

    0 is success, 1 a run that failed, 2 a mistake of the user's, each with one plain message; 130 Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    name = words[0]
    target = COMMANDS[name][0] if name in COMMANDS else ROLES.get(name)
    if target is None:
        known = [*COMMANDS, *ROLES]
        print(f"tickrate: unknown command {name!r}.{suggest(name, known)}\n\n{usage()}", file=sys.stderr)
        return 2
    join_path()
    try:
        code: int = registry.resolve(target)(words[1:])
    except RoleFailed as error:
        print(f"tickrate {name}: {error}", file=sys.stderr)
        return 2 if error.exit_code == 2 else 1
    except TickrateError as error:
        print(f"tickrate {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tickrate {name}: stopped", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
