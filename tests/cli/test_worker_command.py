"""The worker's command beside its control loop: who keeps the companion alive, and when it starts to act."""

import threading

import pytest

from tickrate.cli import worker as worker_module
from tickrate.cli.worker import REFUSED_CODE, _Guard, _welcomed, numbered
from tickrate.clock import now, sleep
from tickrate.config.experiment import dump_experiment, experiment_from_mapping
from tickrate.errors import ConfigError
from tickrate.runtime.environments import EnvironmentConfig
from tickrate.runtime.run_folder import RunFolder


class Block(dict):
    def get(self, name):
        return dict.get(self, name, 0)

    def set(self, name, value):
        self[name] = value


class Outlet:
    def __init__(self):
        self.block = Block()

    def link_text(self):
        return "no hub"


class FakeChild:
    """A companion that ends with the codes of a list, one a start; then it runs until its input ends."""

    log = "the log"

    def __init__(self, *codes):
        self.codes, self.starts, self.exit_code = list(codes), 0, None
        self.events = []

    @property
    def running(self):
        return self.starts > 0 and self.exit_code is None

    def start(self):
        self.starts += 1
        self.events.append("start")
        self.exit_code = self.codes.pop(0) if self.codes else None

    def close_input(self):
        self.events.append("close")
        if self.running:
            self.exit_code = 0

    def wait(self, timeout_s):
        return True

    def end(self, timeout_s):
        self.events.append("end")

    def last_words(self, lines=12):
        return "another worker named 'arm' is connected"


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setattr(worker_module, "LOOK_EVERY_S", 0.002)
    made = []

    def begin(child):
        guard = _Guard(child, Outlet(), threading.Event())
        guard.start()
        made.append(guard)
        return guard

    yield begin
    for guard in made:
        guard.finish()


def until(condition):
    deadline = now() + 10
    while not condition():
        assert now() < deadline
        sleep(0.002)


def test_a_killed_companion_is_started_again(guarded):
    child = FakeChild(-9, -9)
    guard = guarded(child)
    until(lambda: child.starts == 3)
    sleep(0.02)
    assert child.starts == 3
    assert guard._outlet.block.get("shutdown") == 0
    assert (guard.gave_up, guard.refusal) == (False, "")


def test_a_companion_that_cannot_live_ends_the_worker(guarded):
    child = FakeChild(*[1] * 20)
    guard = guarded(child)
    until(lambda: guard._outlet.block.get("shutdown"))
    assert guard.gave_up
    assert child.starts == worker_module.MAX_COMPANIONS


def test_a_refusal_ends_the_worker_with_the_trainer_s_words(guarded):
    child = FakeChild(REFUSED_CODE)
    guard = guarded(child)
    until(lambda: guard._outlet.block.get("shutdown"))
    guard.finish()
    assert child.starts == 1
    assert guard.refusal == "another worker named 'arm' is connected"


def test_at_the_end_a_companion_that_was_just_killed_comes_back_for_the_last_rows(guarded):
    child = FakeChild()
    guard = guarded(child)
    guard._stop.set()
    guard._thread.join()
    child.exit_code = -9
    guard.finish()
    assert child.events[:3] == ["start", "start", "close"]
    assert guard._outlet.block.get("shutdown") == 1  # it takes its time to deliver


def test_an_orderly_end_starts_nothing_again(guarded):
    child = FakeChild()
    guard = guarded(child)
    guard.finish()
    assert child.starts == 1


def test_it_waits_for_the_welcome_and_says_what_for(monkeypatch, caplog):
    caplog.set_level("INFO")
    outlet, stop, slept = Outlet(), threading.Event(), []
    monkeypatch.setattr(worker_module.clock, "now", lambda: float(len(slept)))

    def pass_time(seconds):
        slept.append(seconds)
        if len(slept) == 25:
            outlet.block.set("welcomed", 1)

    monkeypatch.setattr(worker_module.clock, "sleep", pass_time)
    assert _welcomed(outlet, "arm", stop)
    words = [r.message for r in caplog.records]
    assert words == ["arm has not touched the device; waiting: no hub"] * 3  # at 0, 10 and 20 s
    stop.set()
    outlet.block.set("welcomed", 0)
    assert not _welcomed(outlet, "arm", stop)


@pytest.mark.parametrize("storage", ["memory", "journal"])
def test_a_replay_that_cannot_fit_is_refused_before_the_first_command(tmp_path, monkeypatch, storage):
    values = {"environment": {"id": "drone"}, "run": {"root": str(tmp_path), "name": "r"}}
    folder = RunFolder(tmp_path / "r")
    folder.prepare("refuse")
    experiment = experiment_from_mapping(values | {"replay": {"capacity": 10**12, "storage": storage}})
    folder.write_experiment(dump_experiment(experiment).encode(), resumes=False)
    monkeypatch.setattr(worker_module, "end_on_termination", lambda *_, **__: None)
    monkeypatch.setattr(worker_module, "on_parent_exit", lambda *_: None)
    where = "memory is free" if storage == "memory" else "is free"
    with pytest.raises(ConfigError, match=rf"a replay of 1,000,000,000,000 rows .*{where}"):
        worker_module.main(["--run-dir", str(folder.path)])
    assert not list(folder.path.rglob("*.seg"))
    assert not folder.worker("worker-0").memory.exists()


def test_the_number_of_a_worker_goes_into_its_environment():
    config = EnvironmentConfig(id="x:Y", kwargs={"port": "90{index}", "deep": {"a": ["{index}", 3]}, "n": 5})
    assert numbered(config, 4).kwargs == {"port": "904", "deep": {"a": ["4", 3]}, "n": 5}
