"""The game as a real process: it streams, is driven, dies and comes back."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tickrate import clock
from tickrate.errors import ConfigError, DeviceLost
from tickrate.games.circuit.client import GameClient
from tickrate.games.circuit.drivers import GapFollower, PurePursuit
from tickrate.games.circuit.interface import CircuitInterface, circuit_config
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.process import GameProcess
from tickrate.games.circuit.protocol import QUIT, TELEMETRY, unpack_telemetry
from tickrate.realtime import RealTimeEnv


@pytest.fixture
def interface() -> Iterator[CircuitInterface]:
    interface = CircuitInterface("demo", speed=2.0, timeout_s=1.0)
    yield interface
    interface.close()


def wait_until_dead(process: GameProcess, limit_s: float = 5.0) -> None:
    deadline = clock.now() + limit_s
    while process.alive():
        assert clock.now() < deadline, "the game still runs"
        clock.sleep(0.01)


def test_the_game_streams_at_100_hz_of_its_own_clock_and_quits_when_told() -> None:
    process = GameProcess("oval", speed=5.0)
    client = GameClient(process.address)
    try:
        with socket.create_connection(("127.0.0.1", process.address.telemetry), 2.0) as telemetry:
            first = client.newest()
            clock.sleep(0.4)
            last = client.newest()
            packet = telemetry.recv(TELEMETRY.size, socket.MSG_WAITALL)
        assert unpack_telemetry(packet).gear == 1.0
        game_s = last.game_time - first.game_time
        assert game_s / (last.sent - first.sent) == pytest.approx(5.0, rel=0.1)
        assert (last.frame - first.frame) / game_s == pytest.approx(100.0, rel=0.01)
        assert abs(clock.now() - last.sent) < 5.0  # one clock for both processes
        client.send(Command(), QUIT)
        wait_until_dead(process)
    finally:
        client.close()
        process.close()


def test_reset_shows_the_car_standing_at_the_start(interface: CircuitInterface) -> None:
    for _ in range(2):
        observation, info = interface.reset()
        assert interface.get_observation_space().contains(observation)
        assert observation[0][0] == 0.0
        assert clock.now() - info["observation_time"] < 1.0
        interface.send_control(np.array([0.0, 1.0], dtype=np.float32))
        clock.sleep(0.15)
        observation, reward, terminated, info = interface.get_obs_rew_terminated_info()
        assert observation[0][0] > 0.02
        assert reward > 0.0
        assert not terminated
        interface.send_control(None)
    assert interface.observation_names() == ["speed", "lidar"]
    assert max(interface.render()) <= "\u28ff"


def test_a_killed_game_is_a_lost_device_and_reset_brings_a_new_one(interface: CircuitInterface) -> None:
    interface.reset()
    pid = interface.game_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = clock.now() + 3.0

    def drive_on() -> None:
        while clock.now() < deadline:
            interface.send_control(interface.get_default_action())
            interface.get_obs_rew_terminated_info()

    with pytest.raises(DeviceLost):
        drive_on()
    observation, _ = interface.reset()
    assert interface.game_pid != pid
    assert interface.get_observation_space().contains(observation)
    interface.get_obs_rew_terminated_info()


def test_a_frozen_game_is_replaced_too(interface: CircuitInterface) -> None:
    interface.reset()
    pid = interface.game_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    clock.sleep(1.2)
    with pytest.raises(DeviceLost, match="silent"):
        interface.get_obs_rew_terminated_info()
    interface.reset()
    assert interface.game_pid != pid


def test_nothing_starts_before_reset_and_commands_before_it_are_refused(interface: CircuitInterface) -> None:
    assert interface.game_pid is None
    with pytest.raises(DeviceLost, match=r"reset\(\) first"):
        interface.send_control(interface.get_default_action())


def test_an_attached_game_survives_its_client_and_a_wrong_track_is_named() -> None:
    process = GameProcess("oval")
    host, *ports = process.address
    address = f"{host}:{','.join(map(str, ports))}"
    try:
        for _ in range(2):
            interface = CircuitInterface("oval", address=address)
            interface.reset()
            assert interface.game_pid is None
            interface.close()
        assert process.alive()
        interface = CircuitInterface("demo", address=address)
        with pytest.raises(ConfigError, match="another track"):
            interface.reset()
        interface.close()
    finally:
        process.close()
    with pytest.raises(DeviceLost, match="no game answers"):
        CircuitInterface("oval", address=address).reset()


def test_the_game_ends_when_its_owner_is_killed() -> None:
    script = (
        "from tickrate.games.circuit.process import GameProcess\n"
        "import sys\n"
        "game = GameProcess('oval')\n"
        "print(game.address.control, flush=True)\n"
        "sys.stdin.read()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin is not None
    assert owner.stdout is not None
    port = int(owner.stdout.readline())
    socket.create_connection(("127.0.0.1", port), 2.0).close()
    owner.kill()
    owner.wait(5.0)
    owner.stdin.close()
    owner.stdout.close()
    deadline = clock.now() + 5.0
    while clock.now() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
        except OSError:
            return
        clock.sleep(0.02)
    pytest.fail("the game outlived its owner")


def test_a_game_that_cannot_start_says_so() -> None:
    with pytest.raises(DeviceLost, match="did not start"):
        GameProcess("no such track")


def test_the_game_starts_without_the_heavy_packages() -> None:
    script = (
        "import sys, tickrate.games.circuit.game\n"
        "print([m for m in ('torch', 'matplotlib', 'zenoh') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, check=True)
    assert done.stdout.strip() == b"[]"


def test_the_environment_truncates_when_the_game_dies_and_goes_on_after_reset() -> None:
    env = RealTimeEnv(circuit_config("demo", 2.0))
    try:
        observation, _ = env.reset(seed=0)
        assert list(observation) == ["speed", "lidar", "actions"]
        gas = np.array([0.0, 0.5], dtype=np.float32)
        for _ in range(10):
            _, _, terminated, truncated, info = env.step(gas)
            assert not terminated
            assert not truncated
            assert info["timing"]["observation_age"] < 1.0
        os.kill(env.interface.game_pid, signal.SIGKILL)
        for _ in range(5):
            _, _, terminated, truncated, info = env.step(gas)
            if truncated:
                break
        assert truncated
        assert not terminated
        assert info["truncation_reason"]
        env.reset()
        assert env.step(gas)[1] >= 0.0
    finally:
        env.close()


@pytest.mark.long
@pytest.mark.parametrize("make", [PurePursuit, lambda track: GapFollower()])
def test_the_drivers_lap_the_live_game_cleanly(make: object) -> None:
    env = RealTimeEnv(circuit_config("demo", 3.0))
    try:
        env.reset(seed=0)
        driver = make(env.interface.track)  # type: ignore[operator]
        driver.begin()
        total, over, info = 0.0, False, {}
        while not over:
            _, reward, terminated, truncated, info = env.step(driver.act(env.interface.frame))
            total, over = total + float(reward), terminated or truncated
        assert info["end"] == "lap"
        assert info["lap_clean"]
        assert 25.0 < info["lap_time_s"] < 30.0
        assert total == pytest.approx(0.1 * env.interface.task.line.length_m, rel=0.01)
    finally:
        env.close()
