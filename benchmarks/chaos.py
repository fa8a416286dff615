"""Claim: nothing committed is lost, nothing is stored twice, whoever is killed and whenever the link is cut.

Four workers at 200 Hz, each with control process and companion, a hub and a trainer, all processes of their
own. While they make 1,000,000 transitions, 100 times a role drawn at random (control process, companion, hub,
trainer) is killed with SIGKILL, and 20 times the link between workers and hub is cut for three seconds; an
event comes about every ten seconds, and only when all roles are up. Afterwards each worker's outbox, which
keeps everything here, is compared with the trainer's journal, byte by byte and in order; the values are
compared with the formula of the device.

Bars: 0 lost, 0 doubled, all equal; what a killed control process had done and not committed covers at most
100 ms at p99; during outages of hub and trainer each worker makes at least 90 % of its steps.

    python benchmarks/chaos.py            about 22 minutes
    python benchmarks/chaos.py --quick    two minutes, 12 kills and 3 cuts
"""

from __future__ import annotations

import argparse
import json
import platform
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _counting_device import values_of
from _delivery import delivered, digest
from _roles import Role, free_port, quiet_machine, wait_until

from tickrate.clock import now
from tickrate.data.schema import Flag
from tickrate.runtime.worker import EPISODES_PER_BOOT
from tickrate.testing.link import LinkProxy
from tickrate.wire.carrier import make_key
from tickrate.wire.zenoh_carrier import ZenohCarrier

RATE_HZ = 200.0
WORKERS = 4
CUT_S = 3.0
RUN = "chaos"
TAIL_BOUND_S = 0.1
ACTING_BOUND = 0.9
VICTIMS = ("control", "companion", "hub", "trainer")


@dataclass
class Event:
    """One kill or cut."""

    kind: str
    worker: int
    at: float
    captures: list[int]
    at_risk_s: list[float]
    back_s: float = 0.0
    boot: int = 0


@dataclass
class Stage:
    """The roles of the run, and what they say."""

    folder: Path
    rows: int
    seed: int
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        port = free_port()
        hub = f"tcp/127.0.0.1:{port}"
        self.proxy = LinkProxy(hub)
        self.experiment = self.folder / "chaos.yaml"
        self.experiment.write_text(yaml.safe_dump(self._settings()), encoding="utf-8")
        name = str(self.experiment)
        self.hub = Role("hub", ["hub", "--listen", hub], self.folder)
        self.trainer = Role("trainer", ["trainer", name, "--hub", hub, "--resume"], self.folder)
        self.workers = [
            Role(
                f"w{i}",
                ["worker", name, "--hub", self.proxy.endpoint, "--name", f"w{i}", "--index", str(i)],
                self.folder,
            )
            for i in range(WORKERS)
        ]
        self.roles = [self.hub, self.trainer, *self.workers]
        for role in self.roles:
            role.start()
        self._carrier = ZenohCarrier(hub, wait_for_hub=False)
        self._overview = self._carrier.subscribe(
            make_key(f"run-{RUN}", "overview", "trainer"), capacity=1, newest_only=True
        )
        self.overview: dict[str, Any] = {}
        self.overview_at = 0.0

    def _settings(self) -> dict[str, Any]:
        return {
            "environment": {
                "id": "_counting_device:CountingDevice",
                "kwargs": {"log": str(self.folder / "device-{index}.log")},
                "realtime": {
                    "time_step_duration": 1 / RATE_HZ,
                    "start_obs_capture": 1 / RATE_HZ,
                    "ep_max_length": 1000,
                    "act_buf_len": 2,
                    "time_step_timeout_factor": 10.0,
                },
            },
            "algorithm": {"name": "examples.numpy_trainer:ENTRY", "batch_size": 64},
            "replay": {"capacity": self.rows, "n_step": 1, "mirror": False},
            "worker": {
                "actor": "examples.numpy_trainer:LinearActor",
                "checksum": True,
                "evaluation": {"every_steps": 0},
                "outbox": {"max_bytes": 200 * self.rows // WORKERS * 2 + (1 << 20)},
            },
            "trainer": {"start_steps": 2000, "updates_per_step": 0.01, "publish_every": 5, "priority": "low"},
            "run": {"name": RUN, "root": str(self.folder / "runs"), "seed": self.seed},
        }

    def device(self, worker: int) -> np.memmap[Any, Any] | None:
        """Return the log of a worker's device."""
        path = self.folder / f"device-{worker}.log"
        return np.memmap(path, np.float64, mode="r") if path.exists() else None

    def captures(self) -> list[int]:
        """Return how many observations each worker has made."""
        logs = [self.device(i) for i in range(WORKERS)]
        return [0 if log is None else int(log[0]) for log in logs]

    def look(self) -> None:
        """Start again whoever is dead, and take in the newest overview."""
        for role in self.roles:
            if not role.running:
                role.start()
        for payload in self._overview.drain(1):
            self.overview, self.overview_at = json.loads(payload), now()

    def all_up(self, since: float = 0.0) -> bool:
        """Whether every role runs, every worker acts, and the trainer has heard each one since that time."""
        self.look()
        heard_at = self.overview_at
        if now() - heard_at > 1.5 or heard_at - since < 0.2:
            return False
        workers = self.overview["workers"]
        return len(workers) == WORKERS and all(
            w["connected"]
            and w["rows_waiting"] < RATE_HZ
            and w["heard_s_ago"] < min(1.5, heard_at - since - 0.1)
            and w["state"] == "acting"
            for w in workers
        )

    def at_risk_s(self) -> list[float]:
        """Return how long ago the oldest row that is only in the shared memory was made, for each worker."""
        ages = []
        for worker in self.workers:
            for child in worker.children("companion"):
                words = child.cmdline()
                rows = Path(words[words.index("--shared") + 1]) / "rows"
                try:
                    data = np.memmap(rows, np.uint8, mode="r")
                except OSError:
                    continue
                head, _, *_ = struct.unpack_from("<qq", data, 4096)
                (tail,) = struct.unpack_from("<q", data, 4096 + 64)
                ages.append(max(0, head - tail) / RATE_HZ)
        return ages

    def strike(self, kind: str, worker: int) -> Event:
        """Kill a role, or cut the link."""
        event = Event(kind, worker, now(), [], self.at_risk_s())
        if kind == "cut":
            self.proxy.cut()
        elif kind == "hub":
            self.hub.kill()
        elif kind == "trainer":
            self.trainer.kill()
        elif kind == "control":
            self.workers[worker].kill()
        else:
            for child in self.workers[worker].children("companion"):
                child.kill()
        event.captures = self.captures()
        boot = self.folder / "runs" / RUN / "workers" / f"w{worker}" / "boot"
        event.boot = int(boot.read_text())
        if kind == "cut":
            time.sleep(CUT_S)
            self.proxy.mend()
        return event

    def close(self) -> None:
        """End everything."""
        for role in (*self.workers, self.trainer, self.hub):
            role.end()
        self._carrier.close()
        self.proxy.close()


def play(stage: Stage, steps: int, plan: list[tuple[str, int]], every_s: float) -> list[tuple[Event, float]]:
    """Carry the plan out; return each event with the least share of its steps a worker made meanwhile."""
    wait_until(stage.all_up, 60.0, "the start of all roles")
    done: list[tuple[Event, float]] = []
    next_event = now() + 2.0
    plan = list(plan)
    began = now()
    while True:
        stage.look()
        made = stage.captures()
        if not plan and sum(made) >= steps:
            return done
        if plan and now() >= next_event and stage.all_up():
            kind, worker = plan.pop(0)
            event = stage.strike(kind, worker)
            before, at = event.captures, now()
            since = now() if kind == "cut" else event.at
            wait_until(lambda s=since: stage.all_up(s), 60.0, f"the recovery from {kind} {worker}")
            event.back_s = now() - event.at
            share = 1.0
            if kind in ("hub", "trainer"):
                spent = now() - at
                share = min(
                    (b - a) / (spent * RATE_HZ) for a, b in zip(before, stage.captures(), strict=True)
                )
            done.append((event, share))
            stage.events.append(event)
            next_event = max(next_event + every_s, now() + 0.5)
            left = f"{len(plan)} events left, {sum(stage.captures()):,} observations"
            print(f"  {now() - began:6.0f} s  {kind:<9} back after {event.back_s:5.2f} s; {left}", flush=True)
        time.sleep(0.05)


def verify(stage: Stage) -> dict[str, Any]:
    """Compare journal and outboxes."""
    result: dict[str, Any] = dict.fromkeys(
        ("transitions", "lost", "doubled", "different", "disorder", "streams"), 0
    )
    result["tails"], result["hash"] = [], []
    for each in delivered(stage.folder / "runs" / RUN):
        result["streams"] += 1
        result["lost"] += each.lost
        result["doubled"] += each.doubled
        result["disorder"] += each.disorder
        result["different"] += not each.equal
        result["hash"].append(digest(each.got))
        count = each.got["o/number"][:, 0].astype(np.int64)
        result["different"] += int(np.count_nonzero((each.got["o/values"] != values_of(count)).any(axis=1)))
        result["transitions"] += int(np.count_nonzero((each.got["flags"] & Flag.FINAL) == 0))
        result["tails"] += tails(stage, each.worker, each.sent)
    return result


def tails(stage: Stage, worker: str, sent: np.ndarray) -> list[float]:
    """Return, for each kill of this worker's control process, the time that its uncommitted steps cover."""
    index = int(worker[1:])
    log = stage.device(index)
    assert log is not None
    found = []
    for event in stage.events:
        if event.kind != "control" or event.worker != index:
            continue
        mine = sent[sent["episode"] // EPISODES_PER_BOOT == event.boot]
        last = int(mine["o/number"][:, 0].max()) + 1 if len(mine) else event.captures[index] - 1
        newest = event.captures[index] - 1
        found.append(float(log[2 + newest] - log[2 + min(last, newest)]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--check", action="store_true", help="exit 1 below the bars")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the files of the run in this folder")
    options = parser.parse_args()
    steps, kills, cuts = (100_000, 12, 3) if options.quick else (1_000_000, 100, 20)
    rng = np.random.default_rng(options.seed)
    plan = [(str(rng.choice(VICTIMS)), int(rng.integers(WORKERS))) for _ in range(kills)]
    plan += [("cut", 0)] * cuts
    plan = [plan[i] for i in rng.permutation(len(plan))]
    every_s = 0.97 * steps / (WORKERS * RATE_HZ) / len(plan)
    print(f"{platform.platform()}, Python {platform.python_version()}; {quiet_machine()}")
    print(f"{WORKERS} workers at {RATE_HZ:g} Hz, {steps:,} transitions, {kills} kills, {cuts} cuts")
    with tempfile.TemporaryDirectory(prefix="tickrate-chaos-") as name:
        place = options.keep or Path(name)
        stage = Stage(place.absolute(), rows=int(1.3 * steps) + 10_000, seed=options.seed)
        try:
            # Episode ends cost one row each; a little more than wanted is made.
            done = play(stage, int(1.01 * steps), plan, every_s)
            for role in stage.workers:
                role.end()
            time.sleep(1.0)
            overview = stage.overview
        finally:
            stage.close()
        result = verify(stage)
    return report(result, done, overview, options.check, steps)


def report(
    result: dict[str, Any], done: list[tuple[Event, float]], overview: dict[str, Any], check: bool, steps: int
) -> int:
    counts = {kind: sum(e.kind == kind for e, _ in done) for kind in (*VICTIMS, "cut")}
    print(f"events: {counts}")
    for kind in (*VICTIMS, "cut"):
        back = [e.back_s for e, _ in done if e.kind == kind]
        if back:
            print(f"  {kind:<9} back after {np.median(back):.2f} s in the median, at most {max(back):.2f} s")
    print(
        f"{result['transitions']:,} transitions in the journal; lost {result['lost']}, "
        f"doubled {result['doubled']}, "
        f"out of order {result['disorder']}, different {result['different']}; streams {result['streams']}"
    )
    proved = sum(w["checksums_equal"] for w in overview.get("workers", []))
    wrong = sum(w["checksums_different"] for w in overview.get("workers", []))
    print(f"checksums since the trainer's last start: {proved:,} equal, {wrong} different")
    print(f"sha256 of each worker's rows, outbox = journal: {' '.join(result['hash'])}")
    tail = np.array(result["tails"] or [0.0])
    risk = np.array([age for e, _ in done for age in e.at_risk_s] or [0.0])
    print(
        f"uncommitted tail of {len(result['tails'])} killed control processes: p99 "
        f"{1e3 * np.percentile(tail, 99):.1f} ms, largest {1e3 * tail.max():.1f} ms; in the shared memory "
        f"at any kill: p99 {1e3 * np.percentile(risk, 99):.1f} ms, largest {1e3 * risk.max():.1f} ms"
    )
    acting = [share for e, share in done if e.kind in ("hub", "trainer")]
    least = min(acting, default=1.0)
    print(f"least share of its steps that a worker made during an outage of hub or trainer: {least:.3f}")
    held = {
        "nothing lost": result["lost"] == 0,
        "nothing doubled": result["doubled"] == 0 and result["disorder"] == 0,
        "all equal": result["different"] == 0 and wrong == 0 and result["streams"] == WORKERS,
        "enough transitions": result["transitions"] >= steps,
        "tail": np.percentile(tail, 99) <= TAIL_BOUND_S and np.percentile(risk, 99) <= TAIL_BOUND_S,
        "acting goes on": least >= ACTING_BOUND,
    }
    print("bars: " + ", ".join(f"{name} {'held' if ok else 'MISSED'}" for name, ok in held.items()))
    share = 1 - result["lost"] / max(1, result["transitions"])
    print(f"ratio: transitions in the journal / committed {share:.6f}")
    return 1 if check and not all(held.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
