"""Figures of a run, worked by hand: clocks an hour apart, lags, rates, alarms, and the JSON of all of it."""

import json

import pytest
from delivery_kit import RUN
from runtime_kit import rows_of

from tickrate.errors import MessageError
from tickrate.runtime.overview import overview, read_overview
from tickrate.tracking import check_keys
from tickrate.wire.carrier import make_key


def look(place, alarm_s=30.0):
    learner = place.learner
    body = overview(
        RUN,
        place.trainer.reception.peers.all(),
        {"trainer/steps": 5.0, "learn/critic_loss": float("nan")},
        state="learning",
        text="words",
        newest_version=0 if learner is None else learner.version,
        lag_alarm_s=alarm_s,
        now=place.now,
    )
    read_overview(body)
    return json.loads(body)


def alarms_of(seen):
    return [alarm["text"] for alarm in seen["alarms"]]


def put(worker, start, version, count=1, episode=0, first=0):
    rows = rows_of(episode, count, first=first, version=version, final=False)
    rows["start"] = start
    for row in rows:
        worker.outlet.put_row(row.reshape(()))


def test_a_clock_an_hour_off_is_measured_and_the_lag_is_right(place):
    """The worker's clock is 3600 s ahead. A policy made at t here acts at t + 3602 there: it is 2 s old."""
    worker, _ = place.worker(ahead_s=3600.0), place.start_trainer()
    place.step(3)
    put(worker, 0.0, 0)
    place.step(120)  # of two pings the first measures, the second tells
    assert worker.courier.offset.seconds == pytest.approx(-3600.0, abs=0.011)
    assert place.peers["worker-0"].clock_offset_s == pytest.approx(-3600.0, abs=0.011)
    made = place.now
    assert place.learner.publish()[0] == 1
    place.step(200)
    put(worker, made + 2.0 + 3600.0, 1, first=1)
    place.step(5)
    version, age = place.peers["worker-0"].policy
    assert (version, age) == (1, pytest.approx(2.0, abs=0.02))
    seen = look(place)["workers"][0]
    assert seen["clock_offset_s"] == pytest.approx(-3600.0, abs=0.011)
    assert seen["rtt_s"] == pytest.approx(0.01, abs=0.011)
    assert seen["policy_lag_s"] == pytest.approx(2.0, abs=0.02)
    assert seen["policy_lag_versions"] == 0
    assert seen["alarms"] == []
    assert alarms_of(look(place, alarm_s=1.5)["workers"][0]) == [
        "acts with a policy 2 s old (alarm at 1.5 s)"
    ]


def test_no_lag_is_told_before_the_clocks_are_compared(place):
    worker, _ = place.worker(ahead_s=3600.0), place.start_trainer()
    place.step(2)
    assert place.peers["worker-0"].clock_offset_s is None
    place.learner.publish()
    put(worker, place.now + 3600.0, 1)
    place.step(2)
    assert place.peers["worker-0"].policy == (1, None)
    assert look(place)["workers"][0]["policy_lag_s"] is None
    assert look(place)["alarms"] == []


def test_the_figures_of_a_worker(place):
    """50 rows in the last 5 s, one of them a final observation; then 7 more that the trainer has not got."""
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    for row in rows_of(0, 49):
        worker.outlet.put_row(row.reshape(()))
    worker.finish(0, total_return=12.5)
    worker.outlet.put_state("driving")
    place.step(100)
    worker.drive(7, episode=1)
    place.step(60, only=[worker])
    place.trainer.reception._take_ping(place.trainer.reception._pings.drain(10)[-1])
    seen = look(place)["workers"][0]
    assert (seen["rows"], seen["steps"], seen["episodes"], seen["last_return"]) == (50, 49, 1, 12.5)
    assert seen["samples_per_s"] == pytest.approx(50 / 5)
    assert (seen["state"], seen["text"], seen["connected"]) == ("acting", "driving", True)
    assert seen["rows_waiting"] == 7
    assert seen["acknowledgement_age_s"] == pytest.approx(1.6, abs=0.1)
    assert seen["rows_lost"] == seen["rows_repeated"] == 0
    place.now += 5.0
    assert look(place)["workers"][0]["samples_per_s"] == 0.0


def test_a_final_observation_alone_does_not_blank_the_policy(place):
    worker, _ = place.worker(), place.start_trainer()
    place.step(3)
    put(worker, 0.0, 4)
    place.step(10)
    assert place.peers["worker-0"].policy == (4, None)
    final = rows_of(0, 1)[1]
    final["step"] = 1
    worker.outlet.put_row(final.reshape(()))
    place.step(10)
    assert place.learner.replay.rows_added == 2
    assert place.peers["worker-0"].policy == (4, None)


def test_silence_and_loss_raise_alarms_and_a_goodbye_does_not(place):
    worker, gone = place.worker("arm"), place.worker("leg")
    place.start_trainer()
    place.step(60)
    gone.companion._say("stopped", "", wait=True)
    place.step(2)
    place.peers["leg"].receiver.on_dropped(9)
    place.now += 6.0
    seen = look(place)
    by_name = {w["name"]: w for w in seen["workers"]}
    assert alarms_of(by_name["arm"]) == ["silent for 6 s"]
    assert alarms_of(by_name["leg"]) == ["9 rows were dropped before they could be delivered"]
    assert not by_name["arm"]["connected"]
    assert seen["alarms"] == [
        "arm: silent for 6 s",
        "leg: 9 rows were dropped before they could be delivered",
    ]
    assert worker.alive


def test_it_is_plain_json_on_the_wire(place):
    box = place.ear.subscribe(make_key(RUN, "overview", "trainer"), capacity=100)
    place.worker()
    place.start_trainer()
    place.step(120)
    payload = box.drain(100)[-1]
    body = json.loads(payload, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (body["format"], body["run"]) == (1, RUN)
    assert body["trainer"]["metrics"]["trainer/workers"] == 1.0
    assert read_overview(payload).workers[0].name == "worker-0"
    assert look(place)["trainer"]["metrics"]["learn/critic_loss"] is None


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\xff", "no overview of a run"),
        (b"[" * 100_000, "no overview of a run"),
        (b"[]", "no overview of a run"),
        (b'{"workers": 3}', "no overview of a run"),
        (b'{"workers": [], "format": 2}', "format 2, this tickrate reads format 1"),
        (b" " * ((4 << 20) + 1), "too long"),
    ],
)
def test_what_is_no_overview_is_refused(payload, words):
    with pytest.raises(MessageError, match=words):
        read_overview(payload)


def test_every_figure_that_the_roles_give_stands_in_the_table_of_metrics(place):
    worker, _ = place.worker(), place.start_trainer(start_steps=1)
    place.step(3)
    for row in rows_of(0, 20):
        row["start"] = 1.0
        worker.outlet.put_row(row.reshape(()))
    worker.finish(0, evaluation=True, policy_version=1)
    place.step(200)
    said = place.said("trainer")
    logged = [values for _, values in place.learner._tracker.calls]
    names = {name for metrics in [s.metrics for s in said] + logged for name in metrics}
    assert {"trainer/workers", "timing/overruns", "eval/score", "learn/updates_per_step"} <= names
    check_keys(names)
    workers = place.trainer.reception.peers.all()[0].status.metrics
    check_keys(workers)
    assert "worker/outbox_bytes" in workers
