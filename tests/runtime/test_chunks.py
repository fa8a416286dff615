"""Chunks are played by counting: nothing skipped from a standstill, never empty, no jump but the policy's."""

import logging
import math
import threading

import numpy as np
import pytest
from runtime_kit import SCHEMA, RecordingOutlet, ScriptedEnvironment

from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, PolicyMismatch
from tickrate.runtime import actors
from tickrate.runtime.chunk_actor import ChunkedActor
from tickrate.runtime.chunks import ChunkConfig, ChunkPlayer
from tickrate.runtime.fallback import FALLBACK, POLICY_VERSION, Fallback
from tickrate.runtime.supervision import wait_for
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig

PERIOD = 1 / 30


class Simulated:
    """A player driven on a fake 30 Hz clock, with inferences of given durations in seconds.

    Each action is the place of the device it is meant for, so a device that follows them must count up by
    one: the chunk for place p is p, p + 1, ... The device stands still on steps without an action.
    """

    def __init__(self, config, durations):
        self.player = ChunkPlayer(config, ())
        self.horizon, self.durations = config.horizon, iter(durations)
        self.place, self.ticks, self.running = 0, 0, None
        self.executed, self.dropped, self.empty, self.left_at_request = [], [], [], []

    def tick(self):
        now = self.ticks * PERIOD
        if self.running is not None and now >= self.running[0] - 1e-9:
            self.dropped.append(self.player.answered(self.running[1]))
            self.running = None
        if self.player.wants():
            self.left_at_request.append(self.player.left)
            self.player.asked()
            chunk = np.arange(self.place, self.place + self.horizon, dtype=float)
            self.running = (now + next(self.durations), chunk)
        action = self.player.next()
        if action is None:
            self.empty.append(self.ticks)
        else:
            self.executed.append(float(action))
            self.place = int(action) + 1
        self.ticks += 1


def test_from_a_standstill_the_first_executed_action_is_the_first_of_the_chunk():
    """The first inference takes 0.7 s: 21 steps pass, but nothing was played, so nothing is skipped."""
    simulated = Simulated(ChunkConfig(horizon=30, threshold=0.5), [0.7] + [0.3] * 100)
    while simulated.player.served < 21:
        simulated.tick()
    assert simulated.dropped[0] == 0
    assert simulated.executed[0] == 0.0
    assert simulated.empty == list(range(21))  # and never again
    # 0.3 s at 30 Hz are 9 steps: counted from the second inference on, and dropped exactly.
    assert simulated.player.delay_ticks == pytest.approx(9.0, abs=1.0)
    assert set(simulated.dropped[1:]) == {9}
    # No jump larger than the policy's own: each command is one further than the one before.
    assert np.array_equal(np.diff(simulated.executed), np.ones(len(simulated.executed) - 1))
    assert not simulated.player.too_slow


def test_an_inference_of_varying_length_never_makes_a_jump():
    durations = [0.7, *np.random.default_rng(3).uniform(0.05, 0.45, 60)]
    simulated = Simulated(ChunkConfig(horizon=30, threshold=0.5), durations)
    while simulated.player.served < 60:
        simulated.tick()
    assert np.array_equal(np.diff(simulated.executed), np.ones(len(simulated.executed) - 1))
    assert len(set(simulated.dropped)) > 5


def test_a_constant_observation_is_asked_about_each_time_the_queue_passes_half():
    """Nothing filters observations that look alike; the queue is never empty after the first chunk."""
    player = ChunkPlayer(ChunkConfig(horizon=10, threshold=0.5), ())
    answers, asked_with, left = 0, [], []
    for tick in range(200):
        if tick % 3 == 0 and answers < len(asked_with):  # an answer takes up to three steps
            player.answered(np.zeros(10))
            answers += 1
        if player.wants():
            player.asked()
            asked_with.append(player.left)
        player.next()
        left.append(player.left)
    assert asked_with[0] == 0
    assert set(asked_with[1:]) == {5}  # at half, not later
    assert min(left[3:]) > 0
    assert player.starved == 3
    # From half (5) the queue falls to 10 minus the steps of the inference, so a request comes every 5 steps.
    assert len(asked_with) == pytest.approx(200 / 5, abs=4)


def test_when_the_queue_runs_dry_only_what_was_played_is_dropped():
    player = ChunkPlayer(ChunkConfig(horizon=4, threshold=0.5), ())
    player.asked()
    player.answered(np.arange(4.0))
    assert [player.next(), player.next()] == [0.0, 1.0]
    assert player.wants()
    player.asked()
    # Two are played and then three steps stand still; the device is two actions further, not five.
    assert [player.next() for _ in range(5)] == [2.0, 3.0, None, None, None]
    assert player.answered(np.arange(2.0, 6.0)) == 2
    assert player.next() == 4.0
    assert player.delay_ticks == 5.0
    assert player.too_slow
    assert player.starved == 3


def test_the_warm_up_spike_is_forgotten_and_the_window_moves_on():
    player = ChunkPlayer(ChunkConfig(horizon=4, threshold=1.0), ())
    assert math.isnan(player.delay_ticks)
    for delay in [50, *[2] * 5, *[4] * 20]:
        player.asked()
        for _ in range(delay):
            player.next()
        player.answered(np.zeros(4))
    assert player.delay_ticks == 4.0


def test_a_new_episode_begins_with_nothing_and_a_failed_request_is_made_again():
    player = ChunkPlayer(ChunkConfig(horizon=4), ())
    player.asked()
    player.answered(np.arange(4.0))
    player.begin()
    assert player.left == 0
    assert player.wants()
    player.asked()
    assert not player.wants()
    player.failed()
    assert player.wants()
    with pytest.raises(PolicyMismatch, match=r"shape \(5,\); worker.chunks.horizon .* \(4,\)"):
        player.answered(np.zeros(5))


# --- in the control loop ------------------------------------------------------------------------------------


class Counting:
    """An actor of chunks: action i of the chunk for step s is (s + i + 100 * version) / 1000."""

    def __init__(self, *, horizon=4, gate=None, **_):
        self.horizon, self.gate, self.version, self.calls, self.states = horizon, gate, 0, 0, 0
        self.threads = set()

    def initial_state(self, batch):
        self.states += 1
        return {}

    def act(self, observation, state, *, deterministic=False):
        self.calls += 1
        self.threads.add(threading.get_ident())
        if self.gate is not None:
            self.gate.acquire()
        place = observation["place"][0, 1] + 100 * self.version
        return ((place + np.arange(self.horizon)) / 1000).reshape(1, -1, 1), state, {}

    def load(self, weights):
        self.version = int(weights)


def loop_of(actor, outlet, env, monkeypatch, **chunks):
    monkeypatch.setattr(actors, "make_actor", lambda *_: actor)
    config = WorkerConfig(
        purpose="expert",
        actor="own:Actor",
        evaluation=EvaluationConfig(every_steps=0),
        chunks=ChunkConfig(**chunks),
    )
    return ControlLoop(env, SCHEMA, outlet, config)


def test_inline_the_loop_plays_half_of_each_chunk_and_rows_hold_single_actions(monkeypatch):
    actor, outlet, env = Counting(), RecordingOutlet(stop_after_episodes=2), ScriptedEnvironment(8)
    loop_of(actor, outlet, env, monkeypatch, horizon=4, threshold=0.5, background=False).run()
    np.testing.assert_allclose(env.actions, [s / 1000 for s in range(8)] * 2, atol=1e-7)
    assert actor.calls == 8  # at the steps 0, 2, 4 and 6 of both episodes
    assert actor.states == 2
    assert not any(row["flags"] & Flag.FALLBACK for row in outlet.rows)
    assert outlet.summaries[1].metrics == {"chunks_served": 8.0, "chunk_delay_ticks": 0.0}


def test_in_the_background_acting_never_waits_and_a_fallback_is_flagged(monkeypatch):
    gate = threading.Semaphore(0)
    actor, outlet = Counting(horizon=6, gate=gate), RecordingOutlet(stop_after_episodes=1)

    def on_step(number):
        if number == 3:  # three steps without an answer: they went on
            gate.release(1000)
        if number >= 3:  # from now on an inference takes one step
            chunked = loop._seat.actor
            assert wait_for(lambda: not chunked.player._asking or chunked._thread._answer is not None, 10.0)

    env = ScriptedEnvironment(12, on_step=on_step)
    loop = loop_of(actor, outlet, env, monkeypatch, horizon=6, threshold=0.5)
    loop.run()
    flags = [bool(row["flags"] & Flag.FALLBACK) for row in outlet.rows[:12]]
    assert flags == [True] * 4 + [False] * 8
    # Nothing was ever sent: the default action is held. Then the chunk for step 0, from its first action on;
    # with three left, at step 7, the next is asked for, which arrives one action later; again at step 10.
    expected = [0.0] * 4 + [0.0, 0.001, 0.002, 0.003, 0.008, 0.009, 0.010, 0.011]
    np.testing.assert_allclose(env.actions, expected, atol=1e-7)
    assert outlet.summaries[0].metrics["fallback_steps"] == 4.0
    assert len(actor.threads) == 1  # one persistent thread, which ends with the loop
    assert threading.get_ident() not in actor.threads
    assert not any(thread.name == "tickrate-inference" for thread in threading.enumerate())


def chunked(actor, *, version=0, kind="hold", **config):
    fallback = Fallback(kind, ScriptedEnvironment())
    return ChunkedActor(actor, ChunkConfig(horizon=4, **config), fallback, (1,), version)


def act(actor, step):
    actions, _, extras = actor.act({"place": np.array([[0, step]], np.float32)}, {})
    return float(actions[0, 0]), int(extras[POLICY_VERSION][0]), bool(extras[FALLBACK][0])


def test_newer_weights_act_from_the_next_chunk_on_and_each_action_names_its_own():
    actor = chunked(Counting(), version=1, background=False)
    actor.initial_state(1)
    assert act(actor, 0)[1] == 1
    actor.load_version(7, b"7")
    assert act(actor, 1)[1] == 1  # still of the first chunk
    value, version, fallback = act(actor, 2)
    assert (value, version, fallback) == (pytest.approx(0.702), 7, False)


def test_an_answer_of_an_ended_episode_is_dropped_and_an_exception_reaches_the_loop():
    gate = threading.Semaphore(0)
    inner = Counting(gate=gate)
    actor = chunked(inner)
    actor.initial_state(1)
    assert act(actor, 10)[2]
    assert wait_for(lambda: inner.calls == 1, 10.0)
    actor.initial_state(1)  # the episode ends while the inference runs
    gate.release()
    assert wait_for(lambda: actor._thread._answer is not None, 10.0)
    assert act(actor, 20)[2]  # the chunk for step 10 is there, but it is of no use
    gate.release()
    assert wait_for(lambda: actor._thread._answer is not None, 10.0)
    value, _, fallback = act(actor, 21)
    assert (value, fallback) == (pytest.approx(0.020), False)
    assert inner.states == 2
    actor.close()

    class Broken(Counting):
        def act(self, *_, **__):
            raise RuntimeError("out of GPU memory")

    actor = chunked(Broken())
    actor.initial_state(1)
    assert act(actor, 0)[2]
    assert wait_for(lambda: actor._thread._error is not None, 10.0)
    with pytest.raises(RuntimeError, match="out of GPU memory"):
        act(actor, 0)
    actor.close()


def test_the_fallback_holds_the_last_action_or_is_the_declared_one():
    class Once(Counting):
        def act(self, *arguments, **options):
            actions, state, _ = super().act(*arguments, **options)
            return actions, state, {FALLBACK: np.array([self.calls > 1])}  # remote inference went silent

    for kind, expected in (("hold", 0.003), ("safe", 0.0), ("default", 0.0)):
        actor = chunked(Once(), kind=kind, background=False)
        actor.initial_state(1)
        results = [act(actor, 0) for _ in range(6)]
        assert [r[2] for r in results] == [False] * 4 + [True] * 2
        assert results[-1][0] == pytest.approx(expected)
    with pytest.raises(ConfigError, match="batch of 2"):
        actor.initial_state(2)


def test_a_threshold_below_the_delay_is_said_once(caplog):
    actor = chunked(Counting(), threshold=0.25, background=False)
    actor.initial_state(1)
    actor.player._delays.extend([3] * 20)  # three steps, but it is asked for when one action is left
    with caplog.at_level(logging.WARNING):
        for step in range(16):
            act(actor, step)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("a chunk takes 3.0 steps")
    assert "raise worker.chunks.threshold" in said[0]
