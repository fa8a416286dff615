"""Importing the library does nothing but import: no torch, no files, no threads, no environment changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROBE = """
import json, os, sys, threading

events = []
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def hook(name, args):
    if name == "open" and isinstance(args[2], int) and args[2] & WRITES:
        events.append(f"{name} {args[0]}")
    elif name in {"os.mkdir", "socket.bind", "socket.connect", "subprocess.Popen", "os.remove", "os.rename"}:
        events.append(f"{name} {args[0]}")

for module in sys.argv[2:]:  # other people's packages, whose doings are not ours
    __import__(module)
before = dict(os.environ)
threads = threading.active_count()
sys.addaudithook(hook)
for module in sys.argv[1].split(","):
    __import__(module)
print(json.dumps({
    "torch": sorted(m for m in sys.modules if m.split(".")[0] == "torch")[:3],
    "events": events,
    "threads": threading.active_count() - threads,
    "environment": dict(os.environ) == before,
    "file": sys.modules["tickrate"].__file__,
}))
"""


def probe(modules: str, home: Path, *first: str) -> dict[str, object]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MPL"))}
    environment |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, modules, *first],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("modules", ["tickrate,tickrate.realtime", "tickrate.data,tickrate.policy"])
def test_import_has_no_effects(tmp_path, modules):
    report = probe(modules, tmp_path / "nonexistent", "gymnasium", "numpy")
    assert report["torch"] == []
    assert report["events"] == []
    assert report["threads"] == 0
    assert report["environment"]
    assert not (tmp_path / "nonexistent").exists()


@pytest.mark.parametrize("modules", ["tickrate.wire", "tickrate.tracking"])
def test_import_of_rooms_with_large_dependencies_loads_no_torch(tmp_path, modules):
    report = probe(modules, tmp_path, "gymnasium")
    assert report["torch"] == []
    assert report["threads"] == 0
    assert report["environment"]


def test_the_probe_sees_effects(tmp_path):
    """A module that does everything it should not is reported, so that an empty report means something."""
    (tmp_path / "tickrate.py").write_text(
        "import os, threading, time\n"
        "os.environ['MARK'] = '1'\n"
        f"open({str(tmp_path / 'x')!r}, 'w').close()\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "tickrate"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["threads"] == 1
    assert not report["environment"]
    assert [e for e in report["events"] if e.startswith("open")]
