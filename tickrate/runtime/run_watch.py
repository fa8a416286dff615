"""Listens at a hub and tells how the runs there stand: what their trainers say, and who is present."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tickrate import clock
from tickrate.errors import WireError
from tickrate.runtime.courier import TRAINER
from tickrate.runtime.inference_role import NAME as INFERENCE
from tickrate.runtime.overview import Overview, WorkerView, by_its_own_word, read_overview, whole
from tickrate.wire import messages
from tickrate.wire.address import listen
from tickrate.wire.carrier import ANY, Carrier, make_key

FRESH_S = 5.0
"""What a trainer said that long ago does not tell how the run stands now; it speaks every half second."""
FORGET_S = 60.0
"""A role that is not present and has said nothing for so long is no longer shown."""
NOT_WORKERS = frozenset({TRAINER, INFERENCE})
"""Names of present roles that send no rows."""
MAX_RUNS = 256
MAX_WORKERS = 4096
"""Runs and workers that are kept in mind, whatever is published."""


@dataclass
class _Trainer:
    overview: Overview
    heard_at: float


@dataclass
class _Worker:
    status: messages.Status
    heard_at: float


class RunWatch:
    """Keeps what was heard of the runs at one hub. It only listens; call `poll` often.

    Args:
        carrier: the way to the hub.
        now: the machine's monotonic time in seconds.

    Attributes:
        left_out: why the last unreadable message was left out, empty if none was.
    """

    def __init__(self, carrier: Carrier, now: Callable[[], float] | None = None) -> None:
        self._now: Callable[[], float] = now or (lambda: clock.now())
        self._overviews = listen(
            carrier, make_key(ANY, "overview", TRAINER), capacity=MAX_RUNS, newest_only=True
        )
        self._statuses = listen(carrier, make_key(ANY, "status", ANY), capacity=MAX_WORKERS, newest_only=True)
        self._roster = carrier.watch(make_key(ANY, "present", ANY))
        self._trainers: dict[str, _Trainer] = {}
        self._workers: dict[tuple[str, str], _Worker] = {}
        self.left_out = ""

    def poll(self) -> None:
        """Take in what has arrived, and forget what is long gone."""
        now = self._now()
        for payload in self._overviews.drain(MAX_RUNS):
            try:
                said = read_overview(payload)
            except WireError as error:
                self.left_out = str(error)
                continue
            if said.run is not None and (said.run in self._trainers or len(self._trainers) < MAX_RUNS):
                self._trainers[said.run] = _Trainer(said, now)
        for payload in self._statuses.drain(MAX_WORKERS):
            try:
                status = messages.decode(payload)
            except WireError as error:
                self.left_out = str(error)
                continue
            if isinstance(status, messages.Status) and status.role == "worker":
                key = status.run, status.worker
                if key in self._workers or len(self._workers) < MAX_WORKERS:
                    self._workers[key] = _Worker(status, now)
        self._forget(now)

    def runs(self) -> list[str]:
        """Return the names of the runs of which anything was heard, in alphabetical order."""
        heard = {*self._trainers, *(run for run, _ in self._workers), *(run for run, _ in self._present())}
        return sorted(heard)

    def present(self, run: str) -> list[str]:
        """Return the names of the roles of a run that are at the hub now."""
        return sorted(name for where, name in self._present() if where == run)

    def complete(self, run: str) -> bool:
        """Tell whether everybody who is present in a run has been heard."""
        known = {worker.name for worker in self.overview(run).workers}
        if self._trainer(run) is not None:
            known.add(TRAINER)
        return known >= set(self.present(run)) - {INFERENCE}

    def overview(self, run: str) -> Overview:
        """Return how a run stands: its trainer's word, and workers that the trainer does not know.

        Without a trainer's word from the last seconds, ``trainer`` is None and the workers are told by what
        they say of themselves.
        """
        now, present = self._now(), self.present(run)
        trainer = self._trainer(run)
        admitted = [] if trainer is None else trainer.overview.workers
        names = {worker.name for worker in admitted}
        others: list[WorkerView] = []
        for (where, name), worker in sorted(self._workers.items(), key=lambda item: item[0]):
            if where != run or name in names:
                continue
            view = by_its_own_word(
                worker.status,
                present=name in present,
                heard_s_ago=now - worker.heard_at,
                trainer_there=trainer is not None,
            )
            others.append(view)
        names |= {worker.name for worker in others}
        mute = [name for name in present if name not in names | NOT_WORKERS]
        others += [WorkerView(name=name, connected=True) for name in mute]
        if trainer is None:
            return whole(run, None, others)
        workers = [*admitted, *others]
        alarms = whole(run, None, workers).alarms
        return msgspec.structs.replace(trainer.overview, workers=workers, alarms=alarms)

    def _trainer(self, run: str) -> _Trainer | None:
        """Return what the trainer of a run said, unless that is old or it has said goodbye."""
        trainer = self._trainers.get(run)
        if trainer is None or self._now() - trainer.heard_at > FRESH_S:
            return None
        head = trainer.overview.trainer
        return None if head is None or head.state == "stopped" else trainer

    def _present(self) -> list[tuple[str, str]]:
        parts = [key.split("/") for key in self._roster.present]
        return [(part[1], part[3]) for part in parts if len(part) == 4]

    def _forget(self, now: float) -> None:
        present = set(self._present())
        for run in [r for r, t in self._trainers.items() if now - t.heard_at > FORGET_S]:
            del self._trainers[run]
        for key in [k for k, w in self._workers.items() if now - w.heard_at > FORGET_S and k not in present]:
            del self._workers[key]
