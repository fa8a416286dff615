"""What a bystander at the hub learns of the runs there, and what it makes of silence and of garbage."""

import json

import pytest

from tickrate.errors import MessageError
from tickrate.runtime.overview import FORMAT, WorkerView, overview, read_overview, to_json, whole
from tickrate.runtime.peers import Peer
from tickrate.runtime.run_watch import FORGET_S, FRESH_S, MAX_RUNS, RunWatch
from tickrate.wire import messages
from tickrate.wire.carrier import make_key
from tickrate.wire.delivery import Receiver
from tickrate.wire.memory import MemoryCarrier, MemoryHub


def status(worker, state="acting", run="r", role="worker", **metrics):
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return messages.Status(
        run=run, worker=worker, boot=1, role=role, state=state, text="words", metrics=named
    )


def peer(name, *, heard_at=100.0, **changes):
    hello = messages.Hello(run="r", worker=name, boot=1, role="worker", version="0.1", host="here", outbox=7)
    made = Peer(hello, 0, Receiver(100, 5), heard_at)
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def spoken(*peers, run="r", state="learning", newest=12, now=100.0):
    said = {"trainer/steps": 40.0, "learn/alpha": float("nan")}
    return overview(
        run, peers, said, state=state, text="words", newest_version=newest, lag_alarm_s=3.0, now=now
    )


@pytest.fixture
def hub():
    with MemoryHub() as hub:
        yield hub


@pytest.fixture
def seen(hub):
    """A watch on a clock that a test sets, and a way to speak at its hub."""

    class Seen:
        now = 1000.0

        def __init__(self):
            self.watch = RunWatch(MemoryCarrier(hub), lambda: self.now)

        def say(self, message, kind="status"):
            hub.publish(make_key(message.run, kind, message.worker), messages.encode(message))

        def trainer(self, *peers, run="r", **how):
            hub.publish(make_key(run, "overview", "trainer"), spoken(*peers, run=run, **how))

        def join(self, name, run="r"):
            carrier = MemoryCarrier(hub)
            carrier.announce(make_key(run, "present", name))
            return carrier

    return Seen()


def test_the_trainers_word_is_the_whole_story(seen):
    ping = messages.Ping(
        run="r",
        worker="a",
        boot=1,
        outbox=7,
        oldest=5,
        head=9,
        sent=9,
        sent_at=0.0,
        clock_offset_s=-2.5,
        rtt_s=0.001,
    )
    told = status("a", worker__outbox_rows=4.0, worker__outbox_bytes=400.0)
    seen.trainer(peer("a", ping=ping, status=told, stored_at=98.0, policy=(10, 3.5), rows=5, last_return=2.5))
    seen.watch.poll()
    state = seen.watch.overview("r")
    assert seen.watch.runs() == ["r"]
    assert state.trainer.state == "learning"
    assert state.trainer.metrics == {"trainer/steps": 40.0, "learn/alpha": None}
    (worker,) = state.workers
    assert worker.connected
    assert (worker.rows, worker.rows_waiting, worker.outbox_rows, worker.outbox_bytes) == (5, 4, 4, 400)
    assert (worker.acknowledgement_age_s, worker.heard_s_ago) == (2.0, 0.0)
    assert (worker.policy_version, worker.policy_lag_versions, worker.policy_lag_s) == (10, 2, 3.5)
    assert (worker.clock_offset_s, worker.rtt_s, worker.last_return) == (-2.5, 0.001, 2.5)
    assert state.alarms == ["a: acts with a policy 4 s old (alarm at 3 s)"]


def test_alarms_name_silence_old_policies_and_lost_rows():
    quiet = peer("a", heard_at=90.0, policy=(10, 2.9))
    losing = peer("b", status=status("b", worker__dropped_rows=3.0))
    losing.receiver.lost = 2
    losing.different = 1
    gone = peer("c", heard_at=0.0, status=status("c", state="stopped"), policy=(1, 99.0))
    state = read_overview(spoken(quiet, losing, gone))
    assert [(w.name, [a.kind for a in w.alarms]) for w in state.workers] == [
        ("a", ["silent"]),
        ("b", ["dropped_rows", "different"]),
        ("c", []),
    ]
    assert [w.connected for w in state.workers] == [False, True, False]
    assert state.alarms == [
        "a: silent for 10 s",
        "b: 3 rows were dropped before they could be delivered",
        "b: 1 transitions differ from what the worker saw",
    ]


def test_without_a_trainer_the_workers_speak_for_themselves(seen):
    there = seen.join("a")
    seen.say(status("a", worker__outbox_rows=17.0, worker__policy_version=4.0))
    seen.say(status("b", state="stopped"))
    seen.watch.poll()
    seen.now += 2.0
    state = seen.watch.overview("r")
    assert state.trainer is None
    a, b = state.workers
    assert (a.connected, a.state, a.outbox_rows, a.policy_version, a.heard_s_ago) == (
        True,
        "acting",
        17,
        4,
        2.0,
    )
    assert (a.rows, a.samples_per_s, a.policy_lag_s) == (None, None, None)
    assert (b.connected, b.state) == (False, "stopped")
    there.close()
    assert not seen.watch.overview("r").workers[0].connected


def test_a_trainer_that_has_said_goodbye_or_nothing_for_long_is_not_there(seen):
    seen.trainer(peer("a"))
    seen.watch.poll()
    seen.now += FRESH_S
    assert seen.watch.overview("r").trainer is not None
    seen.now += 0.1
    assert seen.watch.overview("r").trainer is None
    seen.trainer(peer("a"), state="stopped")
    seen.watch.poll()
    assert seen.watch.overview("r").trainer is None


def test_a_worker_that_the_trainer_does_not_know_is_shown_with_an_alarm(seen):
    seen.join("a")
    seen.join("refused")
    seen.join("mute")
    seen.say(status("refused"))
    seen.trainer(peer("a"))
    seen.watch.poll()
    state = seen.watch.overview("r")
    assert [(w.name, w.connected, w.state) for w in state.workers] == [
        ("a", True, "silent"),
        ("refused", True, "acting"),
        ("mute", True, "silent"),
    ]
    assert state.alarms == ["refused: the trainer has not admitted it; see its log"]
    assert not seen.watch.overview("another").workers


def test_it_knows_whether_everybody_present_was_heard(seen):
    for name in ("trainer", "a", "inference"):
        seen.join(name)
    assert seen.watch.present("r") == ["a", "inference", "trainer"]
    assert not seen.watch.complete("r")
    seen.say(status("a"))
    seen.watch.poll()
    assert not seen.watch.complete("r")
    seen.trainer()
    seen.watch.poll()
    assert seen.watch.complete("r")


def test_several_runs_are_kept_apart_and_forgotten_when_they_are_long_gone(seen):
    seen.trainer(run="q")
    seen.say(status("a", run="p"))
    seen.watch.poll()
    assert seen.watch.runs() == ["p", "q"]
    there = seen.join("a", run="p")
    seen.now += FORGET_S + 1
    seen.watch.poll()
    assert seen.watch.runs() == ["p"]
    there.close()
    seen.watch.poll()
    assert seen.watch.runs() == []


def test_garbage_is_left_out_and_told(seen, hub):
    bad = [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format":1}', b'{"format":"x"}', b" " * (5 << 20)]
    for payload in bad:
        hub.publish(make_key("r", "overview", "trainer"), payload)
        seen.watch.poll()
        assert seen.watch.left_out
        seen.watch.left_out = ""
    hub.publish(make_key("r", "status", "a"), b"TKR\x01old")
    seen.watch.poll()
    assert "version 1 of the protocol" in seen.watch.left_out
    assert seen.watch.runs() == []


def test_what_is_kept_has_a_limit(seen):
    for number in range(MAX_RUNS + 5):
        seen.trainer(run=f"r{number}")
        seen.watch.poll()
    assert len(seen.watch.runs()) == MAX_RUNS


def test_another_format_is_named_before_anything_is_read():
    with pytest.raises(MessageError, match=f"has format 2, this tickrate reads format {FORMAT}"):
        read_overview(b'{"format": 2, "workers": 7}')


def test_an_overview_is_plain_json_that_comes_back_equal():
    state = whole("r", None, [WorkerView(name="a", policy_lag_s=1.5)])
    assert json.loads(to_json(state))["workers"][0]["policy_lag_s"] == 1.5
    assert read_overview(to_json(state)) == state
    newer = json.dumps(json.loads(to_json(state)) | {"added_later": 1})
    assert read_overview(newer.encode()) == state
