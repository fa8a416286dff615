"""Companion and trainer over the carrier in memory: every row once and in order, whatever comes and goes."""

import json
import threading

import numpy as np
import pytest
from runtime_kit import CONTRACT, SCHEMA, make_learner, policy_bytes, rows_of

from tickrate import __version__
from tickrate.runtime import companion as companion_module
from tickrate.runtime import trainer as trainer_module
from tickrate.runtime.companion import Companion
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.reports import summary_of
from tickrate.runtime.trainer import Trainer
from tickrate.wire import messages
from tickrate.wire.arrays import pack_rows
from tickrate.wire.carrier import make_key
from tickrate.wire.memory import MemoryCarrier, MemoryHub

RUN = "run-test"


class Place:
    """One hub, one outlet, and trainers and companions that come and go; time moves when a test says so."""

    def __init__(self, tmp_path, monkeypatch):
        self.hub = MemoryHub()
        self.outlet = SharedOutlet.create(CONTRACT)
        self.now = 1000.0
        self.path, self.lives = tmp_path, 0
        self.learner, self.finished, self.ingested = None, [], []
        for module in (companion_module, trainer_module):
            monkeypatch.setattr(module.clock, "now", lambda: self.now)
            monkeypatch.setattr(module.clock, "sleep", self.pass_time)
        monkeypatch.setattr(trainer_module, "IDLE_WAIT_S", 0.0)
        self.ear = MemoryCarrier(self.hub)
        self.statuses = self.ear.subscribe(make_key(RUN, "status", "*"), capacity=1000)

    def pass_time(self, seconds):
        self.now += seconds

    def companion(self, **options):
        self.companion_carrier = MemoryCarrier(self.hub)
        return Companion(self.outlet, self.companion_carrier, RUN, **options)

    def trainer(self, *, restore=None, **config):
        self.lives += 1
        self.trainer_carrier = MemoryCarrier(self.hub)

        def build(contract):
            assert contract.schema().digest() == SCHEMA.digest()
            settings = {"start_steps": 10**6} | config
            learner = make_learner(self.path / "r", capacity=20_000, **settings)
            if restore is not None:
                learner.restore(restore)
            take = learner.ingest
            learner.ingest = lambda rows: (self.ingested.append(rows.copy()), take(rows))
            self.learner = learner
            return learner

        return Trainer(self.trainer_carrier, RUN, build, lambda learner: self.finished.append(learner))

    def step(self, companion, trainer, times=1, seconds=0.01):
        for _ in range(times):
            companion.step()
            if trainer is not None:
                if trainer._learner is None:
                    trainer._wait_for_worker(self.now)
                else:
                    trainer.step(trainer._learner)
            self.now += seconds

    def drive(self, count, episode=0, first=0):
        """Put ``count`` rows into the ring, numbered on from ``first``."""
        for row in rows_of(episode, count, first=first, final=False):
            self.outlet.put_row(row.reshape(()))

    @property
    def numbers(self):
        return np.concatenate(self.ingested)["step"].tolist() if self.ingested else []

    def said(self, role):
        found = [messages.decode(p) for p in self.statuses.drain(1000)]
        return [s for s in found if s.role == role]


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path, monkeypatch)
    yield made
    made.hub.close()
    made.outlet.close(remove=True)


def test_all_rows_arrive_once_and_in_order_through_a_small_window(place, monkeypatch):
    monkeypatch.setattr(trainer_module, "WINDOW_ROWS", 16)
    companion, trainer = place.companion(), place.trainer()
    for block in range(10):
        place.drive(50, first=50 * block)
        place.step(companion, trainer, times=40)
    assert place.numbers == list(range(500))
    assert companion._dropped == 0
    assert place.learner.limiter.steps == 500
    assert all(len(rows) <= 16 for rows in place.ingested)


def test_no_row_is_sent_before_the_trainer_has_granted_credit(place):
    companion = place.companion()
    rows = place.ear.subscribe(make_key(RUN, "rows", "*"), capacity=100)
    place.drive(20)
    place.step(companion, None, times=300)
    assert len(rows) == 0
    trainer = place.trainer()  # a late trainer picks up everything
    place.step(companion, trainer, times=200)
    assert place.numbers == list(range(20))


def test_a_trainer_that_takes_nothing_bounds_the_buffer_and_the_loss_is_counted(place, monkeypatch):
    monkeypatch.setattr(trainer_module, "WINDOW_ROWS", 8)
    companion, trainer = place.companion(buffered_rows=100), place.trainer()
    place.step(companion, trainer, times=3)
    for block in range(5):  # the trainer is stuck: only the companion goes on
        place.drive(100, first=100 * block)
        place.step(companion, None, times=10)
    assert len(companion._queue) == 100
    assert companion._dropped == 500 - 100 - 8
    place.step(companion, trainer, times=400)
    assert place.numbers == list(range(8)) + list(range(400, 500))  # the oldest were dropped
    status = place.said("worker")[-1]
    assert status.metrics["worker/dropped_rows"] == 392.0


def test_weights_reach_the_outlet_and_older_ones_do_not_return(place):
    companion, trainer = place.companion(), place.trainer(start_steps=1, publish_every=2)
    place.step(companion, trainer, times=3)
    place.drive(9)
    place.step(companion, trainer, times=60)
    version, weights = place.outlet.newest_weights(0)
    assert version == place.learner.version == 4
    assert weights == policy_bytes(4, 0.25)
    place.trainer_carrier.publish(
        make_key(RUN, "weights", "trainer"),
        messages.encode(
            messages.make_weights(b"old", run=RUN, worker="trainer", boot=1, version=2, created=0.0)
        ),
    )
    place.step(companion, trainer, times=2)
    assert place.outlet.newest_weights(0)[0] == 4


def test_a_killed_trainer_is_replaced_and_no_later_row_is_lost(place, monkeypatch):
    monkeypatch.setattr(trainer_module, "WINDOW_ROWS", 64)
    companion, first = place.companion(), place.trainer()
    place.step(companion, first, times=3)
    place.drive(300)
    place.step(companion, first, times=60)
    assert place.numbers == list(range(300))
    place.trainer_carrier.close()  # killed: its presence ends
    place.drive(100, first=300)
    place.step(companion, None, times=50)
    second = place.trainer()
    place.step(companion, second, times=200)
    place.drive(100, first=400)
    place.step(companion, second, times=200)
    assert place.numbers == list(range(500))
    assert sum(g.lost for g in second._granters.values()) == 0


def test_a_trainer_whose_death_went_unnoticed_still_gets_what_follows(place, monkeypatch):
    """Its successor is there before anybody saw it go: the greeting of the new one tells the two apart."""
    companion, first = place.companion(), place.trainer()
    place.step(companion, first, times=3)
    place.drive(50)
    place.step(companion, first, times=20)
    second = place.trainer()  # the first one's presence is still announced
    second._wait_for_worker(place.now)
    place.drive(50, first=50)
    place.step(companion, second, times=200)
    assert place.numbers == list(range(100))


def test_a_new_companion_starts_its_numbers_anew(place):
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    place.drive(30)
    place.step(companion, trainer, times=20)
    place.companion_carrier.close()  # killed, and started again by its worker
    again = place.companion()
    place.drive(30, first=30)
    place.step(again, trainer, times=200)
    assert place.numbers == list(range(60))


def test_rows_lost_on_the_way_are_counted_and_their_credit_returns(place, monkeypatch):
    monkeypatch.setattr(trainer_module, "WINDOW_ROWS", 32)
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    place.drive(32)
    publish = place.companion_carrier.publish
    monkeypatch.setattr(place.companion_carrier, "publish", lambda *a, **k: None)
    companion.step()  # 32 rows vanish, and the credit is used up
    monkeypatch.setattr(place.companion_carrier, "publish", publish)
    place.drive(40, first=32)
    place.step(companion, trainer, times=400)
    assert place.numbers == list(range(32, 72))
    assert trainer._granters["worker-0"].lost == 32


def test_a_worker_of_another_schema_is_refused_by_name(place, caplog):
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    other = json.loads(SCHEMA.to_json())
    other["observation"][0]["shape"] = [3]
    contract = CONTRACT.to_dict()
    contract["observation"][0]["shape"] = [3]
    hello = {
        "run": RUN,
        "worker": "worker-9",
        "boot": 5,
        "role": "worker",
        "version": __version__,
        "schema": json.dumps(other),
        "contract": json.dumps(contract),
    }
    key = make_key(RUN, "hello", "worker-9")
    place.ear.publish(key, messages.encode(messages.Hello(**hello)))
    place.step(companion, trainer, times=2)
    assert "worker-9 records something else" in caplog.text
    assert "place" in caplog.text
    assert "worker-9" not in trainer._granters
    for broken in ({"schema": "[" * 5000}, {"contract": "{}"}, {"schema": "{}"}, {"contract": "[" * 5000}):
        place.ear.publish(key, messages.encode(messages.Hello(**hello | broken)))
    place.step(companion, trainer, times=4)
    assert trainer._refused == 5


def test_rubbish_and_rows_of_strangers_are_left_out(place):
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    stranger = pack_rows(
        rows_of(0, 3), run=RUN, worker="worker-7", boot=1, sequence=0, schema_digest=SCHEMA.digest()
    )
    place.ear.publish(make_key(RUN, "rows", "worker-7"), messages.encode(stranger))
    for kind in ("rows", "hello", "report", "weights", "command", "status"):
        place.ear.publish(make_key(RUN, kind, "trainer"), b"rubbish")
    known = trainer._granters["worker-0"].boot
    foreign = pack_rows(
        rows_of(0, 3), run=RUN, worker="worker-0", boot=known, sequence=0, schema_digest="other"
    )
    place.ear.publish(make_key(RUN, "rows", "worker-0"), messages.encode(foreign))
    place.drive(5)
    place.step(companion, trainer, times=30)
    assert place.numbers == list(range(5))


def test_reports_become_episodes_of_the_learner(place):
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    summary = EpisodeSummary(
        3, True, 7, 12, 1.5, 0.6, "lap finished", 400, {"lap_time_s": 12.5, "lap_clean": 0.0}
    )
    place.outlet.put_summary(summary)
    place.step(companion, trainer, times=3)
    (episode,) = place.learner.episodes
    assert (episode["episode"], episode["return"], episode["lap_time_s"], episode["clean"]) == (
        3,
        1.5,
        12.5,
        False,
    )
    reports = place.ear.subscribe(make_key(RUN, "report", "*"), capacity=10)
    place.outlet.put_summary(summary)
    place.step(companion, trainer)
    assert summary_of(messages.decode(reports.get(0.0))) == summary


@pytest.mark.parametrize(
    ("action", "target", "paused", "shutdown"),
    [
        ("pause", "worker", True, False),
        ("stop_device", "*", True, False),
        ("resume", "worker-0", False, False),
        ("shutdown", "worker", False, True),
        ("pause", "worker-1", False, False),
        ("pause", "trainer", False, False),
    ],
)
def test_orders_reach_the_control_loop(place, action, target, paused, shutdown):
    companion = place.companion()
    order = messages.Command(run=RUN, worker="launcher", boot=1, target=target, action=action)
    place.ear.publish(make_key(RUN, "command", "worker"), messages.encode(order))
    companion.step()
    orders = place.outlet.orders()
    assert (orders.paused, orders.shutdown) == (paused, shutdown)


def test_the_status_says_what_the_worker_does_and_whether_it_still_ticks(place):
    companion = place.companion()
    place.outlet.put_state("driving and recording")
    place.outlet.orders()
    place.outlet.block.set("control_beat", place.now)
    companion.step()
    assert place.said("worker")[-1].text == "driving and recording"
    place.now += 12.0
    place.outlet.block.set("paused", 1)
    companion.step()
    status = place.said("worker")[-1]
    assert status.text == "driving and recording (no tick for 12 s)"
    assert status.state == "paused"


def test_at_the_end_the_last_row_and_the_last_summary_are_delivered_and_saved(place):
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    ended, stop = threading.Event(), threading.Event()
    step, calls = companion.step, []
    place.drive(3)

    def last_words():
        moved = step()
        calls.append(moved)
        if len(calls) == 3:  # the control process speaks and dies right after a look at its memory
            assert not moved
            place.outlet.put_summary(EpisodeSummary(0, False, 0, 3, 1.0, 0.1, "shutdown", 3, {}))
            ended.set()
        return moved

    companion.step = last_words
    companion.run(ended)
    stop.set()
    trainer.run(stop)  # its stop comes after the worker's end, with everything still in the mailboxes
    assert place.numbers == [0, 1, 2]
    assert len(place.learner.episodes) == 1
    checkpoint = place.learner.folder.latest_checkpoint()
    assert checkpoint.name == "step-000000000003"
    assert place.finished == [place.learner]
    assert place.said("trainer")[-1].state == "stopped"


def test_a_worker_that_never_says_goodbye_holds_the_trainer_up_only_so_long(place):
    companion, trainer = place.companion(), place.trainer()
    place.step(companion, trainer, times=3)
    place.drive(5)
    companion.step()
    receive = trainer._receive
    trainer._receive = lambda learner, wait_s: (receive(learner, wait_s), place.pass_time(0.02))
    began, stop = place.now, threading.Event()
    stop.set()
    trainer.run(stop)
    assert place.numbers == list(range(5))
    assert place.now - began == pytest.approx(trainer_module.LAST_ROWS_S, abs=0.1)


def test_a_companion_without_a_trainer_gives_up_after_its_patience(place, caplog):
    companion = place.companion()
    place.drive(5)
    ended = threading.Event()
    ended.set()
    began = place.now
    companion.run(ended)
    assert place.now - began == pytest.approx(companion_module.DRAIN_PATIENCE_S, abs=0.1)
    assert "5 rows could not be delivered" in caplog.text


def test_a_trainer_that_never_met_a_worker_ends_without_a_checkpoint(place):
    trainer, stop = place.trainer(), threading.Event()
    stop.set()
    trainer.run(stop)
    assert place.finished == []
    assert place.said("trainer")[-1].state == "stopped"


def test_limits_end_the_learning_but_not_the_receiving(place):
    companion, trainer = place.companion(), place.trainer(start_steps=1, total_steps=10)
    place.step(companion, trainer, times=3)
    place.drive(30)
    place.step(companion, trainer, times=100)
    assert place.said("trainer")[-1].state == "finished"
    updates = place.learner.limiter.updates
    place.drive(30, first=30)
    place.step(companion, trainer, times=100)
    assert place.learner.limiter.updates == updates
    assert place.numbers == list(range(60))


def test_a_checkpoint_is_written_now_and_then(place):
    companion, trainer = (
        place.companion(),
        place.trainer(start_steps=1, checkpoint_every_s=2.0, log_every_s=0.5),
    )
    place.step(companion, trainer, times=3)
    place.drive(20)
    place.step(companion, trainer, times=150)
    assert place.learner.folder.latest_checkpoint() is None
    place.step(companion, trainer, times=100)
    assert place.learner.folder.latest_checkpoint() is not None
    assert place.finished
    assert len(place.learner._tracker.calls) >= 4


def test_episodes_that_end_before_there_is_a_trainer_are_reported_to_it(place):
    companion = place.companion()
    for number in range(3):
        place.outlet.put_summary(EpisodeSummary(number, False, 0, 5, 1.0, 0.1, "terminated", 5, {}))
        place.step(companion, None, times=20)
    trainer = place.trainer()
    place.step(companion, trainer, times=200)
    assert [e["episode"] for e in place.learner.episodes] == [0, 1, 2]
