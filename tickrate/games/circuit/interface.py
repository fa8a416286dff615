"""The live circuit as a real-time interface, and the configuration that drives it at 20 Hz."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate import clock
from tickrate.errors import ConfigError, DeviceLost
from tickrate.games.circuit.client import GameClient
from tickrate.games.circuit.physics import Command
from tickrate.games.circuit.process import Address, GameProcess
from tickrate.games.circuit.protocol import RESPAWN, SensorFrame
from tickrate.games.circuit.sketch import sketch
from tickrate.games.circuit.task import STEP_S, CircuitTask
from tickrate.games.circuit.track import make_track
from tickrate.realtime.interface import RealTimeGymInterface


class CircuitInterface(RealTimeGymInterface):
    """Drives the circuit game, in a process of its own or one that runs already.

    Observation, a Tuple: ``speed`` (1,) float32 in 30 m/s, ``lidar`` (history, 19) float32 coded 12/(6+d)-1,
    oldest first. Action: steer (right positive) and pedal in [-1, 1] (above -0.5 gas, below it brake), or
    four keys. Reward and ends: `task.CircuitTask`.

    The game is started by the first `reset`. A game that died or went silent raises `DeviceLost`; the next
    `reset` starts it again, or connects again where it is not ours.

    Args:
        track: name of the track.
        speed: game seconds per wall second, for a game that is started here.
        address: ``HOST:TELEMETRY,SENSORS,CONTROL`` of a running game; None starts one.
        controls: ``"analog"`` or ``"keys"``.
        history: LIDAR scans in the observation.
        laps: laps of an episode; 0 for no limit.
        walls: ``"end"`` (a contact ends the episode) or ``"slide"``.
        timeout_s: silence, in seconds of wall time, after which the game is called lost.
    """

    def __init__(
        self,
        track: str = "demo",
        speed: float = 1.0,
        *,
        address: str | None = None,
        controls: str = "analog",
        history: int = 4,
        laps: int = 1,
        walls: str = "end",
        timeout_s: float = 2.0,
    ) -> None:
        if not (math.isfinite(speed) and speed > 0.0):
            raise ConfigError(f"speed is {speed}; it must be above 0")
        self.track = make_track(track)
        self.task = CircuitTask(self.track, controls=controls, history=history, laps=laps, walls=walls)
        self.speed = speed
        self.timeout_s = timeout_s
        self.frame: SensorFrame | None = None
        self._address = None if address is None else Address.parse(address)
        self._process: GameProcess | None = None
        self._client: GameClient | None = None
        self._path: deque[tuple[float, float, float]] = deque(maxlen=100_000)

    @property
    def game_pid(self) -> int | None:
        """Process id of the game, if it was started here and has not been closed."""
        return None if self._process is None else self._process.pid

    def get_observation_space(self) -> spaces.Space[Any]:
        """Return the Tuple of `observation_names`."""
        return spaces.Tuple(tuple(self.task.observation_spaces().values()))

    def observation_names(self) -> list[str]:
        """Return the names of the observation's elements."""
        return list(self.task.observation_spaces())

    def get_action_space(self) -> spaces.Space[Any]:
        """Return Box(2) for analog controls, MultiBinary(4) for keys."""
        return self.task.action_space()

    def get_default_action(self) -> NDArray[Any]:
        """Return the action that neither steers nor drives nor brakes."""
        return self.task.default_action()

    def safe_action(self) -> NDArray[Any]:
        """Return the action recommended as the environment's ``safe_action``: full brake."""
        return self.task.safe_action()

    def mirror(self) -> Mapping[str, Any]:
        """Return the left-right symmetry of observations and actions; see `task.CircuitTask.mirror`."""
        return self.task.mirror()

    def send_control(self, control: Any) -> None:
        """Send an action's command; None does nothing.

        Raises:
            DeviceLost: if there is no game.
        """
        if control is None:
            return
        self._connected().send(self.task.command(np.asarray(control)))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[NDArray[np.float32], ...], dict[str, Any]]:
        """Put the car back on the start line and return what it sees there, once it really stands there.

        Starts the game, or connects to it, if that is needed.

        Raises:
            DeviceLost: if the game does not answer, even after one restart or reconnection.
            ConfigError: if the car's start is not the start of our track: the game runs another one.
        """
        try:
            frame = self._respawn()
        except DeviceLost:
            self._disconnect()
            frame = self._respawn()
        start = self.track.centre[0]
        if math.hypot(frame.x - start[0], frame.y - start[1]) > 1.0:
            raise ConfigError(
                f"the game's start is not that of track {self.track.name!r}: does it run another track?"
            )
        self.frame = frame
        self._path.clear()
        self._path.append((frame.x, frame.y, frame.speed))
        return tuple(self.task.begin(frame).values()), {"observation_time": frame.sent}

    def get_obs_rew_terminated_info(
        self,
    ) -> tuple[tuple[NDArray[np.float32], ...], float, bool, dict[str, Any]]:
        """Return observation, reward, terminated and info of the newest sensor frame.

        It does not wait for a frame, except up to 20 ms when the newest one is older than 0.1 s.

        Raises:
            DeviceLost: if the game is gone or silent.
        """
        self.frame = frame = self._connected().newest()
        self._path.append((frame.x, frame.y, frame.speed))
        observation, reward, terminated, info = self.task.advance(frame)
        return tuple(observation.values()), reward, terminated, info

    def wait(self) -> None:
        """Hold the car with the brake."""
        self._connected().send(self.task.command(self.task.safe_action()))

    def driven_line(self) -> NDArray[np.float64]:
        """Return the line driven in this episode: (steps + 1, 3) of x, y in metres and speed in m/s."""
        return np.array(self._path, dtype=np.float64).reshape(-1, 3)

    def render(self) -> str:
        """Return a picture of the track with the driven line, for a terminal."""
        return sketch(self.track, self.driven_line()[:, :2])

    def close(self) -> None:
        """Close the connection, and the game if it was started here."""
        self._disconnect()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _connected(self) -> GameClient:
        if self._client is None:
            raise DeviceLost("there is no connection to the game: call reset() first")
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _respawn(self) -> SensorFrame:
        if self._client is None:
            self._client = GameClient(self._find_game(), timeout_s=self.timeout_s)
        before = self._client.newest()
        asked = clock.now()
        self._client.send(Command(), RESPAWN)
        return self._client.wait_for(asked, spawns_above=before.spawns)

    def _find_game(self) -> Address:
        if self._address is not None:
            return self._address
        # A game we own but lost the connection to is not trusted: it is ended and a new one started.
        if self._process is not None:
            self._process.close(timeout_s=0.5)
        self._process = GameProcess(self.track.name, self.speed)
        return self._process.address


def circuit_config(
    track: str = "demo", speed: float = 1.0, *, interface: Mapping[str, Any] | None = None, **overrides: Any
) -> dict[str, Any]:
    """Return the configuration of `RealTimeEnv` for the circuit: 20 Hz, two actions in the observation.

    Args:
        track: name of the track.
        speed: game seconds per wall second; the period is 0.05 / speed.
        interface: further keyword arguments of `CircuitInterface`.
        **overrides: configuration keys that replace the ones chosen here.
    """
    kwargs = {"track": track, "speed": speed, **(interface or {})}
    keys = kwargs.get("controls") == "keys"
    config: dict[str, Any] = {
        "interface": CircuitInterface,
        "interface_kwargs": kwargs,
        "time_step_duration": STEP_S / speed,
        "start_obs_capture": STEP_S / speed,
        "time_step_timeout_factor": 10.0,
        "ep_max_length": 1000,
        "act_buf_len": 2,
        "obs_format": "dict",
        "safe_action": np.array([0, 0, 0, 1], dtype=np.int8)
        if keys
        else np.array([0.0, -1.0], dtype=np.float32),
    }
    return config | overrides
