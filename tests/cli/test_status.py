"""``tickrate status``: what a person and a dashboard get, with a trainer, without one, and without a hub."""

import io
import json
import threading

import pytest
from rich.console import Console

from tickrate import __main__ as command
from tickrate import clock
from tickrate.cli import status as status_command
from tickrate.cli.status import find
from tickrate.cli.worker_lines import printable
from tickrate.errors import ConfigError
from tickrate.runtime.network import DEFAULT_HUB
from tickrate.runtime.overview import Alarm, TrainerView, WorkerView, read_overview, to_json, whole
from tickrate.wire import messages
from tickrate.wire.carrier import make_key
from tickrate.wire.keys_folder import KeysFolder
from tickrate.wire.memory import MemoryCarrier, MemoryHub
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub

RUN = "run-circuit-seed0"


def worker_status(name, **metrics):
    return messages.encode(
        messages.Status(
            run=RUN,
            worker=name,
            boot=1,
            role="worker",
            state="acting",
            text="driving",
            metrics={f"worker/{key}": value for key, value in metrics.items()},
        )
    )


def a_run(*workers, run=RUN):
    trainer = TrainerView(
        host="process 1 on alpha",
        state="learning",
        text="40 updates",
        policy_version=12,
        metrics={"trainer/steps": 12345.0, "learn/updates_per_s": 18.25},
    )
    return whole(run, trainer, list(workers))


FINE = WorkerView(
    name="arm-1",
    connected=True,
    state="acting",
    text="driving",
    samples_per_s=20.0,
    outbox_rows=3,
    outbox_bytes=1_500_000,
    acknowledgement_age_s=0.0,
    policy_version=12,
    policy_lag_versions=0,
    policy_lag_s=0.25,
)
LATE = WorkerView(
    name="arm-2",
    connected=True,
    purpose="test",
    text="evaluating",
    acknowledgement_age_s=7.5,
    policy_lag_versions=9,
    policy_lag_s=44.0,
    alarms=[Alarm(kind="old_policy", text="acts with a policy 44 s old (alarm at 30 s)")],
)


class Speaker:
    """Says what it is given, again and again, as the roles of a run do, until it is closed."""

    def __init__(self, carrier, *pairs, present=()):
        self._carrier, self._pairs, self._stop = carrier, pairs, threading.Event()
        for name in present:
            carrier.announce(make_key(RUN, "present", name))
        self._thread = threading.Thread(target=self._speak)
        self._thread.start()

    def _speak(self):
        while not self._stop.wait(0.01):
            for kind, name, payload in self._pairs:
                run = json.loads(payload)["run"] if kind == "overview" else RUN
                self._carrier.publish(make_key(run, kind, name), payload, wait=False)

    def close(self):
        self._stop.set()
        self._thread.join()
        self._carrier.close()


@pytest.fixture
def hub(monkeypatch):
    """A hub in memory that the command finds under every address; it does not listen for long."""
    with MemoryHub() as hub:
        monkeypatch.setattr(status_command, "open_carrier", lambda network: _Closing(hub))
        monkeypatch.setattr(status_command, "LISTEN_S", 0.05)
        monkeypatch.setattr(status_command, "LISTEN_MOST_S", 0.3)
        yield hub


class _Closing(MemoryCarrier):
    def __enter__(self):
        return self


@pytest.fixture
def speak(hub):
    speakers = []

    def begin(*pairs, present=()):
        speakers.append(Speaker(MemoryCarrier(hub), *pairs, present=present))

    yield begin
    for speaker in speakers:
        speaker.close()


def test_lines_for_a_person(speak, capsys):
    speak(("overview", "trainer", to_json(a_run(FINE, LATE))), present=("trainer", "arm-1", "arm-2"))
    assert command.main(["status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{RUN} at {DEFAULT_HUB}",
        "trainer  learning: 40 updates  (process 1 on alpha)",
        "2 of 2 workers connected · 20.0 samples/s · steps 12,345 · 18.2 updates/s · policy 12",
        "worker  state             samples/s  outbox          acknowledged  policy lag",
        "arm-1   driving           20.0       3 rows, 1.5 MB  all           0 versions, 0.2 s",
        "arm-2   test: evaluating  -          - rows          7.5 s ago     9 versions, 44.0 s",
        "ALARM arm-2: acts with a policy 44 s old (alarm at 30 s)",
    ]


def test_without_a_trainer_it_says_so_and_shows_the_workers(speak, capsys):
    speak(("status", "arm-1", worker_status("arm-1", outbox_rows=17.0)), present=("arm-1", "mute"))
    assert command.main(["status", "circuit-seed0"]) == 1
    out = capsys.readouterr().out
    assert "trainer  none is connected; workers keep what they record" in out
    assert "arm-1   driving  -          17 rows  -             -" in out
    assert "mute    silent" in out


def test_one_json_object_and_nothing_else(speak, capsys):
    speak(("overview", "trainer", to_json(a_run(FINE, LATE))), present=("trainer",))
    assert command.main(["status", RUN, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert read_overview(line.encode()).workers == [FINE, LATE]
    assert json.loads(line)["alarms"] == ["arm-2: acts with a policy 44 s old (alarm at 30 s)"]


def test_one_json_object_when_nobody_is_there(hub, capsys):
    assert command.main(["status", RUN, "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) | {"time": 0.0, "version": ""} == {
        **{"format": 1, "run": RUN, "time": 0.0, "version": ""},
        **{"trainer": None, "workers": [], "alarms": []},
    }
    assert command.main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["run"] is None


def test_a_run_that_is_not_there_is_told_with_those_that_are(speak, capsys):
    speak(("overview", "trainer", to_json(a_run())))
    assert command.main(["status", "another"]) == 1
    assert f"nobody of run 'run-another' is at {DEFAULT_HUB}; runs here: {RUN}" in capsys.readouterr().out


def test_several_runs_are_all_shown_but_json_wants_one(speak, capsys):
    speak(
        ("overview", "trainer", to_json(a_run(run="run-a"))),
        ("overview", "trainer", to_json(a_run(run="run-b"))),
    )
    assert command.main(["status"]) == 0
    out = capsys.readouterr().out
    assert f"run-a at {DEFAULT_HUB}" in out
    assert f"\n\nrun-b at {DEFAULT_HUB}" in out
    assert command.main(["status", "--json"]) == 2
    assert "there are 2 runs at this hub, name one: run-a, run-b" in capsys.readouterr().err


def test_watch_goes_on_until_ctrl_c(speak, capsys, monkeypatch):
    speak(("overview", "trainer", to_json(a_run(FINE))))
    looks = []

    def waits(watch, seconds):
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_command, "_wait", waits)
    assert command.main(["status", "--watch"]) == 0
    assert capsys.readouterr().out.count("arm-1") == 3
    assert looks == [5.0, 5.0, 5.0]
    looks.clear()
    assert command.main(["status", "--watch", "--json"]) == 0
    assert [json.loads(line)["run"] for line in capsys.readouterr().out.splitlines()] == [RUN] * 3


def test_watch_in_a_terminal_is_drawn_in_place_with_red_alarms(speak, monkeypatch):
    speak(("overview", "trainer", to_json(a_run(LATE))))
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=True, _environ={"TERM": "xterm-256color"})
    monkeypatch.setattr(status_command, "Console", lambda: console)

    def interrupted(watch, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(status_command, "_wait", interrupted)
    assert command.main(["status", "--watch"]) == 0
    assert "\x1b[1;31mALARM arm-2" in screen.getvalue()


def test_a_run_folder_tells_where_its_hub_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("network: {hub: 'tls/far:7447', key: k}\nrun: {seed: 3}\n")
    for words in ("mine", "runs/mine", str(folder)):
        found = find(words, None, None)
        assert (found.name, found.network.hub, found.network.key) == ("run-mine", "tls/far:7447", "k")
    (folder / "hub").write_text("tcp/127.0.0.1:4000")
    found = find("mine", None, None)
    assert (found.network.hub, found.network.key) == ("tcp/127.0.0.1:4000", "")
    assert find("mine", "tcp/127.0.0.1:5000", None).network.hub == "tcp/127.0.0.1:5000"


def test_a_name_need_not_have_a_folder_here():
    assert find("my arm", "tls/far:7447", "file").name == "run-my-arm"
    assert find(RUN, None, None).name == RUN
    assert find(None, None, None).name is None
    with pytest.raises(ConfigError, match="no/such is no run folder"):
        find("no/such", None, None)


def test_a_folder_whose_run_has_ended(tmp_path, monkeypatch, capsys):
    with ZenohHub() as gone:
        endpoint = gone.endpoint
    (tmp_path / "hub").write_text(endpoint)
    monkeypatch.setattr(status_command, "HUB_PATIENCE_S", 0.2)
    assert command.main(["status", str(tmp_path)]) == 1
    assert "is not running: its hub is gone" in capsys.readouterr().err
    assert command.main(["status", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["trainer"] is None
    assert command.main(["status", "--hub", endpoint]) == 2
    assert f"no hub at {endpoint}: nothing listens there" in capsys.readouterr().err


def test_a_hub_that_never_comes_is_not_waited_for_without_a_limit(hub, monkeypatch, capsys):
    hub.close()
    monkeypatch.setattr(status_command, "HUB_PATIENCE_S", 0.1)
    begin = clock.now()
    assert command.main(["status"]) == 2
    assert clock.now() - begin < 10.0
    assert f"no hub at {DEFAULT_HUB}" in capsys.readouterr().err


def test_at_a_real_hub(capsys):
    with ZenohHub() as hub:
        speaker = Speaker(
            ZenohCarrier(hub.endpoint),
            ("overview", "trainer", to_json(a_run(FINE))),
            ("status", "arm-9", worker_status("arm-9")),
            present=("trainer", "arm-1", "arm-9"),
        )
        try:
            assert command.main(["status", RUN, "--hub", hub.endpoint]) == 0
        finally:
            speaker.close()
    out = capsys.readouterr().out
    assert "1 of 2" not in out
    assert "2 of 2 workers connected" in out
    assert "ALARM arm-9: the trainer has not admitted it; see its log" in out


def test_a_key_says_where_its_hub_is_and_what_it_may(tmp_path, capsys):
    keys = KeysFolder.init(tmp_path / "keys", ["localhost"])
    with ZenohHub(keys=keys) as hub:
        file = keys.add("eye", "viewer", hub=hub.endpoint)
        for words, code in ((["--key", str(file)], 1), (["--key", str(file), "--hub", "tcp/[::1]:1"], 2)):
            assert command.main(["status", *words]) == code
        out, err = capsys.readouterr()
        assert f"nobody is at {hub.endpoint}" in out
        assert "is not encrypted" in err
    assert command.main(["status", "--key", str(tmp_path / "none")]) == 2
    assert "tickrate keys add NAME makes it" in capsys.readouterr().err


def test_words_from_the_network_cannot_steer_a_terminal():
    assert printable("a\x1b[2Jb\n\x9bc äé漢") == "a?[2Jb??c äé漢"
