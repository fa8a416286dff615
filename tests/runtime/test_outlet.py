"""Shared memory carries rows, summaries, state, weights and orders between two real processes."""

import subprocess
import sys

import numpy as np
import pytest
from runtime_kit import CONTRACT, SCHEMA, policy_bytes, rows_of

from tickrate.errors import MessageError
from tickrate.runtime import outlet as outlet_module
from tickrate.runtime.episode import EpisodeSummary, Orders
from tickrate.runtime.outlet import SharedOutlet

SUMMARY = EpisodeSummary(3, True, 7, 12, 1.5, 0.6, "lap finished", 400, {"lap_time_s": 12.5, "score": 1.25})

OTHER_SIDE = """
import sys
from pathlib import Path
from tickrate.runtime.outlet import SharedOutlet
outlet = SharedOutlet.attach(Path(sys.argv[1]))
rows = outlet.rows.pop(100)
summaries = outlet.take_summaries()
print(rows["o/place"].tolist(), rows["reward"].tolist(), summaries[0], outlet.state_text(), sep="\\n")
outlet.weights.write(5, b"weights")
outlet.block.set("paused", 1)
outlet.close(remove=False)
"""


@pytest.fixture
def outlet():
    made = SharedOutlet.create(CONTRACT)
    yield made
    made.close(remove=True)
    assert not made.folder.exists()


def test_a_second_process_takes_what_the_first_gave(outlet):
    for row in rows_of(0, 2):
        outlet.put_row(row.reshape(()))
    outlet.put_summary(SUMMARY)
    outlet.put_state("driving")
    assert outlet.newest_weights(0) is None
    done = subprocess.run(
        [sys.executable, "-c", OTHER_SIDE, str(outlet.folder)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places, rewards, summary, state = done.stdout.splitlines()
    assert places == "[[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]"
    assert rewards == "[1.0, 1.0, 0.0]"
    assert summary == repr(SUMMARY)
    assert state == "driving"
    assert outlet.newest_weights(4) == (5, b"weights")
    assert outlet.newest_weights(5) is None
    assert outlet.orders() == Orders(paused=True, shutdown=False)


def test_a_full_ring_drops_and_counts(outlet):
    row = rows_of(0, 1)[0].reshape(())
    for _ in range(outlet_module.ROWS_CAPACITY + 3):
        outlet.put_row(row)
    assert outlet.rows.dropped == 3
    assert outlet.rows.pending() == outlet_module.ROWS_CAPACITY


def test_a_summary_with_too_many_numbers_keeps_the_episode(outlet):
    metrics = {f"a_rather_long_name_of_a_metric_{i}": 1.0 / 3 for i in range(200)} | {"score": 2.0}
    outlet.put_summary(EpisodeSummary(**{**vars(SUMMARY), "metrics": metrics}))
    (back,) = outlet.take_summaries()
    assert back.metrics == {"score": 2.0}
    assert back.steps == SUMMARY.steps


def test_words_are_cut_to_fit(outlet):
    assert outlet.state_text() == "starting"
    outlet.put_state("ä" * 2000)
    assert outlet.state_text().startswith("ää")
    outlet.put_state("short")
    assert outlet.state_text() == "short"


def test_large_rows_take_fewer_places(monkeypatch):
    monkeypatch.setattr(outlet_module, "ROWS_BYTES", SCHEMA.row_dtype.itemsize * 40)
    outlet = SharedOutlet.create(CONTRACT)
    assert outlet.rows.capacity == 40
    outlet.close(remove=True)


def test_orders_leave_a_heartbeat(outlet):
    assert outlet.block.get("control_beat") == 0.0
    outlet.orders()
    assert outlet.block.get("control_beat") > 0.0


def test_a_policy_passes_through_whole(outlet):
    weights = policy_bytes(9)
    outlet.weights.write(9, weights)
    assert outlet.newest_weights(0) == (9, weights)


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_a_folder_that_is_no_shared_memory_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "contract.json").write_text(text, encoding="utf-8")
    with pytest.raises(MessageError):
        SharedOutlet.attach(tmp_path)


def test_attaching_gives_the_same_schema(outlet):
    other = SharedOutlet.attach(outlet.folder)
    assert other.schema.digest() == SCHEMA.digest()
    assert np.dtype(other.rows.dtype) == SCHEMA.row_dtype
    other.close(remove=False)
