"""Hub, trainer and worker as processes: in any order, killed, restarted, drained, and every row arrives."""

import json
import re

import numpy as np
import psutil
import pytest
from process_kit import Roles

from tickrate.clock import sleep
from tickrate.data.records import Segment
from tickrate.runtime.ledger import Ledger

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]

DEVICE = '''
import numpy as np
from gymnasium import spaces
from tickrate import RealTimeGymInterface

class Device(RealTimeGymInterface):
    """Observes how often it was read, and says so in a file."""

    def __init__(self):
        self.log, self.reads = open("reads.log", "a", buffering=1), 0

    def get_observation_space(self):
        return spaces.Tuple((spaces.Box(-1e9, 1e9, (2,), np.float32),))

    def get_action_space(self):
        return spaces.Box(-1, 1, (1,), np.float32)

    def get_default_action(self):
        return np.zeros(1, np.float32)

    def send_control(self, control):
        pass

    def reset(self, seed=None, options=None):
        return (np.zeros(2, np.float32),), {}

    def get_obs_rew_terminated_info(self):
        self.reads += 1
        self.log.write("\\n")
        return (np.full(2, self.reads, np.float32),), float(self.reads % 7), False, {}

    def wait(self):
        pass

    def close(self):
        self.log.close()
'''
EXPERIMENT = {
    "environment": {
        "id": "my_device_of_test:Device",
        "realtime": {"time_step_duration": 0.01, "start_obs_capture": 0.01, "ep_max_length": 50},
    },
    "algorithm": {"actor": {"hidden": [16, 16]}, "critic": {"hidden": [16, 16]}, "batch_size": 16},
    "replay": {"capacity": 50_000},
    "trainer": {
        "start_steps": 100,
        "checkpoint_every_s": 2.0,
        "updates_per_step": 0.1,
        "priority": "normal",
    },
    "worker": {"evaluation": {"every_steps": 0}},
}


class CountedRoles(Roles):
    """Roles whose device counts how often it was read."""

    def __init__(self, home):
        super().__init__(home, DEVICE, EXPERIMENT)

    @property
    def reads(self):
        path = self.home / "reads.log"
        return path.stat().st_size if path.exists() else 0

    def act(self, count=100):
        """Wait until the device has been read so many times more."""
        target = self.reads + count
        self.wait_for(lambda: self.reads >= target, f"{count} further steps")

    def companion(self, worker):
        for child in psutil.Process(worker.pid).children():
            if "companion" in child.cmdline():
                return child
        return None

    def steps(self):
        newest = self.folder.latest_checkpoint()
        return 0 if newest is None else json.loads((newest / "counters.json").read_text())["steps"]

    def compare(self):
        """Check that the journal holds each row that ever came into the outbox, once and in order."""
        with Ledger(self.folder.ledger, 1) as ledger:
            (name, _), *others = ledger.streams().values()
        assert (name, others) == ("arm", [])
        sent, kept = Segment.open(self.place.path / "outbox.seg"), Segment.open(self.folder.journal)
        assert sent.oldest == kept.oldest == 0
        assert kept.head == sent.head > 0
        ours, theirs = (s.read(np.arange(s.head)) for s in (sent, kept))
        for column in ours.dtype.names:
            if column != "stream":
                np.testing.assert_array_equal(ours[column], theirs[column])
        pairs = list(zip(ours["episode"].tolist(), ours["step"].tolist(), strict=True))
        assert pairs == sorted(set(pairs))
        acted = int(np.count_nonzero(ours["flags"] & 4 == 0))
        sent.close()
        kept.close()
        return acted


@pytest.fixture
def roles(tmp_path):
    made = CountedRoles(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("order", [("worker", "trainer", "hub"), ("hub", "trainer", "worker")], ids="-".join)
def test_each_is_killed_and_comes_back_and_every_row_arrives(roles, order):
    running = {}
    for role in order:
        running[role] = getattr(roles, role)()
        sleep(0.5)
    roles.act(200)
    roles.wait_for(roles.steps, "checkpoint")
    for another, what in ((roles.worker(), "the worker 'arm' of "), (roles.trainer(), "the run folder ")):
        assert roles.finish(another) == 2
        assert re.search(what + r".* is in use by process \d+ on ", roles.words)

    roles.kill(running["hub"])
    roles.act(100)  # acting goes on
    running["hub"] = roles.hub()
    roles.act(100)

    roles.kill(running["trainer"])
    roles.act(100)
    running["trainer"] = roles.trainer()
    roles.act(100)

    roles.companion(running["worker"]).kill()
    roles.act(100)

    roles.kill(running["worker"])  # its companion commits what is left, and makes room for the next
    running["worker"] = roles.worker()
    roles.act(200)

    assert roles.end(running["trainer"]) == 0
    roles.act(100)
    assert roles.end(running["worker"]) == 0
    assert "rows are not delivered yet: they stay in the outbox" in roles.words
    drain = roles.worker("--drain")
    sleep(1.0)
    running["trainer"] = roles.trainer()
    assert roles.finish(drain) == 0
    assert "all delivered" in roles.words
    again = roles.worker("--drain")
    assert roles.finish(again) == 0
    assert "nothing to deliver" in roles.words
    assert roles.end(running["trainer"]) == 0
    assert "Traceback" not in roles.words
    assert roles.compare() == roles.steps()
