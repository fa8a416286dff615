"""Claim: 100 workers at 20 Hz with LIDAR, one hub, one trainer, two cores: every row arrives, once.

Each simulated worker is what a companion is: its own connection to the hub, a `Courier` and an `Outbox` on
the disk, into which a row goes 20 times a second. 25 of them share a process, four processes in all, and none
loads torch. Every value of a row follows from worker and number, so that at the end the trainer's journal is
compared with what was made, byte by byte: count, order, values.

Bar: every row is in the journal exactly once, in order, equal. Stated: rows a second; the share of a core
that the trainer takes for receiving (it does nothing else here), and those of hub and workers; the age of
acknowledgements, from the commit to the outbox until the sender knows that the row is in the journal. A
sender looks 40 times a second, so an age has up to 25 ms of its own.

    python benchmarks/scale.py            60 s
    python benchmarks/scale.py --quick    15 s
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from _delivery import comparable, journal
from _roles import ROOT, Role, free_port, quiet_machine
from gymnasium import spaces

from tickrate import clock
from tickrate.data.schema import Flag, Rows
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.courier import Courier
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.outbox import Outbox, OutboxConfig
from tickrate.wire.zenoh_carrier import ZenohCarrier

RUN = "scale"
PROCESSES, WORKERS_EACH = 4, 25
RATE_HZ, LOOKS = 20.0, 2
"""Rows a second of each worker, and looks at the network for each row."""
STEPS = 200
"""Steps of an episode; it makes one row more, the final observation."""
WARMUP_S, LAST_S, JOIN_S = 3.0, 30.0, 60.0
OUTBOX_BYTES = 1 << 20
"""Of each worker: two minutes of rows, of which nothing may be dropped."""
LEAVES = {"speed": (1,), "lidar": (4, 19), "actions": (2, 3)}
VALUES = 83


def contract() -> EnvironmentContract:
    """Return TrackMania's contract with LIDAR: speed, four scans, two past actions of three values."""
    boxes: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(-2, 2, shape, np.float32) for name, shape in LEAVES.items()
    }
    action = spaces.Box(-1, 1, (3,), np.float32)
    return EnvironmentContract(boxes, action, period_s=1 / RATE_HZ, action_buffer_length=2, mirror=None)


def rows_of(worker: int, first: int, count: int, dtype: np.dtype[Any]) -> Rows:
    """Return rows ``first`` to ``first + count - 1`` of a worker; every byte follows from these numbers."""
    number = np.arange(first, first + count)
    rows = np.zeros(count, dtype)
    rows["episode"], rows["step"] = np.divmod(number, STEPS + 1)
    rows["flags"] = np.select(
        [rows["step"] == STEPS, rows["step"] == STEPS - 1], [Flag.FINAL, Flag.TRUNCATED]
    )
    rows["reward"], rows["start"] = number % 97, number / RATE_HZ
    mixed = (number[:, None] * 40503 + worker * 7919 + np.arange(VALUES + 3) * 9973) % 65536
    values, begin = (mixed / 32768.0 - 1.0).astype(np.float32), 0
    for name, shape in LEAVES.items():
        size = int(np.prod(shape))
        rows[f"o/{name}"] = values[:, begin : begin + size].reshape(count, *shape)
        begin += size
    rows["action"] = values[:, VALUES:]
    return rows


@dataclass
class Sender:
    """One simulated worker."""

    number: int
    outbox: Outbox
    courier: Courier
    made: int = 0
    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    ages: list[float] = field(default_factory=list)

    def tick(self) -> None:
        """Commit the row of a step, and at the end of an episode the final observation with it."""
        last = self.made % (STEPS + 1) == STEPS - 1
        rows = rows_of(self.number, self.made, 2 if last else 1, self.outbox.schema.row_dtype)
        self.outbox.append(rows)
        self.made += len(rows)
        self.waiting.append((self.made, clock.now()))

    def look(self) -> None:
        """Send and hear, and note which rows are acknowledged."""
        self.courier.step()
        now, acknowledged = clock.now(), self.courier.sender.acknowledged
        while self.waiting and self.waiting[0][0] <= acknowledged:
            self.ages.append(now - self.waiting.popleft()[1])


def send(options: argparse.Namespace) -> None:
    """Be some of the workers: say when all have joined, wait for the word, go on, print what came of it."""
    agreed = contract()
    senders, carriers = [], []
    for number in range(options.first, options.first + WORKERS_EACH):
        config = OutboxConfig(max_bytes=OUTBOX_BYTES)
        outbox = Outbox(Path(options.folder) / "workers" / f"w{number}", agreed.schema(), config)
        carriers.append(ZenohCarrier(options.hub, wait_for_hub=False))
        senders.append(
            Sender(number, outbox, Courier(carriers[-1], outbox, agreed, f"run-{RUN}", f"w{number}"))
        )
    deadline = clock.now() + JOIN_S
    while not all(sender.courier.welcomed for sender in senders) and clock.now() < deadline:
        _look_at_all(senders)
    print("joined" if all(sender.courier.welcomed for sender in senders) else "not all joined", flush=True)
    sys.stdin.readline()
    begun = clock.now()
    lateness = _play(senders, begun, WARMUP_S)
    for sender in senders:
        sender.ages.clear()
    cpu, steady = clock.cpu_time(), clock.now()
    lateness = _play(senders, begun + WARMUP_S, options.seconds)
    cores = (clock.cpu_time() - cpu) / (clock.now() - steady)
    ages = [age for sender in senders for age in sender.ages]
    deadline = clock.now() + LAST_S
    while not all(sender.courier.delivered for sender in senders) and clock.now() < deadline:
        _look_at_all(senders)
    result = {
        "made": {f"w{sender.number}": sender.made for sender in senders},
        "dropped": sum(sender.outbox.dropped for sender in senders),
        "pending": sum(sender.outbox.pending for sender in senders),
        "resent": sum(sender.courier.sender.resent for sender in senders),
        "cores": cores,
        "ages": ages,
        "lateness": lateness,
        "torch": "torch" in sys.modules,
    }
    print(json.dumps(result), flush=True)
    for carrier in carriers:
        carrier.close()
    for sender in senders:
        sender.outbox.close()


def _play(senders: list[Sender], begun: float, seconds: float) -> list[float]:
    """Tick every worker at its rate, spread evenly; return how late the ticks were, in seconds."""
    slots, lateness = round(seconds * RATE_HZ) * LOOKS, []
    for slot in range(slots):
        for index, sender in enumerate(senders):
            due = begun + (slot + index / len(senders)) / (RATE_HZ * LOOKS)
            if (left := due - clock.now()) > 0:
                clock.sleep(left)
            if slot % LOOKS == 0:
                lateness.append(clock.now() - due)
                sender.tick()
            sender.look()
    return lateness


def _look_at_all(senders: list[Sender]) -> None:
    for sender in senders:
        sender.look()
    clock.sleep(1 / (RATE_HZ * LOOKS))


@dataclass
class Scene:
    """The processes of the run, and what they came to."""

    folder: Path
    seconds: float
    results: list[dict[str, Any]] = field(default_factory=list)
    cores: dict[str, float] = field(default_factory=dict)
    rows_per_s: float = 0.0

    def __post_init__(self) -> None:
        self.hub = f"tcp/127.0.0.1:{free_port()}"
        expected = PROCESSES * WORKERS_EACH * RATE_HZ * (self.seconds + WARMUP_S) * 1.02
        settings = {
            "environment": {"id": "not_there:Needed"},
            "algorithm": {"name": "_collect:ENTRY"},
            "replay": {"capacity": int(expected) + 10_000, "n_step": 1, "mirror": False},
            "trainer": {"start_steps": 10**9, "checkpoint_every_s": 1e6, "priority": "normal"},
            "run": {"name": RUN, "root": str(self.folder / "runs")},
        }
        experiment = self.folder / "e.yaml"
        experiment.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.roles = [
            Role("hub", ["hub", "--listen", self.hub], self.folder),
            Role("trainer", ["trainer", str(experiment), "--hub", self.hub], self.folder),
        ]

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "runs" / RUN

    def play(self) -> None:
        """Start all, measure over the steady window, end all."""
        senders = []
        for role in self.roles:
            role.start()
        try:
            senders = [self._start(index * WORKERS_EACH) for index in range(PROCESSES)]
            for sender in senders:
                assert sender.stdout is not None
                if (word := sender.stdout.readline().strip()) != "joined":
                    raise TimeoutError(f"the workers of a process did not join: {word!r}")
            for sender in senders:
                assert sender.stdin is not None
                sender.stdin.write("go\n")
                sender.stdin.flush()
            clock.sleep(WARMUP_S)
            self._measure()
            for sender in senders:
                output, _ = sender.communicate(timeout=LAST_S + 60)
                self.results.append(json.loads(output.splitlines()[-1]))
            if ended := [role.name for role in self.roles if not role.running]:
                raise ValueError(f"ended before its time: {', '.join(ended)}")
        except (subprocess.TimeoutExpired, TimeoutError, IndexError, ValueError):
            for role in self.roles:
                print(f"--- {role.name}\n{role.last_words()}")
            raise
        finally:
            for sender in senders:
                sender.kill()
                sender.wait(10)
            for role in reversed(self.roles):
                role.end()

    def _start(self, first: int) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--send", "--first", str(first), "--hub", self.hub]
        command += ["--folder", str(self.run), "--seconds", str(self.seconds)]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)

    def _measure(self) -> None:
        """Take the processor time of the roles over the steady window, and the rows that arrived in it."""
        rows, begun = self._arrived(), clock.now()
        before = {role.name: _cpu(role.pid) for role in self.roles}
        clock.sleep(self.seconds - 0.5)
        took = clock.now() - begun
        self.cores = {role.name: (_cpu(role.pid) - before[role.name]) / took for role in self.roles}
        self.rows_per_s = (self._arrived() - rows) / took

    def _arrived(self) -> int:
        """Return how many rows are in the journal, by the ledger."""
        ledger = Ledger(self.run / "ledger", 0)
        return sum(ledger.expected(number) for number in ledger.streams())


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def verify(scene: Scene) -> dict[str, int]:
    """Compare the journal with what was made."""
    stored = journal(scene.run)
    streams = {worker: number for number, (worker, _) in Ledger(scene.run / "ledger", 0).streams().items()}
    found = dict.fromkeys(("made", "steps", "lost", "doubled", "disorder", "different"), 0)
    for result in scene.results:
        for worker, made in result["made"].items():
            got = stored[stored["stream"] == streams[worker]] if worker in streams else stored[:0]
            number = got["episode"].astype(np.int64) * (STEPS + 1) + got["step"]
            found["made"] += made
            found["steps"] += int(np.count_nonzero((got["flags"] & Flag.FINAL) == 0))
            found["lost"] += len(np.setdiff1d(np.arange(made), number))
            found["doubled"] += len(number) - len(np.unique(number))
            found["disorder"] += int(np.count_nonzero(np.diff(number) != 1))
            right = rows_of(int(worker[1:]), 0, made, stored.dtype)
            found["different"] += comparable(got).tobytes() != right.tobytes()
    found["foreign"] = len(stored) - (found["made"] - found["lost"] + found["doubled"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="15 s")
    parser.add_argument("--check", action="store_true", help="exit 1 below the bar")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--keep", type=Path, help="keep the files of the run in this folder")
    parser.add_argument("--send", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    for name in ("--hub", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send(options)
        return 0
    print(f"{platform.platform()}, Python {platform.python_version()}; {quiet_machine()}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # the roles inherit it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = PROCESSES * WORKERS_EACH
    print(f"{workers} workers at {RATE_HZ:g} Hz in {PROCESSES} processes, {VALUES} floats, on {cores} cores")
    with tempfile.TemporaryDirectory(prefix="tickrate-scale-") as name:
        place = (options.keep or Path(name)).absolute()
        place.mkdir(parents=True, exist_ok=True)
        scene = Scene(place, options.seconds or (15.0 if options.quick else 60.0))
        scene.play()
        found = verify(scene)
    return report(scene, found, options.check)


def report(scene: Scene, found: dict[str, int], check: bool) -> int:
    ages, late = (
        1e3 * np.array([x for result in scene.results for x in result[name]]) for name in ("ages", "lateness")
    )
    total = {
        name: sum(result[name] for result in scene.results)
        for name in ("cores", "dropped", "pending", "resent")
    }
    torch = any(result["torch"] for result in scene.results)
    print(
        f"{scene.rows_per_s:,.0f} rows/s; cores: trainer {scene.cores['trainer']:.2f}, hub "
        f"{scene.cores['hub']:.2f}, workers {total['cores']:.2f} in {PROCESSES} processes"
    )
    print(
        f"acknowledgement age p50 {np.median(ages):.1f} ms, p99 {np.percentile(ages, 99):.1f} ms, "
        f"largest {ages.max():.1f} ms; a row was made p99 {np.percentile(late, 99):.1f} ms late, at most "
        f"{late.max():.1f} ms; torch in the workers: {torch}"
    )
    print(
        f"{found['made']:,} rows made ({found['steps']:,} transitions); lost {found['lost']}, doubled "
        f"{found['doubled']}, out of order {found['disorder']}, workers that differ {found['different']}, "
        f"foreign {found['foreign']}; undelivered {total['pending']}, dropped {total['dropped']}, sent again "
        f"{total['resent']}"
    )
    wrong = [found[name] for name in ("lost", "doubled", "disorder", "different", "foreign")]
    held = {
        "every row arrives once": not any(wrong) and total["pending"] == total["dropped"] == 0,
        "no torch in the workers": not torch,
    }
    print("bars: " + ", ".join(f"{name} {'held' if ok else 'MISSED'}" for name, ok in held.items()))
    nominal = PROCESSES * WORKERS_EACH * RATE_HZ * (STEPS + 1) / STEPS
    print(f"ratio: rows that arrived a second / rows due {scene.rows_per_s / nominal:.3f}")
    return 1 if check and not all(held.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
