"""Real roles, a synchronous run: with the trainer killed five times it ends bit-equal to one without."""

import json
import signal

import numpy as np
import pytest
from process_kit import Roles

from tickrate.clock import sleep
from tickrate.data.records import Segment
from tickrate.data.replay import SNAPSHOT
from tickrate.data.schema import Flag
from tickrate.data.snapshot import read_snapshot
from tickrate.runtime.published import HANDED_OUT
from tickrate.runtime.run_folder import load_state

pytestmark = [pytest.mark.long, pytest.mark.timeout(400), pytest.mark.xdist_group("resume")]
# One group: all compare with the same run, which is made once.

DEVICE = '''
import numpy as np
from gymnasium import spaces
from tickrate import RealTimeGymInterface
from tickrate.clock import sleep

class Device(RealTimeGymInterface):
    """A point that drifts by chance and is pushed; the same seed and actions give the same episodes."""

    def get_observation_space(self):
        return spaces.Tuple((spaces.Box(-100, 100, (2,), np.float32),))

    def get_action_space(self):
        return spaces.Box(-1, 1, (1,), np.float32)

    def get_default_action(self):
        return np.zeros(1, np.float32)

    def send_control(self, control):
        self.push = float(control[0])

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.place, self.left = self.rng.normal(size=2), int(self.rng.integers(3, 40))
        return (self.place.astype(np.float32),), {}

    def get_obs_rew_terminated_info(self):
        sleep(0.003)
        self.left -= 1
        self.place = 0.95 * self.place + 0.1 * self.rng.normal(size=2) + [0.2 * self.push, 0.0]
        return (self.place.astype(np.float32),), 1.0 - abs(float(self.place[0])), self.left <= 0, {}

    def wait(self):
        pass
'''
EXPERIMENT = {
    "environment": {
        "id": "my_device_of_test:Device",
        "realtime": {"real_time": False, "ep_max_length": 25, "act_buf_len": 2},
    },
    "algorithm": {
        "normalise_observations": True,
        "actor": {"hidden": [16, 16]},
        "critic": {"hidden": [16, 16]},
        "batch_size": 16,
    },
    "replay": {"capacity": 400},  # the ring comes round
    "trainer": {
        "start_steps": 60,
        "total_steps": 600,
        "checkpoint_every_s": 5.0,
        "updates_per_step": 0.7,
        "priority": "normal",
    },
    "worker": {"synchronous_steps": 40, "evaluation": {"every_steps": 100}},
}
CLOCKED = ("start", "lateness", "observation_age")
"""Fields of a row that say when something happened: no two runs have the same."""
KILLS = (0, 100, 200, 300, 400)
"""Steps in the newest checkpoint after which the trainer is killed, a random time later."""


def run(home, kills=(), seed=0):
    """Run to the end in a folder; return the final checkpoint and the rows of the journal."""
    roles = Roles(home, DEVICE, EXPERIMENT)
    try:
        return go(roles, kills, seed)
    finally:
        roles.close()


def go(roles, kills, seed):
    rng = np.random.default_rng(seed)
    roles.hub()
    trainer, worker = roles.trainer(), roles.worker()
    for steps in kills:
        roles.wait_for(roles.folder.journal.exists, "journal")
        roles.wait_for(lambda steps=steps: saved_steps(roles) >= steps, f"checkpoint of {steps} steps")
        sleep(float(rng.uniform(0.0, 0.6)))
        assert trainer.poll() is None
        roles.kill(trainer)
        assert trainer.returncode == -signal.SIGKILL
        sleep(float(rng.uniform(0.0, 0.6)))
        trainer = roles.trainer()
    assert roles.finish(trainer, 150.0) == 0, roles.words
    assert worker.poll() is None  # one and the same worker throughout
    assert roles.end(worker) == 0
    assert "Traceback" not in roles.words
    journal = Segment.open(roles.folder.journal)
    rows = journal.read(np.arange(journal.oldest, journal.head))
    journal.close()
    return roles.folder.latest_checkpoint(), rows


def saved_steps(roles):
    newest = roles.folder.latest_checkpoint()
    return 0 if newest is None else json.loads((newest / "counters.json").read_text())["steps"]


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unkilled"))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_trainer_killed_five_times_ends_bit_equal(tmp_path, unkilled, seed):
    (whole, rows), (resumed, resumed_rows) = unkilled, run(tmp_path, KILLS, seed)

    assert resumed_rows.dtype == rows.dtype
    assert len(resumed_rows) == len(rows) > 350
    for name in rows.dtype.names:
        if name not in CLOCKED:
            np.testing.assert_array_equal(resumed_rows[name], rows[name], err_msg=name)
    assert set(rows["flags"][rows["flags"] & Flag.ROUND_END != 0]) == {int(Flag.FINAL | Flag.ROUND_END)}

    (state, counters), (resumed_state, resumed_counters) = load_state(whole), load_state(resumed)
    assert resumed_state.keys() == state.keys()
    assert any(name.startswith("optimiser/") for name in state)
    for name, array in state.items():
        assert resumed_state[name].tobytes() == array.tobytes(), name
    for name in ("steps", "updates", "forgiven", "published_at", "version", "rows", "round_target"):
        assert resumed_counters[name] == counters[name], name
    assert counters["steps"] >= 600
    assert counters["updates"] == int((600 - 60) * 0.7)  # what is due by the limit
    assert counters["version"] >= 8

    snapshots = [read_snapshot(folder / SNAPSHOT)[0] for folder in (whole, resumed)]
    for key in ("oldest", "head", "streams", "random", "schema", "capacity", "gamma", "n_step"):
        assert snapshots[1][key] == snapshots[0][key], key
    assert (resumed / HANDED_OUT).read_bytes() == (whole / HANDED_OUT).read_bytes()
