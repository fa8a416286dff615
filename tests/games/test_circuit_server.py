"""The game's sockets in one process, driven tick by tick: hostile and slow clients never stop it."""

import math
import socket
from collections.abc import Iterator

import pytest

from tickrate.errors import ConfigError, DeviceLost
from tickrate.games.circuit.client import GameClient
from tickrate.games.circuit.game import Game, main
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.process import Address
from tickrate.games.circuit.protocol import (
    QUIT,
    RESPAWN,
    SENSORS,
    TELEMETRY,
    pack_control,
    unpack_sensors,
    unpack_telemetry,
)
from tickrate.games.circuit.track import make_track
from tickrate.games.circuit.world import World


@pytest.fixture
def game() -> Iterator[Game]:
    game = Game(World(make_track("oval")))
    yield game
    game.close()


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for one in opened:
        one.close()


def connect(sockets: list[socket.socket], port: int) -> socket.socket:
    sockets.append(socket.create_connection(("127.0.0.1", port), 2.0))
    return sockets[-1]


def deliver(game: Game, condition: object = None, ticks: int = 200) -> None:
    """Tick until loopback has delivered (it takes microseconds, but not none)."""
    for _ in range(ticks):
        game.tick(1)
        if callable(condition) and condition():
            return
    assert condition is None, "it never happened"


def read(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = one.recv(size - len(data))
        assert part
        data += part
    return data


def test_each_frame_is_one_packet_on_each_stream(game: Game, sockets: list[socket.socket]) -> None:
    telemetry, sensors = connect(sockets, game.telemetry.port), connect(sockets, game.sensors.port)
    game.tick(1)
    game.tick(1)
    game.tick(3)
    frames = [unpack_sensors(read(sensors, SENSORS.size)) for _ in range(3)]
    assert [frame.frame for frame in frames] == [1, 2, 5]
    assert frames[2].game_time == pytest.approx(0.05)
    for _ in range(3):
        assert unpack_telemetry(read(telemetry, TELEMETRY.size)).speed == 0.0
    telemetry.setblocking(False)
    with pytest.raises(BlockingIOError):
        telemetry.recv(1)


def test_the_newest_command_is_held(game: Game, sockets: list[socket.socket]) -> None:
    control = connect(sockets, game.control.port)
    control.sendall(pack_control(Command(0.0, 0.2, 0.0)) + pack_control(Command(0.5, 1.0, 0.0)))
    deliver(game, lambda: game.world.command == Command(0.5, 1.0, 0.0))
    deliver(game, ticks=100)
    assert game.world.command == Command(0.5, 1.0, 0.0)
    assert game.world.state.speed > 4.0
    control.sendall(pack_control(Command(1.0, 1.0, 1.0), RESPAWN))
    deliver(game, lambda: game.world.spawns == 2)
    assert game.world.command == Command()


def test_a_message_may_arrive_in_pieces(game: Game, sockets: list[socket.socket]) -> None:
    control, message = connect(sockets, game.control.port), pack_control(Command(0.25, 0.5, 0.0))
    for byte in message[:-1]:
        control.sendall(bytes([byte]))
        game.tick(1)
    deliver(game, ticks=20)
    assert game.world.command == Command()
    control.sendall(message[-1:])
    deliver(game, lambda: game.world.command == Command(0.25, 0.5, 0.0))


def test_garbage_drops_its_client_only(game: Game, sockets: list[socket.socket]) -> None:
    good, bad = connect(sockets, game.control.port), connect(sockets, game.control.port)
    deliver(game, lambda: game.control.clients == 2)
    bad.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    deliver(game, lambda: game.control.clients == 1)
    good.sendall(pack_control(Command(0.0, 1.0, 0.0)))
    deliver(game, lambda: game.world.command.gas == 1.0)


def test_nan_is_ignored_and_the_client_stays(game: Game, sockets: list[socket.socket]) -> None:
    control = connect(sockets, game.control.port)
    control.sendall(pack_control(Command(0.0, 0.5, 0.0)) + pack_control(Command(math.nan, 1.0, 1.0)))
    deliver(game, lambda: game.world.command == Command(0.0, 0.5, 0.0))
    deliver(game, ticks=20)
    assert game.world.command == Command(0.0, 0.5, 0.0)
    assert game.control.clients == 1


def test_a_client_that_never_reads_misses_whole_frames_and_stops_nothing(
    game: Game, sockets: list[socket.socket]
) -> None:
    slow = socket.socket()
    sockets.append(slow)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", game.sensors.port))
    count = 3000
    for _ in range(count):
        game.tick(1)
    assert game.world.frames == count
    # What the client finds then is still a row of whole frames, with a gap in their numbers.
    slow.settimeout(2.0)
    numbers = [unpack_sensors(read(slow, SENSORS.size)).frame for _ in range(10)]
    for _ in range(count):
        game.tick(1)
        slow.settimeout(0.0005)
        try:
            piece = slow.recv(SENSORS.size, socket.MSG_WAITALL)
        except TimeoutError:
            continue
        if len(piece) < SENSORS.size:
            slow.settimeout(2.0)
            game.tick(1)
            piece += read(slow, SENSORS.size - len(piece))
        numbers.append(unpack_sensors(piece).frame)
        if numbers[-1] > count:
            break
    assert numbers == sorted(numbers)
    assert numbers[-1] > count
    assert len(numbers) < count


def test_clients_that_hang_up_are_forgotten(game: Game, sockets: list[socket.socket]) -> None:
    ports = (game.telemetry.port, game.sensors.port, game.control.port)
    opened = [connect(sockets, port) for port in ports]
    deliver(game, lambda: game.sensors.clients == game.telemetry.clients == game.control.clients == 1)
    opened[2].sendall(b"\x43")  # half a message
    for one in opened:
        one.close()
    deliver(game, lambda: game.sensors.clients == game.telemetry.clients == game.control.clients == 0)


def test_a_crowd_cannot_lock_others_out(game: Game, sockets: list[socket.socket]) -> None:
    for _ in range(40):
        connect(sockets, game.control.port)
        game.tick(1)
    deliver(game, ticks=5)
    assert game.control.clients <= 16
    control = connect(sockets, game.control.port)
    control.sendall(pack_control(Command(), QUIT))
    deliver(game, game.stopping.is_set)


def test_the_client_keeps_the_newest_frame(game: Game, sockets: list[socket.socket]) -> None:
    client = GameClient(Address("127.0.0.1", game.telemetry.port, game.sensors.port, game.control.port))
    sockets += [client._sensors, client._control]
    for _ in range(30):
        game.tick(1)
    assert client.newest().frame == 30
    client.send(Command(0.0, 1.0, 0.0))
    deliver(game, lambda: game.world.command.gas == 1.0)
    game.close()
    with pytest.raises(DeviceLost, match="ended or crashed"):
        client.newest()


def test_a_silent_game_is_lost(game: Game, sockets: list[socket.socket]) -> None:
    client = GameClient(
        Address("127.0.0.1", game.telemetry.port, game.sensors.port, game.control.port), timeout_s=0.15
    )
    sockets += [client._sensors, client._control]
    with pytest.raises(DeviceLost, match="no new frame"):
        client.newest()
    game.tick(1)
    client.newest()
    with pytest.raises(DeviceLost, match="no new frame"):
        client.wait_for(math.inf)
    with pytest.raises(DeviceLost, match="silent"):
        client.newest()


def test_another_server_is_no_game(sockets: list[socket.socket]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        client = GameClient(Address("127.0.0.1", port, port, port), timeout_s=1.0)
        sockets += [client._sensors, client._control]
        peer, _ = other.accept()
        peer.sendall(b"x" * 1000)
        with pytest.raises(DeviceLost, match="something else"):
            client.newest()
        peer.close()
    with pytest.raises(DeviceLost, match="no game answers"):
        GameClient(Address("127.0.0.1", port, port, port), timeout_s=1.0)


@pytest.mark.parametrize(
    "text", ["", "9000", "localhost", "127.0.0.1:1,2", "h:1,2,x", "h:1,2,99999", ":1,2,3"]
)
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:TELEMETRY,SENSORS,CONTROL"):
        Address.parse(text)
    assert Address.parse("127.0.0.1:1,2,3") == Address("127.0.0.1", 1, 2, 3)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf, 1000.0])
def test_impossible_speeds_are_refused(speed: float) -> None:
    with pytest.raises(ConfigError, match="speed"):
        Game(World(make_track("oval")), speed=speed)


def test_the_command_line_names_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--track", "dmeo"]) == 2
    assert "Did you mean 'demo'" in capsys.readouterr().err
    assert main(["--telemetry-port", "99999999"]) == 2
    with pytest.raises(SystemExit):
        main(["--sped", "2"])
