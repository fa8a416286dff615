"""Nothing lost, nothing twice: over ways that lose, double and delay, and through the death of any role."""

import pytest
from delivery_kit import RUN, same_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_kit import SCHEMA, rows_of

from tickrate.runtime import companion as companion_module
from tickrate.runtime import peers as peers_module
from tickrate.testing.faulty_carrier import FaultyCarrier
from tickrate.wire import messages
from tickrate.wire.carrier import make_key


@pytest.mark.parametrize("seed", [1, 2000, 30_000])
def test_through_a_bad_way_the_journal_is_the_sent_list_of_each_worker(place, monkeypatch, seed):
    """A fifth each of everything is lost, doubled, delayed; two workers, small windows and messages."""
    monkeypatch.setattr(peers_module, "WINDOW_ROWS", 64)
    place.seed = seed
    workers = [place.worker(f"worker-{i}") for i in range(2)]
    for worker in workers:
        worker.courier._batch_rows = 7
    place.start_trainer()
    for block in range(15):
        for worker in workers:
            worker.drive(20, episode=block)
            worker.finish(block)
        place.step(5)
    place.until(lambda: all(w.courier.delivered for w in workers), limit_s=900.0)
    journal = place.journal()
    for worker in workers:
        same_rows(journal[worker.name], worker.sent)
        reports = [e["episode"] for e in place.learner.episodes if e["worker"] == worker.name]
        assert reports == list(range(15))
        assert worker.carrier.dropped > 20
    assert place.learner.limiter.steps == 600
    assert place.learner.replay.duplicate_rows == 0


@given(seed=st.integers(0, 2**31), kills=st.lists(st.sampled_from("tc01"), min_size=1, max_size=6))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_any_order_of_deaths_on_a_bad_way(tmp_path_factory, seed, kills):
    """t: the trainer is killed and comes back; c: a checkpoint is written; 0, 1: a companion is killed."""
    from delivery_kit import Place

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(peers_module, "WINDOW_ROWS", 50)
        place = Place(tmp_path_factory.mktemp("p"), monkeypatch)
        try:
            place.seed = seed
            workers = [place.worker(f"worker-{i}") for i in range(2)]
            place.start_trainer()
            for number, kill in enumerate([*kills, "-"]):
                for worker in workers:
                    worker.drive(40, episode=number)
                place.step(40 + seed % 50)
                if kill == "t":
                    place.kill_trainer()
                    place.step(seed % 7)
                    place.start_trainer(resume=place.folder.resumable)
                elif kill == "c" and place.learner is not None:
                    place.learner.save()
                elif kill in "01":
                    workers[int(kill)].kill()
                    place.step(seed % 5)
                    workers[int(kill)].start()
            place.until(lambda: all(w.courier.delivered for w in workers), limit_s=900.0)
            for worker in workers:
                same_rows(place.journal()[worker.name], worker.sent)
            made = sum(len(worker.sent) for worker in workers)
            assert place.learner.limiter.steps == made
            assert place.learner.replay.rows_added == made
            assert sorted(place.ledger.streams()) == [0, 1]
        finally:
            place.close()


def test_rows_keep_their_order_and_place_when_the_ring_is_found_in_the_outbox(place, monkeypatch):
    """The companion is killed between commit and free, again and again: each row is taken once."""
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    for block in range(10):
        worker.drive(30, first=30 * block)
        free = worker.outlet.rows.free
        monkeypatch.setattr(worker.outlet.rows, "free", lambda count: None)
        worker.companion.commit()
        monkeypatch.setattr(worker.outlet.rows, "free", free)
        worker.kill()
        worker.start()
        place.step(10)
    place.step(100)
    same_rows(place.journal()["worker-0"], worker.sent)


def test_more_than_one_look_at_the_memory_is_committed_at_the_end(place, monkeypatch):
    import threading

    monkeypatch.setattr(companion_module, "COMMIT_EVERY_S", 3600.0)
    worker = place.worker()
    worker.drive(3000)
    ended = threading.Event()
    ended.set()
    worker.companion.run(ended)
    assert worker.outlet.rows.pending() == 0
    assert worker.outbox.pending == 3000


# --- the trainer's death ------------------------------------------------------------------------------------


def test_killed_between_journal_and_ledger_a_batch_is_neither_stored_nor_counted_twice(place, monkeypatch):
    worker, _ = place.worker(), place.start_trainer(start_steps=10)
    place.step(3)
    worker.drive(40)
    place.step(10)
    assert place.learner.algorithm.observed == 40
    # The next rows reach the journal; the ledger's cell is not moved, nothing is acknowledged.
    monkeypatch.setattr(place.ledger, "advance", lambda stream, expected: None)
    monkeypatch.setattr(place.trainer_carrier, "publish", lambda *a, **k: None)
    worker.drive(25, first=40)
    place.step(5)
    assert place.learner.replay.rows_added == 65
    place.kill_trainer()
    place.start_trainer(resume=True, start_steps=10)
    place.step(800)
    learner = place.learner
    same_rows(place.journal()["worker-0"], worker.sent)
    assert learner.replay.duplicate_rows == 25
    assert (learner.limiter.steps, learner.algorithm.observed) == (65, 65)
    assert place.ledger.expected(0) == 65
    assert worker.courier.delivered


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_restarted_trainer_goes_on_where_it_was_killed(place, with_checkpoint):
    worker, _ = place.worker(), place.start_trainer(start_steps=10, publish_every=5)
    place.step(3)
    worker.drive(60)
    for number in range(3):
        worker.finish(number)
    place.step(150)
    updates, version = place.learner.limiter.updates, place.learner.version
    assert (updates, version) == (50, 10)
    if with_checkpoint:
        place.learner.save()
    worker.drive(20, first=60, version=10)  # acted with what was published last
    worker.finish(3)
    place.step(10)
    assert [e["episode"] for e in place.learner.episodes] == [0, 1, 2, 3]
    place.kill_trainer()
    worker.drive(10, first=80, version=10)
    worker.finish(4)
    weights = place.ear.subscribe(make_key(RUN, "weights", "trainer"), capacity=100)
    place.start_trainer(resume=True, start_steps=10, publish_every=5)
    place.step(5)
    learner = place.learner
    # With a checkpoint the workers get at once what it had learned; without one nothing untrained.
    first = weights.get(0.0)
    assert (messages.decode(first).version == 11) if with_checkpoint else first is None
    place.step(300)
    same_rows(place.journal()["worker-0"], worker.sent)
    assert learner.limiter.steps == learner.replay.rows_added == 90
    assert learner.limiter.updates == 80  # the ratio of one update a step after the tenth, either way
    assert learner.version > 11
    assert [e["episode"] for e in learner.episodes] == [0, 1, 2, 3, 4]
    lines = place.folder.episodes.read_text().splitlines()
    assert len(lines) == 5
    assert worker.courier.delivered


def test_a_report_whose_acknowledgement_was_lost_is_not_logged_twice(place, monkeypatch):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(5)
    place.step(10)
    worker.finish(0)
    monkeypatch.setattr(place.trainer_carrier, "publish", lambda *a, **k: None)
    place.step(3)
    assert len(place.learner.episodes) == 1
    place.kill_trainer()
    place.start_trainer(resume=True)
    place.step(800)
    assert len(place.learner.episodes) == 1
    assert worker.courier.delivered


def test_a_report_lost_on_the_way_comes_again_though_no_row_is_missing(place):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.carrier = worker.courier._carrier = FaultyCarrier(worker.carrier, kinds={"report"}, drop=1.0)
    worker.finish(0)
    place.step(2)
    worker.carrier.active = False
    worker.finish(1)  # comes before the first one, and is not taken
    place.step(10)
    assert place.learner.episodes == []
    place.step(300)
    assert [e["episode"] for e in place.learner.episodes] == [0, 1]
    assert worker.courier.delivered


# --- what must not travel -----------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_are_left_out_counted_and_acknowledged(place):
    worker, trainer = place.worker(), place.start_trainer()
    place.step(3)
    bad = rows_of(0, 6, final=False)
    bad["reward"][2] = float("nan")
    bad["o/place"][4, 1] = float("inf")
    for row in bad:
        worker.outlet.put_row(row.reshape(()))
    worker.drive(4, first=6)
    place.step(100)
    assert place.steps_of() == [0, 1, 3, 5, 6, 7, 8, 9]
    assert trainer.reception.spoilt_rows == 2
    assert worker.courier.delivered
    assert worker.courier.sender.resent == 0
    assert place.learner.limiter.steps == 8
    assert place.said("trainer")[-1].metrics["trainer/spoilt_rows"] == 2.0


def test_the_rows_say_which_stream_they_are_of_only_to_the_ledger(place):
    """Whatever a worker writes there, its rows carry the number that the trainer gave its outbox."""
    first, second = place.worker("a"), place.worker("b")
    place.start_trainer()
    place.step(3)
    for worker in (first, second):
        worker.drive(10, stream=7)
    place.step(50)
    journal = place.journal()
    assert set(journal["a"]["stream"]) != set(journal["b"]["stream"])
    assert {int(s) for rows in journal.values() for s in rows["stream"]} == {0, 1}
    assert SCHEMA.row_dtype["stream"].kind == "u"


# --- another disk, another run ------------------------------------------------------------------------------


def test_a_disk_set_back_before_a_new_start_loses_no_row_that_is_new(place):
    """A power cut took the outbox's last 50 rows, which had been delivered; 80 new ones get their numbers."""
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(100)
    place.step(30)
    files = {p: p.read_bytes() for p in worker.folder.iterdir()}
    worker.drive(50, first=100)
    place.step(30)
    assert worker.courier.delivered
    worker.kill()
    place.kill_trainer()
    for path, data in files.items():
        path.write_bytes(data)
    worker.start()
    worker.drive(80, episode=1)
    place.step(50)  # no trainer yet: the outbox grows past the number that the trainer expects
    assert worker.outbox.head == 180
    place.start_trainer(resume=True)
    place.step(800)
    rows = place.journal()["worker-0"]
    same_rows(rows, worker.sent)
    assert len(rows) == 230
    assert len(place.ledger.streams()) == 2
    assert worker.courier.delivered


def test_a_run_that_was_replaced_takes_no_rows_of_the_one_before(place, caplog):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(30)
    place.step(30)
    place.kill_trainer()
    worker.drive(20, first=30)
    place.step(10)
    from tickrate.runtime.run_folder import RunFolder

    place.start_trainer(life=78, folder=RunFolder(place.path / "other"))
    place.step(800)
    worker.drive(15, episode=1)
    place.step(100)
    assert place.steps_of() == list(range(15))
    assert "20 rows were undelivered" in caplog.text
    assert len(list(worker.folder.glob("outbox-*.kept"))) == 1
    assert worker.courier.set_aside == 20
