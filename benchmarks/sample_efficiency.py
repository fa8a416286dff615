"""Claim: in 100,000 steps, 83 minutes at 20 Hz, the default preset reaches 1.5 times what SB3's SAC reaches.

HalfCheetah, Walker2d and Hopper of Gymnasium's MuJoCo v5, 100,000 steps, 3 seeds: our `sac` and the default
preset beside the SAC of Stable-Baselines3 with its own settings. Every 10,000 steps the policy is evaluated
without noise in an environment of its own, 10 episodes; a run's return is the mean of the last evaluation,
divided by a constant for the task (`SCALE`). Interquartile means over tasks and seeds with bootstrap
intervals, by rliable. Each other preset learns Hopper once, for as many steps as four core-hours give.

Runs are resumed one by one: each has a file in benchmarks/results/sample_efficiency when it is complete.

    python benchmarks/sample_efficiency.py                  all of it (some 12 core-hours for the table)
    python benchmarks/sample_efficiency.py --quick --check  Hopper, one seed, 30,000 steps
    python benchmarks/sample_efficiency.py --others         the other presets on Hopper
    python benchmarks/sample_efficiency.py --tasks Ant Humanoid --seeds 1   the two larger bodies
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import _learning_runs as learning

SCALE = {"HalfCheetah": 10_000.0, "Walker2d": 4_000.0, "Hopper": 3_000.0, "Ant": 5_000.0, "Humanoid": 5_000.0}
"""Return by which a task's returns are divided: about what SAC reaches after a million steps."""
TASKS = ("HalfCheetah", "Walker2d", "Hopper")
STEPS = 100_000
EVALUATE_EVERY = 10_000
EPISODES = 10
EVALUATION_SEED = 10_000
PEER = "stable-baselines3"
FOLDER = learning.RESULTS / "sample_efficiency"


# --- one run ---------------------------------------------------------------------------------------------


class Table:
    """Collects the rows of one run."""

    def __init__(self, task: str) -> None:
        import gymnasium

        self._env = gymnasium.make(f"{task}-v5")
        self._began = time.perf_counter()
        self._evaluating = 0.0
        self.rows: list[dict[str, object]] = []

    def evaluate(self, step: int, act) -> None:
        """Run the evaluation episodes; ``act`` maps an observation to an action."""
        begin = time.perf_counter()
        returns, lengths = [], []
        for episode in range(EPISODES):
            observation, _ = self._env.reset(seed=EVALUATION_SEED + episode)
            total, length, done = 0.0, 0, False
            while not done:
                observation, reward, terminated, truncated, _ = self._env.step(act(observation))
                total, length, done = total + float(reward), length + 1, terminated or truncated
            returns.append(total)
            lengths.append(length)
        self._evaluating += time.perf_counter() - begin
        row = {
            "step": step,
            "return": round(sum(returns) / len(returns), 2),
            "least": round(min(returns), 2),
            "largest": round(max(returns), 2),
            "length": round(sum(lengths) / len(lengths), 1),
            "training_s": round(time.perf_counter() - self._began - self._evaluating, 1),
        }
        self.rows.append(row)
        print(row, flush=True)


def run_peer(run: learning.Run) -> None:
    """Train Stable-Baselines3's SAC with its own settings."""
    import gymnasium
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", gymnasium.make(f"{run.task}-v5"), seed=run.seed, device="cpu")
    table = Table(run.task)
    every = min(EVALUATE_EVERY, run.steps)
    for step in range(every, run.steps + 1, every):
        model.learn(every, reset_num_timesteps=False)
        table.evaluate(step, lambda observation: model.predict(observation, deterministic=True)[0])
    learning.write_table(run.file, table.rows)


def run_preset(run: learning.Run) -> None:
    """Train one of our presets, in one process, with what `tickrate train` is made of."""
    import torch

    from tickrate.config.experiment import experiment_from_mapping
    from tickrate.policy import Policy

    torch.set_num_threads(1)
    table = Table(run.task)
    every = min(EVALUATE_EVERY, run.steps)
    experiment = experiment_from_mapping(
        {
            "environment": {"id": f"{run.task}-v5"},
            "algorithm": {"preset": run.contender, **run.changes},
            "replay": {"gamma": 0.99, "n_step": 1, "capacity": 2 * run.steps, "storage": "memory"},
            "trainer": {
                "total_steps": run.steps,
                "start_steps": 1000,
                "publish_every": 1,
                "checkpoint_every_s": 1e6,
            },
            "run": {"seed": run.seed},
        }
    )

    def evaluate(steps: int, weights: bytes) -> None:
        policy = Policy.from_bytes(weights)
        state = policy.initial_state(1)

        def act(observation):
            leaves = {"value": observation.astype("float32")[None]}
            return policy.act(leaves, state, deterministic=True)[0][0]

        table.evaluate(steps, act)

    learning.train_here(experiment, every, evaluate)
    learning.write_table(run.file, table.rows)


# --- the benchmark ---------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", nargs=4, metavar=("CONTENDER", "TASK", "SEED", "STEPS"), help=argparse.SUPPRESS
    )
    parser.add_argument("--set", default="{}", metavar="JSON", help="settings beside the preset, to explore")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the runs' files are")
    arguments = parser.parse_args()
    if arguments.run:
        contender, task, seed, steps = arguments.run
        run = learning.Run(
            contender,
            task,
            int(seed),
            int(steps),
            folder=arguments.folder,
            changes=json.loads(arguments.set),
        )
        (run_peer if contender == PEER else run_preset)(run)
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
