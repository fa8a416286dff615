"""What a worker and its companion left in memory when both were killed is found at the next start."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from runtime_kit import CONTRACT, SCHEMA, rows_of

from tickrate.cli.companion import take_over, takes_weights
from tickrate.runtime.outbox import Outbox, OutboxConfig
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.remote import RemoteConfig
from tickrate.runtime.run_folder import WorkerFolder
from tickrate.runtime.worker_config import WorkerConfig


@pytest.fixture
def outbox(tmp_path):
    made = Outbox(tmp_path / "w", SCHEMA, OutboxConfig(max_bytes=1 << 16))
    yield made
    made.close()


def left_behind(rows):
    outlet = SharedOutlet.create(CONTRACT)
    for row in rows:
        outlet.put_row(row.reshape(()))
    outlet.close(remove=False)
    return outlet.folder


def test_rows_left_in_memory_are_committed_once(outbox, tmp_path):
    rows = rows_of(0, 9)  # ten with the final one
    outbox.append(rows[:4])  # the companion died between this commit and freeing them
    outbox.close()
    again = Outbox(tmp_path / "w", SCHEMA, OutboxConfig(max_bytes=1 << 16))
    folder = left_behind(rows)
    take_over(folder, again)
    assert again.head == 10
    np.testing.assert_array_equal(again.read(0, 10)["step"], np.arange(10))
    assert not folder.exists()
    take_over(folder, again)  # gone by now: nothing more happens
    assert again.head == 10
    again.close()


def test_only_a_folder_of_ours_is_ever_taken_over(tmp_path):
    place = WorkerFolder(tmp_path)
    assert place.left_memory() is None
    precious = tmp_path / "precious"
    precious.mkdir()
    place.memory.write_text(str(precious))
    assert place.left_memory() is None
    folder = left_behind([])
    place.memory.write_text(str(folder))
    assert place.left_memory() == folder
    SharedOutlet.attach(folder).close(remove=True)
    assert place.left_memory() is None


@pytest.mark.parametrize(
    ("config", "takes"),
    [
        (WorkerConfig(), True),
        (WorkerConfig(purpose="test"), True),
        (WorkerConfig(purpose="expert", actor="module:Class"), False),
        (WorkerConfig(remote=RemoteConfig(enabled=True)), False),
    ],
)
def test_weights_are_kept_for_those_who_act_with_them(config, takes):
    assert takes_weights(config) is takes
