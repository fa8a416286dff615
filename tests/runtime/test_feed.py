"""What the learner feeds: sequences, priorities, importance that grows, demonstrations; all of it resumed."""

import dataclasses

import numpy as np
import pytest
from runtime_kit import CONTRACT, SCHEMA, FixedAlgorithm, ListTracker, rows_of

from tickrate.algorithms.options import NetworkConfig
from tickrate.algorithms.sac_config import SACConfig
from tickrate.data.batch import Batch, SequenceBatch
from tickrate.data.mixture import Mixture
from tickrate.data.priorities import Proportional
from tickrate.data.records import Segment
from tickrate.data.replay import Replay
from tickrate.errors import ConfigError, RecordError
from tickrate.runtime.assembly import LearnerParts
from tickrate.runtime.learner import Learner
from tickrate.runtime.learner_config import ReplayConfig, TrainerConfig
from tickrate.runtime.run_folder import RunFolder, load_state

SMALL = NetworkConfig(hidden=(8,))


class Watching(FixedAlgorithm):
    """Keeps the batches it gets."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.batches = []

    def update(self, batch):
        self.batches.append(batch)
        return super().update(batch)


class Judging(Watching):
    """Gives as priority the number of the row's step, plus one."""

    def priorities(self):
        return self.batches[-1].observation["place"][:, 1] + 1


class Recurrent(Watching):
    sequence_length = 3


class JudgingRecurrent(Recurrent):
    def priorities(self):
        return self.batches[-1].observation["place"][:, 0, 1] + 1


def make(path, algorithm, *, sampling=None, demonstrations=None, share=0.5, importance=0.4, **config):
    folder = RunFolder(path)
    if not folder.checkpoints.exists():
        folder.prepare("refuse")
    replay = Replay(SCHEMA, 200, gamma=0.9, seed=1, sampling=sampling)
    mixture = None
    if demonstrations is not None:
        taught = Replay(SCHEMA, 200, gamma=0.9, seed=2, sampling=sampling, save_rows=False)
        taught.add(demonstrations)
        mixture = Mixture(replay, taught, share)
    settings = {"start_steps": 1, "checkpoint_every_s": 1e6, "log_every_s": 1e6}
    return Learner(
        algorithm,
        replay,
        TrainerConfig(**settings | config),
        folder,
        ListTracker(),
        batch_size=8,
        demonstrations=mixture,
        importance_exponent=importance,
    )


def test_an_algorithm_gets_sequences_if_it_asks_for_them(tmp_path):
    plain, recurrent = (make(tmp_path / k.__name__, k()) for k in (Watching, Recurrent))
    for learner, kind in ((plain, Batch), (recurrent, SequenceBatch)):
        learner.intake.add(rows_of(0, 6))
        assert learner.update_if_due()
        assert isinstance(learner.algorithm.batches[0], kind)
    assert recurrent.algorithm.batches[0].reward.shape == (8, 3)


def test_a_sequence_length_of_zero_means_plain_batches(tmp_path):
    algorithm = Recurrent()
    algorithm.sequence_length = 0
    learner = make(tmp_path / "r", algorithm)
    learner.intake.add(rows_of(0, 6))
    learner.update_if_due()
    assert isinstance(algorithm.batches[0], Batch)


@pytest.mark.parametrize("kind", [Judging, JudgingRecurrent])
def test_priorities_go_back_into_the_replay(tmp_path, kind):
    learner = make(tmp_path / "r", kind(), sampling=Proportional(1.0))
    learner.intake.add(rows_of(0, 40))
    while learner.update_if_due():
        pass
    weights = learner.replay._storage.priorities.weights(np.arange(40))
    drawn = np.unique(np.concatenate([b.rows.reshape(8, -1)[:, 0] for b in learner.algorithm.batches]))
    assert len(drawn) > 20
    assert weights[drawn] == pytest.approx(drawn + 1, rel=1e-5)
    assert all(batch.weights.max() == 1.0 for batch in learner.algorithm.batches)


def test_importance_grows_to_one_over_the_run(tmp_path):
    learner = make(tmp_path / "r", Judging(), sampling=Proportional(1.0), importance=0.2, total_steps=20)
    learner.intake.add(rows_of(0, 21, final=False))  # rows 0 to 19 can be sampled; 21 steps: the run is over
    for steps, beta in ((5, 0.2 + 0.8 * 0.25), (20, 1.0), (40, 1.0)):  # beyond the limit it stays at 1
        learner.replay.update_priorities(np.arange(20), np.arange(1.0, 21.0))
        learner.limiter.steps = steps
        assert learner.update_if_due()
        batch = learner.algorithm.batches[-1]
        right = (batch.rows + 1.0) ** -beta
        np.testing.assert_allclose(batch.weights, right / right.max(), rtol=1e-4)


def test_prioritised_sampling_needs_an_algorithm_that_gives_priorities(tmp_path):
    with pytest.raises(ConfigError, match=r"prioritised.*Watching has no method priorities"):
        make(tmp_path / "r", Watching(), sampling=Proportional())
    make(tmp_path / "r", Judging(), sampling=Proportional())


def test_half_of_each_batch_is_demonstrations(tmp_path):
    learner = make(tmp_path / "r", Watching(), demonstrations=rows_of(7, 10))
    learner.observe_demonstrations()
    assert learner.algorithm.observed == 10  # without the final row
    learner.intake.add(rows_of(0, 6))
    assert learner.algorithm.observed == 16
    learner.update_if_due()
    episodes = learner.algorithm.batches[0].observation["place"][:, 0]
    assert sorted(episodes.tolist()) == [0.0] * 4 + [7.0] * 4


def test_without_own_data_there_are_no_updates_but_offline_ones(tmp_path):
    learner = make(tmp_path / "r", Watching(), demonstrations=rows_of(7, 10), offline_updates=3)
    learner.limiter.steps = 5
    assert not learner.update_if_due()
    while not learner.finished:
        learner.update_offline()
    assert (learner.offline_updates, learner.updates, learner.limiter.updates) == (3, 3, 0)
    assert all((b.observation["place"][:, 0] == 7).all() for b in learner.algorithm.batches)


def test_a_batch_too_small_to_be_mixed_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="of a batch of 8 is 0"):
        make(tmp_path / "r", Watching(), demonstrations=rows_of(7, 10), share=0.05)


def test_a_resume_restores_priorities_and_demonstrations_bit_for_bit(tmp_path):
    settings = {"sampling": Proportional(0.7), "demonstrations": rows_of(7, 30), "total_steps": 100}
    one = make(tmp_path / "r", Judging(), **settings)
    one.intake.add(rows_of(0, 30))
    for _ in range(20):
        one.update_if_due()
    one.update_offline()
    two = make(tmp_path / "r", Judging(), **settings)
    two.replay._rng.random(5)
    two.restore(one.save())
    assert two.offline_updates == 1
    for learner in (one, two):
        learner.intake.add(rows_of(1, 9))
    made = 0
    while one.update_if_due():
        assert two.update_if_due()
        np.testing.assert_array_equal(one.algorithm.batches[-1].rows, two.algorithm.batches[-1].rows)
        np.testing.assert_array_equal(one.algorithm.batches[-1].weights, two.algorithm.batches[-1].weights)
        made += 1
    assert made > 10
    assert one.algorithm.total == two.algorithm.total


def test_a_checkpoint_of_an_earlier_release_knows_no_offline_updates(tmp_path):
    learner = make(tmp_path / "r", Watching())
    learner.intake.add(rows_of(0, 10))
    checkpoint = learner.save()
    file = checkpoint / "counters.json"
    file.write_text(file.read_text().replace('"offline_updates"', '"unheard_of"'))
    assert "offline_updates" not in load_state(checkpoint)[1]
    again = make(tmp_path / "r", Watching())
    again.restore(checkpoint)
    assert (again.offline_updates, again.limiter.steps) == (0, 10)


# --- settings and assembly ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sampling": "weighted"}, "sampling is 'weighted'"),
        ({"sampling": "prioritised", "priority_exponent": 0.0}, r"priority_exponent is 0\.0"),
        ({"sampling": "prioritised", "priority_exponent": 1.1}, "priority_exponent"),
        ({"sampling": "prioritised", "importance_exponent": -0.1}, "importance_exponent"),
        (
            {"priority_exponent": 0.5},
            "priority_exponent is set, but does nothing without sampling: prioritised",
        ),
        ({"importance_exponent": 0.5}, "importance_exponent is set, but does nothing"),
        ({"demonstration_share": 0.3}, "demonstration_share is set, but does nothing without demonstrations"),
        ({"demonstrations": ("a.seg",), "demonstration_share": 1.0}, "offline_updates"),
        ({"demonstrations": ("a.seg",), "demonstration_share": 0.0}, "demonstration_share is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**values)


def test_settings_that_go_together_are_taken():
    config = ReplayConfig(
        sampling="prioritised",
        priority_exponent=0.5,
        importance_exponent=0.5,
        demonstrations=("a.seg",),
        demonstration_share=0.25,
    )
    assert config.demonstration_share == 0.25
    with pytest.raises(ConfigError, match="offline_updates is 0"):
        TrainerConfig(offline_updates=0)


def build(path, replay, algorithm="sac", *, trainer=None, resume=False):
    folder = RunFolder(path)
    if not resume:
        folder.prepare("refuse")
    parts = LearnerParts(
        algorithm,
        SACConfig(actor=SMALL, critic=SMALL, batch_size=8, normalise_observations=True),
        replay,
        trainer or TrainerConfig(start_steps=1),
        evaluation_episodes=1,
        seed=3,
    )
    return parts.build(CONTRACT, folder, ListTracker(), resume=resume)


def demonstration_file(path, schema=SCHEMA, rows=None):
    segment = Segment.create(path, schema, 200)
    segment.append(rows_of(7, 30) if rows is None else rows)
    segment.close()
    return str(path)


def test_demonstrations_are_loaded_observed_once_and_resumed(tmp_path):
    replay = ReplayConfig(capacity=500, n_step=1, demonstrations=(demonstration_file(tmp_path / "d.seg"),))
    learner = build(tmp_path / "r", replay)
    assert learner.algorithm.state()["count/actor"] == 30
    learner.intake.add(rows_of(0, 10))
    while learner.update_if_due():
        pass
    learner.save()
    again = build(tmp_path / "r", replay, resume=True)
    assert again.algorithm.state()["count/actor"] == 40
    assert again.updates == learner.updates == 9
    for one in (learner, again):
        one.intake.add(rows_of(1, 5))
        while one.update_if_due():
            pass
    for name, value in learner.algorithm.state().items():
        np.testing.assert_array_equal(value, again.algorithm.state()[name], err_msg=name)


def test_demonstrations_of_other_spaces_are_refused_naming_the_difference(tmp_path):
    other = dataclasses.replace(SCHEMA, action=dataclasses.replace(SCHEMA.action, shape=(2,)))
    rows = other.empty(5)
    rows["step"] = np.arange(5)
    path = demonstration_file(tmp_path / "d.seg", other, rows)
    with pytest.raises(RecordError, match=r"d\.seg.*'action' is float32\[1\] here and float32\[2\] there"):
        build(tmp_path / "r", ReplayConfig(capacity=500, demonstrations=(path,)))


def test_an_algorithm_without_priorities_is_refused_when_the_learner_is_built(tmp_path):
    with pytest.raises(ConfigError, match="prioritised"):
        make(tmp_path, Watching(), sampling=Proportional(0.6))
