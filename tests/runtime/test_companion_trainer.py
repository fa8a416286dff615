"""Companion and trainer over the carrier in memory: what each does, and that every row arrives in order."""

import json
import threading

import pytest
from delivery_kit import RUN, same_rows
from runtime_kit import CONTRACT, SCHEMA, policy_bytes, rows_of

from tickrate import __version__
from tickrate.errors import RecordError
from tickrate.runtime import companion as companion_module
from tickrate.runtime import peers as peers_module
from tickrate.runtime import report_queue
from tickrate.runtime import trainer as trainer_module
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.outbox import OutboxConfig
from tickrate.runtime.reports import summary_of
from tickrate.wire import messages
from tickrate.wire.arrays import pack_rows
from tickrate.wire.carrier import make_key

DIGEST = SCHEMA.digest()


def test_all_rows_arrive_once_and_in_order_through_a_small_window(place, monkeypatch):
    monkeypatch.setattr(peers_module, "WINDOW_ROWS", 16)
    worker, _ = place.worker(), place.start_trainer()
    for block in range(10):
        worker.drive(50, first=50 * block)
        place.step(40)
    assert place.steps_of() == list(range(500))
    same_rows(place.journal()["worker-0"], worker.sent)
    assert worker.outbox.dropped == 0
    assert worker.outbox.pending == 0
    assert place.learner.limiter.steps == 500
    assert worker.courier.sender.resent == 0


def test_no_row_is_sent_before_the_trainer_has_granted_it(place):
    worker = place.worker()
    rows = place.ear.subscribe(make_key(RUN, "rows", "*"), capacity=100)
    worker.drive(20)
    place.step(300)
    assert len(rows) == 0
    place.start_trainer()  # a late trainer picks up everything
    place.step(200)
    assert place.steps_of() == list(range(20))


def test_a_trainer_that_takes_nothing_bounds_the_outbox_and_the_loss_is_counted(place, monkeypatch):
    monkeypatch.setattr(peers_module, "WINDOW_ROWS", 16)
    worker = place.worker(config=OutboxConfig(max_bytes=1 << 16))
    capacity = worker.outbox._segment.capacity
    trainer = place.start_trainer()
    place.step(3)
    for block in range(20):  # the trainer is stuck: only the companion goes on
        worker.drive(200, first=200 * block)
        place.step(10, only=[worker])
    pending, dropped = worker.outbox.pending, worker.outbox.dropped
    assert capacity - capacity // 64 <= pending <= capacity
    assert pending + dropped == 4000
    place.step(900)
    # The oldest were dropped; the first window had been sent before.
    assert place.steps_of() == list(range(16)) + list(range(dropped, 4000))
    assert place.said("worker")[-1].metrics["worker/dropped_rows"] == dropped
    assert place.peers["worker-0"].receiver.lost == dropped - 16
    assert trainer.reception.spoilt_rows == 0


def test_a_trainer_that_catches_up_does_not_publish_every_policy(place):
    """90 updates take 0.9 s; one policy a second may go out: the first, and after a second the last."""
    worker, _ = place.worker(), place.start_trainer(start_steps=1, publish_every=1, publish_every_s=1.0)
    place.step(3)
    worker.drive(91)
    place.step(320)  # 3.2 s
    assert place.learner.limiter.updates == 90
    assert place.learner.version == 2


def test_weights_reach_the_outlet_and_older_ones_do_not_return(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=1, publish_every=2)
    place.step(3)
    worker.drive(9)
    place.step(60)
    version, weights = worker.outlet.newest_weights(0)
    assert version == place.learner.version == 4
    assert weights == policy_bytes(4, 0.25)
    place.trainer_carrier.publish(
        make_key(RUN, "weights", "trainer"),
        messages.encode(
            messages.make_weights(b"old", run=RUN, worker="trainer", boot=1, version=2, created=0.0)
        ),
    )
    place.step(2)
    assert worker.outlet.newest_weights(0)[0] == 4


def test_a_worker_that_comes_late_gets_the_newest_weights_at_once(place):
    first, _ = place.worker(), place.start_trainer(start_steps=1, publish_every=2)
    place.step(3)
    first.drive(9)
    place.step(60)
    late = place.worker("worker-1")
    place.step(5)
    assert late.outlet.newest_weights(0)[0] == place.learner.version


def test_a_killed_trainer_is_replaced_and_no_row_is_lost(place, monkeypatch):
    monkeypatch.setattr(peers_module, "WINDOW_ROWS", 64)
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(300)
    place.step(60)
    assert place.steps_of() == list(range(300))
    place.kill_trainer()  # its presence ends
    worker.drive(100, first=300)
    place.step(50)
    place.start_trainer(resume=True)
    place.step(200)
    worker.drive(100, first=400)
    place.step(200)
    same_rows(place.journal()["worker-0"], worker.sent)
    assert place.peers["worker-0"].receiver.lost == 0


def test_a_trainer_whose_death_went_unnoticed_still_gets_what_follows(place):
    """Its successor is there before anybody saw it go: the greeting of the new one tells the two apart."""
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(50)
    place.step(20)
    place.learner.replay.close()
    place.ledger.close()
    second = place.start_trainer(resume=True)  # the first one's presence is still announced
    worker.drive(50, first=50)
    place.step(800)
    assert second.reception.settled
    same_rows(place.journal()["worker-0"], worker.sent)


def test_a_new_companion_goes_on_with_its_numbers(place):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(30)
    place.step(20)
    worker.kill()
    worker.start()
    worker.drive(30, first=30)
    place.step(200)
    assert worker.outbox.head == 60
    assert list(place.ledger.streams()) == [0]
    same_rows(place.journal()["worker-0"], worker.sent)


def test_rows_lost_on_the_way_come_again(place, monkeypatch):
    monkeypatch.setattr(peers_module, "WINDOW_ROWS", 32)
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(32)
    publish = worker.carrier.publish
    monkeypatch.setattr(worker.carrier, "publish", lambda *a, **k: None)
    worker.step()  # 32 rows vanish, and the grant is used up
    monkeypatch.setattr(worker.carrier, "publish", publish)
    worker.drive(40, first=32)
    place.step(400)
    same_rows(place.journal()["worker-0"], worker.sent)
    assert worker.courier.sender.resent == 32
    assert place.peers["worker-0"].receiver.lost == 0


def hello(name, **changes):
    values = {
        "run": RUN,
        "worker": name,
        "boot": 5,
        "role": "worker",
        "version": __version__,
        "host": "process 9 on far-away",
        "schema": SCHEMA.to_json(),
        "contract": json.dumps(CONTRACT.to_dict()),
        "outbox": 6,
    }
    return messages.Hello(**values | changes)


def test_a_worker_of_another_schema_is_refused_by_name(place, caplog):
    place.worker()
    trainer = place.start_trainer()
    place.step(3)
    refusals = place.ear.subscribe(make_key(RUN, "refusal", "worker-9"), capacity=10)
    other, contract = json.loads(SCHEMA.to_json()), CONTRACT.to_dict()
    other["observation"][0]["shape"] = [3]
    contract["observation"][0]["shape"] = [3]
    key = make_key(RUN, "hello", "worker-9")
    greeting = hello("worker-9", schema=json.dumps(other), contract=json.dumps(contract))
    place.ear.publish(key, messages.encode(greeting))
    place.step(2)
    refusal = messages.decode(refusals.get(0.0))
    assert refusal.code == "mismatch"
    for text in (caplog.text, refusal.text):
        assert "worker-9 (process 9 on far-away" in text
        assert "place" in text
    assert "worker-9" not in place.peers
    for broken in (
        {"schema": "[" * 5000},
        {"contract": "{}"},
        {"schema": "{}"},
        {"contract": "[" * 5000},
        {"contract": "[]"},
        {"contract": '{"observation": [{"path": 3}]}'},
        {"schema": SCHEMA.to_json(), "contract": json.dumps(contract)},
        {"worker": "ü" * 128},
        {"worker": "a/b"},
        {"worker": "trainer"},
    ):
        place.ear.publish(key, messages.encode(hello(**{"name": "worker-9"} | named(broken))))
        place.step(1)
    assert trainer.reception.refused == 11
    assert list(place.peers) == ["worker-0"]
    assert len(place.ledger.streams()) == 1


def named(changes):
    return {("name" if key == "worker" else key): value for key, value in changes.items()}


def test_rubbish_and_rows_of_strangers_are_left_out_and_counted(place):
    worker, trainer = place.worker(), place.start_trainer()
    place.step(3)
    boot, outbox = worker.courier.boot, worker.outbox.identity

    def rows(name, digest=DIGEST, boot=boot, outbox=outbox, first=0):
        batch = pack_rows(
            rows_of(0, 3),
            run=RUN,
            worker=name,
            boot=boot,
            outbox=outbox,
            sequence=first,
            schema_digest=digest,
        )
        place.ear.publish(make_key(RUN, "rows", name), messages.encode(batch))

    rows("worker-7", boot=1)  # nobody has greeted under this name
    rows("worker-0", digest="other")
    rows("worker-0", boot=1)  # another life of it
    rows("worker-0", outbox=1)  # another outbox of it
    place.step(1)
    assert trainer.reception.refused == 1  # the digest; the others are merely not ours
    rubbish = [
        b"rubbish",
        b"",
        b"\x80\x04\x95 a pickle",
        b"TKR\x01 another version",
        b"TKR\x02\x81",
        messages.encode(hello("worker-0"))[:-3],
        bytes(1 << 20),
    ]
    for kind in ("rows", "hello", "ping", "report", "status", "refusal"):
        for payload in rubbish:
            place.ear.publish(make_key(RUN, kind, "trainer"), payload)
    for kind in ("ack", "refusal", "answer", "command"):
        for payload in rubbish:
            place.ear.publish(make_key(RUN, kind, "worker-0"), payload)
    for payload in rubbish:
        for kind in ("hello", "weights"):
            place.ear.publish(make_key(RUN, kind, "trainer"), payload)
    worker.drive(5)
    place.step(60)
    assert trainer.reception.refused > 20
    assert worker.courier._left_out > 20
    assert place.steps_of() == list(range(5))
    assert not worker.outlet.orders().shutdown


def test_reports_become_episodes_of_the_learner(place):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    summary = EpisodeSummary(
        3, True, 7, 12, 1.5, 0.6, "lap finished", 400, {"lap_time_s": 12.5, "lap_clean": 0.0}
    )
    worker.outlet.put_summary(summary)
    place.step(3)
    (episode,) = place.learner.episodes
    assert (episode["episode"], episode["return"], episode["lap_time_s"], episode["clean"]) == (
        3,
        1.5,
        12.5,
        False,
    )
    reports = place.ear.subscribe(make_key(RUN, "report", "*"), capacity=10)
    worker.outlet.put_summary(summary)
    place.step(1)
    assert summary_of(messages.decode(reports.get(0.0))) == summary


@pytest.mark.parametrize(
    ("action", "target", "paused", "shutdown"),
    [
        ("pause", "worker", True, False),
        ("stop_device", "all", True, False),
        ("resume", "worker-0", False, False),
        ("shutdown", "worker", False, True),
        ("pause", "worker-1", False, False),
        ("pause", "trainer", False, False),
    ],
)
def test_orders_reach_the_control_loop(place, action, target, paused, shutdown):
    worker = place.worker()
    order = messages.Command(run=RUN, worker="launcher", boot=1, target=target, action=action)
    place.ear.publish(make_key(RUN, "command", target), messages.encode(order))
    worker.step()
    orders = worker.outlet.orders()
    assert (orders.paused, orders.shutdown) == (paused, shutdown)


def test_the_status_says_what_the_worker_does_and_whether_it_still_ticks(place):
    worker = place.worker()
    worker.outlet.put_state("driving and recording")
    worker.outlet.orders()
    worker.outlet.block.set("control_beat", place.now)
    worker.step()
    assert place.said("worker")[-1].text == "driving and recording"
    place.now += 12.0
    worker.outlet.block.set("paused", 1)
    worker.step()
    status = place.said("worker")[-1]
    assert status.text == "driving and recording (no tick for 12 s)"
    assert status.state == "paused"


def test_at_the_end_the_last_row_and_the_last_summary_are_delivered_and_saved(place, monkeypatch):
    monkeypatch.setattr(companion_module, "COMMIT_EVERY_S", 3600.0)  # the test commits by itself
    worker, trainer = place.worker(), place.start_trainer()
    place.step(3)
    ended, stop = threading.Event(), threading.Event()
    step, calls = worker.companion.step, []
    worker.drive(3)

    def last_words():
        step()
        worker.companion.commit()
        calls.append(1)
        if len(calls) == 3:  # the control process speaks and dies right after a look at its memory
            worker.finish(0)
            worker.outlet.block.set("shutdown", 1)
            ended.set()
        if len(calls) < 6:
            place.step(only=[trainer])

    worker.companion.step = last_words
    worker.companion.run(ended)
    stop.set()
    trainer.run(stop)  # its stop comes after the worker's end, with everything still in the mailboxes
    assert place.steps_of() == [0, 1, 2]
    assert len(place.learner.episodes) == 1
    assert place.learner.folder.latest_checkpoint().name == "step-000000000003"
    assert place.finished == [place.learner]
    assert place.said("worker")[-1].state == "stopped"


def test_a_worker_that_never_says_goodbye_holds_the_trainer_up_only_so_long(place):
    worker, trainer = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(5)
    worker.step()
    receive = trainer.reception.receive
    trainer.reception.receive = lambda wait_s: (receive(wait_s), place.pass_time(0.02))
    began, stop = place.now, threading.Event()
    stop.set()
    trainer.run(stop)
    assert place.steps_of() == list(range(5))
    assert place.now - began == pytest.approx(trainer_module.LAST_ROWS_S, abs=0.1)


@pytest.mark.parametrize("successor", [False, True])
def test_a_companion_without_a_trainer_keeps_the_rows_and_ends(place, caplog, monkeypatch, successor):
    """A successor that waits for the outbox gets it at once, when the last row is committed."""
    worker = place.worker()
    worker.drive(2000)
    monkeypatch.setattr(type(worker.outbox), "wanted", property(lambda outbox: successor))
    ended = threading.Event()
    ended.set()
    began = place.now
    worker.companion.run(ended)
    patience_s = 0.0 if successor else companion_module.DRAIN_PATIENCE_S
    assert place.now - began == pytest.approx(patience_s, abs=0.1)
    assert "2000 rows are not delivered yet: they stay in the outbox" in caplog.text
    worker.kill()
    worker.start()
    same_rows(worker.outbox.read(0, 2000), worker.sent)


def test_a_row_that_cannot_be_committed_ends_the_companion_and_stays_in_the_memory(place, monkeypatch):
    worker = place.worker()
    worker.drive(3)

    def full(rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker.outbox, "append", full)
    with pytest.raises(OSError, match="No space left"):
        worker.companion.run(threading.Event())
    assert worker.outlet.rows.pending() == 3


def test_a_disk_that_stops_answering_is_not_waited_for(place, monkeypatch):
    """The commit hangs for real; the companion ends all the same, and the row is still in the memory."""
    worker = place.worker()
    worker.drive(1)
    free, begun = threading.Event(), threading.Event()

    def hang(rows):
        begun.set()
        free.wait(30.0)
        raise OSError("too late")

    monkeypatch.setattr(worker.outbox, "append", hang)
    monkeypatch.setattr(companion_module, "COMMIT_PATIENCE_S", 0.05)
    ended = threading.Event()
    real = worker.companion.step
    monkeypatch.setattr(worker.companion, "step", lambda: (begun.wait(5.0), ended.set(), real()))
    with pytest.raises(RecordError, match="the next start commits them"):
        worker.companion.run(ended)
    assert worker.outlet.rows.pending() == 1
    free.set()


def test_a_trainer_that_never_met_a_worker_ends_without_a_checkpoint(place):
    trainer, stop = place.start_trainer(), threading.Event()
    stop.set()
    trainer.run(stop)
    assert place.finished == []
    assert place.said("trainer")[-1].state == "stopped"


def test_limits_end_the_learning_but_not_the_receiving(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=1, total_steps=10)
    place.step(3)
    worker.drive(30)
    place.step(100)
    assert place.said("trainer")[-1].state == "finished"
    updates = place.learner.limiter.updates
    worker.drive(30, first=30)
    place.step(100)
    assert place.learner.limiter.updates == updates
    assert place.steps_of() == list(range(60))


def test_a_checkpoint_is_written_now_and_then(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=1, checkpoint_every_s=2.0, log_every_s=0.5)
    place.step(3)
    worker.drive(20)
    place.step(150)
    assert place.learner.folder.latest_checkpoint() is None
    place.step(100)
    assert place.learner.folder.latest_checkpoint() is not None
    assert place.finished
    assert len(place.learner._tracker.calls) >= 4


def test_episodes_that_end_before_there_is_a_trainer_are_reported_to_it(place):
    worker = place.worker()
    for number in range(3):
        worker.finish(number)
        place.step(20)
    place.start_trainer()
    place.step(200)
    assert [e["episode"] for e in place.learner.episodes] == [0, 1, 2]


def test_more_reports_than_are_kept_lose_the_oldest_and_hold_nothing_up(place, monkeypatch):
    monkeypatch.setattr(report_queue, "BUFFERED_REPORTS", 10)
    worker = place.worker()
    for number in range(25):
        worker.finish(number)
        place.step(1)
    place.start_trainer()
    place.step(300)
    assert [e["episode"] for e in place.learner.episodes] == list(range(15, 25))
    worker.finish(25)
    place.step(50)
    assert place.learner.episodes[-1]["episode"] == 25
    assert worker.courier.delivered


def test_a_full_outbox_asks_the_device_to_wait_before_anything_is_dropped(place):
    worker = place.worker(config=OutboxConfig(max_bytes=1 << 16, on_full="stop"))
    made = 0
    while not worker.outlet.block.get("hold"):
        worker.drive(10, first=made)
        made += 10
        worker.companion.commit()  # the network's side may be stuck meanwhile
    assert worker.outbox.dropped == worker.outlet.rows.dropped == 0
    place.start_trainer()
    place.step(100)
    assert not worker.outlet.block.get("hold")
    same_rows(place.journal()["worker-0"], worker.sent)


def test_a_worker_that_was_welcomed_at_an_earlier_start_need_not_wait_for_a_trainer(place):
    worker = place.worker()
    place.step(5)
    assert not worker.outlet.block.get("welcomed")
    place.start_trainer()
    place.step(5)
    assert worker.outlet.block.get("welcomed")
    place.kill_trainer()
    worker.kill()
    worker.outlet.block.set("welcomed", 0)
    worker.start()
    place.step(5)
    assert worker.outlet.block.get("welcomed")
