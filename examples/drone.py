"""Fly the tutorial's drone with a proportional controller in real time.

python examples/drone.py --episodes 3
"""

from __future__ import annotations

import argparse

import numpy as np

from tickrate import RealTimeEnv
from tickrate.games.drone import DroneInterface
from tickrate.realtime.delays import probe_delay


def model(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Fly towards the target, slower the nearer: the delays forbid more gain."""
    x, y, target_x, target_y = (observation[name] for name in ("x", "y", "target_x", "target_y"))
    return np.clip(4.0 * np.concatenate([target_x - x, target_y - y]), -2.0, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--probe", type=int, default=10, help="commands sent to measure the delay")
    arguments = parser.parse_args()

    env = RealTimeEnv(
        {
            "interface": DroneInterface,
            "time_step_duration": 0.05,
            "time_step_timeout_factor": 1.0,
            "ep_max_length": 100,
            "act_buf_len": 4,
            "reset_act_buf": False,  # the drone flies on through a reset, so the commands in flight stay true
            "obs_format": "dict",
        }
    )
    print(probe_delay(env, repeats=arguments.probe, settle_steps=4))

    for episode in range(arguments.episodes):
        observation, _ = env.reset(seed=episode)
        total, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, _ = env.step(model(observation))
            total += float(reward)
        print(f"episode {episode}: {'target reached' if terminated else 'out of time'}, return {total:.2f}")
    print(env.timing_summary())
    env.close()


if __name__ == "__main__":
    main()
