"""Children start, are watched, end politely or not, and end with their parent; tried with real processes."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tickrate.runtime import supervision
from tickrate.runtime.supervision import Child, join_path, lower_priority, wait_for

STUB = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tickrate.runtime.supervision import on_parent_exit, join_path
import threading
{body}
"""
ROOT = str(supervision.Path(supervision.__file__).parents[2])


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make children that run a few lines of Python instead of a role."""
    made = []

    def build(body, **options):
        script = tmp_path / f"stub{len(made)}.py"
        script.write_text(STUB.format(root=ROOT, body=textwrap.dedent(body)), encoding="utf-8")
        popen = subprocess.Popen

        def start(command, **kwargs):
            assert command[:3] == [sys.executable, "-m", "tickrate"]
            return popen([sys.executable, str(script), *command[3:]], **kwargs)

        monkeypatch.setattr(supervision.subprocess, "Popen", start)
        child = Child("stub", [], tmp_path / "logs" / f"stub{len(made)}.log", **options)
        made.append(child)
        return child

    yield build
    for child in made:
        child.end(0.5)


def test_a_child_ends_when_its_input_closes_and_its_words_are_kept(make):
    child = make(
        """
        done = threading.Event()
        on_parent_exit(done.set)
        print("up", os.environ["OMP_NUM_THREADS"], flush=True)
        sys.exit(7 if done.wait(20) else 1)
    """,
        threads=3,
    )
    assert child.exit_code is None
    assert child.last_words() == "(it wrote nothing)"
    child.start()
    assert child.running
    assert wait_for(lambda: "up" in child.last_words(), 10)
    assert child.last_words() == "up 3"
    child.end(10)
    assert child.exit_code == 7
    assert not child.running


def test_a_child_that_does_not_listen_is_made_to_end(make):
    child = make("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        threading.Event().wait(60)
    """)
    child.start()
    assert wait_for(lambda: "up" in child.last_words(), 10)
    child.end(0.2)
    assert child.exit_code == (-signal.SIGKILL if sys.platform != "win32" else 1)


def test_a_child_has_a_group_of_its_own_so_that_ctrl_c_reaches_the_parent_alone(make):
    child = make("print(os.getpgid(0) == os.getpid(), flush=True)")
    child.start()
    assert child.wait(10)
    assert child.last_words() == "True"


def test_a_second_start_appends_to_the_log(make):
    child = make("print('here', flush=True)")
    for _ in range(2):
        child.start()
        assert child.wait(10)
    assert child.starts == 2
    assert child.last_words().splitlines() == ["here", "here"]
    assert child.last_words(1) == "here"


def test_a_child_finds_modules_where_its_parent_does(make, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "my_game_of_test.py").write_text("NAME = 'found'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    child = make("""
        join_path()
        import my_game_of_test
        print(my_game_of_test.NAME, flush=True)
    """)
    child.start()
    assert child.wait(10)
    assert child.last_words() == "found"


def test_joining_the_path_adds_the_working_folder_last_and_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    monkeypatch.setenv(supervision.PATH_VARIABLE, os.pathsep.join(["/b", "/c", ""]))
    join_path()
    join_path()
    assert sys.path == ["/a", "/b", str(tmp_path), "/c"]


def test_waiting_has_a_limit(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(supervision.clock, "now", lambda: now[0])
    monkeypatch.setattr(supervision.clock, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    assert not wait_for(lambda: False, 1.0)
    assert now[0] == pytest.approx(1.0, abs=0.03)
    assert wait_for(lambda: now[0] > 1.5, 5.0)
    assert wait_for(lambda: True, 0.0)


def test_lowering_the_priority_is_skipped_where_it_does_not_exist(monkeypatch):
    calls = []
    monkeypatch.setattr(supervision.sys, "platform", "darwin")
    monkeypatch.setattr(supervision.os, "nice", calls.append, raising=False)
    lower_priority("normal")
    lower_priority("low")
    lower_priority("idle")
    monkeypatch.delattr(supervision.os, "nice")
    lower_priority("idle")
    assert calls == [10, 19]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the idle class is Linux's")
def test_an_idle_process_is_in_the_idle_class_and_so_are_its_threads():
    code = (
        "import os, threading; from tickrate.runtime.supervision import lower_priority;"
        "lower_priority('idle');"
        "out = []; t = threading.Thread(target=lambda: out.append(os.sched_getscheduler(0)));"
        "t.start(); t.join(); print(os.sched_getscheduler(0) == os.SCHED_IDLE == out[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "True"


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="sessions are POSIX's")
def test_a_child_has_a_process_group_of_its_own_but_our_session(make):
    """The group keeps Ctrl-C from it; the session makes its priority count against ours (autogroups)."""
    child = make("print(os.getpgid(0) == os.getpid(), os.getsid(0), flush=True)")
    child.start()
    assert child.wait(20.0)
    assert child.last_words() == f"True {os.getsid(0)}"


def fake_proc(root, processes):
    (root / "self").mkdir(parents=True)
    (root / "self" / "autogroup").write_text("/autogroup-7 nice 0\n")
    for number, (session, command) in enumerate(processes, 100):
        (root / str(number)).mkdir()
        (root / str(number) / "stat").write_text(f"{number} (a ) b) S 1 {number} {session} 0 -1\n")
        (root / str(number) / "cmdline").write_bytes(b"\0".join(w.encode() for w in command.split()) + b"\0")
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="autogroups are Linux's")
@pytest.mark.parametrize(
    ("processes", "yields"),
    [
        ([], True),
        ([("mine", "python -m tickrate worker a.yaml")], False),
        ([("other", "python -m tickrate worker a.yaml")], True),
        ([("mine", "/opt/bin/tickrate worker a.yaml")], False),
        ([("mine", "python -m tickrate trainer a.yaml"), ("mine", "worker")], True),
    ],
)
def test_a_session_gives_way_unless_a_worker_is_in_it(tmp_path, processes, yields):
    session = os.getsid(0)
    told = [(session if whose == "mine" else session + 1, command) for whose, command in processes]
    proc = fake_proc(tmp_path / "proc", told)
    assert supervision.yield_session(proc) is yields
    assert (proc / "self" / "autogroup").read_text() == ("19" if yields else "/autogroup-7 nice 0\n")


@pytest.mark.skipif(sys.platform != "linux", reason="autogroups are Linux's")
def test_without_autogroups_nothing_is_written(tmp_path):
    assert supervision.yield_session(tmp_path) is False
    assert list(tmp_path.iterdir()) == []


def test_memory_is_kept_where_the_c_library_can_be_told():
    code = "from tickrate.runtime.supervision import keep_memory; print(keep_memory(), len(bytes(8 << 20)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split()[1] == str(8 << 20)
    if sys.platform != "linux":
        assert done.stdout.startswith("False")
