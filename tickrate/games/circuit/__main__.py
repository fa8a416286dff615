"""Starts the game: ``python -m tickrate.games.circuit``."""

import sys

from tickrate.games.circuit.game import main

if __name__ == "__main__":
    sys.exit(main())
