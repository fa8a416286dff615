"""``tickrate export``: what it writes and says, and its error without the extra."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tickrate import __main__ as command
from tickrate.errors import MissingExtra
from tickrate.onnx.actor import OnnxPolicy
from tickrate.policy import Policy
from tickrate.registry import resolve

FIRST = Path(__file__).parents[1] / "fixtures" / "first_format.policy"


def test_a_run_folder_is_exported_beside_its_best_policy(tmp_path, capsys):
    (tmp_path / "best.policy").write_bytes(FIRST.read_bytes())
    assert command.main(["export", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "version 17, trained by sac" in out
    assert f"wrote {tmp_path / 'best.onnx'}" in out
    exported, policy = OnnxPolicy.load_file(tmp_path / "best.onnx"), Policy.load_file(FIRST)
    observation = {
        "speed": np.ones((1, 1), np.float32),
        "scan": np.full((1, 2, 3), 9, np.uint8),
        "actions": np.zeros((1, 2, 2), np.float32),
    }
    mine, _, _ = policy.act(observation, policy.initial_state(1), deterministic=True)
    theirs, _, _ = exported.act(observation, exported.initial_state(1), deterministic=True)
    np.testing.assert_allclose(theirs, mine, atol=1e-5)


def test_a_file_goes_where_it_is_told(tmp_path):
    target = tmp_path / "deep" / "robot.onnx"
    assert command.main(["export", str(FIRST), "--out", str(target)]) == 0
    assert [p.name for p in target.parent.iterdir()] == ["robot.onnx"]


def test_an_onnx_file_is_not_exported_again(tmp_path, capsys):
    file = tmp_path / "best.onnx"
    file.write_bytes(b"anything")
    assert command.main(["export", str(file)]) == 2
    assert "is an ONNX file already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "package"), [("tickrate.onnx.graph", "onnx"), ("tickrate.onnx.actor", "onnxruntime")]
)
def test_the_error_without_the_extra_names_it(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtra, match=rf"package {package}: pip install 'tickrate\[onnx\]'"):
        resolve(f"{module}:anything")


def test_without_the_extra_the_command_says_so_and_its_help_works(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for module in ("tickrate.onnx.actor", "tickrate.tools.export"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert command.main(["export", str(FIRST)]) == 2
    assert "pip install 'tickrate[onnx]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        command.main(["export", "--help"])
    assert end.value.code == 0
