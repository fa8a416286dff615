"""The learner keeps the ratio, the books, the best policy, and continues bit for bit from a checkpoint."""

import dataclasses
import json
import logging

import numpy as np
import pytest
from runtime_kit import SCHEMA, make_learner, rows_of

from tickrate.data.return_scale import ReturnScale
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, RecordError, RunFolderError
from tickrate.policy import Policy
from tickrate.runtime import learner as learner_module
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import load_state


def summary(score=1.0, *, version=1, evaluation=True, ended="terminated", episode=0, **metrics):
    return EpisodeSummary(
        episode=episode,
        evaluation=evaluation,
        policy_version=version,
        steps=3,
        total_return=score,
        duration_s=0.1,
        ended=ended,
        training_steps=3,
        metrics=metrics,
    )


def drain(learner):
    made = 0
    while learner.update_if_due():
        made += 1
    return made


def test_updates_follow_training_steps_only(tmp_path):
    learner = make_learner(tmp_path / "r", start_steps=5, updates_per_step=2.0)
    learner.intake.add(rows_of(0, 10))
    assert learner.limiter.steps == 10  # the final row is no step
    assert drain(learner) == 10
    learner.intake.add(rows_of(1, 10, flags=int(Flag.EVALUATION)))
    assert drain(learner) == 0
    assert learner.algorithm.observed == 10  # evaluation is kept out of the input statistics too


def test_policies_are_published_every_so_many_updates(tmp_path):
    learner = make_learner(tmp_path / "r", publish_every=3)
    learner.intake.add(rows_of(0, 11))
    versions = []
    while learner.update_if_due():
        if learner.publish_due():
            version, weights = learner.publish()
            assert Policy.from_bytes(weights).contract.policy_version == version
            versions.append(version)
    assert learner.limiter.updates == 10
    assert versions == [1, 2, 3]


def test_a_worker_with_newer_weights_than_ours_lifts_the_next_version(tmp_path):
    learner = make_learner(tmp_path / "r", publish_every=2)
    learner.intake.add(rows_of(0, 6, version=40))  # handed out by an earlier life of the trainer
    learner.update_if_due()
    learner.update_if_due()
    assert learner.publish_due()
    assert learner.publish()[0] == 41


# --- the best policy ----------------------------------------------------------------------------------------


def test_the_best_policy_is_the_one_whose_worst_evaluation_is_best(tmp_path):
    learner = make_learner(tmp_path / "r", evaluation_episodes=2)
    for _ in range(3):
        learner.publish()

    def best():
        return learner.published.best_version, learner.published.best_score

    learner.finish_episode(summary(10.0, version=1))
    assert best() == (0, -np.inf)  # half an evaluation is none
    learner.finish_episode(summary(2.0, version=1))
    assert best() == (1, 2.0)
    learner.finish_episode(summary(9.0, version=2))
    learner.finish_episode(summary(1.0, version=2))  # a higher mean, a worse worst
    assert best() == (1, 2.0)
    learner.finish_episode(summary(3.0, version=3))
    learner.finish_episode(summary(4.0, version=3))
    assert best() == (3, 3.0)
    assert Policy.load_file(learner.folder.best_policy).contract.policy_version == 3
    assert json.loads(learner.folder.best.read_text()) == {"score": 3.0, "version": 3}


def test_the_environment_s_own_score_counts_before_the_return(tmp_path):
    learner = make_learner(tmp_path / "r")
    learner.publish()
    learner.finish_episode(dataclasses.replace(summary(100.0), metrics={"score": 0.25}))
    assert learner.published.best_score == 0.25


@pytest.mark.parametrize("ended", ["paused", "shutdown", "policy lost"])
def test_a_cut_evaluation_does_not_count(tmp_path, ended):
    learner = make_learner(tmp_path / "r", evaluation_episodes=2)
    learner.publish()
    learner.finish_episode(summary(5.0))
    learner.finish_episode(summary(5.0, ended=ended))
    learner.finish_episode(summary(5.0))
    assert learner.published.best_version == 0
    assert not learner.folder.best_policy.exists()


def test_training_episodes_never_make_the_best_policy(tmp_path):
    learner = make_learner(tmp_path / "r")
    learner.publish()
    learner.finish_episode(summary(5.0, evaluation=False))
    assert learner.published.best_version == 0


def test_a_best_policy_found_after_the_checkpoint_stays_the_best(tmp_path):
    learner = make_learner(tmp_path / "r")
    learner.publish()
    checkpoint = learner.save()
    learner.finish_episode(summary(7.0))
    again = make_learner(tmp_path / "r")
    again.restore(checkpoint)
    assert (again.published.best_score, again.published.best_version) == (7.0, 1)
    again.folder.best.write_text("{}", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"best\.json"):
        again.restore(checkpoint)


# --- the books ----------------------------------------------------------------------------------------------


def test_timing_figures_are_those_of_the_live_steps(tmp_path):
    learner = make_learner(tmp_path / "r")
    rows = rows_of(0, 4)
    rows["start"] = 10.0 + 0.05 * np.arange(5)
    rows["lateness"] = [0.001, 0.002, 0.003, 0.010, 0.0]
    rows["flags"][3] |= Flag.LATE
    learner.intake.add(rows)
    figures = learner.figures()
    assert figures["timing/achieved_hz"] == pytest.approx(20.0)
    assert figures["timing/lateness_p50_ms"] == pytest.approx(2.5)
    assert figures["timing/lateness_max_ms"] == pytest.approx(10.0)
    assert figures["timing/overruns"] == 1.0
    np.testing.assert_allclose(learner.intake.timing.lateness(), [0.001, 0.002, 0.003, 0.010])
    assert learner.intake.timing.lateness().dtype == np.float32


def test_the_rate_does_not_count_the_gap_between_episodes(tmp_path):
    learner = make_learner(tmp_path / "r")
    for episode, begin in ((0, 10.0), (1, 100.0)):
        rows = rows_of(episode, 3)
        rows["start"] = begin + 0.1 * np.arange(4)
        learner.intake.add(rows)
    assert learner.figures()["timing/achieved_hz"] == pytest.approx(10.0)


def test_lock_step_has_no_timing(tmp_path):
    learner = make_learner(tmp_path / "r")
    learner.intake.add(rows_of(0, 4))
    assert not any(name.startswith("timing/") for name in learner.figures())


def test_policy_lag_is_that_of_the_newest_training_step(tmp_path):
    learner = make_learner(tmp_path / "r")
    for _ in range(5):
        learner.publish()
    rows = rows_of(0, 2, version=2)
    rows["start"] = learner_module.clock.now() + 1.0
    learner.intake.add(rows)
    figures = learner.figures()
    assert figures["learn/policy_lag_versions"] == 3.0
    assert figures["learn/policy_lag_s"] == pytest.approx(1.0, abs=0.2)


def test_each_episode_is_one_line_and_one_row_of_metrics(tmp_path):
    learner = make_learner(tmp_path / "r")
    learner.finish_episode(summary(3.0, evaluation=False, episode=4, lap_time_s=12.5, lap_clean=0.0))
    line = json.loads(learner.folder.episodes.read_text())
    assert (line["episode"], line["return"], line["lap_time_s"], line["clean"]) == (4, 3.0, 12.5, False)
    _, values = learner._tracker.calls[-1]
    assert values == {"train/return": 3.0, "train/length_steps": 3.0, "train/lap_time_s": 12.5}


# --- resuming -----------------------------------------------------------------------------------------------


def trained(path, **config):
    learner = make_learner(path, **config)
    learner.intake.add(rows_of(0, 30))
    for _ in range(20):
        learner.update_if_due()
        if learner.publish_due():
            learner.publish()
    return learner


def test_the_next_update_after_a_resume_is_bit_equal(tmp_path):
    one = trained(tmp_path / "r")
    two = make_learner(tmp_path / "r")
    two.restore(one.save())
    for learner in (one, two):
        learner.intake.add(rows_of(1, 5))
    while one.update_if_due():
        assert two.update_if_due()
        assert one.algorithm.total == two.algorithm.total  # the same batches, in the same order
    assert not two.update_if_due()
    assert (one.version, one.limiter.updates) == (two.version, two.limiter.updates)
    assert one.publish()[0] == two.publish()[0]
    assert len(one.replay) == len(two.replay)


@pytest.mark.parametrize("part", ["algorithm.safetensors", "counters.json", "replay.snapshot"])
def test_a_checkpoint_that_lacks_a_part_is_refused(tmp_path, part):
    checkpoint = trained(tmp_path / "r").save()
    (checkpoint / part).unlink()
    with pytest.raises((RunFolderError, RecordError)):
        make_learner(tmp_path / "r").restore(checkpoint)


@pytest.mark.parametrize(
    "change", [{"steps": None}, {"version": "two"}, {"best_score": []}, {"updates": ...}]
)
def test_counters_of_another_form_are_refused(tmp_path, change):
    checkpoint = trained(tmp_path / "r").save()
    counters = load_state(checkpoint)[1] | change
    counters = {k: v for k, v in counters.items() if v is not ...}
    (checkpoint / "counters.json").write_text(json.dumps(counters), encoding="utf-8")
    learner = make_learner(tmp_path / "r")
    with pytest.raises(RunFolderError, match=r"counters\.json"):
        learner.restore(checkpoint)
    assert len(learner.replay) == 0
    assert learner.algorithm.updates == 0


def test_scaled_rewards_cannot_be_switched_on_or_off_in_mid_run(tmp_path):
    checkpoint = trained(tmp_path / "r").save()
    counters = load_state(checkpoint)[1]
    assert counters["return_scale"] is None
    counters["return_scale"] = ReturnScale(0.9, 5.0).state()
    (checkpoint / "counters.json").write_text(json.dumps(counters), encoding="utf-8")
    learner = make_learner(tmp_path / "r")
    with pytest.raises(RunFolderError, match=r"replay\.return_limit was switched on or off since"):
        learner.restore(checkpoint)
    assert len(learner.replay) == 0


def test_wall_time_adds_up_over_commands_but_not_over_restarts_within_one(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(learner_module.clock, "now", lambda: now[0])

    def life(begins, *, restore=None):
        learner = make_learner(tmp_path / "r")
        learner.began_at(begins)
        if restore is not None:
            learner.restore(restore)
        return learner

    first = life(100.0)
    now[0] = 160.0
    checkpoint = first.save()
    now[0] = 200.0  # killed here, and started again within the same command
    assert life(100.0, restore=checkpoint).wall_s == 100.0
    now[0] = 1010.0  # resumed by a later command, given at 1000
    second = life(1000.0, restore=checkpoint)
    assert second.wall_s == 60.0 + 10.0
    now[0] = 1020.0
    checkpoint = second.save()
    now[0] = 1030.0
    assert life(1000.0, restore=checkpoint).wall_s == 60.0 + 30.0


def test_a_line_that_a_kill_left_unfinished_is_cut_off_the_log(tmp_path):
    learner = trained(tmp_path / "r")
    learner.finish_episode(summary(1.0, episode=1))
    checkpoint = learner.save()
    with learner.folder.episodes.open("a", encoding="utf-8") as log:
        log.write('{"episode": 2, "retu')
    again = make_learner(tmp_path / "r")
    again.restore(checkpoint)
    again.finish_episode(summary(1.0, episode=3))
    lines = again.folder.episodes.read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [1, 3]
    assert [e["episode"] for e in again.episodes] == [1, 3]


def test_a_checkpoint_comes_with_its_policy(tmp_path):
    learner = trained(tmp_path / "r")
    learner.save()
    assert Policy.load_file(learner.folder.latest_policy).contract.policy_version == learner.version


@pytest.mark.parametrize(
    ("limits", "steps", "elapsed", "finished"),
    [
        ({"total_steps": 10}, 9, 0, False),
        ({"total_steps": 10}, 10, 0, True),
        ({"time_limit_s": 5.0}, 0, 4.9, False),
        ({"time_limit_s": 5.0}, 0, 5.0, True),
        ({}, 10**6, 10**6, False),
    ],
)
def test_the_limits(tmp_path, monkeypatch, limits, steps, elapsed, finished):
    now = [50.0]
    monkeypatch.setattr(learner_module.clock, "now", lambda: now[0])
    learner = make_learner(tmp_path / "r", **limits)
    learner.limiter.steps, learner.limiter.updates = steps, max(0, steps - 1)  # one a step after the first
    now[0] += elapsed
    assert learner.finished is finished


def test_the_updates_that_are_due_come_before_the_end(tmp_path):
    """25 steps arrive at once: of the limit's ten, nine are owed an update each."""
    learner = make_learner(tmp_path / "r", total_steps=10)
    learner.limiter.steps, learner.limiter.updates = 25, 8
    assert not learner.finished
    learner.limiter.updates = 9
    assert learner.finished


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (TrainerConfig, {"updates_per_step": 0.0}),
        (TrainerConfig, {"updates_per_step": float("nan")}),
        (TrainerConfig, {"time_limit_s": -1.0}),
        (TrainerConfig, {"total_steps": 0}),
        (TrainerConfig, {"start_steps": 0}),
        (TrainerConfig, {"publish_every": 0}),
        (TrainerConfig, {"threads": 0}),
        (TrainerConfig, {"priority": "lowest"}),
        (TrainerConfig, {"checkpoint_every_s": 0.0}),
        (ReplayConfig, {"gamma": 1.0}),
        (ReplayConfig, {"gamma": float("nan")}),
        (ReplayConfig, {"n_step": 0}),
        (ReplayConfig, {"capacity": 10}),
    ],
)
def test_impossible_settings_are_refused_by_name(config, values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        config(**values)


def test_a_replay_of_another_schema_is_refused(tmp_path):
    checkpoint = trained(tmp_path / "r").save()
    learner = make_learner(tmp_path / "r", capacity=500)
    with pytest.raises(RecordError):
        learner.restore(checkpoint)
    assert SCHEMA.row_dtype["o/place"].shape == (2,)


def test_what_an_algorithm_has_to_tell_is_logged_with_the_metrics(tmp_path, caplog):
    learner = make_learner(tmp_path)
    learner.algorithm.faults = lambda: ["1 step down critic_loss skipped: the gradient of w was not finite"]
    learner.algorithm.effects = lambda: ["compile default: 2 graphs compiled, 0 breaks"]
    with caplog.at_level(logging.INFO, logger="tickrate.runtime.learner"):
        learner.log()
    assert [(record.levelname, record.message[:18]) for record in caplog.records] == [
        ("WARNING", "1 step down critic"),
        ("INFO", "compile default: 2"),
    ]
