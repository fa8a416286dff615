"""Experiment files: defaults, presets, overrides, mistakes at every level, and the way there and back."""

import dataclasses
import re

import pytest

from tickrate.config.experiment import (
    PRESETS,
    Experiment,
    as_mapping,
    changed_options,
    dump_experiment,
    experiment_from_mapping,
    load_experiment,
    override,
)
from tickrate.config.loading import parse_yaml, read_yaml
from tickrate.errors import ConfigError
from tickrate.runtime.environments import realtime_config


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_experiments_are_valid_and_survive_being_written(path, tmp_path):
    experiment = load_experiment(path.stem)
    assert experiment == load_experiment(path)
    realtime_config(experiment.environment)
    resolved = tmp_path / "experiment.yaml"
    resolved.write_text(dump_experiment(experiment), encoding="utf-8")
    assert load_experiment(resolved) == experiment


def test_the_defaults_survive_being_written():
    experiment = experiment_from_mapping({})
    text = dump_experiment(experiment)
    assert experiment_from_mapping(parse_yaml(text, "here")) == experiment
    assert text.index("environment:") < text.index("run:")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trianer": {}}, "unknown section 'trianer'. Did you mean 'trainer'"),
        ({"trainer": {"start_step": 3}}, "unknown key 'trainer.start_step'. Did you mean 'start_steps'"),
        ({"worker": {"warmup": {"hol": [1, 2]}}}, "unknown key 'worker.warmup.hol'. Did you mean 'hold'"),
        ({"worker": {"evaluation": {"episode": 1}}}, "'worker.evaluation.episode'. Did you mean 'episodes'"),
        ({"worker": {"warmup": {"hold": [0, 2]}}}, r"in worker.warmup: hold is \(0, 2\)"),
        ({"worker": {"warmup": {"normal": {"x": [0, 1]}}}}, "a key of worker.warmup.normal is 'x'"),
        ({"algorithm": {"actor": {"hiden": [8]}}}, "'algorithm.actor.hiden'. Did you mean 'hidden'"),
        ({"algorithm": {"name": "sacc"}}, "Did you mean 'sac'"),
        ({"algorithm": {"preset": "crosq"}}, "algorithm.preset is 'crosq'.*Did you mean 'crossq'"),
        ({"algorithm": {"preset": "rainbow"}}, "It is one of dqn: set algorithm.name to dqn"),
        ({"algorithm": {"batch_size": 0}}, "in algorithm: sac.batch_size is 0"),
        ({"algorithm": "sac"}, "algorithm is 'sac'; expected a section"),
        ({"trainer": {"updates_per_step": 0}}, "in trainer: updates_per_step is 0"),
        ({"replay": {"gamma": 1.5}}, "in replay: gamma is 1.5"),
        ({"run": {"mode": "wall_clock"}}, "run.mode is 'wall_clock'.*Did you mean 'wall-clock'"),
        ({"run": {"seed": -1}}, "in run: seed is -1"),
        ({"run": {"name": "../x"}}, "in run: name is '../x'"),
        ({"run": {"root": ""}}, "root is empty"),
        ({"environment": {"kwarg": {}}}, "'environment.kwarg'. Did you mean 'kwargs'"),
        ({"environment": "circuit"}, "environment: expected a section"),
    ],
)
def test_a_mistake_at_any_level_names_its_place_and_the_nearest_key(values, message):
    with pytest.raises(ConfigError, match=message):
        experiment_from_mapping(values)


@pytest.mark.parametrize(
    ("settings", "switch"),
    [
        ({"target_rate": 0.01}, "target_network"),
        ({"preset": "sac", "value_limit": 3.0}, "value_bins"),
        ({"learn_temperature": False, "target_entropy_per_dim": -0.5}, "learn_temperature"),
        ({"learn_temperature": False, "target_entropy_share": 0.5}, "learn_temperature"),
        ({"learn_temperature": False, "temperature_optimiser": {"learning_rate": 1}}, "learn_temperature"),
    ],
)
def test_an_option_that_the_algorithm_does_not_use_is_an_error(settings, switch):
    with pytest.raises(ConfigError, match=f"does not use it here: algorithm.{switch} is off"):
        experiment_from_mapping({"algorithm": settings})


@pytest.mark.parametrize("settings", [{"memory": "gru"}, {"preset": "sac", "delay_correction": 4}])
def test_sequences_have_single_steps_and_other_returns_are_refused(settings):
    experiment = experiment_from_mapping({"algorithm": settings})
    assert experiment.replay.n_step == 1
    assert load_again(experiment) == experiment
    assert experiment_from_mapping({"algorithm": settings, "replay": {"n_step": 1}}).replay.n_step == 1
    with pytest.raises(ConfigError, match=r"replay\.n_step is 3, but with algorithm\.memory or"):
        experiment_from_mapping({"algorithm": settings, "replay": {"n_step": 3}})


@pytest.mark.parametrize(
    ("action", "observation", "refused"),
    [([3, 5], 0, False), (4, [0, 2], False), (0, 2, False), ([0, 3], 1, True), ([3, 5], [0, 2], True)],
)
def test_a_correction_is_refused_where_a_late_observation_hides_the_command(action, observation, refused):
    environment = {"id": "drone", "delays": {"action": action, "observation": observation}}
    values = {"environment": environment, "algorithm": {"delay_correction": 6}}
    if refused:
        with pytest.raises(ConfigError, match="not which one is in force at the reward"):
            experiment_from_mapping(values)
    else:
        experiment_from_mapping(values)
    experiment_from_mapping({"environment": environment})  # without the correction it is right


def load_again(experiment):
    return experiment_from_mapping(parse_yaml(dump_experiment(experiment), "here"))


def test_what_was_chosen_over_the_preset_is_known_even_after_writing():
    values = {"preset": "sac", "critics": 2, "target_rate": 0.01, "actor": {"hidden": [8]}}
    experiment = load_again(experiment_from_mapping({"algorithm": values}))
    assert experiment.algorithm.preset == "sac"
    assert changed_options(experiment.algorithm) == {"target_rate", "actor"}
    assert changed_options(experiment_from_mapping({}).algorithm) == set()


def test_what_a_preset_switched_on_can_be_switched_off():
    plain = {"noisy": False, "noisy_policies": False, "epsilon": {"start": 1.0, "end": 0.1, "updates": 9}}
    values = {"algorithm": {"name": "dqn", "preset": "rainbow", **plain}, "replay": {"sampling": "uniform"}}
    experiment = experiment_from_mapping(values)
    assert not experiment.algorithm.settings.noisy
    assert (experiment.replay.sampling, experiment.replay.n_step) == ("uniform", 3)
    assert load_again(experiment) == experiment
    with pytest.raises(ConfigError, match="priority_exponent is set, but does nothing without"):
        experiment_from_mapping(values | {"replay": {"sampling": "uniform", "priority_exponent": 0.7}})


def test_presets_and_single_settings():
    plain = experiment_from_mapping(
        {
            "algorithm": {
                "preset": "sac",
                "actor": {"hidden": [32]},
                "critic_optimiser": {"learning_rate": "1e-3"},
            }
        }
    )
    assert plain.algorithm.settings.target_network
    assert plain.algorithm.settings.actor.hidden == (32,)
    assert plain.algorithm.settings.critic_optimiser.learning_rate == 1e-3
    assert not experiment_from_mapping({}).algorithm.settings.target_network


def test_overrides_set_nested_keys_and_leave_the_source_alone():
    source = {"trainer": {"start_steps": 5}, "run": {"seed": 1}}
    changed = override(source, {"trainer.start_steps": 9, "environment.kwargs.speed": 2.0, "run.name": "x"})
    assert changed == {
        "trainer": {"start_steps": 9},
        "run": {"seed": 1, "name": "x"},
        "environment": {"kwargs": {"speed": 2.0}},
    }
    assert source == {"trainer": {"start_steps": 5}, "run": {"seed": 1}}


def test_another_preset_replaces_the_recipe_of_a_shipped_file():
    values = override(read_yaml(PRESETS / "circuit.yaml"), {"algorithm.preset": "sac"})
    assert experiment_from_mapping(values).algorithm.settings.target_network


@pytest.mark.parametrize(
    "assignment", [{"trainer": 3}, {"trainer.start_steps.x": 3}, {"": 1}, {"trainer.": 1}]
)
def test_overrides_that_lead_nowhere_are_errors(assignment):
    with pytest.raises(ConfigError):
        experiment_from_mapping(override({}, assignment))


def test_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no file 'circut'.*Did you mean 'circuit'"):
        load_experiment("circut")
    with pytest.raises(ConfigError, match=r"no file 'x\.yaml'"):
        load_experiment("x.yaml")
    (tmp_path / "circuit").mkdir()  # a folder of that name hides nothing
    assert load_experiment("circuit").environment.id == "circuit"


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("trainer: {start_steps: many}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(str(path)) + ".*trainer.start_steps is 'many'"):
        load_experiment(path)


@pytest.mark.parametrize(
    ("environment", "mode", "folder", "serial"),
    [
        ("circuit", "auto", "runs/circuit-seed3", False),
        ("Pendulum-v1", "auto", "runs/Pendulum-v1-seed3", True),
        ("ALE/Pong-v5", "wall-clock", "runs/ALE-Pong-v5-seed3", False),
        ("my_game:MyInterface", "serial", "runs/my_game.MyInterface-seed3", True),
    ],
)
def test_folder_and_mode_follow_from_the_environment(environment, mode, folder, serial):
    experiment = experiment_from_mapping(
        {"environment": {"id": environment}, "run": {"seed": 3, "mode": mode}}
    )
    assert experiment.folder.as_posix() == folder
    assert experiment.serial is serial


def test_every_setting_is_explained():
    """Each field of each section has a docstring under it, which is what the documentation is made of."""
    for section in dataclasses.fields(Experiment):
        assert section.name in as_mapping(experiment_from_mapping({}))
