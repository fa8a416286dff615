"""The counters of a checkpoint: what the file holds, what earlier releases lacked, what is refused."""

import json
import math
from pathlib import Path

import pytest

from tickrate.errors import RunFolderError
from tickrate.runtime.learner_counters import LearnerCounters

LATER = ("offline_updates", "round_target")
"""What earlier releases did not count."""

CHECKPOINT = Path("checkpoints/00000030")
SAVED = {
    "steps": 30,
    "updates": 20,
    "offline_updates": 4,
    "forgiven": 1.5,
    "published_at": 22,
    "version": 11,
    "best_score": 2.25,
    "best_version": 7,
    "wall_s": 90.0,
    "wall_offset_s": 60.0,
    "started": 1000.5,
    "overruns": 3,
    "rows": 33,
    "return_scale": {"sums": [[0, 1.0]], "count": 3, "mean": 0.5, "squares": 2.0, "largest": 1.0},
    "round_target": 25,
}


def test_the_file_holds_every_counter_by_its_name():
    counters = LearnerCounters.from_json(SAVED, CHECKPOINT)
    assert (counters.steps, counters.updates, counters.offline_updates, counters.rows) == (30, 20, 4, 33)
    assert (counters.version, counters.published_at, counters.round_target) == (11, 22, 25)
    assert (counters.best_score, counters.best_version) == (2.25, 7)
    assert (counters.wall_s, counters.wall_offset_s, counters.started) == (90.0, 60.0, 1000.5)
    assert (counters.forgiven, counters.overruns) == (1.5, 3)
    assert json.dumps(counters.to_json()) == json.dumps(SAVED)


def test_what_is_not_there_yet_is_null():
    empty = SAVED | {"best_score": None, "return_scale": None, "round_target": None}
    counters = LearnerCounters.from_json(empty, CHECKPOINT)
    assert (counters.best_score, counters.return_scale, counters.round_target) == (-math.inf, None, None)
    assert counters.to_json() == empty


def test_earlier_releases_had_neither_rounds_nor_offline_updates():
    older = {name: value for name, value in SAVED.items() if name not in LATER}
    counters = LearnerCounters.from_json(older, CHECKPOINT)
    assert (counters.offline_updates, counters.round_target) == (0, None)


@pytest.mark.parametrize("name", [name for name in SAVED if name not in LATER])
def test_no_other_counter_may_be_missing(name):
    lacking = {key: value for key, value in SAVED.items() if key != name}
    with pytest.raises(RunFolderError, match=rf"00000030: counters\.json lacks .*'{name}'"):
        LearnerCounters.from_json(lacking, CHECKPOINT)


@pytest.mark.parametrize("value", ["two", [], {}, math.nan, math.inf])
@pytest.mark.parametrize("name", ["steps", "offline_updates", "version", "round_target"])
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(RunFolderError, match=r"counters\.json lacks a number"):
        LearnerCounters.from_json(SAVED | {name: value}, CHECKPOINT)
