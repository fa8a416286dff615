"""Keeps what sampling needs of each row, made as rows arrive: n-step return, bootstrap row, history.

A row knows the row before and after it in its own episode, never its neighbour in the store: streams
interleave. When row j follows row p (same stream and episode, next step), each of the up to n rows that end
at p takes p's reward in and moves its bootstrap row to j: for the ancestor that is k-1 steps before p

    return += gamma^(k-1) r_p,    discount = gamma^k (0 if p terminated),    bootstrap = j.

So a row's return always covers the steps known so far, at most n (Sutton and Barto 2018, eq. 7.1), and it
never reaches over an episode's end, a gap in the steps, or rows that the ring has dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickrate.data.schema import Flag, Rows

ENTRY = np.dtype([("ret", "<f8"), ("discount", "<f4"), ("bootstrap", "<u4")])
"""What sampling reads of a row: float64 return, discount, slot of the bootstrap row."""

_TAIL = np.dtype([("number", "<i8"), ("floor", "<u8"), ("flags", "<u4"), ("reward", "<f4")])
"""What is remembered of a stream's newest row: its number (-1: unknown), and the lowest newer key."""

Slots = NDArray[np.int64]
Bools = NDArray[np.bool_]


class NStepIndex:
    """The index over a ring of rows. Row ``number`` lives in slot ``number % capacity``.

    Args:
        capacity: slots of the ring.
        gamma: discount per step.
        n_step: most steps that a return covers.
        history: earlier rows that an observation's stack needs; a row is not sampleable while one is missing.
        first: number of the first row to come.
    """

    def __init__(self, capacity: int, *, gamma: float, n_step: int, history: int, first: int = 0) -> None:
        self.capacity = capacity
        self.head = first
        self.oldest = first
        self.entries = np.zeros(capacity, ENTRY)
        self.previous = np.zeros(capacity, np.uint32)
        self.sampleable = np.zeros(capacity, np.bool_)
        self.count = 0
        self._following = np.zeros(capacity, np.uint32)
        self._depth = np.zeros(capacity if history else 0, np.uint8)
        self._history = history
        self._gamma = gamma
        self._n_step = n_step
        self._tail_of: dict[int, int] = {}
        self._tails = _no_tails(16)

    @staticmethod
    def bytes_per_row(history: int) -> int:
        """Return the memory that the index takes for each slot of the ring."""
        links = 2 * np.dtype(np.uint32).itemsize
        return ENTRY.itemsize + links + np.dtype(np.bool_).itemsize + (1 if history else 0)

    # --- streams -------------------------------------------------------------------------------------------

    def streams(self) -> dict[int, tuple[int, int]]:
        """Return (episode, step) of each stream's newest row, by stream."""
        floors = self._tails["floor"]
        keys = {stream: int(floors[at]) - 1 for stream, at in self._tail_of.items() if floors[at]}
        return {stream: (key >> 32, key & 0xFFFFFFFF) for stream, key in keys.items()}

    def remember(self, streams: dict[int, tuple[int, int]]) -> None:
        """Take over newest rows that the ring may have dropped since, so that no row is ever taken twice."""
        for stream, (episode, step) in streams.items():
            tail = self._tails_at(np.array([stream]))
            floor = np.uint64(_key(episode, step) + 1)
            if self._tails["floor"][tail[0]] < floor:
                self._tails[tail[0]] = (-1, floor, 0, 0.0)

    def fresh(self, rows: Rows) -> Bools:
        """Tell which rows are newer than every row of their stream before them, ``(n,)``."""
        order, starts = _by_stream(rows["stream"])
        keys = _keys(rows)[order]
        floor = np.empty(len(rows), np.uint64)
        floor[1:] = keys[:-1] + 1
        at = self._tails_at(rows["stream"][order[starts]])  # first: it may make the tails anew
        floor[starts] = self._tails["floor"][at]
        if not (keys >= floor).all():
            # a repeated or overtaken row: compare with all before it, stream by stream
            for group in np.split(np.arange(len(rows)), starts[1:]):
                floor[group] = np.maximum.accumulate(floor[group])
        result = np.empty(len(rows), np.bool_)
        result[order] = keys >= floor
        return result

    def _tails_at(self, streams: NDArray[np.integer[Any]]) -> Slots:
        """Return where the streams' tails are, making room for new ones."""
        known = self._tail_of
        at = np.array([known.setdefault(stream, len(known)) for stream in streams.tolist()], np.int64)
        while len(known) > len(self._tails):
            self._tails = np.concatenate([self._tails, _no_tails(len(self._tails))])
        return at

    # --- rows ----------------------------------------------------------------------------------------------

    def release(self, oldest: int) -> list[Slots]:
        """Forget the rows before number ``oldest``: the store has dropped or is about to overwrite them.

        Returns:
            The slots that cannot be sampled any more: the rows that went, and those whose stack needs them.
        """
        begin, end = self.oldest, min(oldest, self.head)
        self.oldest = max(begin, oldest)
        self.head = max(self.head, oldest)
        if end <= begin:
            return []
        gone = np.arange(begin, end) % self.capacity
        refused = [self._refuse(gone)]
        after = gone
        for missing in range(1, self._history + 1):
            # a descendant this far behind has missing - 1 earlier rows left
            after = self._following[after].astype(np.int64)
            self._depth[after] = np.minimum(self._depth[after], missing - 1)
            refused.append(self._refuse(after))
        cut = self._following[gone]
        self.previous[cut] = cut
        return refused

    def following(self, slots: Slots) -> Slots:
        """Return the slot of the row after each in its episode; its own if there is none."""
        return self._following[slots].astype(np.int64)

    def append(self, first: int, rows: Rows) -> Slots:
        """Take in rows, fresh and at most ``capacity``, stored from number ``first`` on.

        Args:
            first: number of the first of them; `release` has made room.
            rows: any structured array with the fields stream, episode, step, flags and reward.

        Returns:
            The slots that can be sampled from now on.
        """
        if not len(rows):
            return np.empty(0, np.int64)
        count = len(rows)
        numbers = np.arange(first, first + count)
        slots = numbers % self.capacity
        self.head = first + count
        self.entries[slots] = np.zeros((), ENTRY)
        self.previous[slots] = slots
        self._following[slots] = slots

        order, starts = _by_stream(rows["stream"])
        keys = _keys(rows)
        tails = np.empty(count, _TAIL)
        tails["number"], tails["floor"], tails["flags"], tails["reward"] = (
            numbers,
            keys + 1,
            rows["flags"],
            rows["reward"],
        )
        at = self._tails_at(rows["stream"][order[starts]])
        before = np.empty(count, _TAIL)  # of each row, sorted by stream, the row before it in its stream
        before[1:] = tails[order[:-1]]
        before[starts] = self._tails[at]
        self._tails[at] = tails[order[np.append(starts[1:], count) - 1]]

        step = rows["step"][order]
        linked = (before["floor"] == keys[order]) & (step > 0) & (before["number"] >= self.oldest)
        linked &= (before["flags"] & Flag.FINAL) == 0
        child, parent = slots[order[linked]], before["number"][linked] % self.capacity
        self.previous[child] = parent
        self._following[parent] = child
        if self._history:
            self._count_history(slots[order], step, linked, before["number"], first)
        self._accumulate(
            child, parent, before["reward"][linked], (before["flags"][linked] & Flag.TERMINATED) == 0
        )
        usable = self._depth[parent] >= self._history if self._history else np.ones(len(parent), np.bool_)
        self.sampleable[parent] = usable
        self.count += int(np.count_nonzero(usable))
        admitted: Slots = parent[usable]
        return admitted

    def _accumulate(self, child: Slots, parent: Slots, reward: NDArray[np.float32], goes_on: Bools) -> None:
        """Add the reward of the step parent -> child to each return that covers it (the module's formula)."""
        node, weight = parent, 1.0
        reward = reward.astype(np.float64)
        for _ in range(self._n_step):
            self.entries["ret"][node] += weight * reward
            weight *= self._gamma
            self.entries["discount"][node] = weight * goes_on
            self.entries["bootstrap"][node] = child
            above = self.previous[node].astype(np.int64)
            more = above != node
            if not more.any():
                return
            node, child, reward, goes_on = above[more], child[more], reward[more], goes_on[more]

    def _count_history(
        self, slots: Slots, step: NDArray[np.uint32], linked: Bools, parent: NDArray[np.int64], first: int
    ) -> None:
        """Set how many earlier frames each row can reach, all arguments sorted by stream.

        An episode's first row has them all, since its stack repeats its own frame.
        """
        here = linked & (parent >= first)  # linked to the row before it in these very rows
        base = np.where(step == 0, self._history, 0)
        stored = linked & ~here
        base[stored] = self._depth[parent[stored] % self.capacity].astype(np.int64) + 1
        position = np.arange(len(slots))
        run = np.maximum.accumulate(np.where(here, 0, position))
        self._depth[slots] = np.minimum(base[run] + position - run, self._history)

    def _refuse(self, slots: Slots) -> Slots:
        taken = np.unique(slots[self.sampleable[slots]])
        self.sampleable[taken] = False
        self.count -= len(taken)
        return taken


def _no_tails(count: int) -> NDArray[np.void]:
    tails = np.zeros(count, _TAIL)
    tails["number"] = -1
    return tails


def _key(episode: int, step: int) -> int:
    return (episode << 32) | step


def _keys(rows: Rows) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = (rows["episode"].astype(np.uint64) << np.uint64(32)) | rows["step"]
    return keys


def _by_stream(stream: NDArray[np.uint32]) -> tuple[Slots, Slots]:
    """Return the stable order that sorts rows by stream, and where each stream begins in it."""
    order = np.argsort(stream, kind="stable")
    ordered = stream[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return order, starts
