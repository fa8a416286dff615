"""Workers and trainers of one run over the carrier in memory: they come and go, and time moves when told."""

from __future__ import annotations

import numpy as np
from runtime_kit import CONTRACT, SCHEMA, make_learner, rows_of

from tickrate.runtime import incumbency as incumbency_module
from tickrate.runtime import trainer as trainer_module
from tickrate.runtime.companion import Companion
from tickrate.runtime.courier import Courier
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.outbox import Outbox, OutboxConfig
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.run_folder import RunFolder
from tickrate.runtime.trainer import Trainer
from tickrate.testing.faulty_carrier import FaultyCarrier
from tickrate.wire import messages
from tickrate.wire.carrier import make_key
from tickrate.wire.memory import MemoryCarrier, MemoryHub

RUN = "run-test"
LIFE = 77


class Worker:
    """A worker without a control loop: the test itself drives."""

    def __init__(self, place, name, *, folder=None, contract=CONTRACT, config=None, ahead_s=0.0, **options):
        self.place, self.name, self.contract = place, name, contract
        self.folder = place.path / "machines" / (folder or name)
        self.config, self.ahead_s, self.options = config or OutboxConfig(max_bytes=1 << 18), ahead_s, options
        self.outlet = SharedOutlet.create(contract)
        self.sent, self.alive = [], False
        self.start()

    def start(self):
        """Start the companion, as after its kill: with the same memory and the same folder."""
        self.carrier = self.place.carrier()
        self.outbox = Outbox(self.folder, self.contract.schema(), self.config)
        self.courier = Courier(
            self.carrier,
            self.outbox,
            self.contract,
            RUN,
            self.name,
            now=lambda: self.place.now + self.ahead_s,
            **self.options,
        )
        self.companion = Companion(self.outlet, self.outbox, self.courier, RUN)
        self.alive = True

    def kill(self):
        """End the companion without a word; its files stay as they are."""
        self.carrier.close()
        self.outbox.close()
        self.alive = False

    def drive(self, count, episode=0, first=0, **options):
        """Make ``count`` rows, numbered on from ``first``."""
        for row in rows_of(episode, count, first=first, final=False, **options):
            self.outlet.put_row(row.reshape(()))
            self.sent.append(row.copy())

    def finish(self, number, **changes):
        """Report an episode."""
        values = {"evaluation": False, "policy_version": 0, "steps": 5, "total_return": float(number)}
        values |= {"duration_s": 0.5, "ended": "terminated", "training_steps": 5, "metrics": {}} | changes
        self.outlet.put_summary(EpisodeSummary(episode=number, **values))

    def step(self):
        self.companion.commit()
        self.companion.step()

    def close(self):
        if self.alive:
            self.kill()
        self.outlet.close(remove=True)


class Place:
    """One hub, one run folder, and whoever works for the run."""

    def __init__(self, tmp_path, monkeypatch):
        self.hub, self.path, self.now = MemoryHub(), tmp_path, 1000.0
        self.folder = RunFolder(tmp_path / "r")
        self.seed, self.carriers, self.workers = None, [], []
        self.trainer = self.learner = self.ledger = None
        self.finished, self.refusals = [], []
        clock = trainer_module.clock
        monkeypatch.setattr(clock, "now", lambda: self.now)
        monkeypatch.setattr(clock, "sleep", self.pass_time)
        monkeypatch.setattr(trainer_module, "IDLE_WAIT_S", 0.0)
        monkeypatch.setattr(incumbency_module, "ROSTER_S", 0.0)
        self.ear = MemoryCarrier(self.hub)
        self.statuses = self.ear.subscribe(make_key(RUN, "status", "*"), capacity=100_000)

    def pass_time(self, seconds):
        self.now += seconds

    def carrier(self):
        """Return a way to the hub, a bad one once ``seed`` is set."""
        carrier = MemoryCarrier(self.hub)
        if self.seed is not None:
            self.seed += 1
            carrier = FaultyCarrier(carrier, drop=0.2, duplicate=0.2, reorder=0.2, seed=self.seed)
        self.carriers.append(carrier)
        return carrier

    def worker(self, name="worker-0", **options):
        self.workers.append(Worker(self, name, **options))
        return self.workers[-1]

    def start_trainer(self, *, resume=False, life=LIFE, folder=None, **config):
        """Start a trainer in place of the present one, which is forgotten, not ended."""
        folder = folder or self.folder
        if not folder.checkpoints.exists():
            folder.prepare("refuse")
            folder.experiment.write_text("{}", encoding="utf-8")
        self.ledger = ledger = Ledger(folder.ledger, life)
        self.trainer_carrier = self.carrier()

        def build(contract):
            settings = {"start_steps": 10**6, "journal": True, "capacity": 20_000} | config
            learner = make_learner(folder.path, **settings)
            if resume:
                checkpoint = folder.latest_checkpoint()
                learner.restore(checkpoint) if checkpoint is not None else learner.recover()
            self.learner = learner
            return learner

        self.learner = None
        self.trainer = Trainer(self.trainer_carrier, RUN, ledger, build, self.finished.append)
        return self.trainer

    def kill_trainer(self):
        """End the trainer without a word."""
        self.trainer_carrier.close()
        if self.learner is not None:
            self.learner.replay.close()
        self.ledger.close()
        self.trainer = None

    def step(self, times=1, seconds=0.01, *, only=None):
        """Let everybody (or ``only`` these) do what is due, and time pass."""
        for _ in range(times):
            for worker in self.workers:
                if worker.alive and (only is None or worker in only):
                    worker.step()
            for trainer in [self.trainer] if only is None else only:
                if isinstance(trainer, Trainer):
                    step_trainer(trainer, self.now)
            self.now += seconds

    def until(self, condition, limit_s=300.0, seconds=0.02):
        """Step until ``condition`` is true."""
        end = self.now + limit_s
        while not condition():
            assert self.now < end, "it did not come about"
            self.step(seconds=seconds)

    @property
    def peers(self):
        return {peer.name: peer for peer in self.trainer.reception.peers.all()}

    def journal(self):
        """Return the rows of the journal by the worker's name, in their order there."""
        replay = self.learner.replay
        rows = replay.read(np.arange(replay.oldest_row, replay.rows_added))
        found = {}
        for stream, (name, _) in self.ledger.streams().items():
            own = rows[rows["stream"] == stream]
            found[name] = np.concatenate([found[name], own]) if name in found else own
        assert sum(map(len, found.values())) == len(rows)
        return found

    def steps_of(self, name="worker-0"):
        """Return the step numbers of a worker's rows in the journal."""
        return self.journal()[name]["step"].tolist()

    def said(self, role):
        found = [messages.decode(p) for p in self.statuses.drain(100_000)]
        return [s for s in found if s.role == role]

    def close(self):
        for worker in self.workers:
            worker.close()
        self.hub.close()


def step_trainer(trainer, now=0.0):
    if trainer.learner is None:
        trainer._wait_for_worker(now)
    else:
        trainer.step(trainer.learner)


def same_rows(stored, sent):
    """Check that rows are equal, but for the stream that the trainer gave them."""
    sent = np.array(sent, SCHEMA.row_dtype)
    assert stored["step"].tolist() == sent["step"].tolist()
    for name in SCHEMA.row_dtype.names:
        if name != "stream":
            np.testing.assert_array_equal(stored[name], sent[name])
