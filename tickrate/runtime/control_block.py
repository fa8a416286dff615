"""A block of named numbers that the processes of a run see at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tickrate.errors import WireError
from tickrate.runtime.shared_file import LINE, Shared, SharedFile


class ControlBlock(Shared):
    """Named numbers that the processes of a run see at once: pause, stop, heartbeats, counters.

    Each cell should have one writer; setting is a single 8-byte store, so readers see the old value or the
    new.

    Args:
        path: the file.
        cells: ``"int64"`` or ``"float64"`` by name; every process gives the same.
        create: see `SharedFile`; all cells are 0 then.

    Raises:
        WireError: if the kinds are others, or the file was made for other cells.
    """

    def __init__(self, path: Path, cells: Mapping[str, str], *, create: bool) -> None:
        foreign = {name: kind for name, kind in cells.items() if kind not in ("int64", "float64")}
        if foreign or not cells:
            raise WireError(
                f"{path}: cells are int64 or float64, and at least one; got {foreign or dict(cells)}"
            )
        description = {"kind": "control", "cells": [[name, kind] for name, kind in cells.items()]}
        self._file = SharedFile(path, description, len(cells) * LINE, create=create)
        views: dict[str, memoryview[Any]] = {
            "int64": self._file.whole_numbers,
            "float64": self._file.real_numbers,
        }
        self._cells = {name: (views[kind], i * LINE // 8) for i, (name, kind) in enumerate(cells.items())}

    def get(self, name: str) -> int | float:
        """Return a cell's value."""
        view, at = self._cell(name)
        value: int | float = view[at]
        return value

    def set(self, name: str, value: int | float) -> None:
        """Set a cell; a whole-number cell takes whole numbers only (TypeError otherwise)."""
        view, at = self._cell(name)
        view[at] = value

    def _cell(self, name: str) -> tuple[memoryview[Any], int]:
        if name not in self._cells:
            raise WireError(f"{self.path} has no cell {name!r}; it has {list(self._cells)}")
        return self._cells[name]
