"""A replay as plain as can be, to compare with: every row kept, every answer searched for afresh."""

from dataclasses import dataclass

import numpy as np

from tickrate.data.schema import Field, Flag, RecordSchema


def make_schema(stack=1):
    """Return a schema of two leaves: a small vector kept in the row, and (stacked) frames kept apart."""
    leaves = (Field("vector", "float32", (3,)), Field("frame", "uint8", (2, 2), stack=stack))
    return RecordSchema(leaves, Field("action", "float32", (2,)), (Field("value", "float32", ()),))


def make_rows(schema, keys, rng):
    """Rows for (stream, episode, step, flags) with random contents."""
    rows = schema.empty(len(keys))
    if not len(keys):
        return rows
    rows["stream"], rows["episode"], rows["step"], rows["flags"] = np.array(keys, np.uint32).T
    rows["reward"] = rng.normal(size=len(keys))
    for name in ("action", "o/vector", "x/value"):
        rows[name] = rng.normal(size=rows[name].shape)
    rows["o/frame"] = rng.integers(0, 256, rows["o/frame"].shape)
    return rows


def episode_keys(stream, episode, length, end):
    """Keys of an episode of ``length`` transitions; ``end`` is a Flag, or None for one that breaks off."""
    keys = [(stream, episode, step, 0) for step in range(length)]
    if end is None:
        return keys
    keys[-1] = (stream, episode, length - 1, int(end))
    return [*keys, (stream, episode, length, int(Flag.FINAL))]


@dataclass
class Transition:
    """What a sample of one row must hold."""

    reward: np.float32
    discount: np.float32
    observation: dict
    next_observation: dict
    row: np.void


@dataclass
class Sequence:
    """What a sequence from one row on must hold: its real steps, and the observations around them."""

    numbers: list
    observations: list
    gamma_or_zero: list
    first: bool


class NaiveReplay:
    """Keeps all rows by number, as a replay of unlimited memory would, and forgets none."""

    def __init__(self, schema, *, gamma, n_step):
        self.schema, self.gamma, self.n_step = schema, gamma, n_step
        self.rows = []

    def add(self, rows):
        newest = {int(row["stream"]): (int(row["episode"]), int(row["step"])) for row in self.rows}
        for row in rows:
            key = (int(row["episode"]), int(row["step"]))
            if row["flags"] & Flag.EVALUATION or key <= newest.get(int(row["stream"]), (-1, -1)):
                continue
            newest[int(row["stream"])] = key
            self.rows.append(row.copy())

    def transitions(self, oldest):
        """Return {row number: Transition} of all that can be sampled from the rows ``oldest`` and later."""
        at = {}
        for number in range(oldest, len(self.rows)):
            row = self.rows[number]
            at[int(row["stream"]), int(row["episode"]), int(row["step"])] = number
        found = {(number): self._transition(key, at) for key, number in at.items()}
        return {number: transition for number, transition in found.items() if transition is not None}

    def _transition(self, key, at):
        stream, episode, step = key
        first = self.rows[at[key]]
        observation = self._observation(key, at)
        if observation is None or first["flags"] & Flag.FINAL:
            return None
        value, weight, steps, end = 0.0, 1.0, 0, False
        while steps < self.n_step and not end and (stream, episode, step + steps + 1) in at:
            row = self.rows[at[stream, episode, step + steps]]
            value += weight * float(row["reward"])
            weight *= self.gamma
            steps += 1
            end = bool(row["flags"] & (Flag.TERMINATED | Flag.TRUNCATED))
            terminated = bool(row["flags"] & Flag.TERMINATED)
        if not steps:
            return None
        following = self._observation((stream, episode, step + steps), at)
        return Transition(
            np.float32(value), np.float32(0.0 if terminated else weight), observation, following, first
        )

    def sequence(self, number, oldest, length):
        """Return the `Sequence` of at most ``length`` steps that begins at a row which can be sampled."""
        at = {}
        for stored in range(oldest, len(self.rows)):
            row = self.rows[stored]
            at[int(row["stream"]), int(row["episode"]), int(row["step"])] = stored
        stream, episode, step = (int(self.rows[number][name]) for name in ("stream", "episode", "step"))
        found = Sequence([], [self._observation((stream, episode, step), at)], [], step == 0)
        for now in range(step, step + length):
            here, following = (stream, episode, now), (stream, episode, now + 1)
            if self.rows[at[here]]["flags"] & Flag.FINAL or following not in at:
                break
            terminated = self.rows[at[here]]["flags"] & Flag.TERMINATED
            found.numbers.append(at[here])
            found.gamma_or_zero.append(0.0 if terminated else self.gamma)
            found.observations.append(self._observation(following, at))
        return found

    def _observation(self, key, at):
        stream, episode, step = key
        row = self.rows[at[key]]
        result = {"vector": row["o/vector"]}
        stack = self.schema.observation[1].stack
        steps = [max(0, step - back) for back in range(stack - 1, -1, -1)]
        if any((stream, episode, s) not in at for s in steps):
            return None
        frames = [self.rows[at[stream, episode, s]]["o/frame"] for s in steps]
        result["frame"] = np.stack(frames) if stack > 1 else frames[0]
        return result


def assert_same(replay, naive, oldest, batch_size=64):
    """Check a replay's size and a batch of it against the naive one, bit for bit."""
    expected = naive.transitions(oldest)
    assert len(replay) == len(expected)
    if not expected:
        return
    batch = replay.sample(batch_size)
    assert len(batch) == batch_size
    for i, number in enumerate(batch.rows.tolist()):
        assert number in expected
        right = expected[number]
        assert batch.reward[i] == right.reward
        assert batch.discount[i] == right.discount
        np.testing.assert_array_equal(batch.action[i], right.row["action"])
        np.testing.assert_array_equal(batch.extras["value"][i], right.row["x/value"])
        for path in ("vector", "frame"):
            np.testing.assert_array_equal(batch.observation[path][i], right.observation[path])
            np.testing.assert_array_equal(batch.next_observation[path][i], right.next_observation[path])
