"""A synchronous run ends the same, bit for bit, wherever its trainer is killed and however rows arrive."""

import json

import numpy as np
import pytest
from delivery_kit import RUN, Place
from runtime_kit import make_learner, policy_bytes, rows_of

from tickrate.config.experiment import experiment_from_mapping
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError
from tickrate.runtime import run_folder as run_folder_module
from tickrate.runtime import trainer as trainer_module
from tickrate.runtime.learner import Learner
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.limiter import UpdateLimiter
from tickrate.runtime.rounds import LOST_END_S, Rounds
from tickrate.runtime.run_folder import RunFolder, load_state
from tickrate.testing.faulty_carrier import FaultyCarrier
from tickrate.wire import messages
from tickrate.wire.carrier import make_key


class Touchy:
    """An `Algorithm` that shows any change of order, grouping or random state in its last bits."""

    def __init__(self):
        self.weights, self.momentum = np.float64(0.1), np.float64(0.0)
        self.mean, self.count = np.zeros(2, np.float32), 0
        self.rng = np.random.default_rng(3)

    def observe(self, observation):
        rows = observation["place"]
        self.count += len(rows)
        self.mean = self.mean + np.float32(len(rows) / self.count) * (rows.mean(axis=0) - self.mean)

    def update(self, batch):
        seen = batch.observation["place"] - self.mean
        pull = float(np.sin(seen).sum() + batch.reward.sum() + batch.discount.sum()) / 50.0
        self.momentum = 0.9 * self.momentum + pull + 0.01 * self.rng.normal()
        self.weights = np.tanh(self.weights + self.momentum)
        return {}

    def policy_bytes(self, version):
        return policy_bytes(version, float(np.clip(self.weights + 0.1 * self.mean.sum(), -0.9, 0.9)))

    def state(self):
        rng = np.frombuffer(json.dumps(self.rng.bit_generator.state).encode(), np.uint8)
        numbers = {"weights": self.weights, "momentum": self.momentum, "count": self.count}
        return {name: np.array(value) for name, value in numbers.items()} | {
            "mean": self.mean.copy(),
            "random": rng.copy(),
        }

    def restore(self, state):
        self.weights, self.momentum = state["weights"][()], state["momentum"][()]
        self.mean, self.count = state["mean"].copy(), int(state["count"])
        self.rng.bit_generator.state = json.loads(state["random"].tobytes())


class Killed(BaseException):
    """The trainer is killed here; nothing in it may catch this."""


class Points:
    """Counts the places where a trainer can be killed, before and after each call, and kills at some."""

    CALLS = (
        *((Replay, name) for name in ("add", "save", "restore", "sample")),
        *((Touchy, name) for name in ("observe", "update", "policy_bytes")),
        *((Learner, name) for name in ("publish", "save", "restore")),
        (Ledger, "advance"),
        (RunFolder, "finish_checkpoint"),
        (run_folder_module, "write_atomically"),
    )

    def __init__(self, monkeypatch, kills=()):
        self.kills, self.passed, self.armed = set(kills), 0, True
        for where, name in self.CALLS:
            monkeypatch.setattr(where, name, self.watched(getattr(where, name)))

    def watched(self, call):
        def inner(*arguments, **options):
            self.arrive()
            result = call(*arguments, **options)
            self.arrive()
            return result

        return inner

    def arrive(self):
        if self.armed:
            self.passed += 1
            if self.passed in self.kills:
                raise Killed


def rounds_of_rows(rounds=4):
    """Return the rows of each round, a row for the replay or of an evaluation, and marked at its end.

    The first, of the warm-up, has 3 + 7 steps in two episodes; each further one, after an evaluation episode
    of 3 steps, 8 in episodes of 4, 2 and 2 (terminated, truncated, terminated): 7 is reached in the last.
    """
    rng, episode, result = np.random.default_rng(8), 0, []
    for number in range(rounds):
        made = []
        for steps, kind in (
            [(3, "evaluation"), (4, ""), (2, "truncated"), (2, "")] if number else [(3, ""), (7, "")]
        ):
            rows = rows_of(
                episode, steps, version=number, flags=int(Flag.EVALUATION) * (kind == "evaluation")
            )
            if kind == "truncated":
                rows["flags"][steps - 1] = Flag.TRUNCATED
            rows["o/place"] = rng.normal(size=(steps + 1, 2)).astype(np.float32)
            rows["reward"][:steps] = rng.normal(size=steps)
            made += list(rows)
            episode += 1
        made[-1]["flags"] |= Flag.ROUND_END
        result.append(made)
    return result


SETTINGS = {
    "algorithm": Touchy,
    "synchronous_steps": 7,
    "start_steps": 3,
    "updates_per_step": 0.75,
    "total_steps": 10 + 3 * 8,
    "n_step": 3,
    "capacity": 25,  # the ring comes round within the run
}


def run(tmp_path, kills=(), *, chunks=(5,), points=True, bad_way=None, **settings):
    """Run to the end, the trainer killed and started again at some points; return what it came to.

    Args:
        tmp_path: where.
        kills: numbers of the points (`Points`).
        chunks: in what pieces the worker's rows come, in turn.
        points: False leaves the calls as they are.
        bad_way: a seed: a fifth each of all messages is lost, doubled, delayed.
        settings: further ones.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(run_folder_module.os, "fsync", lambda file: None)  # no power is cut here
        place = Place(tmp_path, monkeypatch)
        place.seed = bad_way
        counter = Points(monkeypatch, kills) if points else None
        try:
            return drive(place, counter, chunks, SETTINGS | settings), counter.passed if counter else 0
        finally:
            place.close()


def drive(place, points, chunks, settings):
    worker, todo, waits_for = place.worker(), rounds_of_rows(), 0
    pending, turn, handed_out = todo.pop(0), 0, {}
    weights = place.ear.subscribe(make_key(RUN, "weights", "trainer"), capacity=1000)
    place.start_trainer(**settings)
    for _ in range(2000):
        try:
            place.step(seconds=0.05)
        except Killed:
            points.armed = False
            place.kill_trainer()
            place.step(3)
            points.armed = True
            place.start_trainer(resume=place.folder.resumable, **settings)
            continue
        for payload in weights.drain(1000):
            message = messages.decode(payload)
            assert handed_out.setdefault(message.version, message.payload) == message.payload
        if not len(pending) and todo and worker.outlet.weights.version() > waits_for:
            waits_for = worker.outlet.weights.version()
            pending = todo.pop(0)
            assert {int(row["policy_version"]) for row in pending} == {waits_for}
        size = chunks[turn % len(chunks)]
        turn += 1
        for row in pending[:size]:
            worker.outlet.put_row(row)
        pending = pending[size:]
        if place.learner is not None and place.learner.finished:
            break
    else:
        raise AssertionError("it did not come to its end")
    if points is not None:
        points.armed = False
    place.trainer._save_last(place.learner)
    return outcome(place, handed_out)


def outcome(place, handed_out):
    learner = place.learner
    replay, index = learner.replay, learner.replay._storage.index
    state = {
        key: value
        for key, value in replay.state().items()
        if key not in ("evaluation_rows", "duplicate_rows")  # what came again, or is not kept, is no content
    }
    arrays, counters = load_state(place.folder.latest_checkpoint())
    numbers = ("steps", "updates", "forgiven", "published_at", "version", "rows", "round_target")
    return {
        "state": {name: array.tobytes() for name, array in learner.algorithm.state().items()},
        "saved": {name: array.tobytes() for name, array in arrays.items()},
        "counters": {name: counters[name] for name in numbers},
        "replay": state,
        "rows": replay.read(np.arange(replay.oldest_row, replay.rows_added)).tobytes(),
        "index": [index.entries[index.sampleable].tobytes(), index.sampleable.tobytes(), index.count],
        "policies": handed_out,
    }


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unkilled"), points=False)[0]


def test_the_updates_of_each_round_are_those_due_at_its_end(unkilled):
    """10, 18, 26 and 34 steps, the end: (steps - 3) * 0.75 = 5.25, 11.25, 17.25 and 23.25 updates."""
    assert unkilled["counters"] == {
        "steps": 34,
        "updates": 23,
        "forgiven": 0.0,
        "published_at": 17,
        "version": 3,
        "rows": 12 + 3 * 11,  # 3 + 1 and 7 + 1; 4 + 1, 2 + 1 and 2 + 1; evaluations are not kept
        "round_target": 23,
    }
    assert sorted(unkilled["policies"]) == [1, 2, 3]
    assert len(set(unkilled["policies"].values())) == 3


@pytest.mark.parametrize("chunks", [(1,), (100,), (2, 9, 1)])
def test_it_does_not_matter_how_the_rows_come_together(tmp_path, unkilled, chunks):
    assert run(tmp_path, chunks=chunks, points=False)[0] == unkilled


OFTEN = {"checkpoint_every_s": 0.12}
"""Checkpoints between those of the rounds too: in the middle of a round's rows, and of its updates."""


@pytest.mark.parametrize("every", [31, pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
@pytest.mark.parametrize("settings", [{}, OFTEN], ids=["rounds", "often"])
def test_a_trainer_killed_at_any_point_ends_where_the_unkilled_one_does(
    tmp_path_factory, unkilled, every, settings
):
    result, points = run(tmp_path_factory.mktemp("count"), **settings)
    assert result == unkilled
    assert points > 300
    for point in range(1, points + 1, every):
        result, _ = run(tmp_path_factory.mktemp("k"), [point], **settings)
        assert result == unkilled, f"killed at point {point}"


@pytest.mark.parametrize("seed", [10, 200, 3000])
def test_over_a_bad_way_it_ends_the_same(tmp_path, unkilled, seed):
    assert run(tmp_path, bad_way=seed, points=False)[0] == unkilled
    kills = np.random.default_rng(seed).choice(np.arange(1, 400), 5, replace=False)
    assert run(tmp_path / "killed", kills.tolist(), bad_way=seed)[0] == unkilled


@pytest.mark.parametrize("seed", range(6))
def test_five_kills_in_one_run_change_nothing(tmp_path, unkilled, seed):
    kills = np.random.default_rng(seed).choice(np.arange(1, 400), 5, replace=False)
    result, passed = run(tmp_path, kills.tolist(), chunks=(1 + seed, 4), **(OFTEN if seed % 2 else {}))
    assert passed > max(kills)  # it was killed so often
    assert result == unkilled


# --- the end of a round -------------------------------------------------------------------------------------


def marked(episode, steps, **options):
    """Return the rows of an episode after which the worker waits."""
    rows = rows_of(episode, steps, **options)
    rows["flags"][-1] |= Flag.ROUND_END
    return rows


def put(worker, rows):
    for row in rows:
        worker.outlet.put_row(row)


def version(worker):
    """Return the version of the newest policy that the worker has got, 0 for none."""
    return max(0, worker.outlet.weights.version())


def test_no_update_is_made_before_the_round_is_complete_and_all_that_are_due_after_it(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=2, synchronous_steps=5)
    place.step(3)
    put(worker, rows_of(0, 20))
    place.step(50)
    assert (place.learner.limiter.steps, place.learner.limiter.updates) == (20, 0)
    assert version(worker) == 0
    put(worker, marked(1, 4))
    place.step(50)
    assert (place.learner.limiter.steps, place.learner.limiter.updates) == (24, 22)
    assert version(worker) == place.learner.version == 1
    counters = load_state(place.folder.latest_checkpoint())[1]
    assert (counters["updates"], counters["version"], counters["round_target"]) == (22, 1, None)


def test_a_round_for_which_no_update_is_due_ends_with_the_same_weights(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=10, synchronous_steps=5)
    place.step(3)
    put(worker, marked(0, 6))
    place.step(20)
    assert place.learner.limiter.updates == 0
    assert version(worker) == 1
    assert place.folder.latest_checkpoint() is not None  # what a worker acts with can be restored
    place.kill_trainer()
    place.start_trainer(resume=True, start_steps=10, synchronous_steps=5)
    put(worker, marked(1, 6, version=1))
    place.step(20)
    assert (place.learner.limiter.updates, version(worker)) == (2, 2)


def test_more_updates_than_a_live_run_would_owe_are_all_made(tmp_path):
    """2500 steps in one round: a live run forgives what goes beyond 2000 of them. 2400 * 0.5 = 1200."""
    learner = make_learner(tmp_path / "r", start_steps=100, updates_per_step=0.5, synchronous_steps=5)
    learner.limiter.add_steps(2490)
    learner.intake.add(marked(0, 10))
    assert (learner.rounds.target, learner.limiter.forgiven) == (1200, 0.0)


def test_of_several_waiting_workers_each_is_released(place):
    first, second = place.worker("a"), place.worker("b")
    place.start_trainer(start_steps=2, synchronous_steps=5)
    place.step(3)
    for number in range(4):
        put(first, marked(number, 5, version=number))
        put(second, rows_of(number, 3, version=number))
        place.step(30)
        assert {version(w) for w in (first, second)} == {number + 1}
        assert place.learner.limiter.updates == 8 * number + 5 - 2  # what came later is due next time
    put(first, marked(9, 5, version=4))
    put(second, marked(9, 5, version=4))
    place.step(30)
    assert min(version(w) for w in (first, second)) >= 5


def test_a_policy_that_was_lost_on_the_way_comes_again(place):
    worker, trainer = place.worker(), place.start_trainer(start_steps=1, synchronous_steps=5)
    place.step(3)
    way = trainer._carrier = FaultyCarrier(trainer._carrier, kinds={"weights"}, drop=1.0)
    put(worker, marked(0, 6))
    place.step(50)
    assert (place.learner.version, version(worker)) == (1, 0)
    way.active = False
    place.step(int(100 * trainer_module.REMIND_EVERY_S))
    assert (place.learner.version, version(worker)) == (1, 1)


def test_a_run_is_finished_only_with_a_whole_round(tmp_path):
    learner = make_learner(
        tmp_path / "r", start_steps=2, updates_per_step=0.1, total_steps=8, synchronous_steps=5
    )
    learner.intake.add(rows_of(0, 9))
    assert not learner.finished  # no update is due by then, but the round goes on
    learner.intake.add(marked(1, 2))
    assert learner.finished


def test_nothing_is_handed_out_while_it_cannot_be_saved(place, monkeypatch):
    worker, _ = place.worker(), place.start_trainer(start_steps=1, synchronous_steps=5)
    place.step(3)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(run_folder_module.os, "fsync", full)
        put(worker, marked(0, 6))
        place.step(int(100 * trainer_module.RETRY_SAVE_S) // 2)
        assert place.said("trainer")[-1].state == "in trouble"
        assert place.learner.limiter.updates == 5
        assert version(worker) == 0
    place.step(int(100 * trainer_module.RETRY_SAVE_S))
    assert version(worker) == 1
    assert load_state(place.folder.latest_checkpoint())[1]["updates"] == 5
    assert place.learner.version == 1


def test_a_round_whose_end_was_lost_is_complete_after_a_while(place, caplog):
    """Its last row holds a number that is not finite, and is left out: the worker waits all the same."""
    worker, _ = place.worker(), place.start_trainer(start_steps=1, synchronous_steps=5)
    place.step(3)
    rows = marked(0, 6)
    rows["o/place"][-1] = np.nan
    put(worker, rows)
    place.step(int(LOST_END_S) - 1, seconds=1.0)
    assert (place.learner.limiter.steps, version(worker)) == (6, 0)
    place.step(10, seconds=1.0)
    assert (place.learner.limiter.updates, version(worker)) == (5, 1)
    assert "rows were lost, and none come any more" in caplog.text
    place.step(30, seconds=1.0)
    assert version(worker) == 1  # once for what was lost once


def test_without_lost_rows_a_round_waits_as_long_as_it_takes(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=1, synchronous_steps=5)
    place.step(3)
    put(worker, rows_of(0, 30))
    place.step(100, seconds=1.0)
    assert (place.learner.limiter.updates, version(worker)) == (0, 0)


# --- one side without the option ----------------------------------------------------------------------------


def test_a_trainer_without_rounds_answers_a_worker_that_waits(place):
    """Six updates are fewer than ``publish_every``; the mark says that somebody waits."""
    worker, _ = place.worker(), place.start_trainer(start_steps=4, publish_every=100)
    place.step(3)
    put(worker, rows_of(0, 6))
    place.step(20)
    assert (place.learner.limiter.updates, version(worker)) == (2, 0)
    put(worker, marked(1, 4))
    place.step(20)
    assert (place.learner.limiter.updates, version(worker)) == (6, 1)


def test_rounds_that_never_end_are_told():
    rounds, limiter = Rounds(5), UpdateLimiter(1.0, 10)
    limiter.add_steps(60)
    assert rounds.words(limiter) == "; 60 steps of the round"
    limiter.add_steps(1)
    assert "61 steps and no end of the round: is worker.synchronous_steps set where" in rounds.words(limiter)
    rounds.complete(limiter)
    assert rounds.words(limiter) == "; 51 updates left of the round"
    assert Rounds().words(limiter) == ""


def test_the_rows_of_a_round_are_kept_in_the_journal():
    values = {"worker": {"synchronous_steps": 5}, "environment": {"id": "Pendulum-v1"}}
    assert experiment_from_mapping(values).journal
    assert not experiment_from_mapping({**values, "worker": {}}).journal  # serial: in memory
    with pytest.raises(ConfigError, match=r"synchronous_steps is set, but replay\.storage is memory"):
        experiment_from_mapping({**values, "replay": {"storage": "memory"}})


def test_a_checkpoint_of_an_earlier_release_is_continued(tmp_path):
    learner = make_learner(tmp_path / "r", journal=True)
    learner.intake.add(rows_of(0, 6))
    learner.update_if_due()
    learner.publish()
    checkpoint = learner.save()
    counters = json.loads((checkpoint / "counters.json").read_text())
    del counters["round_target"]
    (checkpoint / "counters.json").write_text(json.dumps(counters))
    learner.replay.close()
    again = make_learner(tmp_path / "r", journal=True, synchronous_steps=5)
    again.restore(checkpoint)
    assert (again.rounds.target, again.published.handed_out, again.version) == (None, None, 1)
    again.intake.add(marked(1, 4, version=1))
    assert again.rounds.target == 9
    again.replay.close()
