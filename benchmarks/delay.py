"""Claim: told of its commands in flight, and with returns that respect delays, a policy loses little.

The drone in lock-step without a radio link of its own, 20 Hz, with commands delayed by 0, 1, 4, or 3 to 5
steps at random. Presets `sac` and `live`, each with nothing, with the action buffer and the measured delays
in the observation, and with these and the correction (`algorithm.delay_correction`). Every run has the same
number of steps; its return is the mean of 40 evaluation episodes at the end, without noise, under the same
delays. What a row of the table closes is its share of the gap between a random policy under the same delay
and the same preset without any delay.

Bars, with buffer and correction: 90 % at 1 step, 70 % at 3 to 5 steps, for the mean of the seeds of each
preset.

On the wall clock, one row: the circuit at 20 Hz with its shipped experiment, commands delayed by 3 to 5 steps
at random (and by the one step of real time), with nothing, with the buffer, and with the correction, beside
no delay at all. It has no bar.

Runs are resumed one by one: each has a file in benchmarks/results/delay when it is complete.

    python benchmarks/delay.py                  the whole table in lock-step (some 5 core-hours)
    python benchmarks/delay.py --quick --check  preset live, one seed, delays 0, 1, 3-5 with the correction
    python benchmarks/delay.py --wall-clock     the row on the circuit, half an hour
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import _circuit_runs as circuit
import _learning_runs as learning

STEPS = 12_000
EPISODES = 40
SEEDS = (0, 1, 2)
PRESETS = ("sac", "live")
DELAYS: dict[str, tuple[int, int]] = {"0": (0, 0), "1": (1, 1), "4": (4, 4), "3-5": (3, 5)}
WAYS = ("nothing", "buffer", "correction")
BARS = {"1": 0.9, "3-5": 0.7}
FOLDER = learning.RESULTS / "delay"
RANDOM = "random"


def settings(preset: str, delay: str, way: str, seed: int) -> dict[str, Any]:
    """Return the experiment of a run."""
    low, high = DELAYS[delay]
    length = high + 1  # the correction reads one command more than the longest delay
    realtime: dict[str, Any] = {"real_time": False}
    algorithm: dict[str, Any] = {"preset": preset}
    if way == "nothing":
        realtime |= {"act_in_obs": False, "timing_in_obs": False}
    else:
        realtime |= {"act_buf_len": length, "timing_in_obs": True}
    if way == "correction":
        algorithm["delay_correction"] = length
    link = {"communication_delay_min": 0.0, "communication_delay_max": 0.0}
    return {
        "environment": {
            "id": "drone",
            "kwargs": {"interface": {"simulated_step_s": 0.05, "drone_kwargs": link}},
            "realtime": realtime,
            "delays": {"action": [low, high]},
        },
        "algorithm": algorithm,
        "replay": {"gamma": 0.97, "n_step": 1, "capacity": 4 * STEPS, "storage": "memory"},
        "trainer": {
            "total_steps": STEPS,
            "start_steps": 500,
            "updates_per_step": 1.0,
            "publish_every": 1,
            "checkpoint_every_s": 1e6,
        },
        "worker": {"warmup": {"hold": [1, 5]}, "evaluation": {"every_steps": 0}},
        "run": {"seed": seed, "mode": "serial"},
    }


def episodes(experiment: Any, act: Any, seed: int) -> tuple[float, float]:
    """Return the mean return and the share of reached targets of evaluation episodes."""
    from tickrate.runtime.environments import open_environment

    environment = open_environment(experiment.environment)
    returns, reached = [], 0
    for episode in range(EPISODES):
        observation, _ = environment.reset(seed=1000 + seed if episode == 0 else None)
        state, total, done = None, 0.0, False
        while not done:
            action, state = act(observation, state)
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, done = total + reward, terminated or truncated
        returns.append(total)
        reached += terminated
    environment.close()
    return statistics.mean(returns), reached / EPISODES


def run_one(run: learning.Run) -> None:
    """Train and evaluate, or evaluate random actions."""
    import numpy as np
    import torch

    from tickrate.config.experiment import experiment_from_mapping
    from tickrate.policy import Policy

    torch.set_num_threads(1)
    delay, way = run.task.split("_")
    preset = "live" if run.contender == RANDOM else run.contender
    experiment = experiment_from_mapping(settings(preset, delay, way, run.seed))
    rows: list[dict[str, object]] = []

    def note(steps: int, act: Any) -> None:
        mean, reached = episodes(experiment, act, run.seed)
        rows.append({"step": steps, "return": round(mean, 3), "reached": round(reached, 3)})
        print(run.contender, run.task, run.seed, rows[-1], flush=True)

    if run.contender == RANDOM:
        rng = np.random.default_rng(run.seed)
        note(0, lambda observation, state: (rng.uniform(-2, 2, 2).astype(np.float32), None))
    else:

        def evaluate(steps: int, weights: bytes) -> None:
            policy = Policy.from_bytes(weights)

            def act(observation: Any, state: Any) -> Any:
                batch = {path: value[None] for path, value in observation.items()}
                action, state, _ = policy.act(batch, state or policy.initial_state(1), deterministic=True)
                return action[0], state

            note(steps, act)

        learning.train_here(experiment, STEPS // 4, evaluate)
    learning.write_table(run.file, rows)


def command(run: learning.Run) -> list[str]:
    return [__file__, "--run", run.contender, run.task, str(run.seed), "--folder", str(run.folder)]


def all_runs(
    folder: Path, presets: tuple[str, ...], delays: tuple[str, ...], seeds: tuple[int, ...], ways: Any
) -> Any:
    """Yield the runs that a table needs."""
    for seed in seeds:
        for delay in delays:
            yield learning.Run(RANDOM, f"{delay}_nothing", seed, STEPS, folder=folder)
            for preset in presets:
                for way in ("nothing",) if delay == "0" else ways:
                    yield learning.Run(preset, f"{delay}_{way}", seed, STEPS, folder=folder)


def final(folder: Path, contender: str, task: str, seeds: tuple[int, ...]) -> list[float]:
    """Return the last return of each seed."""
    runs = [learning.Run(contender, task, seed, STEPS, folder=folder) for seed in seeds]
    return [learning.read_table(run.file)[-1]["return"] for run in runs]


def report(
    folder: Path, presets: tuple[str, ...], delays: tuple[str, ...], seeds: tuple[int, ...], ways: Any
) -> bool:
    """Print the table; return whether every bar is held."""
    print(
        f"\ndrone in lock-step, {STEPS} steps a run, seeds {list(seeds)}; mean return (each seed), gap closed"
    )
    print("| preset | delay | way | return | seeds | random | no delay | gap closed | bar |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    good = True
    for preset in presets:
        free = statistics.mean(final(folder, preset, "0_nothing", seeds))
        for delay in delays:
            chance = statistics.mean(final(folder, RANDOM, f"{delay}_nothing", seeds))
            for way in ("nothing",) if delay == "0" else ways:
                found = final(folder, preset, f"{delay}_{way}", seeds)
                mean = statistics.mean(found)
                closed = (mean - chance) / (free - chance)
                bar = BARS.get(delay) if way == "correction" else None
                good = good and (bar is None or closed >= bar)
                each = ", ".join(f"{value:.1f}" for value in found)
                print(
                    f"| {preset} | {delay} | {way} | {mean:.2f} | {each} | {chance:.1f} | {free:.2f} | "
                    f"**{closed:.0%}** | {'' if bar is None else f'{bar:.0%}'} |"
                )
    return good


def wall_clock(folder: Path, minutes: float) -> bool:
    """Drive the circuit with and without delays; print the row; return whether the correction made a lap."""
    low, high = DELAYS["3-5"]
    delayed = [f"environment.delays.action=[{low}, {high}]"]
    length = high + 2  # real time has a step of its own, and the correction reads one command more
    told = [*delayed, f"environment.realtime.act_buf_len={length}", "environment.realtime.timing_in_obs=true"]
    untold = ["environment.realtime.act_in_obs=false", "environment.realtime.timing_in_obs=false"]
    settings = {
        "no-delay": [],
        "nothing": [*delayed, *untold],
        "buffer": told,
        "correction": [*told, f"algorithm.delay_correction={length}"],
    }
    runs = [learning.Run(way, f"circuit-{minutes:g}min", 0, 0, folder=folder) for way in settings]
    circuit.drive(runs, settings, minutes, side_by_side=len(runs), further=True)
    print(f"\ncircuit at 20 Hz, wall clock, {minutes:g} minutes a run; delays of {low} to {high} steps")
    print(circuit.TABLE_HEAD)
    for run in runs:
        print(circuit.row(run))
    first: float = learning.read_table(runs[-1].file)[0]["first_lap_s"]
    return first == first


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="preset live, one seed, with the correction only"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is not met")
    parser.add_argument("--wall-clock", action="store_true", help="the row on the circuit instead")
    parser.add_argument("--minutes", type=float, default=20.0, help="of a run on the circuit")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the runs' files are; by default results, with --quick a folder of its own there",
    )
    parser.add_argument("--run", nargs=3, metavar=("CONTENDER", "TASK", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder = learning.folder_for(arguments.folder, FOLDER, quick=arguments.quick)
    if arguments.run:
        contender, task, seed = arguments.run
        run_one(learning.Run(contender, task, int(seed), STEPS, folder=arguments.folder))
        return 0
    if arguments.wall_clock:
        lapped = wall_clock(arguments.folder, arguments.minutes)
        return 0 if lapped or not arguments.check else 1
    presets, delays, seeds, ways = PRESETS, tuple(DELAYS), SEEDS, WAYS
    if arguments.quick:
        presets, delays, seeds, ways = ("live",), ("0", "1", "3-5"), (0,), ("correction",)
    runs = list(all_runs(arguments.folder, presets, delays, seeds, ways))
    failed = learning.run_all(runs, command, jobs=arguments.jobs, limit_s=3600.0)
    if failed:
        print(f"{len(failed)} runs failed; start again to go on")
        return 1
    good = report(arguments.folder, presets, delays, seeds, ways)
    if arguments.quick:
        print("one seed of one preset: the table as a whole was not tested")
    if not good:
        print("BELOW THE BAR")
    return 1 if arguments.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
