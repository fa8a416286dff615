"""The trainer and its disk: full, damaged, or holding a run that died early. Nothing is lost in silence."""

import errno
import json
import threading

import pytest
from delivery_kit import same_rows
from runtime_kit import CONTRACT, FixedAlgorithm, ListTracker

from tickrate import registry
from tickrate.data import segment_file
from tickrate.errors import RecordError, RunFolderError
from tickrate.runtime import episode_log as episode_log_module
from tickrate.runtime import run_folder as run_folder_module
from tickrate.runtime import trainer as trainer_module
from tickrate.runtime.assembly import LearnerParts
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_a_checkpoint_is_told_tried_again_and_the_run_goes_on(place, monkeypatch):
    worker, _ = place.worker(), place.start_trainer(start_steps=1, checkpoint_every_s=2.0)
    place.step(3)
    worker.drive(20)
    with monkeypatch.context() as disk:
        disk.setattr(run_folder_module.os, "fsync", full)
        place.step(250)
        status = place.said("trainer")[-1]
        assert status.state == "in trouble"
        assert "no checkpoint could be written ([Errno 28] No space left on device); trying" in status.text
        worker.drive(20, first=20)
        place.step(50)
    assert place.folder.latest_checkpoint() is None
    same_rows(place.journal()["worker-0"], worker.sent)
    assert place.learner.limiter.updates == 39
    place.step(int(100 * trainer_module.RETRY_SAVE_S))
    assert place.folder.latest_checkpoint() is not None
    assert place.said("trainer")[-1].state == "learning"
    assert [p.name for p in place.folder.checkpoints.iterdir() if p.name.startswith(".")] == []


def test_a_full_disk_for_the_logs_ends_nothing_and_loses_no_episode(place, monkeypatch):
    worker, _ = place.worker(), place.start_trainer(log_every_s=0.5)
    place.step(3)
    worker.drive(5)
    worker.finish(0)
    place.step(20)
    with monkeypatch.context() as disk:
        disk.setattr(episode_log_module, "_add_line", full)
        disk.setattr(place.learner._tracker, "scalars", full)
        worker.finish(1)
        worker.finish(2)
        place.step(100)
        assert place.said("trainer")[-1].text.startswith("no metrics could be written")
    place.step(300)
    assert [e["episode"] for e in place.learner.episodes] == [0, 1, 2]
    lines = place.folder.episodes.read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [0, 1, 2]
    assert worker.courier.delivered


def test_a_line_that_did_not_fit_is_taken_back(tmp_path):
    path = tmp_path / "episodes.jsonl"
    episode_log_module._add_line(path, "whole")

    class Disk:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def seek(self, *where):
            return self.file.seek(*where)

        def truncate(self, size):
            return self.file.truncate(size)

        def write(self, data):
            if len(data) < 5:
                full()
            return self.file.write(data[:4])

    class Path:
        def open(self, mode, buffering):
            return Disk(path.open(mode, buffering=buffering))

    with pytest.raises(OSError, match="No space"):
        episode_log_module._add_line(Path(), "half a line")
    episode_log_module._add_line(path, "next")
    assert path.read_text() == "whole\nnext\n"


def test_a_full_disk_at_the_end_says_what_is_safe(place, monkeypatch):
    worker, trainer = place.worker(), place.start_trainer(start_steps=1)
    place.step(3)
    worker.drive(20)
    place.step(50)
    monkeypatch.setattr(run_folder_module.os, "fsync", full)
    stop = threading.Event()
    stop.set()
    receive = trainer.reception.receive
    trainer.reception.receive = lambda wait_s: (receive(wait_s), place.pass_time(0.02))
    with pytest.raises(
        RunFolderError, match=r"last checkpoint could not be written.*journal\.seg: make room"
    ):
        trainer.run(stop)
    assert place.said("trainer")[-1].state == "stopped"


# --- the journal at a restart -------------------------------------------------------------------------------


@pytest.fixture
def parts(monkeypatch):
    class Settings:
        batch_size = 4

    monkeypatch.setattr(registry, "algorithm", lambda name: registry.AlgorithmEntry("", ""))
    monkeypatch.setattr(registry, "resolve", lambda target: FixedAlgorithm)

    def make(**changes):
        values = {
            "algorithm": "fixed",
            "settings": Settings,
            "replay": ReplayConfig(capacity=20_000, gamma=0.9, n_step=1),
            "trainer": TrainerConfig(start_steps=1),
            "evaluation_episodes": 1,
            "seed": 0,
            "journal": True,
        }
        return LearnerParts(**values | changes)

    return make


def recorded(place):
    """Let 100 rows come in ten commits; return the run folder after the trainer's death."""
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    for block in range(10):
        worker.drive(10, first=10 * block)
        place.step(5)
    place.kill_trainer()
    return place.folder


def build(parts, folder, contract=CONTRACT, **options):
    return parts.build(contract, folder, ListTracker(), resume=True, **options)


def test_a_run_that_died_before_its_first_checkpoint_is_resumed_from_its_journal(place, parts):
    folder = recorded(place)
    folder.prepare("resume")
    learner = build(parts(), folder)
    assert (learner.limiter.steps, learner.replay.rows_added) == (100, 100)
    assert (learner.limiter.updates, learner.version) == (0, 0)
    learner.replay.close()


@pytest.mark.parametrize("damage", ["cut", "grown", "edited", "header", "foreign"])
def test_a_damaged_journal_says_what_to_do(place, parts, damage):
    folder = recorded(place)
    data = folder.journal.read_bytes()
    if damage == "edited":
        schema, capacity, header = segment_file._read_header(folder.journal)
        offset = segment_file._layout(schema, capacity, header)[0]["rows"] + 50 * schema.head_bytes + 8
        folder.journal.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
    else:
        changed = {"cut": data[:-5000], "grown": data + b"x", "header": data[:40] + b"#" + data[41:]}
        folder.journal.write_bytes(changed.get(damage, b"text"))
    with pytest.raises(
        RecordError, match=r"(?s)journal cannot be used: .*journal\.seg.*Restore a copy.*--replace"
    ):
        build(parts(), folder)


def test_a_journal_of_another_size_or_shape_names_both(place, parts):
    folder = recorded(place)
    with pytest.raises(RecordError, match="made for 20000 rows, this run wants 30000"):
        build(parts(replay=ReplayConfig(capacity=30_000, gamma=0.9, n_step=1)), folder)


def test_without_a_journal_a_run_that_saved_nothing_cannot_be_resumed(tmp_path, parts):
    folder = RunFolder(tmp_path / "r")
    folder.prepare("refuse")
    assert not folder.resumable
    with pytest.raises(RunFolderError, match="no complete checkpoint to resume from"):
        build(parts(journal=False), folder)


def test_a_torn_end_of_the_journal_costs_what_was_not_written_and_is_said(place, parts, caplog):
    """A power cut: the newest commit is damaged. It is cut off, said, and the rows before it count."""
    folder = recorded(place)
    schema, capacity, header = segment_file._read_header(folder.journal)
    with folder.journal.open("r+b") as file:
        file.seek(segment_file._layout(schema, capacity, header)[0]["rows"] + 99 * schema.head_bytes + 8)
        file.write(b"\xff\xff")
    learner = build(parts(), folder)
    assert learner.limiter.steps == learner.replay.rows_added < 100
    assert "newest commits: damaged" in caplog.text
    learner.replay.close()
