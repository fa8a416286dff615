"""The clock against rtgym's: lateness of the command, CPU per step, time-outs, drift.

Contenders take turns in short segments of one run, each in its own process: a bare sleep loop, rtgym's two
variants (in their own virtual environment), and tickrate's cheap and precise modes with all checks on. The
same device, defined below, is driven by all; it notes when it is told a command. The lateness of a command
is the time from its point on the contender's own absolute grid. For lateness nothing is dropped (an infinite
time-out, late steps caught up), so that the k-th command is compared with the k-th point; time-outs are
counted in segments of their own with factor 1 and every other setting at its default.

    python benchmarks/tick.py [--quick] [--check] [--peer PYTHON]

The last lines are the ratios to the better of rtgym's variants, taken for each figure, and the bars. A scene
in which a bar is missed that the bare loop misses as well is run again, at most three times; that is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
import venv
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RATES_HZ = (50, 500, 1000)
OURS = ("cheap", "precise")
RTGYM = ("real-time-gym-v1", "real-time-gym-ts-v1")
CONTENDERS = ("bare", *RTGYM, *OURS)
SEGMENT_S = 1.0
LONGER = {("lateness", 50): 2.0, ("timeouts", 500): 4.0}
"""Scenes that last longer: a p99 of 600 steps would rest on six of them, and two time-outs are no count."""
DRIFT_FACTOR = 10.0
RUNS = 3
WARM_UP_STEPS = 20
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}

BARS = {
    ("cheap", "cpu"): {50: 1.0, 500: 1.0, 1000: 1.0},
    ("cheap", "p50"): {50: 1.0, 500: 1.0, 1000: 1.0},
    ("cheap", "p99"): {50: 1.0, 500: 1.0, 1000: 1.0},
    ("precise", "cpu"): {50: 1.25, 500: 2.5, 1000: 2.5},
    ("precise", "p50"): {50: 0.1, 500: 0.1, 1000: 0.1},
    ("precise", "p99"): {50: 0.5, 500: 0.5, 1000: 0.5},
}
"""Largest allowed ratio to rtgym's better variant, by mode, figure and rate."""


# ----------------------------------------------------------- the worker: one contender, one process


def make_device(base, spaces):
    """Return the interface class that all contenders drive: four numbers seen, two told."""

    class Device(base):
        log: list[float]

        def __init__(self):
            self.log = []
            self.seen = np.zeros(4, np.float32)

        def send_control(self, control):
            self.log.append(time.perf_counter())

        def reset(self, seed=None, options=None):
            return [self.seen], {}

        def get_obs_rew_terminated_info(self):
            return [self.seen], 0.0, False, {}

        def get_observation_space(self):
            return spaces.Tuple((spaces.Box(-1.0, 1.0, (4,), np.float32),))

        def get_action_space(self):
            return spaces.Box(-1.0, 1.0, (2,), np.float32)

        def get_default_action(self):
            return np.zeros(2, np.float32)

    return Device


def run_bare(period, steps):
    """Sleep to absolute deadlines; return lateness (s), CPU (s) and wakes over a period late."""
    late = []
    start = time.perf_counter()
    cpu = time.process_time()
    for k in range(1, steps + 1):
        deadline = start + k * period
        left = deadline - time.perf_counter()
        if left > 0:
            time.sleep(left)
        late.append(time.perf_counter() - deadline)
    return {"late": late, "cpu": time.process_time() - cpu, "timeouts": sum(x >= period for x in late)}


class Env:
    """One environment of either library, driven in segments."""

    def __init__(self, contender, period, factor):
        self.rtgym = contender in RTGYM
        from gymnasium import make, spaces

        if self.rtgym:
            from rtgym import RealTimeGymInterface
        else:
            from tickrate.realtime import RealTimeGymInterface
        config = {
            "interface": make_device(RealTimeGymInterface, spaces),
            "time_step_duration": period,
            "start_obs_capture": period,
            "time_step_timeout_factor": factor,
            "ep_max_length": math.inf,
        }
        if not self.rtgym:
            config |= {"clock_mode": contender, "late_policy": "catch_up" if math.isinf(factor) else "skip"}
        env_id = contender if self.rtgym else "tickrate/RealTime-v0"
        self.env = make(env_id, config=config, disable_env_checker=True).unwrapped
        self.period = period
        self.mangled = "_RealTimeEnvTS" if contender == RTGYM[1] else "_RealTimeEnv"

    def begin(self):
        """Reset with a new grid (rtgym would catch up with the idle time since the last segment)."""
        if not self.rtgym:
            self.env.reset()
            return
        timeout, self.env.time_step_timeout = self.env.time_step_timeout, -math.inf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.env.reset()
            self.env.step(np.zeros(2, np.float32))
            self.env.stop()
        self.env.time_step_timeout = timeout

    def planned(self, info):
        """Return the planned start (s) of the step that runs now."""
        if not self.rtgym:
            return info["timing"]["start"]
        self.env.stop()  # lets the step end, so that its plan is settled
        return getattr(self.env, f"{self.mangled}__t_start")

    def run(self, steps):
        """Drive a segment; return lateness (s), CPU (s), time-outs, planned drift (s)."""
        env, action = self.env, np.zeros(2, np.float32)
        self.begin()
        for _ in range(WARM_UP_STEPS):
            env.step(action)
        device = getattr(env, "interface", None) or getattr(env, f"{self.mangled}__interface")
        log = device.log
        timed_out = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            *_, info = env.step(action)
            first = self.planned(info) if not self.rtgym else None
            cpu = time.process_time()
            for _ in range(steps):
                *_, info = env.step(action)
                if not self.rtgym:
                    timed_out += info["timing"]["timed_out"]
            cpu = time.process_time() - cpu
            last = self.planned(info)
        if self.rtgym:
            timed_out = sum("timed out" in str(w.message) for w in caught)
        told = np.array(log[-steps:])
        ideal = last - self.period * np.arange(steps - 1, -1, -1)
        periods = 0.0 if first is None else (last - first) / self.period
        drift = (periods - round(periods)) * self.period  # what separates the plan from the grid it began on
        log.clear()
        return {"late": (told - ideal).tolist(), "cpu": cpu, "timeouts": timed_out, "drift": drift}


def worker(contender):
    """Answer the orders that come in by line, one JSON object each."""
    envs = {}
    for line in sys.stdin:
        order = json.loads(line)
        period, steps, factor = 1.0 / order["hz"], order["steps"], order["factor"] or math.inf
        if contender == "bare":
            answer = run_bare(period, steps)
        else:
            key = (period, factor)
            if key not in envs:
                envs[key] = Env(contender, period, factor)
            answer = envs[key].run(steps)
        print(json.dumps(answer), flush=True)


# ----------------------------------------------------------- the parent: takes turns


class Contender:
    """A worker process that waits for orders."""

    def __init__(self, name, python):
        self.name = name
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [python, __file__, "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, hz, steps, factor):
        self.begin(hz, steps, factor)
        return self.finish()

    def begin(self, hz, steps, factor):
        order = {"hz": hz, "steps": steps, "factor": None if math.isinf(factor) else factor}
        print(json.dumps(order), file=self.process.stdin, flush=True)

    def finish(self):
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker of {self.name} died with code {self.process.wait(10)}")
        return json.loads(answer)

    def pin(self, cores):
        """Keep its process on these cores, where the system can."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, cores)

    def end(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def busy_process():
    """Start a process that keeps the last core busy, and ends with us, however we end."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    pin = f"os.sched_setaffinity(0, [{core}])\n" if core is not None else ""
    code = (
        "import os, sys, threading\n"
        "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
        f"{pin}while True: pass"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def measure(contenders, hz, seconds, factor):
    """Let the contenders take turns; return the pooled segments of each."""
    rounds = max(1, round(seconds / SEGMENT_S))
    steps = round(hz * min(SEGMENT_S, seconds))
    pooled = {c.name: {"late": [], "cpu": 0.0, "steps": 0, "timeouts": 0, "drift": 0.0} for c in contenders}
    for turn in range(rounds):
        for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
            answer, pool = contender.run(hz, steps, factor), pooled[contender.name]
            pool["late"] += answer["late"]
            pool["cpu"] += answer["cpu"]
            pool["steps"] += steps
            pool["timeouts"] += answer["timeouts"]
            pool["drift"] = max(pool["drift"], abs(answer.get("drift", 0.0)), key=abs)
    return pooled


def figures(pool):
    late = np.array(pool["late"]) * 1e6
    p50, p99 = np.percentile(late, [50, 99])
    return {"p50": p50, "p99": p99, "max": late.max(), "cpu": pool["cpu"] / pool["steps"] * 1e6}


def judge(table, hz, load):
    """Print the ratios of a scene; return the verdicts, and whether the bare loop misses a bar too."""
    verdicts, disturbed = [], False
    for mode in OURS:
        line = []
        for key in ("cpu", "p50", "p99"):
            best = min(table[name][key] for name in RTGYM)
            ratio, bar = table[mode][key] / best, BARS[mode, key][hz]
            verdicts.append((f"{hz} Hz {load} {mode} {key}", ratio, bar))
            line.append(f"{key} {ratio:.2f} (bar {bar:g})")
            disturbed |= key != "cpu" and ratio > bar and table["bare"][key] > bar * best
        print(f"{'':8}{mode} / better rtgym: {', '.join(line)}", flush=True)
    return verdicts, disturbed


def lateness_scene(contenders, hz, load, seconds):
    seconds *= LONGER.get(("lateness", hz), 1.0)
    print(f"\n{hz} Hz, {load}, {seconds:g} s each{'':12}lateness of the command, us{'':9}CPU, us a step")
    print(f"{'':24}{'p50':>10}{'p99':>10}{'max':>10}{'':6}{'CPU':>8}")
    table = {name: figures(pool) for name, pool in measure(contenders, hz, seconds, math.inf).items()}
    for name, row in table.items():
        print(f"{name:24}{row['p50']:10.1f}{row['p99']:10.1f}{row['max']:10.0f}{'':6}{row['cpu']:8.1f}")
    return judge(table, hz, load)


def timeout_scene(contenders, hz, load, seconds):
    pools = measure(contenders, hz, seconds * LONGER.get(("timeouts", hz), 1.0), 1.0)
    steps, bare = pools["bare"]["steps"], pools["bare"]["timeouts"]
    print(f"\n{hz} Hz, {load}, factor 1: time-outs (bare: wakes over a period late) in {steps} steps")
    print("  " + ", ".join(f"{name} {pool['timeouts']}" for name, pool in pools.items()), flush=True)
    allowed = min(pools[name]["timeouts"] for name in RTGYM) + bare
    verdicts = [(f"{hz} Hz {load} {mode} time-outs", pools[mode]["timeouts"], allowed) for mode in OURS]
    return verdicts, bare > 0 and any(count > allowed for _, count, _ in verdicts)


def settled(scene, *arguments):
    """Run a scene, again (three times at most) while a bar is missed that the bare loop misses as well."""
    for attempt in range(1, RUNS + 1):
        verdicts, disturbed = scene(*arguments)
        if not disturbed:
            break
        print(f"  run {attempt} of at most {RUNS}: the bare loop was held up too, the machine was disturbed")
    return verdicts


def drift_scene(contender, bare, seconds):
    """Run a mode and the bare loop beside it on one core: a stall that gives up the grid holds up both."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    steps = round(1000 * seconds)
    for each in (contender, bare):
        each.pin({min(cores, default=0)})
        each.begin(1000, steps, DRIFT_FACTOR)
    answer, control = contender.finish(), bare.finish()
    for each in (contender, bare):
        each.pin(cores)
    drift, timeouts = abs(answer["drift"]) * 1e6, answer["timeouts"]
    stalls = sum(late >= DRIFT_FACTOR / 1000 for late in control["late"])
    print(f"{contender.name}: {drift:.3f} us of drift over {seconds:g} s at 1000 Hz, factor "
          f"{DRIFT_FACTOR:g}, {timeouts} time-outs (bare: {stalls} wakes as late)", flush=True)  # fmt: skip
    return [(f"{contender.name} drift, us", drift if not timeouts else math.inf, 1.0)], timeouts and stalls


def peer_python(path):
    """Return the interpreter that has rtgym; make its virtual environment if it is not there."""
    if path.exists():
        return str(path)
    folder = path.parent.parent
    print(f"making {folder} with rtgym ...")
    venv.create(folder, with_pip=True)
    subprocess.run([str(path), "-m", "pip", "install", "-q", "rtgym==0.16", "numpy"], check=True, timeout=600)
    return str(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter segments, the same bars")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--peer", type=Path, default=ROOT / ".venv-peer" / "bin" / "python")
    parser.add_argument(
        "--hz", type=int, nargs="+", choices=RATES_HZ, default=RATES_HZ, help="only these rates"
    )
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return 0
    peer = peer_python(args.peer)
    seconds = 3.0 if args.quick else 12.0
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"{time.strftime('%Y-%m-%d')}")  # fmt: skip
    contenders = [Contender(name, peer if name in RTGYM else sys.executable) for name in CONTENDERS]
    verdicts = []
    try:
        for load in ("quiet", "busy"):
            neighbour = busy_process() if load == "busy" else None
            try:
                for hz in args.hz:
                    verdicts += settled(lateness_scene, contenders, hz, load, seconds)
                for hz in args.hz:
                    verdicts += settled(timeout_scene, contenders, hz, load, seconds)
            finally:
                if neighbour is not None:
                    neighbour.kill()
                    neighbour.wait()
        print()
        bare, *_, cheap, precise = contenders
        for contender in (cheap, precise):
            verdicts += settled(drift_scene, contender, bare, 5.0 if args.quick else 60.0)
    finally:
        for contender in contenders:
            contender.end()
    return report(verdicts, args)


def report(verdicts, args):
    missed = [(what, value, bar) for what, value, bar in verdicts if value > bar]
    print("\nratio to rtgym's better variant (or count, or drift), and its bar:")
    for what, value, bar in verdicts:
        print(f"  {'MISSED' if value > bar else 'ok':8}{what:32}{value:8.2f}  <= {bar:g}")
    print(
        f"{len(verdicts) - len(missed)} of {len(verdicts)} bars held" + (" (--quick)" if args.quick else "")
    )
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
