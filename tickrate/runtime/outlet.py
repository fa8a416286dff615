"""Shared memory of a worker's two processes: rows, summaries and state go out, weights and orders come in.

The control process must never wait for a disk or a network, so it only writes into memory that both processes
map. Everything here is a plain store and load: a full ring drops and counts, a register keeps the newest.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tickrate import clock
from tickrate.data.schema import RecordSchema
from tickrate.errors import MessageError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.control_block import ControlBlock
from tickrate.runtime.episode import EpisodeSummary, Orders
from tickrate.runtime.recorder import Row
from tickrate.runtime.register import Register
from tickrate.runtime.remote_format import ANSWER_BYTES, InferenceFormat
from tickrate.runtime.row_ring import RowRing
from tickrate.runtime.run_folder import MEMORY_PREFIX
from tickrate.runtime.shared_file import shared_folder

ROWS_CAPACITY = 4096
"""Rows that the ring holds: over three minutes at 20 Hz, four seconds at 1 kHz."""
ROWS_BYTES = 128 << 20
"""Memory that the ring may take; of large rows (images) it holds fewer."""
SUMMARIES_CAPACITY = 64
WEIGHTS_CAPACITY = 32 << 20
"""Largest policy, in bytes, that reaches a control process."""
STATE_CAPACITY = 1024
SUMMARY_DTYPE = np.dtype([("size", "<u4"), ("data", "u1", (4092,))])
CELLS = {
    "paused": "int64",
    "shutdown": "int64",
    "hold": "int64",
    "welcomed": "int64",
    "control_beat": "float64",
}


@dataclass
class SharedOutlet:
    """Both ends of the memory between control process and companion; made with `create` or `attach`."""

    folder: Path
    contract: EnvironmentContract
    rows: RowRing
    summaries: RowRing
    weights: Register
    state: Register
    link: Register
    block: ControlBlock
    inference: Register
    """The newest request of remote inference, from the control process."""
    answer: Register
    """The newest answer to one, from the companion, under a version that rises with each."""

    @classmethod
    def create(cls, contract: EnvironmentContract) -> SharedOutlet:
        """Make the memory, in a new folder of its own; the control process does."""
        folder = Path(tempfile.mkdtemp(prefix=MEMORY_PREFIX, dir=shared_folder()))
        (folder / "contract.json").write_text(json.dumps(contract.to_dict()), encoding="utf-8")
        return cls._map(folder, contract, create=True)

    @classmethod
    def attach(cls, folder: Path) -> SharedOutlet:
        """Map the memory that a control process made; the companion does.

        Raises:
            MessageError: if the folder holds no such memory.
        """
        try:
            text = (folder / "contract.json").read_text(encoding="utf-8")
            contract = EnvironmentContract.from_dict(json.loads(text))
        except (OSError, ValueError) as error:
            raise MessageError(f"{folder} is not the shared memory of a worker: {error}") from error
        return cls._map(folder, contract, create=False)

    @classmethod
    def _map(cls, folder: Path, contract: EnvironmentContract, *, create: bool) -> SharedOutlet:
        schema = contract.schema()
        asks = InferenceFormat(contract.leaf_spaces, contract.action_space)
        capacity = max(16, min(ROWS_CAPACITY, ROWS_BYTES // schema.row_dtype.itemsize))
        return cls(
            folder=folder,
            contract=contract,
            rows=RowRing(folder / "rows", schema.row_dtype, capacity, create=create),
            summaries=RowRing(folder / "summaries", SUMMARY_DTYPE, SUMMARIES_CAPACITY, create=create),
            weights=Register(folder / "weights", WEIGHTS_CAPACITY, create=create),
            state=Register(folder / "state", STATE_CAPACITY, create=create),
            link=Register(folder / "link", STATE_CAPACITY, create=create),
            block=ControlBlock(folder / "block", CELLS, create=create),
            inference=Register(folder / "inference", asks.request_bytes, create=create),
            answer=Register(folder / "answer", ANSWER_BYTES, create=create),
        )

    @property
    def schema(self) -> RecordSchema:
        """The record schema of the rows."""
        return self.contract.schema()

    # --- the control process's side (an `Outlet`) ----------------------------------------------------------

    def put_row(self, row: Row) -> None:
        """Copy a row into the ring; full, it is dropped and counted."""
        self.rows.push(row)

    def put_summary(self, summary: EpisodeSummary) -> None:
        """Copy an episode's summary into its ring."""
        data = msgspec.msgpack.encode(summary)
        slot = np.zeros((), SUMMARY_DTYPE)
        if (
            len(data) > slot["data"].size
        ):  # an info with hundreds of numbers: keep the episode, leave them out
            data = msgspec.msgpack.encode(_without_metrics(summary))
        slot["size"] = len(data)
        slot["data"][: len(data)] = np.frombuffer(data, np.uint8)
        self.summaries.push(slot)

    def put_state(self, state: str) -> None:
        """Say what the worker is doing."""
        self.state.write(self.state.version() + 1, state.encode()[:STATE_CAPACITY])

    def newest_weights(self, known_version: int) -> tuple[int, bytes] | None:
        """Return the weights in the register if they are newer than ``known_version``."""
        return self.weights.read() if self.weights.version() > known_version else None

    def orders(self) -> Orders:
        """Return the orders that the companion passed on."""
        self.block.set("control_beat", clock.now())
        block = self.block
        return Orders(
            paused=bool(block.get("paused")),
            shutdown=bool(block.get("shutdown")),
            hold="the outbox is full" if block.get("hold") else "",
        )

    # --- the companion's side ------------------------------------------------------------------------------

    def take_summaries(self) -> list[EpisodeSummary]:
        """Return the summaries that wait."""
        return [self._summary(slot) for slot in self.summaries.pop(SUMMARIES_CAPACITY)]

    @staticmethod
    def _summary(slot: NDArray[Any]) -> EpisodeSummary:
        data = slot["data"][: int(slot["size"])].tobytes()
        return msgspec.msgpack.decode(data, type=EpisodeSummary)

    def state_text(self) -> str:
        """Return what the worker says it is doing."""
        entry = self.state.read()
        return entry[1].decode(errors="replace") if entry else "starting"

    def put_link(self, text: str) -> None:
        """Say how the way to the trainer stands."""
        self.link.write(self.link.version() + 1, text.encode()[:STATE_CAPACITY])

    def link_text(self) -> str:
        """Return how the companion says that the way to the trainer stands."""
        entry = self.link.read()
        return entry[1].decode(errors="replace") if entry else "the companion is starting"

    def close(self, *, remove: bool) -> None:
        """Unmap the memory; ``remove`` deletes the files too, which either process may."""
        parts = (
            self.rows,
            self.summaries,
            self.weights,
            self.state,
            self.link,
            self.block,
            self.inference,
            self.answer,
        )
        for part in parts:
            part.close()
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)


def _without_metrics(summary: EpisodeSummary) -> EpisodeSummary:
    kept = {k: v for k, v in summary.metrics.items() if k in ("score", "lap_time_s", "lap_clean")}
    return dataclasses.replace(summary, metrics=kept)
