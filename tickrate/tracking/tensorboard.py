"""The tracker that writes TensorBoard event files, without torch and without TensorFlow.

It uses TensorBoard's own record and message formats, but not its event writer: that one brings a thread whose
errors surface in a later call, and a close that waits for a dead disk.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from tickrate.clock import now, wall_time
from tickrate.tracking.tracker import Breaker


class TensorBoardTracker:
    """Writes scalars to a new event file in a folder; ``tensorboard --logdir <folder>`` shows them.

    Args:
        folder: the folder, made if missing. A resumed run adds a file; TensorBoard joins them.
        flush_s: a call hands the values over to the operating system when the last time is this long ago (s).
    """

    def __init__(self, folder: Path, *, flush_s: float = 5.0) -> None:
        folder = Path(folder)
        stamp = f"{int(wall_time()):010d}.{socket.gethostname()}.{os.getpid()}.{id(self) & 0xFFFF}"
        self.path = folder / f"events.out.tfevents.{stamp}"
        """The event file."""
        self._flush_s = flush_s
        self._flushed = now()
        self._buffer = io.BytesIO()
        self._records: Any = RecordWriter(self._buffer)
        self._breaker = Breaker(str(self.path))
        self._breaker.attempt(lambda: folder.mkdir(parents=True, exist_ok=True))
        self._write(Event(wall_time=wall_time(), file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Note values measured at a step. See `Tracker`."""
        if self._breaker.broken:
            return
        points = [Summary.Value(tag=key, simple_value=float(value)) for key, value in values.items()]
        self._write(Event(wall_time=wall_time(), step=int(step), summary=Summary(value=points)))
        if now() - self._flushed >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Hand the values so far to the operating system."""
        self._flushed = now()
        data = self._buffer.getvalue()
        if data:
            self._buffer.seek(0)
            self._buffer.truncate()
            self._breaker.attempt(lambda: self._append(data))

    def close(self) -> None:
        """Write what is held back. See `Tracker`."""
        self.flush()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def _append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
