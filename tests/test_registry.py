"""Names lead to what they name, and a name that leads nowhere says so."""

import sys
from dataclasses import fields
from importlib import resources

import pytest

from tickrate import registry
from tickrate.config.experiment import Experiment
from tickrate.errors import ConfigError


@pytest.mark.parametrize("entry", registry.ENVIRONMENTS.values(), ids=registry.ENVIRONMENTS)
def test_shipped_environments_exist(entry):
    config = registry.resolve(entry.config)()
    assert callable(config["interface"])
    assert entry.summary


@pytest.mark.parametrize("entry", registry.ALGORITHMS.values(), ids=registry.ALGORITHMS)
def test_algorithms_and_their_presets_exist(entry):
    config = registry.resolve(entry.config)
    assert callable(registry.resolve(entry.build))
    assert callable(registry.resolve(entry.limit_threads))
    switches = {switch for switch in entry.used_only_with.values() if "." not in switch}
    assert {*entry.used_only_with, *switches} <= {f.name for f in fields(config)}
    for section, _, key in (s.partition(".") for s in {*entry.used_only_with.values()} - switches):
        assert hasattr(getattr(Experiment(), section), key)
    for preset, where in entry.presets.items():
        package, _, path = where.partition(":")
        assert resources.files(package).joinpath(path).is_file(), preset


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_colon", "not of the form 'module:attribute'"),
        (":X", "not of the form"),
        ("os:", "not of the form"),
        (".relative:X", "not of the form"),
        ("no_such_module_here:X", "cannot import 'no_such_module_here'.*Run from the folder"),
        ("tickrate.no_such_room:X", "cannot import"),
        ("tickrate.policy:Polcy", "no 'Polcy'. Did you mean 'Policy'"),
    ],
)
def test_a_name_that_leads_nowhere(target, message):
    with pytest.raises(ConfigError, match=message):
        registry.resolve(target)


def test_a_file_name_instead_of_a_module_name(tmp_path, monkeypatch):
    (tmp_path / "my_game_file.py").write_text("class Mine: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="Leave the ending out: my_game_file:Mine"):
        registry.resolve("my_game_file.py:Mine")
    assert registry.resolve("my_game_file:Mine").__name__ == "Mine"
    sys.modules.pop("my_game_file")


def test_a_missing_package_of_the_user_s_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_game_needs.py").write_text("import a_package_not_there\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="a_package_not_there"):
        registry.resolve("my_game_needs:Mine")


def test_unknown_algorithms_are_refused():
    assert next(iter(registry.algorithm("sac").presets)) == "live"
    with pytest.raises(ConfigError, match=r"unknown algorithm 'sacc'.*Did you mean 'sac'"):
        registry.algorithm("sacc")
