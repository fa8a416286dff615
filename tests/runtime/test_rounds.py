"""A synchronous run ends the same, bit for bit, wherever its trainer is killed and however rows arrive."""

import json

import numpy as np
import pytest
from delivery_kit import RUN, Place
from runtime_kit import policy_bytes, rows_of

from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.runtime import run_folder as run_folder_module
from tickrate.runtime.learner import Learner
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.run_folder import RunFolder, load_state
from tickrate.wire import messages
from tickrate.wire.carrier import make_key

END = int(Flag.FINAL | Flag.ROUND_END)


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


def run(tmp_path, kills=(), *, chunks=(5,), points=True, **settings):
    """Run to the end, the trainer killed and started again at some points; return what it came to.

    Args:
        tmp_path: where.
        kills: numbers of the points (`Points`).
        chunks: in what pieces the worker's rows come, in turn.
        points: False leaves the calls as they are.
        settings: further ones.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(run_folder_module.os, "fsync", lambda file: None)  # no power is cut here
        place = Place(tmp_path, monkeypatch)
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
    replay, index = learner.replay, learner.replay._index
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


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
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


@pytest.mark.parametrize("seed", range(6))
def test_five_kills_in_one_run_change_nothing(tmp_path, unkilled, seed):
    kills = np.random.default_rng(seed).choice(np.arange(1, 400), 5, replace=False)
    result, passed = run(tmp_path, kills.tolist(), chunks=(1 + seed, 4), **(OFTEN if seed % 2 else {}))
    assert passed > max(kills)  # it was killed so often
    assert result == unkilled
