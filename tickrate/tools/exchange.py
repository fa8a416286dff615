"""Finds recorded rows wherever they are, chooses among them, and writes them in another format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from tickrate import registry
from tickrate.data.npz_format import read_npz, write_npz
from tickrate.data.recordings import read_recording, read_snapshot_rows, write_recording
from tickrate.data.replay import SNAPSHOT
from tickrate.data.schema import Flag, RecordSchema, Rows, taken
from tickrate.errors import ConfigError, RecordError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.run_folder import RunFolder

Which = Literal["all", "expert", "takeover"]
_FLAGS = {"expert": Flag.EXPERT, "takeover": Flag.TAKEOVER}


def read_rows(source: Path) -> tuple[RecordSchema, Rows]:
    """Return (schema, rows) of a run folder, a segment file, an npz file or a Minari dataset's folder.

    A run folder gives its journal or, if it has none (a serial run), the replay of its newest checkpoint.

    Raises:
        ConfigError: if ``source`` is nothing of that, or does not fit into memory.
        RecordError: if it is damaged, or cannot be recorded.
        MissingExtra: if it is a Minari dataset and Minari is not installed.
    """
    if not source.exists():
        raise ConfigError(f"there is no file and no folder {source}")
    if source.is_file():
        return read_npz(source) if source.suffix == ".npz" else read_recording(source)
    folder = RunFolder(source)
    if folder.experiment.exists():
        return read_recording(folder.journal) if folder.journal.exists() else _from_checkpoint(folder)
    if (source / "data" / "metadata.json").exists() or (source / "metadata.json").exists():
        read: Callable[[Path], tuple[RecordSchema, Rows]] = registry.resolve(
            "tickrate.data.minari_format:read_minari"
        )
        return read(source)
    raise ConfigError(f"{source} is neither a run folder nor that of a Minari dataset")


def _from_checkpoint(folder: RunFolder) -> tuple[RecordSchema, Rows]:
    checkpoint, contract = folder.latest_checkpoint(), EnvironmentContract.load(folder.contract)
    if checkpoint is None or contract is None:
        raise ConfigError(
            f"{folder.path} has neither a journal nor a checkpoint with contract.json beside it"
        )
    schema = contract.schema()
    return schema, read_snapshot_rows(checkpoint / SNAPSHOT, schema)


def choose(rows: Rows, which: Which) -> Rows:
    """Return whole episodes: all, or those in which an expert or an operator drove at least one step.

    Raises:
        RecordError: if there are none.
    """
    if which != "all":
        keys = rows["stream"].astype(np.uint64) << np.uint64(32) | rows["episode"]
        wanted = keys[(rows["flags"] & _FLAGS[which]) != 0]
        rows = taken(rows, np.isin(keys, wanted))
    if not len(rows):
        raise RecordError("there are no steps of that kind" if which != "all" else "there are no steps")
    return rows


def write_rows(out: Path, schema: RecordSchema, rows: Rows) -> int:
    """Write rows as ``.seg``, as ``.npz``, or, without an ending, as the folder of a Minari dataset.

    Returns:
        Episodes that were left out because Minari keeps whole ones only.

    Raises:
        ConfigError: if ``out`` exists or its ending means nothing, or it does not fit on the disk.
        MissingExtra: if it is a Minari dataset and Minari is not installed.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already: remove it, or choose another name")
    try:
        if out.suffix == ".seg":
            write_recording(
                out, schema, (rows[at : at + 1024] for at in range(0, len(rows), 1024)), len(rows)
            )
        elif out.suffix == ".npz":
            write_npz(out, schema, rows)
        elif not out.suffix:
            write: Callable[[Path, RecordSchema, Rows], int] = registry.resolve(
                "tickrate.data.minari_format:write_minari"
            )
            return write(out, schema, rows)
        else:
            raise ConfigError(
                f"{out}: call it .seg or .npz, or NAME-v0 without an ending for a Minari dataset"
            )
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from error
    return 0
