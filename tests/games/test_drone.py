import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tickrate.games.drone import DroneInterface
from tickrate.realtime import RealTimeEnv
from tickrate.realtime.delays import probe_delay
from tickrate.testing import FakeClock, check_environment, check_interface


def make_env(obs_format="dict", **kwargs):
    clock = FakeClock()
    return RealTimeEnv(make_config(clock, obs_format) | kwargs, clock=clock)


def make_config(clock, obs_format):
    return {
        "interface": DroneInterface,
        "interface_kwargs": {"drone_kwargs": {"clock": clock, "seed": 1}},
        "time_step_duration": 0.05,
        "ep_max_length": 100,
        "act_buf_len": 4,
        "reset_act_buf": False,
        "obs_format": obs_format,
    }


def model(observation):
    x, y, target_x, target_y = (observation[name] for name in ("x", "y", "target_x", "target_y"))
    return np.clip(4.0 * np.concatenate([target_x - x, target_y - y]), -2.0, 2.0).astype(np.float32)


def test_the_interface_keeps_the_contract_and_a_dry_check_does_not_fly():
    clock = FakeClock()
    interface = DroneInterface(drone_kwargs={"clock": clock, "seed": 0})
    assert check_interface(interface, dry=True, clock=clock) == []
    clock.advance(5.0)
    assert interface.drone.get_observation() == (0.0, 0.0)
    assert check_interface(interface, dry=False, clock=clock) == []


def test_constructing_it_starts_nothing():
    interface = DroneInterface()
    with pytest.raises(RuntimeError, match="reset"):
        _ = interface.drone
    interface.wait()
    interface.send_control(None)


def test_reward_and_end_worked_by_hand():
    clock = FakeClock()
    interface = DroneInterface(drone_kwargs={"clock": clock})
    (x, y, target_x, target_y), info = interface.reset(options={"target": (0.3, -0.4)})
    assert [float(leaf[0]) for leaf in (x, y, target_x, target_y)] == pytest.approx([0.0, 0.0, 0.3, -0.4])
    assert info == {}
    _, reward, terminated, info = interface.get_obs_rew_terminated_info()
    assert reward == pytest.approx(-0.5)
    assert terminated is False
    for target, ends in (((0.006, 0.007), True), ((0.008, 0.007), False)):  # 0.0092 and 0.0106 away
        interface.reset(options={"target": target})
        assert interface.get_obs_rew_terminated_info()[2] is ends
    for wrong in ((0.6, 0.0), (0.1,), (float("nan"), 0.0)):
        with pytest.raises(ValueError, match="target"):
            interface.reset(options={"target": wrong})


def test_the_observation_age_includes_the_radio_link():
    env = make_env()
    env.reset()
    ages = [env.step(np.zeros(2, np.float32))[4]["timing"]["observation_age"] for _ in range(50)]
    assert min(ages) >= 0.02 - 1e-9  # the shortest delay
    assert max(ages) <= 0.05 + 0.02  # the longest, and the drone's own period or two
    env.close()


def test_a_proportional_model_reaches_the_targets():
    env = make_env()
    reached = 0
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(model(observation))
            ended = terminated or truncated
            assert reward <= 0.0
        reached += terminated
    assert reached >= 8
    env.close()


def test_the_drone_flies_on_through_a_reset():
    env = make_env(last_act_on_reset=True)
    env.reset(seed=0)
    for _ in range(10):
        observation, *_ = env.step(np.array([0.5, 0.0], np.float32))
    following, _ = env.reset(seed=1)
    assert 0.0 < observation["x"] <= following["x"]
    assert following["target_x"] != observation["target_x"]
    env.close()


def test_seeds_repeat_the_targets():
    interface = DroneInterface(drone_kwargs={"clock": FakeClock()})

    def targets(seed):
        interface.reset(seed=seed)
        first = interface.target
        interface.reset()
        return [*first, *interface.target]

    assert targets(3) == targets(3)
    assert targets(3) != targets(4)
    assert all(abs(value) <= 0.5 for value in targets(3))


def test_the_probe_finds_the_link():
    # 20-50 ms each way and the drone's 10 ms loop: 2 or 3 steps of 50 ms, as an action buffer of 4 provides
    # for.
    env = make_env()
    report = probe_delay(env, repeats=30)
    assert (report.min_steps, report.max_steps) == (2, 3)
    assert report.enough
    env.close()


@pytest.mark.filterwarnings(
    "ignore:.*symmetric and normalized"
)  # velocities are in units/s, which is no fault
@pytest.mark.parametrize("obs_format", ["tuple", "dict", "flat"])
def test_it_passes_gymnasiums_checker(obs_format):
    clock = FakeClock()
    env = gymnasium.make("real-time-gym-v1", config=make_config(clock, obs_format), clock=clock).unwrapped
    check_env(env, skip_render_check=True)
    assert check_environment(env) == []
    env.close()


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")
@pytest.mark.filterwarnings(
    "ignore:.*unconventional shape"
)  # the action buffer is (length, action) on purpose
@pytest.mark.parametrize("obs_format", ["dict", "flat"])
def test_it_passes_stable_baselines3s_checker(obs_format):
    checker = pytest.importorskip(
        "stable_baselines3.common.env_checker", reason="stable-baselines3 is not installed"
    )
    env = make_env(obs_format)
    checker.check_env(env)
    env.close()


def test_a_picture_in_text():
    interface = DroneInterface(drone_kwargs={"clock": FakeClock()})
    interface.reset(options={"target": (0.5, 0.5)})
    lines = interface.render().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[11][21] == "o"  # in the middle
    assert lines[6][31] == "x"  # up and to the right


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="target_radius"):
        DroneInterface(target_radius=0.0)
