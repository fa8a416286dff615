"""The task (commands, reward, ends, observation, mirror) in the simulation, which shares it."""

import json
import re
from collections.abc import Callable
from importlib import resources

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tickrate.errors import ConfigError
from tickrate.games.circuit.drivers import GapFollower, PurePursuit
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.simulation import CircuitSimulation, record_line, save_line
from tickrate.games.circuit.task import (
    CircuitTask,
    DemonstrationLine,
    decode_analog,
    decode_keys,
    encode_analog,
    load_line,
)
from tickrate.games.circuit.track import TRACKS, make_track

Step = tuple[dict[str, np.ndarray], float, bool, bool, dict[str, object]]


def drive(env: CircuitSimulation, act: Callable[[], np.ndarray]) -> list[Step]:
    env.reset(seed=0)
    steps: list[Step] = []
    while not steps or not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(act()))
    return steps


def test_the_pedal_is_neutral_at_minus_a_half() -> None:
    assert decode_analog(np.array([0.3, -0.5])) == Command(0.3, 0.0, 0.0)
    assert decode_analog(np.array([0.0, 1.0])) == Command(0.0, 1.0, 0.0)
    assert decode_analog(np.array([0.0, 0.25])) == Command(0.0, 0.5, 0.0)
    assert decode_analog(np.array([0.0, -1.0])) == Command(0.0, 0.0, 1.0)
    assert decode_analog(np.array([0.0, -0.75])) == Command(0.0, 0.0, 0.5)
    for acceleration in (-1.0, -0.5, 0.0, 0.5, 1.0):
        command = decode_analog(encode_analog(0.0, acceleration))
        assert command.gas - command.brake == pytest.approx(acceleration)


def test_keys() -> None:
    assert decode_keys(np.array([1, 0, 1, 0])) == Command(-1.0, 1.0, 0.0)
    assert decode_keys(np.array([0, 1, 0, 1])) == Command(1.0, 0.0, 1.0)
    assert decode_keys(np.array([1, 1, 0, 0])) == Command()


def test_reward_of_a_lap_is_a_tenth_of_the_line() -> None:
    env = CircuitSimulation("demo")
    driver = PurePursuit(env.world.track)
    steps = drive(env, lambda: driver.act(env.frame))
    _, _, terminated, truncated, info = steps[-1]
    assert (terminated, truncated) == (False, True)
    assert info["truncation_reason"] == "lap finished"
    assert info["lap_clean"] is True
    assert info["lap_time_s"] == pytest.approx(0.05 * len(steps), abs=0.2)
    # The last step ends up to one step's way beyond the line.
    total = sum(step[1] for step in steps)
    assert 0.0 <= total - 0.1 * env.task.line.length_m < 0.1 * 25.0 * 0.05
    assert all("lap_time_s" not in step[4] for step in steps[:-1])


def test_several_laps_go_on_earning() -> None:
    env = CircuitSimulation("oval", laps=2, max_steps=2000)
    driver = GapFollower()
    steps = drive(env, lambda: driver.act(env.frame))
    assert sum("lap_time_s" in step[4] for step in steps) == 2
    assert sum(step[1] for step in steps) == pytest.approx(0.2 * env.task.line.length_m, rel=0.01)


def test_a_wall_ends_the_episode_as_terminated() -> None:
    env = CircuitSimulation("oval")
    *_, last = drive(env, lambda: encode_analog(0.4, 1.0))
    assert last[2] is True
    assert last[3] is False
    assert last[4]["end"] == "wall"
    assert last[4]["contacts"] == 1


def test_sliding_walls_count_contacts_and_the_lap_is_not_clean() -> None:
    env = CircuitSimulation("oval", walls="slide", max_steps=3000)
    driver = GapFollower()
    hit = iter([True] * 40)
    steps = drive(env, lambda: encode_analog(0.5, 1.0) if next(hit, False) else driver.act(env.frame))
    assert steps[-1][4]["truncation_reason"] == "lap finished"
    assert steps[-1][4]["lap_clean"] is False
    assert steps[-1][4]["contacts"] >= 1


def test_a_parked_car_ends_after_21_steps_and_a_stopping_one_after_10() -> None:
    env = CircuitSimulation("demo")
    parked = drive(env, env.task.default_action)
    # Up to step 20 thirty steps without progress are allowed, then ten: the 21st step is one too many.
    assert len(parked) == 21
    assert parked[-1][4]["end"] == "stall"
    assert parked[-1][2] is True
    gas = iter([True] * 40)
    stopped = drive(env, lambda: encode_analog(0.0, 0.5) if next(gas, False) else env.task.safe_action())
    last_gain = max(i for i, step in enumerate(stopped) if step[1] > 0.0)
    assert len(stopped) - 1 - last_gain == 10


def test_time_runs_out() -> None:
    env = CircuitSimulation("oval", max_steps=50)
    driver = GapFollower()
    steps = drive(env, lambda: driver.act(env.frame))
    assert len(steps) == 50
    assert steps[-1][3] is True


def test_an_action_takes_effect_one_step_later() -> None:
    env = CircuitSimulation("demo")
    env.reset(seed=0)
    env.step(encode_analog(0.0, 1.0))
    assert env.frame.speed == 0.0
    env.step(env.task.default_action())
    assert env.frame.speed > 0.3


def test_the_observation_is_in_its_space_and_holds_the_past() -> None:
    env = CircuitSimulation("demo")
    first, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    assert (first["lidar"] == first["lidar"][0]).all()
    actions = [encode_analog(0.1 * i, 1.0) for i in range(5)]
    seen = [env.step(action)[0] for action in actions]
    np.testing.assert_array_equal(seen[-1]["actions"], np.stack(actions[-2:]))
    np.testing.assert_array_equal(seen[-1]["lidar"][-2], seen[-2]["lidar"][-1])
    assert env.observation_space.contains(seen[-1])
    kept = seen[0]["lidar"].copy()
    env.step(actions[0])
    np.testing.assert_array_equal(seen[0]["lidar"], kept)


def test_the_simulation_is_a_gymnasium_environment() -> None:
    check_env(CircuitSimulation("oval"), skip_render_check=True)
    check_env(CircuitSimulation("oval", controls="keys"), skip_render_check=True)


def test_the_same_actions_give_the_same_drive() -> None:
    env = CircuitSimulation("hills")
    runs = [[step[1] for step in drive(env, lambda: encode_analog(0.02, 0.7))] for _ in range(2)]
    assert runs[0] == runs[1]


def test_driving_in_a_mirror_gives_mirrored_observations() -> None:
    """On a straight, off the middle and turned, the mirrored pose sees the mirrored observation."""
    env = CircuitSimulation("oval")
    mirror = env.task.mirror()
    order, signs = mirror["observation"]["lidar"]
    seen = []
    for side in (1.0, -1.0):
        env.reset()
        world = env.world
        world.state = world.state._replace(y=-22.0 + 2.0 * side, x=-20.0, yaw=0.2 * side)
        seen.append(env.task.begin(env.frame)["lidar"])
    # The far bend is not symmetric, so only the beams that meet the straight walls are compared.
    np.testing.assert_allclose(seen[1][:, :5], (seen[0][..., order] * signs)[:, :5], atol=1e-3)
    np.testing.assert_allclose(seen[1][:, 14:], (seen[0][..., order] * signs)[:, 14:], atol=1e-3)
    np.testing.assert_array_equal(mirror["action"], [-1.0, 1.0])
    with pytest.raises(ConfigError, match="analog"):
        CircuitTask(env.world.track, controls="keys").mirror()


@pytest.mark.parametrize("name", TRACKS)
def test_the_stored_lines_belong_to_their_tracks(name: str) -> None:
    track = make_track(name)
    line = load_line(track)
    assert line.length_m == pytest.approx(track.length_m, rel=0.01)
    for x, y in line.points[::20]:
        place = track.locate(x, y, track.nearest_index(x, y))
        assert abs(place.lateral_m) < track.width_m / 2.0 - 0.5


def test_a_line_can_be_recorded_saved_and_read(tmp_path: object) -> None:
    track = make_track("oval")
    line = record_line(PurePursuit(track), track)
    path = save_line(line, track, tmp_path)  # type: ignore[arg-type]
    stored = json.loads(path.read_text("utf-8"))
    np.testing.assert_allclose(stored["points"], line.points, atol=6e-4)
    packaged = json.loads(
        resources.files("tickrate.games.circuit").joinpath("lines", "oval.json").read_text("utf-8")
    )
    assert len(stored["points"]) == pytest.approx(len(packaged["points"]), abs=2)


def test_a_driver_that_crashes_records_nothing() -> None:
    track = make_track("demo")
    with pytest.raises(RuntimeError, match="no clean lap"):
        record_line(PurePursuit(track, a_lat=60.0, a_brake=30.0), track)


def test_progress_never_jumps_to_a_part_that_lies_near() -> None:
    # Two long sides 4 m apart: a car on the first side is as near to the other, 100 m later.
    side = np.arange(0.0, 100.0, 0.5)
    there = np.stack([side, np.zeros_like(side)], axis=1)
    back = np.stack([100.0 - side, np.full_like(side, 4.0)], axis=1)
    line = DemonstrationLine(np.vstack([there, back]))
    assert line.advance(10.0, 3.9, 9.0) == pytest.approx(10.0)
    assert line.advance(99.0, 0.1, 98.0) == pytest.approx(99.0)
    assert line.advance(0.5, 0.0, line.length_m - 1.0) == pytest.approx(line.length_m + 0.5)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"controls": "wheel"}, "controls"), ({"walls": "bounce"}, "walls"), ({"history": 0}, "history")],
)
def test_impossible_arguments_are_named(arguments: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(word)):
        CircuitTask(make_track("oval"), **arguments)  # type: ignore[arg-type]
