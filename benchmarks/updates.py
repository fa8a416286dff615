"""Claim: updates are faster than Stable-Baselines3's, sampling from the replay included.

Bars: `sac` beside the SAC of Stable-Baselines3, and `crossq` beside the CrossQ of sb3-contrib, with the same
networks (256 x 256), batch (256) and spaces (17 observations, 6 actions): at least 1.2 times the peer's
updates a second with one thread, and 1.4 times with two. The share of the machine's matrix-product bound is
printed: the products of one SAC update over what `torch.mm` reaches in the same run. Then every other preset
with its own settings, without a bar, and what that means at 20 Hz: steps a second that it can keep up with.

Each contender is a process of its own, the peers in a virtual environment of their own (made if it is
missing). They take turns in short windows, so that whatever else the machine does hits both; the ratio is the
median over the pairs of neighbouring windows.

    python benchmarks/updates.py                    about four minutes
    python benchmarks/updates.py --quick --check    about two minutes; exits 1 below a bar
    python benchmarks/updates.py --cuda             on a CUDA machine: eager, compiled, and CUDA-graph updates
    python benchmarks/updates.py --peer PYTHON      an interpreter that has stable-baselines3 and sb3-contrib
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import _learning_runs as learning

PEERS = ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2")
OBSERVATION, ACTION, HIDDEN, BATCH, STORED = 17, 6, 256, 256, 100_000
BARS = {1: 1.2, 2: 1.4}
PAIRS = {"sac": "stable-baselines3 SAC", "crossq": "sb3-contrib CrossQ"}
OTHERS = ("live", "redq", "droq", "flashsac")
BOUND = "matrix products"
START_LIMIT_S, WINDOW_LIMIT_S = 120.0, 60.0


def flop_per_update() -> float:
    """Return the operations of all matrix products of one update, critics frozen where they can be."""

    def layers(inputs: int, outputs: int) -> list[float]:
        pairs = [(inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)]
        return [2.0 * BATCH * rows * columns for rows, columns in pairs]

    actor, critic = layers(OBSERVATION, 2 * ACTION), layers(OBSERVATION + ACTION, 1)
    # An affine layer costs one product forward, one for its weights' gradient and one for its input's.
    next_actions, targets = sum(actor), 2 * sum(critic)
    critic_step = 2 * (2 * sum(critic) + sum(critic[1:]))
    actor_step = (2 * sum(actor) + sum(actor[1:])) + 2 * (2 * sum(critic))
    return next_actions + targets + critic_step + actor_step


# --- contenders: each returns a function that does some work and says how many updates that was ------------


def preset_updates(preset: str, device: str = "cpu", compile_mode: str = "off") -> Callable[[], int]:
    import numpy as np
    from gymnasium import spaces

    from tickrate.algorithms.sac import SAC
    from tickrate.config.experiment import experiment_from_mapping
    from tickrate.data.replay import Replay
    from tickrate.data.schema import Flag, RecordSchema

    observation, action = spaces.Box(-np.inf, np.inf, (OBSERVATION,)), spaces.Box(-1, 1, (ACTION,))
    schema = RecordSchema.from_spaces({"value": observation}, action)
    replay = Replay(schema, STORED, gamma=0.99)
    rng = np.random.default_rng(0)
    rows = schema.empty(STORED)
    rows["episode"], rows["step"] = np.divmod(np.arange(STORED), 1000)
    rows["flags"] = np.select(
        [rows["step"] == 999, rows["step"] == 998], [int(Flag.FINAL), int(Flag.TRUNCATED)], 0
    )
    rows["o/value"] = rng.standard_normal((STORED, OBSERVATION))
    rows["action"] = rng.uniform(-1, 1, (STORED, ACTION))
    rows["reward"] = rng.standard_normal(STORED)
    replay.add(rows)
    settings = experiment_from_mapping(
        {"algorithm": {"preset": preset, "compile": compile_mode}}
    ).algorithm.settings
    where = {"seed": 0, "period_s": 0.0, "action_buffer_length": 0, "device": device}
    sac = SAC(settings, {"value": observation}, action, **where)
    count = 1 if preset == "flashsac" and device == "cpu" else 10

    def unit() -> int:
        for _ in range(count):
            metrics = sac.update(replay.sample(settings.batch_size))
        float(metrics["critic_loss"])  # waits for the device
        return count

    return unit


def peer_updates(name: str) -> Callable[[], int]:
    import gymnasium
    import numpy as np
    from stable_baselines3.common.logger import configure

    class Still(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,))
        action_space = gymnasium.spaces.Box(-1, 1, (ACTION,))

    if name == PAIRS["sac"]:
        from stable_baselines3 import SAC as Peer  # noqa: N811

        networks = {"net_arch": [HIDDEN, HIDDEN]}
    else:
        from sb3_contrib import CrossQ as Peer

        networks = {"net_arch": [HIDDEN, HIDDEN]}
    options = {"buffer_size": STORED, "batch_size": BATCH, "seed": 0, "device": "cpu"}
    model = Peer("MlpPolicy", Still(), policy_kwargs=networks, **options)
    model.set_logger(configure(None, []))
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    buffer.observations[:] = rng.standard_normal(buffer.observations.shape)
    buffer.next_observations[:] = rng.standard_normal(buffer.observations.shape)
    buffer.actions[:] = rng.uniform(-1, 1, buffer.actions.shape)
    buffer.rewards[:] = rng.standard_normal(buffer.rewards.shape)
    buffer.full = True

    def unit() -> int:
        model.train(gradient_steps=10, batch_size=BATCH)
        return 10

    return unit


def matrix_products() -> Callable[[], int]:
    import torch

    a, b = torch.randn(BATCH, HIDDEN), torch.randn(HIDDEN, HIDDEN)
    out = torch.empty(BATCH, HIDDEN)
    per_update = round(flop_per_update() / (2.0 * BATCH * HIDDEN * HIDDEN))

    def unit() -> int:
        for _ in range(10 * per_update):
            torch.mm(a, b, out=out)
        return 10

    return unit


def contender(name: str) -> Callable[[], int]:
    """Return the work of a contender."""
    if name == BOUND:
        return matrix_products()
    return peer_updates(name) if name in PAIRS.values() else preset_updates(name)


def contend(name: str, threads: int) -> None:
    """Serve windows: for each line, a number of seconds, work that long and print [updates, seconds]."""
    import torch

    torch.set_num_threads(threads)
    unit = contender(name)
    for _ in range(3):
        unit()
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        updates, begin = 0, time.perf_counter()
        end = begin + float(line)
        while time.perf_counter() < end:
            updates += unit()
        print(json.dumps([updates, time.perf_counter() - begin]), flush=True)


# --- the run ---------------------------------------------------------------------------------------------


class Contender:
    """A contender's process."""

    def __init__(self, name: str, threads: int, python: str) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        environment["PYTHONPATH"] = str(learning.ROOT)
        self._process = subprocess.Popen(
            [python, __file__, "--contend", name, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def read(self, limit_s: float) -> object:
        """Return its next line, or end the benchmark if none comes in time."""
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise SystemExit(f"{self.name}: no answer within {limit_s:.0f} s (its error is above)")
        return json.loads(line)

    def rate(self, seconds: float) -> float:
        """Work for a window; return updates a second."""
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        updates, took = self.read(seconds + WINDOW_LIMIT_S)
        return updates / took

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        self._process.stdout.close()


def windows(names: list[str], threads: int, peer: str, pairs: int, window_s: float) -> dict[str, list[float]]:
    """Run contenders in turn with so many threads; return each one's updates a second, window by window."""
    contenders = [
        Contender(name, threads, peer if name in PAIRS.values() else sys.executable) for name in names
    ]
    rates: dict[str, list[float]] = {name: [] for name in names}
    try:
        versions = [contender.read(START_LIMIT_S)["torch"] for contender in contenders]
        if len(set(versions)) > 1:
            print(f"note: torch differs between the contenders: {versions}")
        for pair in range(pairs):
            for contender in contenders if pair % 2 == 0 else contenders[::-1]:
                time.sleep(0.3)  # a contender's idle OpenMP threads spin for a while before they sleep
                rates[contender.name].append(contender.rate(window_s))
    finally:
        for contender in contenders:
            contender.close()
    return rates


def compete(preset: str, threads: int, peer: str, pairs: int, window_s: float) -> tuple[float, float]:
    """Run a preset beside its peer; print a row; return ratio and torch.mm's GFLOP/s."""
    rates = windows([preset, PAIRS[preset], BOUND], threads, peer, pairs, window_s)
    ours, theirs, bound = (statistics.median(rates[name]) for name in rates)
    ratio = statistics.median(a / b for a, b in zip(rates[preset], rates[PAIRS[preset]], strict=True))
    gflops = bound * flop_per_update() / 1e9
    share = f"{ours / bound:.0%} | {theirs / bound:.0%}" if preset == "sac" else " | "
    print(
        f"| {preset} | {threads} | {ours:.0f} | {theirs:.0f} | **{ratio:.2f}** | {BARS[threads]} | "
        f"{gflops:.0f} | {bound:.0f} | {share} |"
    )
    return ratio, gflops


def report_others(threads: int, window_s: float) -> None:
    """Print what each preset costs, and the rate of steps that it can keep up with."""
    from tickrate.config.experiment import experiment_from_mapping

    print("\n| preset | threads | updates/s | updates a step | steps/s | 20 Hz |")
    print("| --- | --- | --- | --- | --- | --- |")
    rates = windows([*PAIRS, *OTHERS], threads, sys.executable, 3, window_s)
    for preset, found in rates.items():
        rate = statistics.median(found)
        needed = experiment_from_mapping({"algorithm": {"preset": preset}}).trainer.updates_per_step
        keeps = "yes" if rate / needed >= 20.0 else "no"
        print(f"| {preset} | {threads} | {rate:.1f} | {needed:g} | {rate / needed:.1f} | {keeps} |")


def on_cuda(window_s: float) -> int:
    """Compare eager, compiled and CUDA-graph updates of each preset on a CUDA device."""
    import torch

    if not torch.cuda.is_available():
        print("there is no CUDA device here")
        return 1
    print(f"updates a second on {torch.cuda.get_device_name()}, torch {torch.__version__}, sampling included")
    print("| preset | eager | compiled | CUDA graphs | best / eager |\n| --- | --- | --- | --- | --- |")
    for preset in (*PAIRS, *OTHERS):
        rates = []
        for mode in ("off", "default", "reduce-overhead"):
            unit = preset_updates(preset, "cuda", mode)
            for _ in range(5):
                unit()
            updates, begin = 0, time.perf_counter()
            while time.perf_counter() < begin + window_s:
                updates += unit()
            rates.append(updates / (time.perf_counter() - begin))
        row = " | ".join(f"{rate:.0f}" for rate in rates)
        print(f"| {preset} | {row} | **{max(rates) / rates[0]:.2f}** |", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows, the same bars")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is not met")
    parser.add_argument("--cuda", action="store_true", help="compare ways to run an update on a CUDA device")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that has the peers")
    parser.add_argument("--contend", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        contend(arguments.contend, arguments.threads)
        return 0
    pairs, window_s = (5, 1.5) if arguments.quick else (9, 2.5)
    if arguments.cuda:
        return on_cuda(window_s)
    peer = learning.peer_python(arguments.peer, PEERS, "sb3_contrib")
    print(f"updates a second, sampling included; {platform.platform()}, {os.cpu_count()} CPUs")
    print(f"{HIDDEN}x{HIDDEN}, batch {BATCH}, {OBSERVATION} observations, {ACTION} actions; ", end="")
    print(f"{flop_per_update() / 1e9:.2f} GFLOP a SAC update; median of {pairs} windows of {window_s} s each")
    print(
        "| preset | threads | tickrate | peer | ratio | bar | torch.mm GFLOP/s | bound | our share | peer's |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    usable = [threads for threads in BARS if threads <= (os.cpu_count() or 1)]
    results = {
        (preset, threads): compete(preset, threads, peer, pairs, window_s)
        for threads in usable
        for preset in PAIRS
    }
    report_others(1, window_s)
    failed = [(preset, n) for (preset, n), (ratio, _) in results.items() if ratio < BARS[n]]
    if 2 in usable and results["sac", 2][1] < 1.3 * results["sac", 1][1]:
        print(
            "note: two threads multiply matrices hardly faster than one: other processes hold the cores, and"
        )
        print("waiting for one another is what the rows of two threads measure. Run it on a quiet machine.")
    for threads in BARS.keys() - set(usable):
        print(f"not run: {threads} threads on {os.cpu_count()} CPU")
    for preset, threads in failed:
        print(f"BELOW THE BAR: {preset} with {threads} threads")
    print("ratios: " + ", ".join(f"{p} {n} {ratio:.2f}" for (p, n), (ratio, _) in results.items()))
    return 1 if failed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
