"""Who may join a run: one process a name, one trainer, equal contracts and versions; others are told why."""

import dataclasses
import json
import re

import numpy as np
import pytest
from delivery_kit import LIFE, RUN, same_rows, step_trainer
from gymnasium import spaces
from runtime_kit import CONTRACT, make_learner

from tickrate.errors import ConfigError, Refused, VersionMismatch
from tickrate.runtime import courier as courier_module
from tickrate.runtime import incumbency as incumbency_module
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.courier import REFUSAL_PATIENCE_S, here
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.peers import STALLED_AFTER_S, check_worker_name
from tickrate.runtime.run_folder import RunFolder
from tickrate.runtime.trainer import Trainer
from tickrate.wire import messages
from tickrate.wire.carrier import make_key


def hosts(monkeypatch):
    """Let each process that greets from now on come from another machine."""
    names = iter(f"process {number} on machine-{number}" for number in range(1, 100))
    monkeypatch.setattr(courier_module, "here", lambda: next(names))


# --- two workers of one name --------------------------------------------------------------------------------


def test_a_second_worker_of_a_name_is_refused_while_the_first_speaks(place, monkeypatch):
    hosts(monkeypatch)
    first, _ = place.worker("arm"), place.start_trainer()
    place.step(3)
    second = place.worker("arm", folder="elsewhere")
    began, refusal = place.now, None
    while refusal is None:
        first.step()
        try:
            second.step()
        except Refused as error:
            refusal = str(error)
        step_trainer(place.trainer)
        place.now += 0.05
    assert place.now - began == pytest.approx(REFUSAL_PATIENCE_S, abs=1.5)
    assert re.search(r"another worker named 'arm' is connected \(process \d+ on machine-1, heard", refusal)
    assert re.search(r"this is process \d+ on machine-\d+: give this one another --name", refusal)
    first.drive(5)
    place.workers.remove(second)
    place.step(50)
    same_rows(place.journal()["arm"], first.sent)
    second.close()


def test_a_stalled_worker_gives_way_in_under_ten_seconds_and_is_told(place):
    first, _ = place.worker("arm"), place.start_trainer()
    place.step(3)
    first.drive(10)
    place.step(20)
    second = place.worker("arm", folder="elsewhere")
    second.drive(7, episode=1)
    began = place.now
    while not second.courier.welcomed:  # the first is stopped (SIGSTOP): only the others go on
        place.step(seconds=0.05, only=[second, place.trainer])
        assert place.now - began < 10.0
    assert place.now - began >= STALLED_AFTER_S - 1.0
    place.step(50, only=[second, place.trainer])
    first.drive(3, first=10)
    with pytest.raises(Refused, match=r"was silent for \d s, and process .* took its name 'arm': .*evicted"):
        place.step(200)
    assert first.outbox.pending == 3  # safe, for its next start
    place.workers.remove(first)
    place.step(50)
    assert place.steps_of("arm") == [*range(10), *range(7)]
    first.close()


def test_a_companion_that_was_started_again_is_admitted_at_once(place):
    worker, _ = place.worker("arm"), place.start_trainer()
    place.step(3)
    worker.drive(10)
    worker.finish(0)
    place.step(50)
    rate = place.peers["arm"].rate.per_second()
    assert rate == pytest.approx(10 / 5.0)
    worker.kill()
    worker.start()
    place.step(3)
    assert worker.courier.welcomed
    peer = place.peers["arm"]
    # What is known of the worker is that of the worker, not of its companion's process.
    assert (peer.rows, peer.steps, peer.episodes, peer.rate.per_second()) == (10, 10, 1, rate)
    assert (peer.reports, peer.ping is None or peer.ping.boot == worker.courier.boot) == (0, True)


def test_a_busy_trainer_does_not_take_a_worker_for_stalled(place, monkeypatch):
    """Networks take ten seconds to build; the duplicate's greeting waits right behind the first one's."""
    first, second = place.worker("arm"), place.worker("arm", folder="elsewhere")
    trainer = place.start_trainer()
    build = trainer._build
    trainer._build = lambda contract: (place.pass_time(10.0), build(contract))[1]
    place.step(1)
    place.step(700, seconds=0.01)
    assert first.courier.welcomed
    assert not second.courier.welcomed


@pytest.mark.parametrize("name", ["trainer", "worker", "hub", "", "a/b", "../x", "ü", "a" * 129, "a\n", "*"])
def test_names_that_cannot_be_used(name):
    with pytest.raises(ConfigError, match="a worker cannot be called"):
        check_worker_name(name)


# --- two trainers -------------------------------------------------------------------------------------------


def second_trainer(place, name="other", life=LIFE + 1, **options):
    folder = RunFolder(place.path / name)
    folder.prepare("refuse")
    ledger = Ledger(folder.ledger, life)

    def build(contract):
        return make_learner(folder.path, start_steps=10**6)

    return Trainer(place.carrier(), RUN, ledger, build, place.finished.append, **options), ledger


def test_a_second_trainer_ends_and_names_the_first(place, monkeypatch):
    monkeypatch.setattr(incumbency_module, "here", lambda: "process 1 on machine-1")
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(5)
    place.step(20)
    second, ledger = second_trainer(place)
    worker.drive(5, first=5)
    with pytest.raises(Refused, match=f"another trainer serves run '{RUN}': process 1 on machine-1. Stop it"):
        place.step(1000, only=[worker, place.trainer, second])
    place.step(100)
    same_rows(place.journal()["worker-0"], worker.sent)
    assert worker.courier.set_aside == 0  # it was never taken for another run's
    assert ledger.streams() == {}
    ledger.close()


def test_a_trainer_that_is_busy_for_seconds_is_not_overruled(place):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    worker.drive(5)
    place.step(20)
    second, ledger = second_trainer(place)
    for _ in range(400):  # 4 s in which the first writes a large checkpoint
        place.step(only=[worker])
        step_trainer(second)
    assert not second.reception.settled
    with pytest.raises(Refused):
        place.step(100, only=[worker, place.trainer, second])
    assert worker.courier.set_aside == 0
    ledger.close()


def test_a_stalled_trainer_that_comes_back_gives_way(place):
    first_worker, first = place.worker(), place.start_trainer()
    place.step(3)
    second, ledger = second_trainer(place, life=LIFE)
    for _ in range(600):  # the first is stopped for 6 s
        place.step(only=[first_worker])
        step_trainer(second)
    assert second.reception.settled
    with pytest.raises(Refused, match="another trainer serves run"):
        place.step(200, only=[first, second])
    step_trainer(second)
    ledger.close()


def test_two_trainers_that_could_not_see_each_other_agree_on_the_first(place):
    """Both were there before the hub was: no presence told them. The one that started first stays."""
    place.start_trainer()
    place.now += 0.01
    first = place.trainer
    second, ledger = second_trainer(place)
    second.reception._incumbency._settled_at = 0.0  # it saw nobody
    with pytest.raises(Refused, match="another trainer serves run"):
        place.step(1000, only=[first, second])
    step_trainer(first)
    assert first.reception.settled
    ledger.close()


def test_a_trainer_that_does_not_serve_hands_out_no_policy(place):
    worker, trainer = place.worker(), place.start_trainer(start_steps=1, publish_every=1)
    place.step(3)
    worker.drive(5)
    place.step(100)
    version = place.learner.version
    worker.drive(50, first=5)
    place.step(1)
    trainer.reception._incumbency._settled_at = place.now + 1.0
    place.step(50)
    assert place.learner.version <= version + 1
    place.step(100)
    assert place.learner.version > version + 1


# --- contracts ----------------------------------------------------------------------------------------------

LEAF = spaces.Box(-1e6, 1e6, (2,), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"leaf_spaces": {"place": spaces.Box(-1e6, 1e6, (3,), np.float32)}},
            r"'o/place' is float32\[2\] here and float32\[3\] there",
        ),
        ({"leaf_spaces": {"spot": LEAF}}, "place"),
        (
            {"leaf_spaces": {"place": spaces.Box(-1.0, 1e6, (2,), np.float32)}},
            r"leaf 'place' is Box\(-1e\+06, .* here and Box\(-1\.0, .* there",
        ),
        (
            {"action_space": spaces.Box(-2.0, 1.0, (1,), np.float32)},
            r"the action space is Box.* here and Box",
        ),
        ({"period_s": 0.05}, r"the time-step is 0\.0 s here and 0\.05 s there"),
        ({"action_buffer_length": 3}, "the action buffer holds 0 actions here and 3 there"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_with_both_sides_and_the_leaf(place, change, words):
    place.worker("arm")
    place.start_trainer()
    place.step(3)
    other = place.worker("leg", contract=dataclasses.replace(CONTRACT, **change))
    with pytest.raises(Refused, match=words) as refusal:
        place.step(100)
    assert f"leg ({here()}, tickrate " in str(refusal.value)
    assert "the trainer, tickrate" in str(refusal.value)
    place.workers.remove(other)
    other.close()
    place.step(5)
    assert list(place.peers) == ["arm"]


def test_a_wrong_worker_that_greets_a_resumed_run_first_is_refused(place, tmp_path):
    """What the run is about stands in its folder: it is not what the first worker after a restart says."""
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(CONTRACT.to_dict()), encoding="utf-8")
    assert EnvironmentContract.load(tmp_path / "none.json") is None
    trainer = place.start_trainer()
    trainer.reception.peers.contract = EnvironmentContract.load(path)
    wrong = place.worker("leg", contract=dataclasses.replace(CONTRACT, period_s=0.05))
    with pytest.raises(Refused, match=r"time-step is 0\.0 s here and 0\.05 s there"):
        place.step(100)
    place.workers.remove(wrong)
    wrong.close()
    right = place.worker("arm")
    place.step(5)
    assert right.courier.welcomed


# --- versions -----------------------------------------------------------------------------------------------


def old(payload):
    return payload[:3] + b"\x01" + payload[4:]


def test_an_old_trainer_ends_a_new_worker_with_both_versions(place):
    worker = place.worker()
    greeting = messages.Hello(run=RUN, worker="trainer", boot=1, role="trainer", version="0.1")
    place.ear.publish(make_key(RUN, "hello", "trainer"), old(messages.encode(greeting)))
    with pytest.raises(VersionMismatch, match=r"version 1 of the protocol, this side version 2"):
        worker.step()
    assert worker.outlet.orders().shutdown is False  # run() passes it on; step() only says so


def test_an_old_worker_is_answered_so_that_it_learns_our_version(place, caplog):
    """The trainer cannot read its greeting; its own, which the old worker cannot read either, tells both."""
    trainer = place.start_trainer()
    place.step(3)
    place.step(60)  # its own greetings are half a second apart at least
    answers = place.ear.subscribe(make_key(RUN, "hello", "trainer"), capacity=10)
    greeting = messages.Hello(run=RUN, worker="arm", boot=1, role="worker", version="0.1")
    place.ear.publish(make_key(RUN, "hello", "arm"), old(messages.encode(greeting)))
    place.step(1)
    assert "speaks version 1 of the protocol, this side version 2" in caplog.text
    assert trainer.reception.refused == 1
    assert answers.get(0.0)[:4] == b"TKR\x02"


def test_a_worker_that_has_learned_from_a_trainer_is_not_ended_by_an_old_one(place, caplog):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    place.kill_trainer()
    place.step(600)
    greeting = messages.Hello(run=RUN, worker="trainer", boot=1, role="trainer", version="0.1")
    place.ear.publish(make_key(RUN, "hello", "trainer"), old(messages.encode(greeting)))
    place.step(5)
    assert "hub reached" in worker.courier.condition() or "another release" in worker.courier.condition()
    place.start_trainer(resume=place.folder.resumable)
    worker.drive(5)
    place.step(100)
    assert worker.courier.condition() == "connected"
    assert place.steps_of() == [0, 1, 2, 3, 4]
