"""Stable-Baselines3's PPO and SAC on a tickrate environment: no adapter, only ``obs_format``.

pip install tickrate[sb3]
python examples/sb3_ppo_sac.py            # the drone on a simulated clock: seconds
python examples/sb3_ppo_sac.py --live     # the drone in real time, 20 Hz
"""

from __future__ import annotations

import argparse

import gymnasium
from stable_baselines3 import PPO, SAC

from tickrate import RealTimeEnv
from tickrate.games.drone import DroneInterface
from tickrate.testing import FakeClock


def make_env(obs_format: str, live: bool) -> gymnasium.Env:
    """Return the drone; on a fake clock it is the same environment with the same delays, only faster."""
    clock = None if live else FakeClock()
    return RealTimeEnv(
        {
            "interface": DroneInterface,
            "interface_kwargs": {"drone_kwargs": {"clock": clock}},
            "time_step_duration": 0.05,
            "ep_max_length": 100,
            "act_buf_len": 3,
            "obs_format": obs_format,
        },
        clock=clock,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--live", action="store_true")
    arguments = parser.parse_args()

    env = make_env("flat", arguments.live)
    PPO("MlpPolicy", env, n_steps=125, batch_size=125, n_epochs=2, device="cpu").learn(arguments.steps)
    print(f"PPO, flat observations: {arguments.steps} steps; {env.timing_summary()}")
    env.close()

    env = make_env("dict", arguments.live)
    model = SAC("MultiInputPolicy", env, learning_starts=100, batch_size=64, train_freq=5, device="cpu")
    model.learn(arguments.steps)
    print(f"SAC, dict observations: {arguments.steps} steps; {env.timing_summary()}")
    env.close()


if __name__ == "__main__":
    main()
