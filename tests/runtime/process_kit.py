"""Hub, trainer and worker as processes, each started as a person would in a terminal of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tickrate
from tickrate.clock import now, sleep
from tickrate.runtime.run_folder import RunFolder
from tickrate.wire.zenoh_hub import _free_port

ROOT = Path(tickrate.__file__).parents[1]
HUB = """
import sys
from tickrate.wire.zenoh_carrier import ZenohHub
hub = ZenohHub(port=int(sys.argv[1]))
sys.stdin.read()
hub.close()
"""


class Roles:
    """The roles of one run.

    Args:
        home: where they are started.
        device: source of the module ``my_device_of_test``.
        experiment: the experiment, without the hub's address.
    """

    def __init__(self, home, device, experiment):
        self.home, self.port, self.processes = home, _free_port("127.0.0.1"), []
        (home / "my_device_of_test.py").write_text(device, encoding="utf-8")
        experiment = {**experiment, "network": {"hub": f"tcp/127.0.0.1:{self.port}"}, "run": {"name": "r"}}
        (home / "mine.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
        self.folder = RunFolder(home / "runs" / "r")
        self.place = self.folder.worker("arm")

    def begin(self, *command):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with (self.home / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.home,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def hub(self):
        return self.begin("-c", HUB, str(self.port))

    def trainer(self):
        return self.begin("-m", "tickrate", "trainer", "mine.yaml", "--resume")

    def worker(self, *more):
        return self.begin("-m", "tickrate", "worker", "mine.yaml", "--name", "arm", *more)

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdin.close()

    def end(self, process, number=signal.SIGTERM, limit_s=40.0):
        process.send_signal(number)
        return self.finish(process, limit_s)

    def finish(self, process, limit_s=40.0):
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end\n{self.words}")
        process.stdin.close()
        return code

    @property
    def words(self):
        logs = "".join(f"== {p.name}\n{p.read_text()}" for p in sorted(self.folder.path.glob("logs/*.log")))
        return (self.home / "output.txt").read_text() + logs

    def wait_for(self, condition, what, limit_s=40.0):
        deadline = now() + limit_s
        while not condition():
            assert now() < deadline, f"no {what}\n{self.words}"
            sleep(0.05)

    def close(self):
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            process.stdin.close()
