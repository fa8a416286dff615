import numpy as np
import pytest
from gymnasium import spaces

from tickrate.errors import ConfigError, DelayNotSeen
from tickrate.realtime import RealTimeEnv
from tickrate.realtime.delay_subjects import excitations
from tickrate.realtime.delays import DelayedInterface, _Line, probe_delay
from tickrate.testing import End, FakeClock, FakeInterface, ProbeEnv, Silent

PERIOD = 0.05


def make_env(clock, fake, **config):
    return RealTimeEnv({"interface": lambda: fake, "time_step_duration": PERIOD, **config}, clock=clock)


# -- the probe on an interface


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_a_fixed_lag_is_found(lag):
    clock = FakeClock()
    fake = FakeInterface(clock=clock, lag=lag)
    report = probe_delay(fake, clock=clock, repeats=6, period_s=PERIOD)
    assert report.steps == (lag,) * 6
    assert (report.min_steps, report.max_steps) == (lag, lag)
    assert report.required_action_buffer >= lag
    assert report.seconds == pytest.approx([lag * PERIOD] * 6)
    assert report.leaves == ("command",)
    assert report.action_buffer_length is None
    assert report.enough is None
    assert fake.values[-1] == 0.0  # left at rest


def test_a_random_lag_is_reported_as_a_range():
    clock = FakeClock()
    device = DelayedInterface(FakeInterface(clock=clock), action_delay=(0, 2), seed=1)
    report = probe_delay(device, clock=clock, repeats=60, period_s=PERIOD)
    assert (report.min_steps, report.max_steps) == (1, 3)
    assert set(report.steps) == {1, 2, 3}
    assert report.required_action_buffer == 3
    assert "1 to 3 steps" in str(report)


def test_noise_is_told_from_an_effect():
    clock = FakeClock()
    rng = np.random.default_rng(0)
    fake = FakeInterface(
        clock=clock,
        lag=3,
        observe=lambda device: (device.applied + rng.normal(0.0, 0.02, 1).astype(np.float32),),
        observation_space=spaces.Tuple((spaces.Box(-2.0, 2.0, (1,), np.float32),)),
    )
    report = probe_delay(fake, clock=clock, repeats=10, settle_steps=20, period_s=PERIOD)
    assert report.steps == (3,) * 10


def test_a_clock_among_the_leaves_is_ignored():
    clock = FakeClock()
    fake = FakeInterface(
        clock=clock,
        lag=2,
        observe=lambda device: {"command": device.applied, "time": np.array([clock.now()])},
        observation_space=spaces.Dict(
            {
                "command": spaces.Box(-1.0, 1.0, (1,), np.float32),
                "time": spaces.Box(0.0, 1e9, (1,), np.float64),
            }
        ),
    )
    report = probe_delay(fake, clock=clock, repeats=4, period_s=PERIOD)
    assert report.steps == (2,) * 4
    assert report.ignored == ("time",)
    assert report.leaves == ("command",)
    with pytest.raises(DelayNotSeen, match="does not rest: time"):
        probe_delay(fake, clock=clock, watch=["time"], period_s=PERIOD)
    with pytest.raises(ConfigError, match="no observation leaf"):
        probe_delay(fake, clock=clock, watch=["speed"], period_s=PERIOD)


def test_a_deaf_device_is_an_error_and_is_left_at_rest():
    clock = FakeClock()
    fake = FakeInterface(
        clock=clock,
        observe=lambda device: np.zeros(1, np.float32),
        observation_space=spaces.Box(-1.0, 1.0, (1,), np.float32),
    )
    with pytest.raises(DelayNotSeen, match="no visible effect within 8 steps; watched value"):
        probe_delay(fake, clock=clock, max_steps=8, period_s=PERIOD)
    assert fake.values[-1] == 0.0


def test_a_lost_device_ends_the_probe():
    clock = FakeClock()
    fake = FakeInterface(clock=clock, on_capture={30: Silent("unplugged")})
    with pytest.raises(ConnectionError, match="unplugged"):
        probe_delay(fake, clock=clock, period_s=PERIOD)


def test_bad_numbers_are_refused():
    for wrong in (
        {"repeats": 0},
        {"max_steps": 0},
        {"settle_steps": 3},
        {"amplitude": 1.5},
        {"period_s": 0.0},
    ):
        with pytest.raises(ConfigError):
            probe_delay(FakeInterface(clock=FakeClock()), clock=FakeClock(), **wrong)
    with pytest.raises(ConfigError, match="quiet="):
        probe_delay(ProbeEnv("discount"))


# -- the probe on an environment


@pytest.mark.parametrize("obs_format", ["tuple", "dict", "flat"])
@pytest.mark.parametrize("lag", [1, 2, 4])
def test_an_environment_is_probed_without_its_action_buffer(obs_format, lag):
    clock = FakeClock()
    fake = FakeInterface(clock=clock, lag=lag)
    env = make_env(clock, fake, obs_format=obs_format, act_buf_len=2)
    report = probe_delay(env, repeats=4)
    assert fake.values[-1] == 0.0  # left at rest
    assert report.steps == (lag,) * 4
    assert report.seconds == pytest.approx([lag * PERIOD] * 4)
    assert report.action_buffer_length == 2
    assert report.enough is (lag <= 2)
    assert ("enough" if lag <= 2 else "too short") in str(report)
    env.close()


@pytest.mark.parametrize("lag", [1, 3])
def test_in_lock_step_one_step_fewer_is_on_its_way(lag):
    clock = FakeClock()
    env = make_env(clock, FakeInterface(clock=clock, lag=lag), real_time=False)
    assert probe_delay(env, repeats=4).steps == (lag - 1,) * 4
    env.close()


def test_the_reported_length_is_what_a_markov_observation_needs():
    # With act_buf_len = delay, the observation and the buffer hold every command: the newest seen, then the
    # rest.
    clock = FakeClock()
    lag = 3
    env = make_env(clock, FakeInterface(clock=clock, lag=lag), act_buf_len=lag, obs_format="dict")
    env.reset()
    sent = [np.array([0.01 * (i + 1)], np.float32) for i in range(20)]
    for i, action in enumerate(sent):
        observation, *_ = env.step(action)
        if i >= lag:
            held = [observation["command"], *observation["actions"]]
            assert np.array_equal(held, sent[i - lag : i + 1])
    env.close()


def test_episodes_that_end_are_started_again():
    clock = FakeClock()
    fake = FakeInterface(clock=clock, lag=2)
    env = make_env(clock, fake, ep_max_length=40)
    assert probe_delay(env, repeats=8).steps == (2,) * 8
    assert len(fake.reset_times) > 2
    env.close()
    fake = FakeInterface(clock=clock, on_capture={n: End() for n in range(1, 10_000)})
    with pytest.raises(DelayNotSeen, match="the episode ended"):
        probe_delay(fake, clock=clock, repeats=2, period_s=PERIOD)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=1),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(2),
        spaces.Dict({"steer": spaces.Box(-1.0, 1.0, (1,), np.float32), "gear": spaces.Discrete(4)}),
        spaces.Box(-np.inf, np.inf, (1,), np.float32),
        spaces.Box(0, 255, (1,), np.uint8),
    ],
)
def test_every_kind_of_action_can_excite(space):
    clock = FakeClock()
    fake = FakeInterface(clock=clock, lag=2, action_space=space)
    for command in excitations(space, fake.get_default_action(), 0.5):
        assert space.contains(command if not isinstance(space, spaces.Discrete) else int(command))
    env = make_env(clock, fake)
    assert probe_delay(env, repeats=4).max_steps == 2
    env.close()


def test_automatic_excitations_worked_by_hand():
    space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32), dtype=np.float32)
    up, down = excitations(space, np.zeros(2, np.float32), 0.5)
    assert (up.tolist(), down.tolist()) == ([0.5, 2.0], [-0.5, 0.0])
    (only,) = excitations(spaces.Box(0.0, 1.0, (1,), np.float32), np.zeros(1, np.float32), 1.0)
    assert only.tolist() == [1.0]
    with pytest.raises(ConfigError, match="excitation"):
        excitations(spaces.Discrete(1), 0, 0.5)


# -- delays added to a device


def drive(device, values):
    device.reset()
    seen = []
    for value in values:
        device.send_control(np.array([value], np.float32))
        observation, *_ = device.get_obs_rew_terminated_info()
        seen.append(round(float(observation[0][0]), 4))
    return seen


VALUES = [round(0.01 * (i + 1), 4) for i in range(90)]


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_a_fixed_command_delay(delay):
    device = DelayedInterface(FakeInterface(clock=FakeClock()), action_delay=delay)
    assert drive(device, VALUES[:8]) == ([0.0] * delay + VALUES)[:8]


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_a_fixed_observation_delay(delay):
    device = DelayedInterface(FakeInterface(clock=FakeClock()), observation_delay=delay)
    assert drive(device, VALUES[:8]) == ([0.0] * delay + VALUES)[:8]


@pytest.mark.parametrize("which", ["action_delay", "observation_delay"])
def test_random_delays_are_causal(which):
    device = DelayedInterface(FakeInterface(clock=FakeClock()), **{which: (1, 4)}, seed=2)
    seen = drive(device, VALUES)
    assert seen == sorted(seen)  # values rise with time: an older one never follows a newer one
    delays = [VALUES.index(value) - i for i, value in enumerate(seen) if value > 0.0]
    assert {-delay for delay in delays} == {1, 2, 3, 4}


def test_of_several_that_have_arrived_the_newest_counts():
    class Scripted:
        def __init__(self, *delays):
            self.delays = iter(delays)

        def randint(self, low, high):
            return next(self.delays)

    line = _Line((0, 9), Scripted(2, 1, 5, 0))
    line.put(0, "a")  # arrives at 2
    line.put(1, "b")  # arrives at 2, and is newer
    assert line.take(1) == (False, None)
    assert line.take(2) == (True, "b")
    assert line.take(3) == (False, None)
    line.put(3, "c")  # would arrive at 8
    line.put(4, "d")  # overtakes it
    assert line.take(4) == (True, "d")
    assert line.take(100) == (False, None)


def test_the_device_hears_commands_in_order_and_each_at_most_once():
    fake = FakeInterface(clock=FakeClock())
    drive(DelayedInterface(fake, action_delay=(0, 4), seed=3), VALUES)
    heard = [float(value[0]) for value in fake.values]
    assert heard == sorted(set(heard))
    assert len(heard) < len(VALUES)  # overtaken commands are dropped


def test_seeds_repeat_and_a_reset_can_start_them_anew():
    def seen(seed, reset_seed=None):
        device = DelayedInterface(FakeInterface(clock=FakeClock()), action_delay=(0, 3), seed=seed)
        device.reset(seed=reset_seed)
        return [
            device.send_control(np.array([v], np.float32))
            or float(device.get_obs_rew_terminated_info()[0][0][0])
            for v in VALUES
        ]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    assert seen(1, reset_seed=7) == seen(2, reset_seed=7)


def test_reset_wait_and_close_deliver_what_is_on_its_way():
    for leave in ("reset", "wait", "close"):
        fake = FakeInterface(clock=FakeClock())
        device = DelayedInterface(fake, action_delay=5)
        device.reset()
        device.send_control(np.array([0.5], np.float32))
        device.send_control(np.array([0.0], np.float32))
        assert fake.commands == []
        getattr(device, leave)()
        assert [float(value[0]) for value in fake.values] == [0.0]


def test_the_age_is_told():
    clock = FakeClock()
    env = make_env(
        clock,
        DelayedInterface(FakeInterface(clock=clock), observation_delay=2),
        max_observation_age_s=1.0,
    )
    env.reset()
    for _ in range(4):
        *_, info = env.step(np.zeros(1, np.float32))
    assert info["observation_delay"] == 2
    assert info["timing"]["observation_age"] == pytest.approx(2 * PERIOD)
    env.close()


def test_aliasing_cannot_reach_through_the_line():
    device = DelayedInterface(FakeInterface(clock=FakeClock()), action_delay=1, observation_delay=1)
    device.reset()
    reused = np.array([0.5], np.float32)
    device.send_control(reused)
    reused[0] = -1.0
    seen = []
    for _ in range(3):
        observation, *_ = device.get_obs_rew_terminated_info()
        seen.append(float(observation[0][0]))
        observation[0][0] = 0.9
    assert seen == [0.0, 0.0, 0.5]


@pytest.mark.parametrize("delay", [-1, (2, 1), (-1, 3)])
def test_impossible_delays_are_refused(delay):
    with pytest.raises(ConfigError, match="action_delay"):
        DelayedInterface(FakeInterface(), action_delay=delay)
