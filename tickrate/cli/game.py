"""The role ``game``: runs a game that the package ships, in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tickrate.games.circuit.game import main as circuit

GAMES = {"circuit": circuit}


def main(arguments: Sequence[str]) -> int:
    """Run ``tickrate game NAME [options]``; each game has its own ``--help``."""
    if not arguments or arguments[0] not in GAMES:
        print(f"usage: tickrate game NAME [options]; the games are: {', '.join(GAMES)}", file=sys.stderr)
        return 2
    return GAMES[arguments[0]](list(arguments[1:]))
