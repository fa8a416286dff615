"""Getting recorded steps out of runs and files and back in: sources, choices, targets, and the command."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tickrate import __main__ as command
from tickrate.data.recordings import joined, read_recording, write_recording
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, RecordError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder, write_atomically
from tickrate.tools.exchange import choose, read_rows, write_rows

DATA_PAGE = Path(__file__).parents[2] / "docs" / "data.md"
CONTRACT = EnvironmentContract(
    {"place": spaces.Box(-1e6, 1e6, (2,), np.float32)}, spaces.Box(-1.0, 1.0, (1,), np.float32), 0.05, 0, None
)
SCHEMA = CONTRACT.schema()


def rows_of(episode, steps, flags=0, *, stream=0):
    rows = SCHEMA.empty(steps + 1)
    rows["stream"], rows["episode"], rows["step"] = stream, episode, np.arange(steps + 1)
    rows["o/place"] = np.random.default_rng(episode).random((steps + 1, 2))
    rows["flags"][1] = flags
    rows["flags"][-2] |= int(Flag.TRUNCATED)
    rows["flags"][-1] = int(Flag.FINAL)
    return rows


PARTS = [
    rows_of(0, 3),
    rows_of(0, 4, int(Flag.EXPERT), stream=1),
    rows_of(1, 2, int(Flag.TAKEOVER)),
    rows_of(2, 2),
]
ROWS = joined(SCHEMA, PARTS, sum(map(len, PARTS)))


def run_folder(path, *, journal):
    folder = RunFolder(path)
    folder.prepare("refuse")
    folder.experiment.write_text("environment: {id: drone}\n")
    replay = Replay(SCHEMA, 200, path=folder.journal if journal else None)
    replay.add(ROWS)
    checkpoint = folder.begin_checkpoint(9)
    replay.save(checkpoint)
    write_atomically(checkpoint / "counters.json", b"{}")
    folder.finish_checkpoint(checkpoint, 9)
    write_atomically(folder.contract, json.dumps(CONTRACT.to_dict()).encode())
    replay.close()
    return path


@pytest.mark.parametrize("journal", [True, False])
def test_the_rows_of_a_run_are_those_of_its_journal_or_of_its_newest_checkpoint(tmp_path, journal):
    run = run_folder(tmp_path / "run", journal=journal)
    schema, rows = read_rows(run)
    assert schema == SCHEMA
    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize("name", ["d.seg", "d.npz", "d-v0"])
def test_each_format_gives_back_what_was_written(tmp_path, name):
    if name == "d-v0":
        pytest.importorskip("minari")
    assert write_rows(tmp_path / name, SCHEMA, ROWS) == 0
    schema, rows = read_rows(tmp_path / name)
    assert schema == SCHEMA
    if name == "d-v0":  # one stream after the other
        rows = rows[np.lexsort((rows["step"], rows["episode"], rows["stream"]))]
        right = ROWS[np.lexsort((ROWS["step"], ROWS["episode"], ROWS["stream"]))]
    else:
        right = ROWS
    np.testing.assert_array_equal(rows, right)
    with pytest.raises(ConfigError, match="exists already"):
        write_rows(tmp_path / name, SCHEMA, ROWS)


def test_whole_episodes_are_chosen_by_who_drove_in_them():
    assert set(choose(ROWS, "expert")["stream"].tolist()) == {1}
    assert len(choose(ROWS, "expert")) == 5
    assert choose(ROWS, "takeover")["episode"].tolist() == [1, 1, 1]
    assert len(choose(ROWS, "all")) == len(ROWS)
    with pytest.raises(RecordError, match="of that kind"):
        choose(ROWS[:4], "expert")
    with pytest.raises(RecordError, match="no steps"):
        choose(ROWS[:0], "all")


def test_what_is_no_source_or_no_target_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        read_rows(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="neither a run folder nor"):
        read_rows(tmp_path)
    (tmp_path / "text.seg").write_text("hello")
    with pytest.raises(RecordError, match="no tickrate segment file"):
        read_rows(tmp_path / "text.seg")
    with pytest.raises(ConfigError, match=r"call it \.seg or \.npz"):
        write_rows(tmp_path / "demos.h5", SCHEMA, ROWS)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_rows(tmp_path / "no" / "demos.npz", SCHEMA, ROWS)
    folder = RunFolder(tmp_path / "run")
    folder.prepare("refuse")
    folder.experiment.write_text("{}")
    with pytest.raises(ConfigError, match="neither a journal nor a checkpoint"):
        read_rows(folder.path)


def test_a_snapshot_of_another_contract_is_refused(tmp_path):
    run = run_folder(tmp_path / "run", journal=False)
    other = EnvironmentContract(CONTRACT.leaf_spaces, spaces.Box(-1, 1, (2,), np.float32), 0.05, 0, None)
    (run / "contract.json").write_text(json.dumps(other.to_dict()))
    with pytest.raises(RecordError, match="made with another schema"):
        read_rows(run)


def test_the_command_exports_imports_and_says_how_much(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "run", journal=True)
    assert command.main(["data", "export", "run", "--out", "all.npz"]) == 0
    assert "all.npz: 11 steps of 4 episodes" in capsys.readouterr().out
    assert command.main(["data", "export", "run", "--out", "expert.seg", "--only", "expert"]) == 0
    assert "expert.seg: 4 steps of 1 episodes" in capsys.readouterr().out
    assert command.main(["data", "import", "all.npz", "--out", "all.seg"]) == 0
    np.testing.assert_array_equal(read_recording(tmp_path / "all.seg")[1], ROWS)
    assert command.main(["data", "import", "all.npz", "--out", "more.npz"]) == 2
    assert "an import makes a segment file" in capsys.readouterr().err
    assert command.main(["data", "export", "run", "--out", "all.seg"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_episodes_that_are_not_whole_are_counted(tmp_path, capsys, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    write_recording(tmp_path / "part.seg", SCHEMA, [ROWS[1:]], len(ROWS) - 1)
    assert command.main(["data", "export", "part.seg", "--out", "part-v0"]) == 0
    assert "1 episodes were left out: their beginning or end is not there" in capsys.readouterr().out


def test_without_minari_the_command_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.delitem(sys.modules, "tickrate.data.minari_format", raising=False)
    write_recording(tmp_path / "d.seg", SCHEMA, [ROWS], len(ROWS))
    assert command.main(["data", "export", "d.seg", "--out", "d-v0"]) == 2
    assert "pip install 'tickrate[minari]'" in capsys.readouterr().err
    assert not (tmp_path / "d-v0").exists()


def test_the_file_of_the_documentation_can_be_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = DATA_PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    exec(compile(block, "data.md", "exec"), {})
    assert command.main(["data", "import", "demos.npz", "--out", "demos.seg"]) == 0
    assert "3 steps of 1 episodes" in capsys.readouterr().out


def test_the_commands_and_options_of_the_page_exist():
    text = DATA_PAGE.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S))
    assert set(re.findall(r"^tickrate ([a-z]+)", blocks, re.M)) == {"record", "train", "data"}
    for section, key in re.findall(r"`(replay|trainer)\.([a-z_]+)", text):
        assert hasattr({"replay": ReplayConfig, "trainer": TrainerConfig}[section], key), key
    for module, name in re.findall(r"`(tickrate\.[a-z_.]+)\.([A-Z]\w+)`", text):
        assert hasattr(importlib.import_module(module), name), name
