"""Delays, timing and histories from an experiment file: on live interfaces, on simulators, in the rows."""

import itertools
import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from runtime_kit import RecordingOutlet

from tickrate.cli.training import run_experiment
from tickrate.config.experiment import dump_experiment, experiment_from_mapping, load_experiment
from tickrate.data.checksums import Verdict
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ConfigError, ObservationError
from tickrate.policy import Policy
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import (
    DelayConfig,
    EnvironmentConfig,
    LiveEnvironment,
    LockStepEnvironment,
    open_environment,
    realtime_config,
)
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig
from tickrate.testing import FakeClock

EXACT_DRONE = {
    "interface": {
        "simulated_step_s": 0.05,
        "drone_kwargs": {"communication_delay_min": 0.0, "communication_delay_max": 0.0},
    }
}
"""The drone in lock-step without a radio link."""


class Walk(gymnasium.Env):
    """Adds the command to a place and observes it; an image shows the place; ends after ``length`` steps."""

    def __init__(self, length=12, image=False, discrete=False):
        self.observation_space = spaces.Box(-100, 100, (1,), np.float64)
        if image:
            self.observation_space = spaces.Box(0, 255, (3, 3), np.uint8)
        self.action_space = spaces.Discrete(3, start=-1) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.length, self.image, self.closed = length, image, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0.0, 0
        return self._observe(), {}

    def step(self, action):
        self.place += float(np.asarray(action).reshape(-1)[0])
        self.steps += 1
        return self._observe(), self.place, False, self.steps == self.length, {}

    def close(self):
        self.closed += 1

    def _observe(self):
        if self.image:
            return np.full((3, 3), self.steps, np.uint8)
        return np.array([self.place])


@pytest.fixture(autouse=True)
def registered():
    def stacked(padding_type="reset", **kwargs):
        return FrameStackObservation(Walk(image=True, **kwargs), 4, padding_type=padding_type)

    gymnasium.register("Walk-v0", Walk, disable_env_checker=True)
    gymnasium.register("Stacked-v0", stacked, disable_env_checker=True)
    yield
    del gymnasium.registry["Walk-v0"], gymnasium.registry["Stacked-v0"]


def collect(environment, steps, *, checksum=False, seed=0):
    """Return (contract, rows) of a warm-up on an environment."""
    contract = EnvironmentContract.of(environment, checksum=checksum)
    outlet = RecordingOutlet(stop_after_steps=steps)
    config = WorkerConfig(evaluation=EvaluationConfig(every_steps=0), checksum=checksum)
    ControlLoop(environment, contract.schema(), outlet, config, seed=seed).run()
    return contract, outlet.rows


def pointer(timing):
    return math.floor(timing[0]) + int(timing[2])


# -- the experiment file


def test_delays_are_read_and_written(tmp_path):
    file = tmp_path / "delays.yaml"
    file.write_text(
        "environment:\n  id: drone\n  delays: {action: [3, 5], observation: 1}\n"
        "  realtime: {real_time: false}\n"
    )
    experiment = load_experiment(file)
    assert experiment.environment.delays == DelayConfig(action=(3, 5), observation=1)
    file.write_text(dump_experiment(experiment))
    assert load_experiment(file) == experiment


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"delays": {"action": -1}}, "action=-1"),
        ({"delays": {"action": [5, 3]}}, r"action=\(5, 3\)"),
        ({"delays": {"action": [1, 2, 3]}}, "expected 2 values"),
        ({"delays": {"action": 0.5}}, "delays.action"),
        ({"delays": {"reward": 1}}, "reward"),
        ({"delays": {"action": 30, "observation": [0, 2]}}, "32 steps in all: 31 is the longest"),
        ({"stacks": {"value": 1}}, "a history holds 2 frames or more"),
    ],
)
def test_impossible_delays_and_histories_are_refused(environment, message):
    with pytest.raises(ConfigError, match=message):
        experiment_from_mapping({"environment": {"id": "drone", **environment}})


def test_what_delays_choose_unless_told():
    def chosen(realtime, **delays):
        settings = realtime_config(EnvironmentConfig("drone", {}, realtime, DelayConfig(**delays)))
        return settings["timing_in_obs"], settings["act_buf_len"]

    assert chosen({}, action=0) == (True, 4)  # the drone's own four are enough
    assert chosen({}, action=(3, 5), observation=1) == (True, 7)  # in real time one more is under way
    assert chosen({"real_time": False}, action=(3, 5), observation=1) == (True, 6)
    assert chosen({"act_buf_len": 2, "timing_in_obs": False}, action=9) == (False, 2)
    assert "timing_in_obs" not in realtime_config(EnvironmentConfig("drone"))


# -- Gymnasium environments


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize(("action", "observation"), [(0, 0), (2, 0), (0, 2), ((1, 3), (0, 2))])
def test_the_rows_of_a_simulator_tell_which_commands_have_come_through(action, observation, discrete):
    """Its rewards are not delayed and grow by the command in force: an independent book of the delays."""
    config = EnvironmentConfig(
        "Walk-v0", {"discrete": discrete}, {}, DelayConfig(action=action, observation=observation)
    )
    environment = open_environment(config)
    longest = np.max(action) + np.max(observation)
    assert list(environment.leaf_spaces) == ["value", "timing", "actions"]
    assert (environment.period_s, environment.action_buffer_length) == (0.0, max(1, longest))
    _, rows = collect(environment, 100)
    default, length = environment.env.default_action.item(), environment.action_buffer_length
    pointers = set()
    for row in rows:
        if row["step"] == 0:
            sent, rewards = [default] * 10, [0.0]
        np.testing.assert_array_equal(row["o/actions"].ravel(), sent[-length:])
        age, step, behind = int(row["o/timing"][0]), int(row["step"]), int(row["o/timing"][2])
        assert row["o/timing"][1] == 1.0
        assert age <= np.max(observation)
        assert behind <= np.max(action)
        if age < step:  # captured after the reset
            in_force = rewards[step - age] - rewards[step - age - 1]
            assert sent[-1 - pointer(row["o/timing"])] == pytest.approx(in_force, abs=1e-5)
            pointers.add(age + behind)
        sent.append(row["action"].item())
        rewards.append(float(row["reward"]))
    assert max(pointers) == longest
    environment.close()


def test_a_delayed_command_is_in_force_so_many_steps_later():
    environment = open_environment(EnvironmentConfig("Walk-v0", {}, {}, DelayConfig(action=2)))
    environment.reset(seed=0)
    places = []
    for command in (1.0, 0.5, 0.25, 0.125, 0.0625):
        observation, reward, *_ = environment.step(np.array([command], np.float32))
        places.append(observation["value"].item())
        assert reward == places[-1]
    assert places == [0.0, 0.0, 1.0, 1.5, 1.75]
    np.testing.assert_array_equal(observation["actions"].ravel(), [0.125, 0.0625])
    np.testing.assert_array_equal(observation["timing"], [0, 1, 2])
    environment.close()


def test_a_delayed_observation_is_old_and_its_reward_is_not():
    environment = open_environment(EnvironmentConfig("Walk-v0", {}, {}, DelayConfig(observation=2)))
    environment.reset(seed=0)
    seen = [environment.step(np.array([1.0], np.float32)) for _ in range(4)]
    assert [step[0]["value"].item() for step in seen] == [0.0, 0.0, 1.0, 2.0]
    assert [step[1] for step in seen] == [1.0, 2.0, 3.0, 4.0]
    assert [step[0]["timing"][0] for step in seen] == [1, 2, 2, 2]
    environment.close()


def test_a_time_limit_of_a_simulator_truncates():
    environment = open_environment(EnvironmentConfig("Walk-v0", {"length": 3}, {}, DelayConfig(action=1)))
    _, rows = collect(environment, 6)
    flags = [int(row["flags"]) for row in rows]
    assert flags == [0, 0, Flag.TRUNCATED, Flag.FINAL] * 2
    environment.close()


def test_the_run_s_seed_draws_the_delays():
    def timings(seed):
        environment = open_environment(EnvironmentConfig("Walk-v0", {}, {}, DelayConfig(action=(0, 4))))
        _, rows = collect(environment, 60, seed=seed)
        environment.close()
        return np.stack([row["o/timing"] for row in rows])

    np.testing.assert_array_equal(timings(3), timings(3))
    assert not np.array_equal(timings(3), timings(4))


def test_a_simulator_has_no_clock_to_set():
    config = EnvironmentConfig("Walk-v0", realtime={"act_buf_len": 3})
    environment = open_environment(config)
    assert isinstance(environment, LiveEnvironment)
    assert list(environment.leaf_spaces) == ["value", "actions"]
    environment.close()
    for key in ("time_step_duration", "real_time", "obs_format"):
        with pytest.raises(ConfigError, match=f"sets {key}.*no clock: only act_in_obs, act_buf_len"):
            open_environment(EnvironmentConfig("Walk-v0", realtime={key: 1, "act_buf_len": 1}))


# -- images and histories


@pytest.mark.parametrize("delays", [None, DelayConfig(observation=1)])
def test_the_frames_of_a_stacked_simulator_are_stored_once_and_come_back_whole(delays):
    config = EnvironmentConfig("Stacked-v0", delays=delays, stacks={"value": 4})
    environment = open_environment(config)
    assert environment.leaf_spaces["value"].shape == (4, 3, 3)
    contract, rows = collect(environment, 60, checksum=True)
    assert contract.stacks == {"value": 4}
    field = contract.schema().observation[0]
    assert (field.name, field.shape, field.stack, field.dtype) == ("value", (3, 3), 4, "uint8")
    replay = Replay(contract.schema(), 200, gamma=0.9, n_step=1, seed=0)
    for row in rows:
        replay.add(row.reshape(1))
    verdicts = replay.verify(np.arange(len(rows)))
    assert np.count_nonzero(verdicts == Verdict.EQUAL) == 60
    assert not np.any(verdicts == Verdict.DIFFERENT)
    environment.close()


def test_with_random_observation_delays_whole_histories_are_stored():
    config = EnvironmentConfig("Stacked-v0", delays=DelayConfig(observation=(0, 2)), stacks={"value": 4})
    environment = open_environment(config)
    contract, rows = collect(environment, 60, checksum=True)
    assert contract.stacks == {}
    replay = Replay(contract.schema(), 200, gamma=0.9, n_step=1, seed=0)
    for row in rows:
        replay.add(row.reshape(1))
    verdicts = replay.verify(np.arange(len(rows)))
    assert np.count_nonzero(verdicts == Verdict.EQUAL) == 60
    environment.close()


def test_an_image_of_a_simulator_is_recorded_as_it_is():
    environment = LockStepEnvironment(Walk(image=True), "walk")
    contract, rows = collect(environment, 12)
    assert contract.schema().observation[0].dtype == "uint8"
    assert [int(row["o/value"][1, 2]) for row in rows] == list(range(13))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "Stacked-v0", "stacks": {"vale": 4}}, "Did you mean 'value'"),
        ({"id": "Stacked-v0", "stacks": {"value": 3}}, r"holds 3 frames, but its shape is \(4, 3, 3\)"),
        ({"id": "drone", "stacks": {"value": 4}}, "is an interface.*method stacks"),
    ],
)
def test_histories_that_are_none_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        open_environment(EnvironmentConfig(**config))


def test_a_history_that_could_not_be_put_together_again_is_refused_at_once():
    zeros = open_environment(
        EnvironmentConfig("Stacked-v0", {"padding_type": "zero"}, stacks={"value": 4}), FakeClock()
    )
    zeros.reset(seed=0)  # its first frame is black as well: only the next shows it
    image = EnvironmentConfig("Walk-v0", {"image": True}, stacks={"value": 3})
    environment = open_environment(image)
    environment.reset(seed=0)
    with pytest.raises(ObservationError, match="did not move it on by one frame"):
        environment.step(np.zeros(1, np.float32))
    zeros.close()
    environment.close()


# -- the drone in lock-step


def drone(delays, **realtime):
    realtime = {"real_time": False, **realtime}
    return EnvironmentConfig("drone", EXACT_DRONE, realtime, delays)


def test_the_drone_s_own_link_is_switched_off():
    """Without a link a command of 1 unit/s moves the drone within the very step that sends it."""
    environment = open_environment(drone(DelayConfig()))
    environment.reset(seed=0)
    xs = [environment.step(np.array([1.0, 0.0], np.float32))[0]["x"].item() for _ in range(10)]
    # The drone's loop of 10 ms sends its position before it moves: 4 of the first 5 moves show.
    np.testing.assert_allclose(xs, 0.04 + 0.05 * np.arange(10), atol=1e-6)
    environment.close()


@pytest.mark.parametrize("delay", [1, 4])
def test_the_drone_obeys_exactly_so_many_steps_later(delay):
    environment = open_environment(drone(DelayConfig(action=delay)))
    environment.reset(seed=0)
    xs = [environment.step(np.array([1.0, 0.0], np.float32))[0]["x"].item() for _ in range(10)]
    expected = np.maximum(0.0, 0.04 + 0.05 * (np.arange(10) - delay))
    expected[:delay] = 0.0
    np.testing.assert_allclose(xs, expected, atol=1e-6)
    environment.close()


def flown(velocity):
    """The velocity along x that the drone flies: its speed is 2 at most, the direction kept."""
    return float(velocity[0]) / max(1.0, math.hypot(*velocity) / 2.0)


def test_rows_of_the_drone_over_many_steps_point_at_the_command_in_force():
    environment = open_environment(drone(DelayConfig(action=(3, 5)), act_buf_len=6))
    _, rows = collect(environment, 300)
    delays = [int(row["o/timing"][2]) for row in rows if row["step"] > 5]
    assert set(delays) == {3, 4, 5}
    assert all(row["o/timing"][0] == 0 and row["o/timing"][1] == 1 for row in rows)
    assert not np.any([row["start"] for row in rows])  # there is no clock to be late for
    assert environment.timing() is None
    for before, row in itertools.pairwise(rows):
        if row["step"] > 6 and abs(row["o/x"].item()) < 0.9:
            newest, older = (flown(r["o/actions"][-1 - pointer(r["o/timing"])]) for r in (row, before))
            moved = row["o/x"].item() - before["o/x"].item()
            assert moved == pytest.approx(0.04 * newest + 0.01 * older, abs=2e-5)
    environment.close()


@pytest.mark.parametrize("delays", [0, 1, 4, [3, 5]], ids=str)
def test_sac_learns_on_the_delayed_drone_from_an_experiment_file(delays, tmp_path):
    file = tmp_path / "drone.yaml"
    file.write_text(
        "environment:\n"
        "  id: drone\n"
        "  kwargs:\n"
        "    interface:\n"
        "      simulated_step_s: 0.05\n"
        "      drone_kwargs: {communication_delay_min: 0.0, communication_delay_max: 0.0}\n"
        f"  delays: {{action: {delays}}}\n"
        "  realtime: {real_time: false, act_buf_len: 5}\n"
        "algorithm:\n  batch_size: 16\n  actor: {hidden: [16, 16]}\n  critic: {hidden: [16, 16]}\n"
        "replay: {capacity: 1000, n_step: 1}\n"
        "worker:\n  evaluation: {every_steps: 0}\n"
        "trainer: {start_steps: 20, total_steps: 40}\n"
        f"run: {{mode: serial, root: '{tmp_path}/runs'}}\n"
    )
    outcome = run_experiment(load_experiment(file), "drone", "refuse")
    assert not outcome.problems
    policy = Policy.load_file(outcome.folder / "latest.policy")
    assert policy.contract.action_buffer_length == 5
    assert [leaf.path for leaf in policy.contract.observation][-2:] == ["timing", "actions"]
