"""A run folder is refused, resumed or replaced as said; a checkpoint is whole or not there."""

import json
import os

import numpy as np
import pytest

from tickrate.errors import FolderInUse, RunFolderError
from tickrate.runtime import run_folder
from tickrate.runtime.lock_file import LockFile
from tickrate.runtime.run_folder import RunFolder, load_state, save_state, write_atomically


def begun(path):
    folder = RunFolder(path)
    folder.prepare("refuse")
    folder.experiment.write_text("{}", encoding="utf-8")
    folder.episodes.write_text("{}\n", encoding="utf-8")
    return folder


def checkpoint(folder, step, value=1.0):
    temporary = folder.begin_checkpoint(step)
    save_state(temporary, {"w": np.array([value])}, {"steps": step})
    return folder.finish_checkpoint(temporary, step)


def test_a_run_is_not_overwritten(tmp_path):
    folder = begun(tmp_path / "r")
    with pytest.raises(RunFolderError, match=r"--resume.*--replace.*--name"):
        folder.prepare("refuse")
    assert folder.episodes.exists()


def test_an_attempt_that_never_got_going_is_begun_anew(tmp_path):
    folder = RunFolder(tmp_path / "r")
    folder.prepare("refuse")
    folder.experiment.write_text("{}", encoding="utf-8")
    folder.prepare("refuse")


def test_replace_deletes_a_run_and_nothing_else(tmp_path):
    folder = begun(tmp_path / "r")
    folder.prepare("replace")
    assert not folder.experiment.exists()
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.png").touch()
    with pytest.raises(RunFolderError, match="refusing to replace"):
        RunFolder(other).prepare("replace")
    assert (other / "cat.png").exists()


def test_resume_needs_a_run_with_a_checkpoint_or_a_journal(tmp_path):
    with pytest.raises(RunFolderError, match="no run to resume"):
        RunFolder(tmp_path / "nothing").prepare("resume")
    folder = begun(tmp_path / "r")
    with pytest.raises(RunFolderError, match="neither a complete checkpoint nor a journal"):
        folder.prepare("resume")
    assert not folder.resumable
    folder.journal.touch()
    folder.prepare("resume")
    folder.journal.unlink()
    checkpoint(folder, 10)
    folder.prepare("resume")
    assert folder.resumable
    assert folder.episodes.exists()


def test_a_folder_that_a_trainer_uses_is_not_touched(tmp_path):
    folder = begun(tmp_path / "r")
    with LockFile(folder.lock, "it"):
        for choice in ("replace", "resume", "refuse"):
            with pytest.raises(FolderInUse, match=rf"run folder .*r is in use by process {os.getpid()} on "):
                folder.prepare(choice)
        assert folder.episodes.exists()
    folder.prepare("replace")
    assert not folder.episodes.exists()
    assert folder.lock.exists()  # who waits for it has this file open


@pytest.mark.parametrize("lock", ["lock", "outbox.lock"])
def test_replacing_a_run_spares_the_folder_of_a_worker_that_runs(tmp_path, lock):
    """Its control process, or the companion that a killed one left behind, still writes there."""
    folder = begun(tmp_path / "r")
    for name in ("alive", "ended"):
        folder.worker(name).make()
        (folder.worker(name).path / "outbox.seg").touch()
    with LockFile(folder.worker("alive").path / lock, "it"):
        folder.prepare("replace")
    assert (folder.worker("alive").path / "outbox.seg").exists()
    assert not folder.worker("ended").path.exists()
    folder.experiment.write_text("{}", encoding="utf-8")
    folder.prepare("replace")
    assert not folder.worker("alive").path.exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file.r cannot be written \(Not a directory\).*run\.root"):
        RunFolder(tmp_path / "file" / "r").prepare("refuse")
    with pytest.raises(RunFolderError, match=r"workers.w cannot be written"):
        RunFolder(tmp_path / "file").worker("w").make()


def test_a_crash_between_the_parts_leaves_the_old_checkpoint(tmp_path):
    folder = begun(tmp_path / "r")
    old = checkpoint(folder, 10)
    temporary = folder.begin_checkpoint(20)
    (temporary / "replay.snapshot").write_bytes(b"half")
    assert folder.latest_checkpoint() == old  # the process died here
    new = checkpoint(folder, 20, 2.0)
    assert folder.latest_checkpoint() == new
    assert load_state(new)[0]["w"].tolist() == [2.0]
    assert [p.name for p in folder.checkpoints.iterdir() if p.name.startswith(".")] == []


def test_a_second_checkpoint_at_the_same_step_never_leaves_none(tmp_path):
    folder = begun(tmp_path / "r")
    first, second = checkpoint(folder, 10, 1.0), checkpoint(folder, 10, 2.0)
    assert first.exists()
    assert folder.latest_checkpoint() == second
    later = checkpoint(folder, 11)
    assert folder.latest_checkpoint() == later


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    folder = begun(tmp_path / "r")
    for step in (5, 10, 100, 1000):
        checkpoint(folder, step)
    names = sorted(p.name for p in folder.checkpoints.iterdir())
    assert names == ["step-000000000100", "step-000000001000"]
    assert len(names) == run_folder.KEPT_CHECKPOINTS


@pytest.mark.parametrize("damage", ["missing", "cut", "json", "list"])
def test_a_damaged_part_is_refused_by_name(tmp_path, damage):
    folder = begun(tmp_path / "r")
    path = checkpoint(folder, 10)
    if damage == "missing":
        (path / "algorithm.safetensors").unlink()
    elif damage == "cut":
        data = (path / "algorithm.safetensors").read_bytes()
        (path / "algorithm.safetensors").write_bytes(data[:-3])
    else:
        (path / "counters.json").write_text("{" if damage == "json" else "[]", encoding="utf-8")
    with pytest.raises(RunFolderError, match="step-000000000010"):
        load_state(path)


def test_state_keeps_shapes_and_dtypes(tmp_path):
    state = {
        "scalar": np.array(3.5),
        "t": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "b": np.array([1, 2], np.uint8),
    }
    save_state(tmp_path, state, {"steps": 1})
    back, counters = load_state(tmp_path)
    assert counters == {"steps": 1}
    for name, value in state.items():
        np.testing.assert_array_equal(back[name], value)
        assert back[name].dtype == value.dtype
        assert back[name].shape == value.shape


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomically(path, b"old")

    def fail(fileno):
        raise OSError("disk full")

    monkeypatch.setattr(run_folder.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_boots_count_up(tmp_path):
    folder = begun(tmp_path / "r").worker("arm")
    assert [folder.next_boot() for _ in range(3)] == [0, 1, 2]
    (folder.path / "boot").write_text("x", encoding="utf-8")
    with pytest.raises(RunFolderError, match="no number"):
        folder.next_boot()


@pytest.mark.parametrize("name", ["demo-1", "my run: träge", "a" * 300])
def test_the_name_on_the_wire_is_one_that_keys_allow(tmp_path, name):
    wire = RunFolder(tmp_path / name).wire_name
    assert len(wire) <= 128
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in wire)


def test_counters_are_json_that_people_can_read(tmp_path):
    save_state(tmp_path, {"w": np.zeros(1)}, {"steps": 7, "best_score": None})
    assert json.loads((tmp_path / "counters.json").read_text()) == {"steps": 7, "best_score": None}


def test_a_worker_on_a_full_disk_says_so(tmp_path, monkeypatch):
    place = RunFolder(tmp_path / "r").worker("arm")
    place.make()

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tickrate.runtime.run_folder.write_atomically", full)
    with pytest.raises(RunFolderError, match=r"boot cannot be written \(No space left on device\)"):
        place.next_boot()
    with pytest.raises(RunFolderError, match=r"contract.json cannot be written"):
        place.keep(place.contract, b"{}")
