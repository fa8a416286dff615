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
    python benchmarks/sample_efficiency.py --others --jobs 1 --threads 2     the same, sooner for each of them
    python benchmarks/sample_efficiency.py --tasks Ant Humanoid --seeds 1   the two larger bodies
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
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
PEERS = ("stable-baselines3==2.9.2", "gymnasium[mujoco]", "rliable==1.2.0", "pandas<3")
DEFAULT = "live"
"""The preset that an experiment has if it names none."""
OTHERS = ("crossq", "redq", "droq", "flashsac")
BAR = 1.5
CORE_HOURS = 4.0
LEAST_STEPS = 10_000
FOLDER = learning.RESULTS / "sample_efficiency"


# --- one run ---------------------------------------------------------------------------------------------


class Table:
    """Collects the rows of one run."""

    def __init__(self, task: str) -> None:
        import gymnasium

        self._env = gymnasium.make(f"{task}-v5")
        self._began = time.process_time()
        self._evaluating = 0.0
        self._earlier = 0.0
        self.rows: list[dict[str, object]] = []

    @property
    def training_s(self) -> float:
        """Seconds of CPU time that training has taken, interrupted commands included."""
        return self._earlier + time.process_time() - self._began - self._evaluating

    def save(self, place: Path) -> None:
        """Keep what there is, for a run that is interrupted."""
        place.write_text(json.dumps([self.rows, self.training_s]), encoding="utf-8")

    def restore(self, place: Path) -> None:
        """Go on from what `save` kept."""
        self.rows, self._earlier = json.loads(place.read_text(encoding="utf-8"))

    def evaluate(self, step: int, act) -> None:
        """Run the evaluation episodes; ``act`` maps an observation to an action."""
        begin = time.process_time()
        returns, lengths = [], []
        for episode in range(EPISODES):
            observation, _ = self._env.reset(seed=EVALUATION_SEED + episode)
            total, length, done = 0.0, 0, False
            while not done:
                observation, reward, terminated, truncated, _ = self._env.step(act(observation))
                total, length, done = total + float(reward), length + 1, terminated or truncated
            returns.append(total)
            lengths.append(length)
        self._evaluating += time.process_time() - begin
        row = {
            "step": step,
            "return": round(sum(returns) / len(returns), 2),
            "least": round(min(returns), 2),
            "largest": round(max(returns), 2),
            "length": round(sum(lengths) / len(lengths), 1),
            "training_s": round(self.training_s, 1),
        }
        # A run that was interrupted may come by a step again that lies behind its last checkpoint.
        self.rows = [*(before for before in self.rows if before["step"] < step), row]
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


def run_preset(run: learning.Run, threads: int) -> None:
    """Train one of our presets, in one process, with what `tickrate train` is made of.

    It ends after `CORE_HOURS`, but not before `LEAST_STEPS`. A run that was interrupted goes on from its last
    checkpoint, with a new episode.
    """
    import torch

    from tickrate.config.experiment import experiment_from_mapping
    from tickrate.policy import Policy
    from tickrate.runtime.run_folder import RunFolder

    torch.set_num_threads(threads)
    table = Table(run.task)
    every = min(EVALUATE_EVERY, run.steps)
    algorithm = {"preset": run.contender, **run.changes}
    policy_delay = experiment_from_mapping({"algorithm": algorithm}).algorithm.settings.policy_delay
    experiment = experiment_from_mapping(
        {
            "environment": {"id": f"{run.task}-v5"},
            "algorithm": algorithm,
            "replay": {"gamma": 0.99, "n_step": 1, "capacity": 2 * run.steps, "storage": "memory"},
            "trainer": {
                "total_steps": run.steps,
                "start_steps": 1000,
                "publish_every": policy_delay,  # in between, the actor is what it was
                "checkpoint_every_s": 600.0,
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

    def enough(steps: int) -> bool:
        nonlocal saved
        if (newest := folder.latest_checkpoint()) != saved:
            table.save(kept / "table.json")  # what is lost with a crash is neither in it nor learned from
            saved = newest
        return steps >= LEAST_STEPS and table.training_s >= 3600.0 * CORE_HOURS

    kept = run.folder / "runs" / run.file.stem
    folder = RunFolder(kept / "run")
    saved = folder.latest_checkpoint()
    if saved is not None and (kept / "table.json").exists():
        table.restore(kept / "table.json")
    elif kept.exists():
        shutil.rmtree(kept)  # interrupted before its first checkpoint: nothing to go on from
    kept.mkdir(parents=True, exist_ok=True)
    learner = learning.train_here(experiment, every, evaluate, place=folder.path, enough=enough)
    if table.rows[-1]["step"] != learner.limiter.steps:
        evaluate(learner.limiter.steps, learner.algorithm.policy_bytes(learner.version))
    learning.write_table(run.file, table.rows)
    shutil.rmtree(kept)


# --- the benchmark ---------------------------------------------------------------------------------------


def command(run: learning.Run, threads: int = 1) -> list[str]:
    changes = ["--set", json.dumps(run.changes)] if run.changes else []
    how = ["--folder", str(run.folder), "--threads", str(threads), *changes]
    return [__file__, "--run", run.contender, run.task, str(run.seed), str(run.steps), *how]


def returns(runs: list[learning.Run]) -> dict[str, list[list[float]]]:
    """Return by contender the scaled returns, a list of seeds for each task, in the tasks' order."""
    found: dict[str, list[list[float]]] = {}
    for contender in dict.fromkeys(run.contender for run in runs):
        found[contender] = [
            [
                learning.read_table(run.file)[-1]["return"] / SCALE[task]
                for run in runs
                if run.contender == contender and run.task == task
            ]
            for task in dict.fromkeys(run.task for run in runs)
        ]
    return found


def intervals(scaled: dict[str, list[list[float]]], peer: str) -> dict[str, object]:
    """Return interquartile means and the ratios to the peer's, with 95 % bootstrap intervals, by rliable."""
    done = subprocess.run(
        [peer, __file__, "--intervals"],
        input=json.dumps(scaled),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def print_intervals() -> None:
    """Compute what `intervals` asks for; runs in the peer's environment, which has rliable."""
    import numpy as np
    from rliable import library, metrics

    scaled = {name: np.array(values).T for name, values in json.load(sys.stdin).items()}  # seeds x tasks
    ours = [name for name in scaled if name != PEER]
    pairs = {f"{name}/{PEER}": np.concatenate([scaled[name], scaled[PEER]], axis=1) for name in ours}
    tasks = scaled[PEER].shape[1]

    def mean(values):
        return np.array([metrics.aggregate_iqm(values)])

    def ratio(values):
        return np.array([metrics.aggregate_iqm(values[:, :tasks]) / metrics.aggregate_iqm(values[:, tasks:])])

    result = {}
    for function, samples in ((mean, scaled), (ratio, pairs)):
        points, ranges = library.get_interval_estimates(
            samples, function, reps=20_000, random_state=np.random.RandomState(0)
        )
        for name in samples:
            result[name] = [float(points[name][0]), float(ranges[name][0][0]), float(ranges[name][1][0])]
    print(json.dumps(result))


def draw(runs: list[learning.Run], place: Path) -> None:
    """Draw the learning curves, mean and range of the seeds, one picture a task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(run.task for run in runs))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.5 * len(tasks), 3.5), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for contender in dict.fromkeys(run.contender for run in runs):
            tables = [learning.read_table(r.file) for r in runs if (r.contender, r.task) == (contender, task)]
            if not tables:
                continue
            steps = [row["step"] for row in tables[0]]
            columns = [[t[i]["return"] for t in tables] for i in range(len(steps))]
            axis.plot(steps, [statistics.mean(column) for column in columns], label=contender)
            axis.fill_between(steps, [min(c) for c in columns], [max(c) for c in columns], alpha=0.2)
        axis.set(title=f"{task}-v5", xlabel="environment steps", ylabel="return")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(place, dpi=120)
    print(f"curves: {place}")


def print_ends(runs: list[learning.Run]) -> None:
    """Print where each run ended."""
    print("\n| who | task | seed | steps | return | least | largest | CPU (s) |\n| --- |" + " --- |" * 7)
    for run in runs:
        last = learning.read_table(run.file)[-1]
        print(
            f"| {run.contender} | {run.task} | {run.seed} | {last['step']:.0f} | "
            f"{last['return']:.0f} | {last['least']:.0f} | "
            f"{last['largest']:.0f} | {last['training_s']:.0f} |"
        )


def report(runs: list[learning.Run], peer: str) -> tuple[float, float]:
    """Print the intervals; return the default's ratio to the peer and the lower end of its interval."""
    estimates = intervals(returns(runs), peer)
    print("\n| who | IQM of scaled returns, or ratio of IQMs | 95 % interval |\n| --- | --- | --- |")
    for name, (point, low, high) in estimates.items():
        print(f"| {name} | {point:.3f} | {low:.3f} to {high:.3f} |")
    ratio, low, _ = estimates[f"{DEFAULT}/{PEER}"]
    return ratio, low


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="Hopper, one seed, 30,000 steps")
    parser.add_argument("--check", action="store_true", help="exit 1 if the bar is not met")
    parser.add_argument(
        "--others", action="store_true", help="the other presets on Hopper, four core-hours each"
    )
    parser.add_argument("--tasks", nargs="+", choices=list(SCALE), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run of ours")
    parser.add_argument(
        "--peer", metavar="PYTHON", help="interpreter with stable-baselines3, MuJoCo and rliable"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the runs' files are; by default results, with --quick a folder of its own there",
    )
    parser.add_argument(
        "--run", nargs=4, metavar=("CONTENDER", "TASK", "SEED", "STEPS"), help=argparse.SUPPRESS
    )
    parser.add_argument("--set", default="{}", metavar="JSON", help=argparse.SUPPRESS)
    parser.add_argument("--intervals", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder = learning.folder_for(arguments.folder, FOLDER, quick=arguments.quick)
    if arguments.intervals:
        print_intervals()
        return 0
    if arguments.run:
        contender, task, seed, steps = arguments.run
        where = {"folder": arguments.folder, "changes": json.loads(arguments.set)}
        run = learning.Run(contender, task, int(seed), int(steps), **where)
        if contender == PEER:
            run_peer(run)
        else:
            run_preset(run, arguments.threads)
        return 0
    peer = "" if arguments.others else learning.peer_python(arguments.peer, PEERS, "rliable")
    if arguments.quick:
        arguments.tasks, arguments.seeds, arguments.steps = ["Hopper"], 1, 30_000
    if arguments.others:
        runs = [
            learning.Run(preset, "Hopper", 0, arguments.steps, folder=arguments.folder) for preset in OTHERS
        ]
    else:
        runs = [
            learning.Run(
                who, task, seed, arguments.steps, peer if who == PEER else sys.executable, arguments.folder
            )
            for seed in range(arguments.seeds)
            for task in arguments.tasks
            for who in (PEER, "sac", DEFAULT)
        ]
    failed = learning.run_all(
        runs,
        lambda run: command(run, arguments.threads),
        jobs=arguments.jobs,
        threads=arguments.threads,
        limit_s=5 * 3600.0,
    )
    if failed:
        print(f"{len(failed)} runs failed; start again to go on")
        return 1
    draw(runs, arguments.folder / ("others.png" if arguments.others else "curves.png"))
    print_ends(runs)
    if arguments.others:
        return 0
    ratio, low = report(runs, peer)
    if arguments.quick:
        print("one task and one seed at 30,000 steps: the claim as a whole was not tested")
    good = ratio >= BAR and (low > 1.0 or arguments.quick)
    print(f"ratio of the default preset ({DEFAULT}) to {PEER}: {ratio:.2f} (bar {BAR}, interval above 1)")
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
