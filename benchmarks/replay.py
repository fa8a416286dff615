"""Claim: the replay costs the same at any size, is fast, and keeps each frame once.

Bars: (1) what adding costs, and what sampling costs beyond a bare ``np.take`` of as many rows of the same
kind, is at 10^6 entries at most 1.5 times that at 10^4, each by itself and both together; (2) at least
10,000 batches/s of 256 small vectors; (3) 100,000 steps of 64 x 64 uint8 images with stack 4 take at most
1.2 x 0.41 GB of memory. Times are medians of blocks of calls, taken in turn at both sizes; both rings are
full and coming round. Stable-Baselines3's ReplayBuffer runs beside, in its own process, where an interpreter
has it (``--peer-python``).

    python benchmarks/replay.py            about half a minute
    python benchmarks/replay.py --quick    a third of the calls, the same bars
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from tickrate.clock import now
from tickrate.data.replay import Replay
from tickrate.data.schema import Field, Flag, RecordSchema, Rows

SIZES = (10_000, 1_000_000)
BATCH = 256
ADDED = 64
EPISODE = 1000
BLOCK = 100
VECTORS = RecordSchema((Field("observation", "float32", (17,)),), Field("action", "float32", (6,)))
IMAGES = RecordSchema((Field("camera", "uint8", (64, 64), stack=4),), Field("action", "float32", (2,)))
STEPS, FRAMES_GB = 100_000, 0.41

PEER = """
import json, sys, time
import numpy as np, torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
torch.set_num_threads(1)
box = lambda n: spaces.Box(-1, 1, (n,), np.float32)
size, batch, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
buffer = ReplayBuffer(size, box(17), box(6), device="cpu")
buffer.full = True
for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards):
    array[:] = 1
calls, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    buffer.sample(batch)
    calls += 1
print(json.dumps(calls / (time.perf_counter() - begin)))
"""


def rows_of(schema: RecordSchema, first: int, count: int) -> Rows:
    """Return the rows from number ``first`` on: one stream, episodes of 1000 steps, ended by a limit."""
    rows = schema.empty(count)
    number = np.arange(first, first + count)
    rows["episode"], rows["step"] = np.divmod(number, EPISODE + 1)
    rows["flags"][rows["step"] == EPISODE - 1] = Flag.TRUNCATED
    rows["flags"][rows["step"] == EPISODE] = Flag.FINAL
    rows["reward"] = 1.0
    return rows


class Subject:
    """A full replay of one size, and a bare array of the same rows beside it."""

    def __init__(self, size: int) -> None:
        self.replay = Replay(VECTORS, size, gamma=0.99, n_step=3)
        self.added = 0
        for _ in range(0, size, 10_000):
            self.add(10_000)
        self.bare = np.ones(size, VECTORS.head_dtype)
        self.rng = np.random.default_rng(0)

    def add(self, count: int) -> None:
        self.rows(count)
        self.replay.add(self.prepared)

    def rows(self, count: int) -> None:
        """Prepare the next rows, outside the measured time."""
        self.prepared = rows_of(VECTORS, self.added, count)
        self.added += count

    def time_block(self) -> dict[str, float]:
        """Return microseconds a call, the median over one block, of adding, sampling and a bare take."""
        times: dict[str, list[float]] = {"add": [], "sample": [], "take": []}

        def clocked(name: str, call: Callable[[], object]) -> None:
            begin = now()
            call()
            times[name].append((now() - begin) * 1e6)

        for _ in range(BLOCK):
            self.rows(ADDED)
            clocked("add", lambda: self.replay.add(self.prepared))
            clocked("sample", lambda: self.replay.sample(BATCH))
            first = self.rng.integers(len(self.bare) - 3, size=BATCH)
            both = np.concatenate([first, first + 3])
            clocked("take", functools.partial(self.bare.take, both))
        return {name: statistics.median(values) for name, values in times.items()}


def measure_sizes(blocks: int) -> dict[int, dict[str, float]]:
    """Return the median microseconds by size and by what was done."""
    subjects = {size: Subject(size) for size in SIZES}
    found: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for _ in range(blocks):
        for size, subject in subjects.items():
            found[size].append(subject.time_block())
    return {
        size: {
            name: statistics.median(block[name] for block in blocks_) for name in ("add", "sample", "take")
        }
        for size, blocks_ in found.items()
    }


def batches_per_second(size: int, seconds: float) -> float:
    """Return how often a batch of 256 is sampled in a second, in a plain loop."""
    replay = Subject(size).replay
    calls, begin = 0, now()
    while now() - begin < seconds:
        replay.sample(BATCH)
        calls += 1
    return calls / (now() - begin)


def image_memory() -> None:
    """Print by how many bytes the process grows for 100,000 steps of images; runs in its own process."""
    rng = np.random.default_rng(0)
    process = psutil.Process()
    warm = Replay(IMAGES, 1000)
    warm.add(rows_of(IMAGES, 0, 500))
    warm.sample(BATCH)
    del warm
    before = process.memory_info().rss
    count = STEPS + STEPS // EPISODE  # each episode has one row more, its final observation
    replay = Replay(IMAGES, count)
    for first in range(0, count, 143):
        rows = rows_of(IMAGES, first, min(143, count - first))
        rows["o/camera"] = rng.integers(1, 256, rows["o/camera"].shape, dtype=np.uint8)
        replay.add(rows)
    batch = replay.sample(BATCH)
    assert batch.observation["camera"].shape == (BATCH, 4, 64, 64)
    assert len(replay) == STEPS
    print(json.dumps(process.memory_info().rss - before))


def in_its_own_process(*arguments: str) -> float:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return float(json.loads(done.stdout))


def peer_batches(python: str, size: int, seconds: float) -> float | None:
    """Return Stable-Baselines3's batches per second, None where this interpreter lacks it."""
    command = [python, "-c", PEER, str(size), str(BATCH), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return float(json.loads(done.stdout)) if done.returncode == 0 else None


def main() -> int:
    """Run the benchmark; return 1 with --check if a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("TICKRATE_PEER_PYTHON", sys.executable),
        help="interpreter that has stable-baselines3 (default: $TICKRATE_PEER_PYTHON, then this one)",
    )
    parser.add_argument("--image-memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.image_memory:
        image_memory()
        return 0
    seconds = 1.0 if options.quick else 3.0

    print(f"{platform.platform()}, {os.cpu_count()} cores, numpy {np.__version__}")
    print(
        f"rows of {VECTORS.row_dtype.itemsize} bytes, 3-step returns; a round adds {ADDED}, samples {BATCH}"
    )
    print()
    times = measure_sizes(10 if options.quick else 30)
    print(f"{'entries':>10} {'add':>9} {'sample':>9} {'bare take':>10} {'sample beyond':>14}   (us)")
    for size, t in times.items():
        t["beyond"] = t["sample"] - t["take"]
        print(f"{size:>10,} {t['add']:>9.1f} {t['sample']:>9.1f} {t['take']:>10.1f} {t['beyond']:>14.1f}")
        t["both"] = t["add"] + t["beyond"]
    growth = {name: times[SIZES[1]][name] / times[SIZES[0]][name] for name in ("add", "beyond", "both")}

    rates = {size: batches_per_second(size, seconds) for size in SIZES}
    peers = {size: peer_batches(options.peer_python, size, seconds) for size in SIZES}
    print(f"\nbatches of {BATCH} per second, one thread")
    for size in SIZES:
        peer = peers[size]
        beside = f"{peer:>9,.0f}, ratio {rates[size] / peer:.2f}" if peer else "not there (see --peer-python)"
        print(f"{size:>10,} {rates[size]:>9,.0f}   stable-baselines3 {beside}")
    memory = in_its_own_process("--image-memory") / 1e9
    print(f"\n{STEPS:,} steps of 64 x 64 uint8 with stack 4: {memory:.3f} GB\n")
    bars = [
        ("ratio: adding, 10^6 / 10^4 entries", growth["add"], growth["add"] <= 1.5, "at most 1.5"),
        ("ratio: sampling beyond a bare take", growth["beyond"], growth["beyond"] <= 1.5, "at most 1.5"),
        ("ratio: both together", growth["both"], growth["both"] <= 1.5, "at most 1.5"),
        ("ratio: batches per second / 10,000", rates[SIZES[0]] / 1e4, rates[SIZES[0]] >= 1e4, "at least 1"),
        ("ratio: memory / 0.41 GB", memory / FRAMES_GB, memory <= 1.2 * FRAMES_GB, "at most 1.2"),
    ]
    for name, value, held, bar in bars:
        print(f"{name} {value:.2f} ({bar}): {'held' if held else 'MISSED'}")
    return int(options.check and not all(held for _, _, held, _ in bars))


if __name__ == "__main__":
    sys.exit(main())
