"""What the TCP example teaches, as tests: a silent game, a game that is not there, a game that comes back."""

import importlib.util
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from tickrate import RealTimeEnv
from tickrate.clock import now

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_tcp_game.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("custom_tcp_game", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["custom_tcp_game"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["custom_tcp_game"]


@pytest.fixture
def game(example):
    game = example.BallGame()
    game.start()
    yield game
    game.quit = True
    game.join(10.0)
    assert not game.is_alive()


def make(example, port, **kwargs):
    return RealTimeEnv(
        {
            "interface": example.BallInterface,
            "interface_kwargs": {"port": port, **kwargs},
            "time_step_duration": 0.02,
        }
    )


def test_silence_truncates_with_a_reason_and_the_run_goes_on(example, game):
    env = make(example, game.port)
    action = np.ones(1, np.float32)
    for _ in range(2):  # twice: the second loss is like the first
        env.reset()
        for _ in range(3):
            *_, terminated, truncated, info = env.step(action)
            assert not terminated
            assert not truncated
        game.silent = True
        ages = []
        for _ in range(100):
            *_, terminated, truncated, info = env.step(action)
            if truncated:
                break
            ages.append(info["timing"]["observation_age"])
        assert truncated
        assert not terminated
        assert "no telemetry" in info["truncation_reason"]
        assert max(ages) > 0.2  # the frozen data were seen to grow old
        game.silent = False
    env.reset()
    assert not any(env.step(action)[2:4])
    env.close()


def test_nothing_listening_is_one_error_that_names_the_address(example):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = make(example, port, patience_s=0.2)
    began = now()
    with pytest.raises(ConnectionError, match=rf"127\.0\.0\.1:{port} .*is the game on\?"):
        env.reset()
    assert now() - began < 10.0  # not for ever
    env.close()


def test_a_game_that_closes_is_lost_at_once_and_comes_back_on_the_same_port(example, game):
    env = make(example, game.port)
    env.reset()
    env.step(np.zeros(1, np.float32))
    game.quit = True
    game.join(10.0)
    for _ in range(50):
        *_, truncated, info = env.step(np.zeros(1, np.float32))
        if truncated:
            break
    assert "closed" in info["truncation_reason"] or "broke" in info["truncation_reason"]
    again = example.BallGame(game.port)
    again.start()
    env.reset()
    assert not any(env.step(np.zeros(1, np.float32))[2:4])
    env.close()
    again.quit = True
    again.join(10.0)
