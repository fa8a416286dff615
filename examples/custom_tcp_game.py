"""A custom interface for a game that talks over TCP: connect, drive, lose the game, find it again.

The game here is a ball on a line, in a thread of this process; yours runs wherever it likes. Run it:

    python examples/custom_tcp_game.py
"""

from __future__ import annotations

import argparse
import socket
import struct
import threading
from typing import Any

import numpy as np
from gymnasium import spaces

from tickrate import RealTimeEnv, RealTimeGymInterface
from tickrate.clock import now, sleep
from tickrate.errors import DeviceLost

STATE = struct.Struct("<dff")  # seconds on the game's clock, position, velocity
COMMAND = struct.Struct("<f")  # force on the ball
SILENCE_S = 0.3  # a game that is quiet for so long is taken for dead


class BallGame(threading.Thread):
    """The game: a ball on a line, physics and telemetry at 100 Hz. It never waits for the player."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", port))
        self.server.settimeout(0.2)
        self.port = self.server.getsockname()[1]
        self.silent = False  # set it to see what a frozen game does to the run
        self.quit = False

    def run(self) -> None:
        with self.server:
            while not self.quit:
                try:
                    player, _ = self.server.accept()
                except TimeoutError:
                    continue
                with player:
                    self.serve(player)

    def serve(self, player: socket.socket) -> None:
        player.setblocking(False)
        position = velocity = force = 0.0
        while not self.quit:
            try:
                data = player.recv(4096)
                if not data:
                    return
                (force,) = COMMAND.unpack(data[-COMMAND.size :])
            except BlockingIOError:
                pass
            except OSError:
                return
            velocity = 0.95 * velocity + 0.05 * force
            position = min(max(position + 0.01 * velocity, -1.0), 1.0)
            if not self.silent:
                try:
                    player.sendall(STATE.pack(now(), position, velocity))
                except OSError:
                    return
            sleep(0.01)


class BallInterface(RealTimeGymInterface):
    """Hold the ball at +0.5. What every device needs: connect in reset, say when it is lost."""

    def __init__(self, port: int, host: str = "127.0.0.1", patience_s: float = 10.0) -> None:
        self.address = (host, port)
        self.patience_s = patience_s
        self.socket: socket.socket | None = None

    def get_observation_space(self) -> spaces.Tuple:
        return spaces.Tuple((spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-10.0, 10.0, (1,))))

    def observation_names(self) -> list[str]:
        return ["position", "velocity"]

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (1,))

    def get_default_action(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def send_control(self, control: Any) -> None:
        if control is None or self.socket is None:
            return
        try:
            self.socket.sendall(COMMAND.pack(float(control[0])))
        except OSError as error:
            self.lose(f"the game hung up: {error}")

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if self.socket is None:
            self.connect()
        return self.observe(), {}

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict]:
        position, velocity = self.observe()
        reward = -abs(float(position[0]) - 0.5)
        return (position, velocity), reward, False, {"observation_time": self.state[0]}

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def connect(self) -> None:
        """Try for a while, because a game that crashed takes some seconds to come back."""
        deadline = now() + self.patience_s
        while True:
            try:
                self.socket = socket.create_connection(self.address, timeout=1.0)
                self.received = self.socket.recv(STATE.size)  # the first telemetry, or a time-out
                break
            except OSError as error:
                self.close()
                if now() > deadline:
                    host, port = self.address
                    raise ConnectionError(
                        f"{host}:{port} gives no telemetry ({error}): is the game on?"
                    ) from error
            sleep(0.1)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.state = (now(), 0.0, 0.0)
        self.last_packet = now()

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """Read all that has come and keep the newest whole packet: a reader must never fall behind."""
        if self.socket is None:
            raise DeviceLost("not connected")
        try:
            while chunk := self.socket.recv(65536):
                self.received += chunk
            self.lose("the game closed the connection")
        except BlockingIOError:
            pass
        except OSError as error:
            self.lose(f"the connection broke: {error}")
        whole = len(self.received) // STATE.size * STATE.size
        if whole:
            self.state = STATE.unpack(self.received[whole - STATE.size : whole])
            self.received = self.received[whole:]
            self.last_packet = now()
        elif now() - self.last_packet > SILENCE_S:
            self.lose(f"no telemetry for {SILENCE_S} s")
        return np.array(self.state[1:2], np.float32), np.array(self.state[2:3], np.float32)

    def lose(self, reason: str) -> None:
        self.close()
        raise DeviceLost(reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="time-steps of 20 ms to drive")
    steps = parser.parse_args().steps
    game = BallGame()
    game.start()
    env = RealTimeEnv(
        {
            "interface": BallInterface,
            "interface_kwargs": {"port": game.port},
            "time_step_duration": 0.02,
            "act_buf_len": 2,
        }
    )
    (position, velocity, *_), _ = env.reset()
    for step in range(steps):
        game.silent = step == steps // 2  # the game freezes once, in the middle
        action = np.clip(4.0 * (0.5 - position) - velocity, -1.0, 1.0)
        (position, velocity, *_), _, terminated, truncated, info = env.step(action)
        while game.silent and not truncated:
            (position, velocity, *_), _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            print(f"step {step}: the episode ended: {info.get('truncation_reason')}")
            game.silent = False
            (position, velocity, *_), _ = env.reset()
            print("reconnected")
    print(f"the ball is at {float(position[0]):+.2f}, wanted +0.50")
    print(env.timing_summary())
    env.close()
    game.quit = True
    game.join()


if __name__ == "__main__":
    main()
