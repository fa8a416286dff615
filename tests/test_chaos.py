"""The two-minute version of the benchmark that kills roles and cuts links: nothing lost, nothing twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.timeout(420)
@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark looks into /dev/shm and /proc")
def test_two_minutes_of_kills_and_cuts_lose_nothing():
    command = [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), "--quick"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "lost 0, doubled 0, out of order 0, different 0" in done.stdout
