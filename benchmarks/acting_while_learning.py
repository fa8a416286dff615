"""Claim: learning never holds up acting. The circuit at 20 Hz, the learner at full speed and off, in turn.

Bars: the p99 lateness of commands with the learner at full speed is at most twice that with it off, or 2 % of the
period, whichever is larger; and the largest gap between two commands within an episode is at most 1.5 periods over
five minutes. Gaps across resets are printed apart. A bare sleep loop at 20 Hz runs beside: where it misses the gap's
bar itself, the run is repeated (at most three runs in all), and that is printed.

The learner is switched off by stopping its process (SIGSTOP), so "off" is really off. Linux and macOS.

    python benchmarks/acting_while_learning.py            five minutes
    python benchmarks/acting_while_learning.py --quick    one minute
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from tickrate.clock import now
from tickrate.config.experiment import as_mapping, experiment_from_mapping, load_experiment, override
from tickrate.cli.assembling import prepare_folder
from tickrate.runtime.run import LocalRun

HZ = 20.0
PERIOD_S = 1.0 / HZ
WARM_UP_S = 20.0
BARE_LOOP = """
import struct, sys, time
period = float(sys.argv[1]); out = open(sys.argv[2], "wb", buffering=0)
due = time.perf_counter() + period
while True:
    time.sleep(max(0.0, due - time.perf_counter()))
    out.write(struct.pack("<d", time.perf_counter()))
    due += period
"""
# One record a command: what was called, when. Written by the interface itself, so it is what the device was told.
RECORD = struct.Struct("<dB")


def experiment_in(folder: Path) -> object:
    """Return the demo's experiment, with the learner as fast as it goes and a device that logs its commands."""
    changes = {
        "environment.id": "_logged_circuit:LoggedCircuit",
        "environment.kwargs": {"log": str(folder / "commands.bin")},
        "environment.realtime": {
            "time_step_duration": PERIOD_S,
            "start_obs_capture": PERIOD_S,
            "time_step_timeout_factor": 10.0,
            "ep_max_length": 1000,
            "act_buf_len": 2,
        },
        "trainer.start_steps": 200,
        "trainer.updates_per_step": 100000.0,
        "trainer.publish_every": 200,
        "worker.evaluation.every_steps": 0,
        "run.root": str(folder),
        "run.name": "acting",
    }
    return experiment_from_mapping(override(as_mapping(load_experiment("circuit")), changes))


def trainer_of(run: LocalRun) -> psutil.Process:
    """Return the trainer's process."""
    for child in psutil.Process().children():
        if "trainer" in child.cmdline():
            return child
    raise SystemExit("the trainer is not there")


def measure(seconds: float, window_s: float, folder: Path) -> dict[str, object]:
    """Run once; return the lateness of both kinds of window, the gaps, and the bare loop's gaps."""
    experiment = experiment_in(folder)
    run = LocalRun(prepare_folder(experiment, "replace"), resume=False, trainer_threads=1)  # type: ignore[arg-type]
    bare = subprocess.Popen([sys.executable, "-c", BARE_LOOP, str(PERIOD_S), str(folder / "bare.bin")])
    windows: list[tuple[float, float, bool]] = []
    updates: list[float] = []
    try:
        run.start()
        deadline = now() + 120.0
        while (run.poll().metric("trainer", "learn/updates") or 0.0) < 50.0:
            if now() > deadline:
                raise SystemExit("the learner did not begin within 120 s")
            time.sleep(0.1)
        time.sleep(WARM_UP_S / 4)
        trainer = trainer_of(run)
        learning = True
        for _ in range(max(2, round(seconds / window_s))):
            trainer.send_signal(signal.SIGCONT if learning else signal.SIGSTOP)
            time.sleep(0.5)  # what was under way when the switch was thrown belongs to neither
            begin = now()
            while now() < begin + window_s:
                state = run.poll()
                time.sleep(0.1)
            windows.append((begin, now(), learning))
            if learning:
                updates.append(state.metric("trainer", "learn/updates_per_s") or 0.0)
            learning = not learning
        trainer.send_signal(signal.SIGCONT)
    finally:
        bare.kill()
        bare.wait(10.0)
        for child in psutil.Process().children():
            child.send_signal(signal.SIGCONT)
        run.stop()
    return summarise(folder, windows, updates)


def summarise(folder: Path, windows: list[tuple[float, float, bool]], updates: list[float]) -> dict[str, object]:
    """Return the figures of one run."""
    data = (folder / "commands.bin").read_bytes()
    records = list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
    first, last = windows[0][0], windows[-1][1]
    gaps: list[tuple[float, float]] = []
    across: list[float] = []
    late: dict[bool, list[float]] = {True: [], False: []}
    episode: list[float] = []
    before: float | None = None
    for at, kind in [*records, (float("inf"), 1)]:
        if kind == 1:  # a reset: what came before it was one episode
            for a, b in zip(episode, episode[1:]):
                if first <= b <= last:
                    gaps.append((b, b - a))
            if len(episode) > 10:
                take_lateness(np.asarray(episode), windows, late)
            before, episode = (episode[-1] if episode else before), []
            continue
        if not episode and before is not None and first <= at <= last:
            across.append(at - before)
        episode.append(at)
    stamps = np.frombuffer((folder / "bare.bin").read_bytes()[: (folder / "bare.bin").stat().st_size // 8 * 8])
    bare = np.diff(stamps[(stamps >= first) & (stamps <= last)])
    return {
        "p50_off": np.percentile(late[False], 50),
        "p99_off": np.percentile(late[False], 99),
        "p50_on": np.percentile(late[True], 50),
        "p99_on": np.percentile(late[True], 99),
        "commands": len(gaps),
        "largest_gap": max(g for _, g in gaps),
        "largest_across": max(across, default=float("nan")),
        "bare_gap": bare.max(),
        "updates_per_s": float(np.median(updates)),
        "seconds": last - first,
    }


def take_lateness(at: NDArray[np.float64], windows: list[tuple[float, float, bool]], late: dict[bool, list[float]]) -> None:
    """Sort the lateness of an episode's commands, against the grid that its earliest commands define, into windows."""
    numbers = np.round((at - at[0]) / PERIOD_S)
    offset = at - at[0] - numbers * PERIOD_S
    lateness = offset - np.min(offset)
    for begin, end, learning in windows:
        late[learning].extend(lateness[(at >= begin) & (at < end)].tolist())


def main() -> int:
    """Run the benchmark; return 1 with --check if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one minute instead of five")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    options = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.insert(0, here)
    seconds, window_s = (60.0, 10.0) if options.quick else (300.0, 15.0)
    print(f"{platform.platform()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    for attempt in range(1, 4):
        with tempfile.TemporaryDirectory(prefix="acting-") as folder:
            r = measure(seconds, window_s, Path(folder))
        bound = max(2.0 * float(r["p99_off"]), 0.02 * PERIOD_S)  # type: ignore[arg-type]
        late_ok = float(r["p99_on"]) <= bound  # type: ignore[arg-type]
        gap_ok = float(r["largest_gap"]) <= 1.5 * PERIOD_S  # type: ignore[arg-type]
        bare_ok = float(r["bare_gap"]) <= 1.5 * PERIOD_S  # type: ignore[arg-type]
        print(f"run {attempt}: {r['commands']} commands in {r['seconds']:.0f} s, learner at {r['updates_per_s']:.0f} updates/s when on")
        print(f"  lateness with the learner off: p50 {1e3 * r['p50_off']:.3f} ms, p99 {1e3 * r['p99_off']:.3f} ms")
        print(f"  lateness with the learner on:  p50 {1e3 * r['p50_on']:.3f} ms, p99 {1e3 * r['p99_on']:.3f} ms (bound {1e3 * bound:.3f} ms)")
        print(f"  largest gap within an episode {1e3 * r['largest_gap']:.1f} ms (bound {1500 * PERIOD_S:.0f} ms), across resets {1e3 * r['largest_across']:.1f} ms")
        print(f"  largest gap of a bare sleep loop beside it: {1e3 * r['bare_gap']:.1f} ms")
        if gap_ok or bare_ok:
            break
        print("  the bare loop missed the gap's bound too: the machine was disturbed, running again")
    print(f"lateness {'held' if late_ok else 'MISSED'}, gap {'held' if gap_ok else 'MISSED'}")
    print(f"ratio: p99 lateness with the learner on / off {float(r['p99_on']) / float(r['p99_off']):.2f}")  # type: ignore[arg-type]
    return 0 if (late_ok and gap_ok) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
