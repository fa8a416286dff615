"""The worker's outbox: rows on its disk, numbered for ever, until the trainer has acknowledged them."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tickrate.data.commits import ENTRY
from tickrate.data.records import Segment
from tickrate.data.schema import RecordSchema, Rows, taken
from tickrate.errors import ConfigError, RecordError, WireError
from tickrate.runtime.control_block import ControlBlock
from tickrate.runtime.lock_file import LockFile

FEWEST_ROWS = 16
STOP_SHARE = 8
"""With ``on_full: stop`` acting stops when less than one part in so many of the outbox is free."""
_CELLS = {"identity": "int64", "acknowledged": "int64", "dropped": "int64", "life": "int64"}


@dataclass(frozen=True)
class OutboxConfig:
    """Where a worker keeps rows until the trainer has them."""

    max_bytes: int = 64 << 20
    """Room on the disk, reserved at the start, in bytes. 64 MiB hold hours of LIDAR at 20 Hz, minutes of
    64 x 64 grey images."""
    on_full: Literal["drop_oldest", "stop"] = "drop_oldest"
    """What happens when it is full because no trainer takes the rows: the oldest are dropped and counted, or
    the device is made safe and the worker waits for room."""
    storage: Literal["disk", "memory"] = "disk"
    """``memory`` keeps nothing over a restart: rows are lost with the companion process."""
    sync: bool = False
    """Force each commit to the disk, so that it survives a power cut as well as a killed process. Costs
    milliseconds of the companion's time a commit; the tick does not wait for it."""

    def __post_init__(self) -> None:
        """Refuse what cannot hold anything."""
        if not 1 << 16 <= self.max_bytes < 1 << 46:
            raise ConfigError(f"outbox max_bytes is {self.max_bytes}; give 65536 or more")
        for name, value, kind in (
            ("on_full", self.on_full, Literal["drop_oldest", "stop"]),
            ("storage", self.storage, Literal["disk", "memory"]),
        ):
            if value not in get_args(kind):
                raise ConfigError(f"outbox {name} is {value!r}; it must be one of {get_args(kind)}")


class Outbox:
    """Rows of one worker, in order, from their commit to their acknowledgement.

    A row's number never changes and is never used again: if the numbers cannot be trusted (a disk that was
    set back, a lost file), the outbox begins anew under another identity. One process uses its files at a
    time. Safe for two threads: one that appends, one that reads and acknowledges.

    Args:
        folder: the worker's folder; ``outbox.seg``, ``outbox.state`` and ``outbox.lock`` lie in it.
        schema: of the rows.
        config: size and what to do when it is full.
        patience_s: how long to wait for another process to let go of it, in seconds.

    Attributes:
        identity: names the numbering; drawn when the outbox was made.
        notes: what had to be set aside or cut off when it was opened, one sentence each.
        opened_at: `head` when it was opened: this process has appended the rows from there on.

    Raises:
        FolderInUse: if another process has it open.
        RecordError: if it holds undelivered rows of another schema, or is damaged in the middle.
        ConfigError: if it does not fit on the disk, or too few rows fit into it.
    """

    def __init__(
        self, folder: Path, schema: RecordSchema, config: OutboxConfig, *, patience_s: float = 0.0
    ) -> None:
        self.schema, self._config = schema, config
        self.notes: list[str] = []
        self._lock = threading.RLock()
        self._segment_path, self._state_path = folder / "outbox.seg", folder / "outbox.state"
        row_bytes = schema.stored_bytes + ENTRY.itemsize
        self._capacity = config.max_bytes // row_bytes
        if self._capacity < FEWEST_ROWS:
            raise ConfigError(
                f"outbox max_bytes is {config.max_bytes}, but {FEWEST_ROWS} rows of this environment take "
                f"{FEWEST_ROWS * row_bytes}: give more, minutes of acting if you can"
            )
        self._state: ControlBlock | None = None
        self._lock_file: LockFile | None = None
        if config.storage == "memory":
            self._segment = Segment.in_memory(schema, self._capacity)
            self._cells = dict.fromkeys(_CELLS, 0) | {"identity": _draw()}
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_file = LockFile(
                folder / "outbox.lock", f"the outbox in {folder}", patience_s=patience_s
            )
            try:
                self._segment = self._open()
            except BaseException:
                self._lock_file.close()
                raise
        self._known_oldest = self._segment.oldest
        self._last_key = self._newest_key()
        self.opened_at = self._segment.head

    # --- files -----------------------------------------------------------------------------------------

    def _open(self) -> Segment:
        if not self._segment_path.exists():
            return self._begin()
        try:
            state = ControlBlock(self._state_path, _CELLS, create=False)
        except WireError as error:
            self._set_aside(f"the file that says what was delivered is gone or damaged ({error})")
            return self._begin()
        try:
            segment = self._reopen(state)
        except BaseException:
            state.close()
            raise
        if segment is not None:
            self._state = state
            return segment
        state.close()
        return self._begin()

    def _reopen(self, state: ControlBlock) -> Segment | None:
        """Return the segment that is there, or None if a new one has to be begun."""
        acknowledged = int(state.get("acknowledged"))
        segment = Segment.open(self._segment_path)
        self.notes += segment.notes
        if segment.head < acknowledged or state.get("identity") == 0:
            # After a power cut: what is missing here was acknowledged, but its numbers must not come again.
            # Or it was being made when its process was killed: it is empty.
            segment.close()
            return None
        pending = segment.head - max(acknowledged, segment.oldest)
        if segment.schema.digest() != self.schema.digest():
            difference = self.schema.difference(segment.schema)
            segment.close()
            if pending > 0:
                raise RecordError(
                    f"{self._segment_path} holds {pending} undelivered rows of another shape ({difference}): "
                    "deliver them with --drain and the experiment they were recorded with, or move the "
                    "file away"
                )
            return None
        if segment.capacity != self._capacity and pending == 0:
            segment.close()
            return None
        return segment

    def _begin(self) -> Segment:
        """Start an empty outbox under a new identity; the old files are replaced."""
        self._segment_path.unlink(missing_ok=True)
        try:
            segment = Segment.create(self._segment_path, self.schema, self._capacity)
        except ConfigError as error:
            raise ConfigError(
                f"the outbox does not fit (worker.outbox.max_bytes is {self._config.max_bytes}): {error}"
            ) from error
        self._state = ControlBlock(self._state_path, _CELLS, create=True)
        self._set("identity", _draw())
        return segment

    def _set_aside(self, why: str) -> None:
        kept = self._segment_path.with_name(f"outbox-{secrets.token_hex(4)}.kept")
        self._segment_path.rename(kept)
        self.notes.append(f"{why}: the rows so far were set aside as {kept}")

    # --- numbers ---------------------------------------------------------------------------------------

    @property
    def identity(self) -> int:
        """The number that names this numbering."""
        return self._get("identity")

    @property
    def head(self) -> int:
        """The number that the next row will get."""
        return self._segment.head

    @property
    def oldest(self) -> int:
        """The lowest number that is still here and not acknowledged; `head` if there is none."""
        return max(self._get("acknowledged"), self._segment.oldest)

    @property
    def pending(self) -> int:
        """Rows that wait for their acknowledgement."""
        return self.head - self.oldest

    @property
    def pending_bytes(self) -> int:
        """Bytes of the rows that wait."""
        return self.pending * self.schema.stored_bytes

    @property
    def dropped(self) -> int:
        """Rows that were dropped undelivered, over the outbox's whole life."""
        return self._get("dropped")

    @property
    def wanted(self) -> bool:
        """Whether another process waits for this outbox."""
        return self._lock_file is not None and self._lock_file.wanted

    @property
    def life(self) -> int:
        """The life of the run that the rows belong to; 0 before a trainer has said it."""
        return self._get("life")

    @property
    def full(self) -> bool:
        """Whether acting has to stop for want of room."""
        free = self._segment.capacity - self.pending
        return self._config.on_full == "stop" and free * STOP_SHARE < self._segment.capacity

    # --- rows ------------------------------------------------------------------------------------------

    def append(self, rows: Rows) -> None:
        """Commit rows; from here on they survive the end of this process.

        Rows that are here already are left out: a companion that was killed after its last commit takes them
        out of the shared memory again.
        """
        with self._lock:
            if self._last_key is not None and len(rows):
                rows, self._last_key = taken(rows, slice(self._overlap(rows, self._last_key), None)), None
            if not len(rows):
                return
            self._segment.append(rows)
            lost = self._segment.oldest - max(self._get("acknowledged"), self._known_oldest)
            self._known_oldest = self._segment.oldest
            if lost > 0:
                self._set("dropped", self._get("dropped") + lost)
            if self._config.sync:
                self._segment.flush()

    @staticmethod
    def _overlap(rows: Rows, last: tuple[int, int]) -> int:
        """Return how many of the first rows are here already, of which ``last`` is the newest."""
        keys = list(zip(rows["episode"].tolist(), rows["step"].tolist(), strict=True))
        return keys.index(last) + 1 if last in keys else 0

    def _newest_key(self) -> tuple[int, int] | None:
        if self._segment.head == self._segment.oldest:
            return None
        row = self._segment.read(np.array([self._segment.head - 1]))[0]
        return int(row["episode"]), int(row["step"])

    def read(self, first: int, count: int) -> NDArray[Any]:
        """Return rows ``first`` to ``first + count - 1`` as a copy; fewer if the oldest are gone by now."""
        with self._lock:
            begin, end = max(first, self._segment.oldest), min(first + count, self._segment.head)
            return self._segment.read(np.arange(begin, max(begin, end)))

    def acknowledge(self, number: int) -> None:
        """Forget the rows below ``number``: the trainer has them."""
        with self._lock:
            if number > self._get("acknowledged"):
                self._set("acknowledged", min(number, self._segment.head))

    def belongs_to(self, life: int) -> bool:
        """Note the life of the run that takes the rows; return False if they belong to another one."""
        if self.life == 0:
            self._set("life", life)
        return self.life == life

    def begin_anew(self, why: str) -> None:
        """Go on under a new identity; rows that nobody has acknowledged are set aside, not deleted."""
        with self._lock:
            pending = self.pending
            if self._state is None:
                self._segment = Segment.in_memory(self.schema, self._capacity)
                self._cells = dict.fromkeys(_CELLS, 0) | {"identity": _draw()}
            else:
                self._segment.close()
                self._state.close()
                if pending > 0:
                    self._set_aside(f"{why} ({pending} undelivered rows)")
                self._segment = self._begin()
            self._known_oldest = 0
            self._last_key = None
            self.opened_at = 0

    def renumber(self, why: str) -> None:
        """Begin anew with the rows that this process has appended: their numbers are taken already.

        Those from before are with the trainer; a copy of all is set aside.
        """
        with self._lock:
            own = self._segment.read(np.arange(max(self.opened_at, self._segment.oldest), self._segment.head))
            self.begin_anew(why)
            self.append(own)

    def close(self) -> None:
        """Let go of the files; what is in them stays."""
        with self._lock:
            self._segment.close()
            if self._state is not None:
                self._state.close()
            if self._lock_file is not None:
                self._lock_file.close()

    def _get(self, name: str) -> int:
        return int(self._cells[name] if self._state is None else self._state.get(name))

    def _set(self, name: str, value: int) -> None:
        if self._state is None:
            self._cells[name] = value
        else:
            self._state.set(name, value)


def _draw() -> int:
    """Return a random number that no other outbox has, never 0; it fits in 53 bits."""
    return 1 + secrets.randbits(52)
