"""Remote inference: a frozen server means flagged fallbacks and no stalled step; acting goes on after it."""

import subprocess
import sys

import numpy as np
import pytest
from runtime_kit import ACTIONS, CONTRACT, LEAVES, SCHEMA, RecordingOutlet, ScriptedEnvironment, policy_bytes

from tickrate import clock
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, MessageError, PolicyMismatch
from tickrate.runtime.actors import make_policy
from tickrate.runtime.chunks import ChunkConfig
from tickrate.runtime.inference import InferenceServer
from tickrate.runtime.outlet import SharedOutlet
from tickrate.runtime.remote import RemoteConfig
from tickrate.runtime.remote_format import InferenceFormat, RequestFlag
from tickrate.runtime.warmup import WarmupConfig
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig

OFF = EvaluationConfig(every_steps=0)


def make_server(version=1, action=0.5):
    server = InferenceServer(lambda weights: make_policy(weights, CONTRACT, 0), CONTRACT)
    if version:
        server.load(version, policy_bytes(version, action))
    return server


class Line:
    """Memory between control process and companion, a server behind it, and a fake clock that moves both.

    Each sleep of the control process lets the server answer what is ``delay_s`` old, unless it is frozen.
    """

    def __init__(self, shared, server):
        self.inference, self.answer = shared.inference, shared.answer
        self.server, self.now, self.delay_s, self.frozen = server, 1000.0, 0.0, False
        self.seen, self.pending, self.requests, self.slept = shared.inference.NONE, [], 0, []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.pass_time(seconds)

    def pass_time(self, seconds):
        self.now += seconds
        if self.inference.version() != self.seen:
            self.seen, request = self.inference.read()
            self.requests += 1
            if not self.frozen:
                self.pending.append((self.now + self.delay_s, request))
        while self.pending and self.pending[0][0] <= self.now:
            answer = self.server.answer(self.pending.pop(0)[1])
            self.answer.write(self.answer.version() + 1, answer)


@pytest.fixture
def line(monkeypatch):
    shared = SharedOutlet.create(CONTRACT)
    line = Line(shared, make_server())
    monkeypatch.setattr(clock, "now", lambda: line.now)
    monkeypatch.setattr(clock, "sleep", line.sleep)
    yield line
    shared.close(remove=True)


class TickingEnvironment(ScriptedEnvironment):
    """Each step takes 0.1 s on the fake clock, whatever the control process waited."""

    def __init__(self, *lengths, line, **options):
        super().__init__(*lengths, **options)
        self._line, self.starts = line, []

    def step(self, action):
        self.starts.append(self._line.now)
        self._line.pass_time(0.1)
        return super().step(action)


def make(line, outlet, env, *, purpose="test", remote=None, evaluation=OFF, **options):
    settings = {"deadline_s": 0.02, "lost_after_s": 100.0} | (remote or {})
    config = WorkerConfig(
        purpose=purpose, evaluation=evaluation, remote=RemoteConfig(enabled=True, **settings), **options
    )
    return ControlLoop(env, SCHEMA, outlet, config, link=line)


def fallbacks(rows):
    return [bool(row["flags"] & Flag.FALLBACK) for row in rows if not row["flags"] & Flag.FINAL]


def test_a_server_frozen_for_3_seconds_means_a_flagged_fallback_at_each_step_then_acting_goes_on(line):
    def on_step(number):
        line.frozen = 10 <= number < 40  # 30 steps of 0.1 s
        if number == 40:
            line.server.load(2, policy_bytes(2, -0.5))

    outlet = RecordingOutlet(stop_after_episodes=1)
    env = TickingEnvironment(60, line=line, on_step=on_step)
    make(line, outlet, env).run()
    # The state of the server at the step before decides: a question is asked before its step begins.
    assert fallbacks(outlet.rows) == [False] * 11 + [True] * 30 + [False] * 19
    np.testing.assert_allclose(env.actions, [0.5] * 41 + [-0.5] * 19, atol=1e-6)  # hold the last one
    assert [row["action"].item() for row in outlet.rows[:60]] == pytest.approx(env.actions)
    assert outlet.column("policy_version")[:60] == [1] * 41 + [2] * 19
    assert outlet.summaries[0].metrics["fallback_steps"] == 30.0
    assert outlet.summaries[0].ended == "terminated"
    gaps = np.diff(env.starts)
    assert gaps.max() <= 0.1 + 0.02 + 1e-9  # the deadline bounds what a step waits
    assert max(line.slept[1:]) <= 0.001


def test_a_late_answer_is_never_taken_for_a_newer_question(line):
    outlet = RecordingOutlet(stop_after_episodes=1)

    def on_step(number):
        line.delay_s = 0.15 if 2 <= number < 6 else 0.0  # 0.15 s: after the step, in the middle of the next

    env = TickingEnvironment(12, line=line, on_step=on_step)
    make(line, outlet, env, remote={"fallback": "default"}).run()
    flags = fallbacks(outlet.rows)
    # The last slow answer is still on its way when the next question is asked, which waits behind it.
    assert flags == [False] * 3 + [True] * 5 + [False] * 4
    np.testing.assert_allclose(env.actions, [0.0 if flag else 0.5 for flag in flags], atol=1e-6)


def test_after_too_long_a_silence_the_device_is_safe_and_the_episode_is_cut_until_answers_come(line):
    def on_step(number):
        line.frozen = number >= 5

    outlet = RecordingOutlet(stop_after_episodes=2)
    env = TickingEnvironment(30, line=line, on_step=on_step)
    states = outlet.put_state

    def put_state(state):
        states(state)
        if "for 10 s" in state:  # asked again all the time; now somebody answers
            line.frozen = False
            env._on_step = None

    outlet.put_state = put_state
    make(line, outlet, env, remote={"lost_after_s": 1.0}).run()
    first, second = outlet.summaries
    assert (first.ended, first.cut) == ("policy lost", True)
    assert sum(fallbacks(outlet.rows[: first.steps])) == pytest.approx(1.0 / 0.12, abs=1)
    assert env.events[: first.steps + 3] == ["stop", "reset", *["step"] * first.steps, "stop"]
    assert outlet.rows[first.steps]["flags"] & Flag.FINAL
    assert any(state.startswith("no policy answers: device safe") for state in outlet.states)
    assert (second.ended, second.steps) == ("terminated", 30)
    assert not any(fallbacks(outlet.rows[first.steps + 1 :]))


def test_a_long_reset_is_no_silence_of_the_server(line):
    def on_step(number):
        line.frozen = number == 2  # the question of the first episode's last step is not answered

    def on_reset(number):
        line.now += 5.0

    outlet = RecordingOutlet(stop_after_episodes=2)
    env = TickingEnvironment(4, line=line, on_step=on_step, on_reset=on_reset)
    make(line, outlet, env, remote={"lost_after_s": 1.0}).run()
    assert fallbacks(outlet.rows) == [False] * 3 + [True] + [False] * 4
    assert env.events.count("reset") == 2


def test_a_remote_expert_neither_evaluates_nor_learns(line):
    outlet = RecordingOutlet(stop_after_episodes=3)
    env = TickingEnvironment(2, line=line)
    make(line, outlet, env, purpose="expert", evaluation=EvaluationConfig(every_steps=1)).run()
    assert [summary.evaluation for summary in outlet.summaries] == [False] * 3
    assert [summary.policy_version for summary in outlet.summaries] == [1] * 3


def test_a_training_worker_warms_up_until_the_server_has_a_policy_and_waits_for_nobody(line):
    line.server = make_server(version=0)

    def on_step(number):
        if number == 3:
            line.server.load(4, policy_bytes(4, 0.5))

    outlet = RecordingOutlet(stop_after_episodes=1)
    env = TickingEnvironment(8, line=line, on_step=on_step)
    warmup = WarmupConfig(low=(-0.25,), high=(-0.25,))
    make(line, outlet, env, purpose="train", warmup=warmup).run()
    # The question for step 4 is the first that has an answer; it is seen at step 5, and waited for from 6 on.
    np.testing.assert_allclose(env.actions, [-0.25] * 6 + [0.5] * 2, atol=1e-3)
    assert outlet.column("policy_version")[:8] == [0] * 6 + [4] * 2
    assert not any(fallbacks(outlet.rows))
    assert np.diff(env.starts)[:4].max() == pytest.approx(0.1)  # no waiting while warming up
    assert outlet.summaries[0].policy_version == 4


def test_who_has_no_warm_up_waits_with_the_device_safe_until_somebody_answers(line):
    line.server, line.frozen = make_server(version=0), True
    outlet = RecordingOutlet(stop_after_episodes=1)
    env = TickingEnvironment(2, line=line)
    states = outlet.put_state

    def put_state(state):
        states(state)
        if "for 10 s" in state:
            assert "reset" not in env.events
            line.frozen = False  # the server is there, but has no policy: still nothing to drive with
        if "for 20 s" in state:
            assert "reset" not in env.events
            line.server.load(1, policy_bytes(1))

    outlet.put_state = put_state
    make(line, outlet, env).run()
    assert env.events == ["stop", "reset", "step", "step", "stop"]
    assert not any(fallbacks(outlet.rows))


def test_chunks_from_a_remote_actor_bridge_its_silence(line):
    """Chunks of two, asked for at every step: one silent step is bridged by the second action of the last."""
    line.server = InferenceServer(lambda weights: Recurrent(), CONTRACT, needs_weights=False)

    def on_step(number):
        line.frozen = number in (2, 3)  # the questions of steps 3 and 4 are not answered

    outlet = RecordingOutlet(stop_after_episodes=1)
    env = TickingEnvironment(7, line=line, on_step=on_step)
    chunks = ChunkConfig(horizon=2, threshold=1.0, background=False)
    make(line, outlet, env, chunks=chunks, purpose="expert").run()
    # A chunk is (0.1 n, 0), n being the inferences of the episode so far; after its second action: hold it.
    np.testing.assert_allclose(env.actions, [0.0, 0.1, 0.2, 0.0, 0.0, 0.3, 0.4], atol=1e-6)
    assert fallbacks(outlet.rows) == [False] * 4 + [True] + [False] * 2
    expert = int(Flag.EXPERT)
    assert all(row["flags"] & expert for row in outlet.rows)


def test_a_live_step_cannot_wait_longer_than_it_lasts(line):
    env = ScriptedEnvironment()
    env.period_s = 0.02
    with pytest.raises(ConfigError, match=r"a step of 0\.02 s cannot wait so long"):
        make(line, RecordingOutlet(), env)


# --- the server and the bytes -------------------------------------------------------------------------------

FORMAT = InferenceFormat(LEAVES, ACTIONS)


class Recurrent:
    """Acts with the number of its call since the episode began, over ten; chunks of two."""

    def initial_state(self, batch):
        return {"n": np.zeros(batch)}

    def act(self, observation, state, *, deterministic=False):
        n = state["n"]
        chunk = np.stack([n / 10 + observation["place"][:, 0], np.full(1, float(deterministic))], axis=1)
        return chunk[..., None], {"n": n + 1}, {}

    def load(self, weights):
        raise AssertionError


def test_each_session_has_a_state_that_begins_with_its_episodes():
    server = InferenceServer(lambda weights: Recurrent(), CONTRACT, needs_weights=False)

    def ask(session, flags, place):
        request = FORMAT.request(session, 7, flags, {"place": np.array([place, 0])})
        answer = FORMAT.read_answer(server.answer(request))
        assert (answer.session, answer.number, answer.version, answer.ready) == (session, 7, 0, True)
        return answer.actions[:, 0].tolist()

    assert ask(1, RequestFlag.BEGIN, 0) == [0.0, 0.0]
    assert ask(1, 0, 0) == pytest.approx([0.1, 0.0])
    assert ask(2, RequestFlag.BEGIN | RequestFlag.DETERMINISTIC, 3) == [3.0, 1.0]
    assert ask(1, 0, 0) == pytest.approx([0.2, 0.0])
    assert ask(1, RequestFlag.BEGIN, 0) == [0.0, 0.0]


def test_without_a_policy_the_server_says_so():
    server = make_server(version=0)
    request = FORMAT.request(1, 2, 0, {"place": np.zeros(2)})
    answer = FORMAT.read_answer(server.answer(request))
    assert (answer.ready, answer.actions) == (False, None)
    server.load(3, policy_bytes(3, 0.5))
    answer = FORMAT.read_answer(server.answer(request))
    assert (answer.ready, answer.version) == (True, 3)
    np.testing.assert_allclose(answer.actions, [[0.5]], atol=1e-6)
    probe = FORMAT.read_answer(server.answer(FORMAT.request(1, 3, RequestFlag.PROBE, None)))
    assert (probe.ready, probe.actions) == (True, None)


def test_an_actor_of_another_action_space_is_refused():
    class Wrong(Recurrent):
        def act(self, *_, **__):
            return np.zeros((1, 2)), {}, {}

    server = InferenceServer(lambda weights: Wrong(), CONTRACT, needs_weights=False)
    with pytest.raises(PolicyMismatch, match=r"shape \(1, 2\)"):
        server.answer(FORMAT.request(1, 1, 0, {"place": np.zeros(2)}))


REQUEST = FORMAT.request(5, 9, 3, {"place": np.array([1.5, -2.0])})
ANSWER = FORMAT.answer(FORMAT.read_request(REQUEST), 8, ready=True, actions=np.array([[0.25], [0.5]]))


def test_what_is_packed_comes_back_equal():
    request = FORMAT.read_request(REQUEST)
    assert (request.session, request.number, request.flags) == (
        5,
        9,
        RequestFlag.BEGIN | RequestFlag.DETERMINISTIC,
    )
    assert request.observation["place"].tolist() == [1.5, -2.0]
    assert len(REQUEST) == FORMAT.request_bytes == 24 + 8
    answer = FORMAT.read_answer(ANSWER)
    assert (answer.session, answer.number, answer.version, answer.ready) == (5, 9, 8, True)
    assert answer.actions.tolist() == [[0.25], [0.5]]


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (FORMAT.read_request, b""),
        (FORMAT.read_request, REQUEST[:-1]),
        (FORMAT.read_request, b"x" + REQUEST[1:]),
        (FORMAT.read_request, REQUEST[:4] + b"\x02" + REQUEST[5:]),
        (FORMAT.read_answer, b""),
        (FORMAT.read_answer, ANSWER[:-1]),
        (FORMAT.read_answer, REQUEST + bytes(64)),
        (FORMAT.read_answer, ANSWER[:-4] + np.float32(np.nan).tobytes()),
        (FORMAT.read_answer, ANSWER[:32] + b"\xff" * 4 + ANSWER[36:]),
    ],
)
def test_other_bytes_are_refused(read, data):
    with pytest.raises(MessageError):
        read(data)


def test_bytes_that_are_no_answer_do_not_stop_the_worker(line):
    outlet = RecordingOutlet(stop_after_episodes=1)

    def on_step(number):
        line.frozen = number == 2
        if number == 2:
            line.answer.write(line.answer.version() + 1, b"garbage")

    make(line, outlet, TickingEnvironment(6, line=line, on_step=on_step)).run()
    assert fallbacks(outlet.rows) == [False] * 3 + [True] + [False] * 2


OTHER_SIDE = """
import sys
from pathlib import Path
from tickrate.runtime.outlet import SharedOutlet
outlet = SharedOutlet.attach(Path(sys.argv[1]))
number, request = outlet.inference.read()
outlet.answer.write(0, request[::-1])
outlet.close(remove=False)
"""


def test_requests_and_answers_cross_to_the_companion_in_shared_memory():
    outlet = SharedOutlet.create(CONTRACT)
    outlet.inference.write(1, REQUEST)
    command = [sys.executable, "-c", OTHER_SIDE, str(outlet.folder)]
    subprocess.run(command, check=True, timeout=30)
    assert outlet.answer.read() == (0, REQUEST[::-1])
    outlet.close(remove=True)
