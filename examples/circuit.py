"""Drives the live circuit from Python: starts the game, lets the gap follower drive at 20 Hz, shows the lap.

python examples/circuit.py [--speed 4] [--png lap.png]
"""

import argparse
import math

from tickrate.games.circuit.drivers import GapFollower
from tickrate.games.circuit.interface import circuit_config
from tickrate.games.circuit.picture import draw_png
from tickrate.realtime import RealTimeEnv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--track", default="demo")
    parser.add_argument("--speed", type=float, default=1.0, help="game seconds per wall second")
    parser.add_argument("--png", help="write a picture of the lap to this file")
    options = parser.parse_args()

    env = RealTimeEnv(circuit_config(options.track, options.speed))
    driver = GapFollower()
    try:
        env.reset(seed=0)
        total, over, info = 0.0, False, {}
        while not over:
            # A script drives from the whole sensor frame; a policy uses the observation of step().
            action = driver.act(env.interface.frame)
            _, reward, terminated, truncated, info = env.step(action)
            total, over = total + float(reward), terminated or truncated
        print(env.interface.render())
        print(
            f"return {total:.2f}, end: {info.get('end')}, lap time: {info.get('lap_time_s', math.nan):.2f} s"
        )
        if options.png:
            line = env.interface.driven_line()
            print("written:", draw_png(env.interface.track, {"gap follower": line}, options.png))
    finally:
        env.close()


if __name__ == "__main__":
    main()
