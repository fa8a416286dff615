"""Records demonstrations: an expert drives, or a person, and every row goes into a segment file."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tickrate.data.recordings import trim_recording
from tickrate.data.records import Segment
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import Environment
from tickrate.runtime.episode import EpisodeSummary, Orders
from tickrate.runtime.recorder import Row
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig

_log = logging.getLogger(__name__)

DEFAULT_ROWS = 100_000
"""Rows that there is room for where nothing says how many steps there will be."""
_ENDING_ROWS = 2
"""Rows that one more step may take: its own and the episode's final observation."""


@dataclass(frozen=True)
class Limits:
    """When a recording ends by itself; whichever comes first."""

    episodes: int | None = None
    """Finished episodes; None: no limit."""
    steps: int | None = None
    """Steps; the episode that runs then is cut. None: no limit."""
    rows: int | None = None
    """Most rows in the file, which reserves the disk for them until the end. None: what ``steps`` need, or
    `DEFAULT_ROWS`."""

    def __post_init__(self) -> None:
        """Refuse limits that would record nothing."""
        for name in ("episodes", "steps", "rows"):
            value = getattr(self, name)
            if value is not None and value < (1 if name != "rows" else _ENDING_ROWS):
                raise ConfigError(f"{name} is {value}: too few to record anything")

    @property
    def capacity(self) -> int:
        """Rows to make room for."""
        if self.rows is not None:
            return self.rows
        return DEFAULT_ROWS if self.steps is None else 2 * self.steps + _ENDING_ROWS


class _RecordingOutlet:
    """An `Outlet` that writes rows into a segment and says when it is enough; nothing is ever overwritten."""

    def __init__(
        self,
        segment: Segment,
        limits: Limits,
        interrupted: Callable[[], bool],
        tell: Callable[[EpisodeSummary], None],
    ) -> None:
        self._segment, self._limits = segment, limits
        self._interrupted, self._tell = interrupted, tell
        self.steps = self.episodes = 0

    def put_row(self, row: Row) -> None:
        self._segment.append(row.reshape(1))
        self.steps += not row["flags"] & Flag.FINAL

    def put_summary(self, summary: EpisodeSummary) -> None:
        self.episodes += 1
        self._tell(summary)

    def put_state(self, state: str) -> None:
        """Nobody watches a state here: each episode is told as it ends."""

    def newest_weights(self, known_version: int) -> tuple[int, bytes] | None:
        """Who drives has weights of its own, or none."""
        return None

    @property
    def full(self) -> bool:
        """Whether the file has no room for a step that ends its episode."""
        return self._segment.capacity - self._segment.head < _ENDING_ROWS

    def orders(self) -> Orders:
        limits = self._limits
        enough = limits.episodes is not None and self.episodes >= limits.episodes
        enough = enough or (limits.steps is not None and self.steps >= limits.steps)
        return Orders(shutdown=enough or self.full or self._interrupted())


@dataclass(frozen=True)
class Recorded:
    """What a recording came to."""

    episodes: int
    steps: int
    full: bool
    """Whether it ended because the file had no more room."""


def record(
    environment: Environment,
    out: Path,
    config: WorkerConfig,
    limits: Limits,
    *,
    seed: int,
    interrupted: Callable[[], bool],
    tell: Callable[[EpisodeSummary], None],
) -> Recorded:
    """Drive and record until a limit is reached or ``interrupted``. The device is safe afterwards, always.

    The file holds every step that was made, also after an error or a kill. At the end it is cut to its
    size, and removed if it holds no step.

    Args:
        environment: what to drive.
        out: the segment file to make.
        config: how to act; ``actor`` and ``takeover`` say who drives. The purpose is always "expert".
        limits: when to end.
        seed: seed of the driver and the first reset.
        interrupted: asked before each step; True ends the recording and cuts the episode.
        tell: called with each episode that ended.

    Raises:
        ConfigError: before anything is driven, if nobody is named who drives, ``out`` exists or cannot be
            written, or it does not fit on the disk.
        DeviceLost: if the device stays away.
    """
    config = dataclasses.replace(config, purpose="expert", evaluation=EvaluationConfig(every_steps=0))
    schema = EnvironmentContract.of(environment, checksum=config.checksum).schema()
    try:
        segment = Segment.create(out, schema, limits.capacity)
    except FileExistsError as error:
        raise ConfigError(f"{out} exists already: remove it, or record into another file") from error
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    outlet = _RecordingOutlet(segment, limits, interrupted, tell)
    try:
        ControlLoop(environment, schema, outlet, config, seed=seed).run()
        full = outlet.full
    finally:
        segment.close()
        _trim(out)
    return Recorded(outlet.episodes, outlet.steps, full)


def _trim(out: Path) -> None:
    """Give back reserved space; where that fails (a full disk), the recording is whole all the same."""
    try:
        trim_recording(out)
    except (ConfigError, OSError) as error:
        _log.warning("%s keeps the size that was reserved for it: %s", out, error)
