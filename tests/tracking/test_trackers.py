from __future__ import annotations

import errno
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tickrate.tracking import (
    ConsoleTracker,
    JsonlTracker,
    MultiTracker,
    console,
    jsonl,
    read_jsonl,
    tensorboard,
)
from tickrate.tracking.tensorboard import TensorBoardTracker


class Now:
    """A hand-wound clock."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def now(monkeypatch) -> Now:
    hand = Now()
    for module in (console, jsonl, tensorboard):
        monkeypatch.setattr(module, "now", hand)
    for module in (jsonl, tensorboard):
        monkeypatch.setattr(module, "wall_time", lambda: 1_700_000_000.25)
    return hand


def test_jsonl_writes_one_object_a_line(tmp_path, now):
    tracker = JsonlTracker(tmp_path / "run" / "metrics.jsonl")
    tracker.scalars(10, {"train/return": 1.5})
    tracker.scalars(20, {"train/return": np.float32(2.5), "learn/updates": 7})
    tracker.close()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 10, "time": 1_700_000_000.25, "train/return": 1.5},
        {"step": 20, "time": 1_700_000_000.25, "train/return": 2.5, "learn/updates": 7.0},
    ]


def test_jsonl_is_strict_json_with_nan_and_infinities(tmp_path, now):
    path = tmp_path / "m.jsonl"
    tracker = JsonlTracker(path)
    tracker.scalars(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    tracker.close()

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    (line,) = read_jsonl(path)
    assert math.isnan(line["a"])
    assert (line["b"], line["c"]) == (math.inf, -math.inf)


def test_jsonl_hands_over_after_the_stated_time(tmp_path, now):
    path = tmp_path / "m.jsonl"
    tracker = JsonlTracker(path, flush_s=2.0)
    tracker.scalars(1, {"a": 1})
    now.time += 1.9
    tracker.scalars(2, {"a": 2})
    assert not path.exists()
    now.time += 0.2
    tracker.scalars(3, {"a": 3})
    assert [line["step"] for line in read_jsonl(path)] == [1, 2, 3]


def test_jsonl_appends_to_a_resumed_run(tmp_path, now):
    for step in (1, 2):
        tracker = JsonlTracker(tmp_path / "m.jsonl")
        tracker.scalars(step, {"a": 0})
        tracker.close()
        tracker.close()
    assert [line["step"] for line in read_jsonl(tmp_path / "m.jsonl")] == [1, 2]


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "a": 2, "note": "text"}\n[1]\n{"step": 2, "a', encoding="utf-8")
    assert list(read_jsonl(path)) == [{"step": 1.0, "a": 2.0}]


def test_tensorboard_reads_the_file(tmp_path, now):
    tracker = TensorBoardTracker(tmp_path / "tb")
    tracker.scalars(10, {"train/return": 1.5, "eval/return": math.nan})
    now.time += 6
    tracker.scalars(20, {"train/return": 2.5})
    written = tracker.path.stat().st_size
    tracker.scalars(30, {"train/return": 3.5})
    assert tracker.path.stat().st_size == written  # held back until the next flush
    tracker.close()
    events = [e for e in EventFileLoader(str(tracker.path)).Load() if e.HasField("summary")]
    points = [(e.step, e.wall_time, v.tag, v.tensor.float_val[0]) for e in events for v in e.summary.value]
    assert points[0] == (10, 1_700_000_000.25, "train/return", 1.5)
    assert points[1][2] == "eval/return"
    assert math.isnan(points[1][3])
    assert [p[0] for p in points] == [10, 10, 20, 30]


def test_two_tensorboard_trackers_do_not_share_a_file(tmp_path, now):
    one, two = TensorBoardTracker(tmp_path), TensorBoardTracker(tmp_path)
    assert one.path != two.path


def test_tensorboard_loads_neither_torch_nor_tensorflow():
    code = (
        "import sys, tickrate.tracking.tensorboard\n"
        "print([m for m in ('torch', 'tensorflow', 'matplotlib') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "make", [lambda p: JsonlTracker(p / "m.jsonl", flush_s=0), lambda p: TensorBoardTracker(p, flush_s=0)]
)
def test_a_dead_disk_is_said_once_and_costs_nothing(tmp_path, now, monkeypatch, caplog, make):
    tracker = make(tmp_path)
    attempts = []

    def dead(self, *args, **kwargs):
        attempts.append(self)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", dead)
    for step in range(50):
        now.time += 1
        tracker.scalars(step, {"a": 1.0})
    tracker.close()
    assert len(attempts) == 1
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_a_folder_that_cannot_be_made_does_not_stop_a_run(tmp_path, caplog):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for tracker in (
        JsonlTracker(tmp_path / "file" / "m.jsonl", flush_s=0),
        TensorBoardTracker(tmp_path / "file" / "tb"),
    ):
        tracker.scalars(1, {"a": 1.0})
        tracker.close()
    assert len(caplog.records) == 2


def test_the_console_prints_main_metrics_at_most_so_often(now):
    stream = io.StringIO()
    tracker = ConsoleTracker(stream, period_s=10)
    tracker.scalars(1, {"learn/alpha": 0.1})
    assert stream.getvalue() == ""  # nothing worth a line yet
    tracker.scalars(2, {"train/return": 12.3456, "timing/achieved_hz": 20.0})
    now.time += 5
    tracker.scalars(3, {"train/return": 13.0})
    now.time += 5
    tracker.scalars(4, {"eval/return": math.nan, "learn/alpha": 0.2})
    tracker.scalars(5, {"train/return": 14.0})
    tracker.close()
    tracker.close()
    assert stream.getvalue().splitlines() == [
        "step 2  return 12.35  Hz 20",
        "step 4  return 13  eval return nan  Hz 20",
        "step 5  return 14  eval return nan  Hz 20",
    ]


def test_the_console_prints_to_the_standard_output_of_the_moment(now, capsys):
    ConsoleTracker(keys=("mine",)).scalars(1, {"mine": 1})
    assert capsys.readouterr().out == "step 1  mine 1\n"


def test_a_closed_pipe_does_not_stop_a_run(now):
    stream = io.StringIO()
    tracker = ConsoleTracker(stream, period_s=0)
    stream.close()
    for step in range(3):
        tracker.scalars(step, {"train/return": 1.0})


def test_several_trackers_get_plain_floats_once():
    class Scalar:
        converted = 0

        def __float__(self) -> float:
            Scalar.converted += 1  # on a device each conversion is a wait
            return 2.0

    class Record:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def scalars(self, step, values):
            self.seen.append((step, dict(values)))

        def close(self):
            self.seen.append("closed")

    trackers = [Record(), Record()]
    multi = MultiTracker(trackers)
    multi.scalars(3, {"a": Scalar()})
    multi.close()
    assert Scalar.converted == 1
    for tracker in trackers:
        assert tracker.seen == [(3, {"a": 2.0}), "closed"]
