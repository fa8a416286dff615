"""Claim: drawing by priority and setting priorities cost the same at any size, but for the memory itself.

The sum tree has 16 children a node, so 10^7 entries are 6 levels and 10^4 are 4: the work itself grows by
half. What grows besides is each access: a tree of 10^7 entries (85 MB) fits into no cache. A bare ``np.take``
of as many cache lines of an array as large as the leaves is measured beside it, to show by how much. Bar: one
draw and one update of a batch of 256 are at 10^7 entries at most 3 times what they are at 10^4.

    python benchmarks/priorities.py            about a minute
    python benchmarks/priorities.py --quick    a third of the calls, the same bar
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable

import numpy as np

from tickrate.clock import now
from tickrate.data.priorities import Priorities
from tickrate.data.sum_tree import CHILDREN, SumTree

SIZES = (10_000, 1_000_000, 10_000_000)
BATCH = 256
ADDED = 64
BLOCK = 100
BAR = 3.0


class Subject:
    """Priorities of one size, every row sampleable, and a bare array as large beside them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rng = np.random.default_rng(0)
        self.priorities = Priorities(size, 0.6)
        slots = np.arange(size)
        self.priorities.admit(slots)
        self.priorities.update(slots, self.rng.random(size))
        self.bare = np.ones((-(-size // CHILDREN), CHILDREN))
        self.at = 0

    def time_block(self) -> dict[str, float]:
        """Return microseconds a call, the median over one block."""
        times: dict[str, list[float]] = {"draw": [], "update": [], "admit": [], "take": []}

        def clocked(name: str, call: Callable[[], object]) -> None:
            begin = now()
            call()
            times[name].append((now() - begin) * 1e6)

        for _ in range(BLOCK):
            clocked("draw", lambda: self.priorities.draw(BATCH, 0.5, self.rng))
            slots = self.rng.integers(self.size, size=BATCH)
            errors = self.rng.random(BATCH)
            clocked("update", lambda s=slots, e=errors: self.priorities.update(s, e))
            self.at = (self.at + ADDED) % (self.size - ADDED)
            new = np.arange(self.at, self.at + ADDED)
            clocked("admit", lambda n=new: self.priorities.admit(n))
            lines = self.rng.integers(len(self.bare), size=BATCH)
            clocked("take", lambda at=lines: self.bare.take(at, axis=0))
        return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Run the benchmark; return 1 with --check if the bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    parser.add_argument("--check", action="store_true", help="exit 1 if the bar is missed")
    options = parser.parse_args()

    print(f"{platform.platform()}, {os.cpu_count()} cores, numpy {np.__version__}")
    print(f"a draw and an update are of {BATCH} rows, {ADDED} new rows are admitted at once\n")
    subjects = {size: Subject(size) for size in SIZES}
    blocks: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for _ in range(5 if options.quick else 15):
        for size, subject in subjects.items():
            blocks[size].append(subject.time_block())
    times = {
        size: {name: statistics.median(block[name] for block in found) for name in found[0]}
        for size, found in blocks.items()
    }
    columns = ("draw", "update", "admit", "take")
    print(f"{'entries':>11} {'memory':>8} " + " ".join(f"{name:>8}" for name in columns) + "   (us)")
    for size, t in times.items():
        memory = f"{SumTree.bytes_needed(size) / 1e6:.1f} MB"
        print(f"{size:>11,} {memory:>8} " + " ".join(f"{t[name]:>8.1f}" for name in columns))
    small, large = times[SIZES[0]], times[SIZES[-1]]
    ratio = (large["draw"] + large["update"]) / (small["draw"] + small["update"])
    held = ratio <= BAR
    print(f"\na bare take of {BATCH} cache lines, 10^7 / 10^4 entries {large['take'] / small['take']:.2f}")
    print(f"ratio: draw and update, 10^7 / 10^4 entries {ratio:.2f} (at most {BAR:g}): ", end="")
    print("held" if held else "MISSED")
    return int(options.check and not held)


if __name__ == "__main__":
    sys.exit(main())
