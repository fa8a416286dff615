"""Claim: behind a bad link a worker acts on, the trainer learns, and nothing is lost or doubled.

The demo's experiment (circuit, SAC, real learner) as three roles, `tickrate hub`, `trainer` and `worker`.
Between worker and hub lies a proxy that delays all bytes by 50 ms each way, holds them back for 2 s every
15 s, cuts the link once for 30 s, and three times delivers half of what is in flight before it drops the
connection. Afterwards the worker's outbox, which keeps everything here, is compared with the trainer's
journal, byte by byte and in order.

Bars: 0 lost, 0 doubled, all equal; updates were made, and policies that rise in version acted; in each
disturbance the worker makes at least 90 % of its steps (resets of the game, which need no link, left out).

    python benchmarks/bad_link.py            four minutes
    python benchmarks/bad_link.py --quick    75 s, with a cut of 8 s
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _delivery import Delivered, delivered, keys
from _roles import Role, free_port, quiet_machine, wait_until

from tickrate.clock import now
from tickrate.config.experiment import as_mapping, load_experiment, override
from tickrate.data.schema import Flag, Rows
from tickrate.testing.link import LinkProxy
from tickrate.wire.carrier import make_key
from tickrate.wire.zenoh_carrier import ZenohCarrier

RUN = "bad-link"
PERIOD_S = 0.05
DELAY_S = 0.05
STALL_S, STALL_EVERY_S = 2.0, 15.0
HALF_S = 2.0
"""Time from a half delivery to the moment at which connections are let in again."""
ACTING_BOUND = 0.9


@dataclass
class Disturbance:
    """Something that happened to the link, on the machine's clock."""

    kind: str
    begin: float
    end: float = 0.0
    note: str = ""
    heard: float = float("nan")
    """When the trainer heard the worker again."""


@dataclass
class Stage:
    """The roles of the run, and what they say."""

    folder: Path
    quick: bool
    overview: dict[str, Any] = field(default_factory=dict)
    rtts: list[float] = field(default_factory=list)
    done: list[Disturbance] = field(default_factory=list)

    def __post_init__(self) -> None:
        hub = f"tcp/127.0.0.1:{free_port()}"
        self.proxy = LinkProxy(hub, delay_s=DELAY_S)
        changes = {
            "run.name": RUN,
            "run.root": str(self.folder / "runs"),
            **({"trainer.start_steps": 200} if self.quick else {}),
        }
        file = self.folder / "circuit.yaml"
        file.write_text(yaml.safe_dump(override(as_mapping(load_experiment("circuit")), changes)))
        self.roles = [
            Role("hub", ["hub", "--listen", hub], self.folder),
            Role("trainer", ["trainer", str(file), "--hub", hub, "--resume"], self.folder),
            Role("worker", ["worker", str(file), "--hub", self.proxy.endpoint], self.folder),
        ]
        for role in self.roles:
            role.start()
        self._carrier = ZenohCarrier(hub, wait_for_hub=False)
        self._said = self._carrier.subscribe(
            make_key(f"run-{RUN}", "overview", "trainer"), capacity=1, newest_only=True
        )

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "runs" / RUN

    def look(self) -> None:
        """Take in the newest overview; no role may have ended."""
        for role in self.roles:
            if not role.running:
                raise RuntimeError(f"the {role.name} has ended:\n{role.last_words()}")
        for payload in self._said.drain(1):
            self.overview = json.loads(payload)
            for worker in self.overview["workers"]:
                if worker["rtt_s"] is not None:
                    self.rtts.append(worker["rtt_s"])
                for each in self.done:
                    if np.isnan(each.heard) and now() - worker["heard_s_ago"] > each.end:
                        each.heard = now() - worker["heard_s_ago"]

    def acting(self) -> bool:
        """Whether the worker acts and its rows arrive."""
        self.look()
        return any(worker["steps"] > 0 for worker in self.overview.get("workers", []))

    def wait(self, until: float) -> None:
        """Go on looking until then."""
        while now() < until:
            self.look()
            time.sleep(0.05)

    def disturb(self, kind: str, seconds: float) -> None:
        """Disturb the link for a while."""
        event = Disturbance(kind, now())
        if kind == "stall":
            self.proxy.stall()
        elif kind == "cut":
            self.proxy.cut()
        else:
            event.note = f"{self.proxy.half(0.5):,} bytes lost"
        self.wait(event.begin + seconds)
        if kind == "stall":
            self.proxy.go_on()
        else:
            self.proxy.mend()
        event.end = now()
        self.done.append(event)

    def close(self) -> None:
        """End everything; the worker first, so that the trainer takes in its last rows."""
        for role in reversed(self.roles):
            role.end()
        self._carrier.close()
        self.proxy.close()


def plan(seconds: float, cut_s: float) -> list[tuple[float, str, float]]:
    """Return what happens when, in seconds from the begin, and for how long; the cut comes in the middle."""
    cut_at = seconds / 2
    events = [(cut_at, "cut", cut_s)]
    events += [(at * seconds, "half", HALF_S) for at in (0.14, 0.37, 0.87)]
    at = STALL_EVERY_S
    while at < seconds - STALL_EVERY_S / 2:
        free = all(at + STALL_S < begin or at > begin + length + 1.0 for begin, _, length in events)
        if free:
            events.append((at, "stall", STALL_S))
        at += STALL_EVERY_S
    return sorted(events)


def resets(rows: Rows) -> list[tuple[float, float]]:
    """Return when no step was made because an episode had ended."""
    acted = rows[(rows["flags"] & Flag.FINAL) == 0]
    last = np.nonzero(np.diff(acted["episode"].astype(np.int64)))[0]
    begin, end = acted["start"][last] + PERIOD_S, acted["start"][last + 1]
    return list(zip(begin.tolist(), end.tolist(), strict=True))


def share(rows: Rows, begin: float, end: float) -> tuple[float, float]:
    """Return the share of its steps that the worker made, and the time that resets took (s)."""
    start = rows["start"][(rows["flags"] & Flag.FINAL) == 0]
    made = int(np.count_nonzero((start >= begin) & (start < end)))
    away = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in resets(rows))
    return made * PERIOD_S / max(PERIOD_S, end - begin - away), away


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="75 s")
    parser.add_argument("--check", action="store_true", help="exit 1 below the bars")
    parser.add_argument("--keep", type=Path, help="keep the files of the run in this folder")
    options = parser.parse_args()
    seconds, cut_s = (75.0, 8.0) if options.quick else (240.0, 30.0)
    print(f"{platform.platform()}, Python {platform.python_version()}; {quiet_machine()}")
    print(f"the circuit at 20 Hz behind {1e3 * DELAY_S:g} ms each way, {seconds:g} s, a cut of {cut_s:g} s")
    with tempfile.TemporaryDirectory(prefix="tickrate-bad-link-") as name:
        place = (options.keep or Path(name)).absolute()
        place.mkdir(parents=True, exist_ok=True)
        stage = Stage(place, options.quick)
        try:
            wait_until(stage.acting, 90.0, "the start of all roles")
            begun = now()
            for at, kind, length in plan(seconds, cut_s):
                stage.wait(begun + at)
                stage.disturb(kind, length)
            stage.wait(begun + seconds)
            ended = now()
        finally:
            stage.close()
        streams = list(delivered(stage.run))
        return report(stage, streams, (begun, ended), options.check)


def report(stage: Stage, streams: list[Delivered], whole: tuple[float, float], check: bool) -> int:
    both = np.concatenate([streams[0].sent, streams[0].evaluated])
    rows = both[np.argsort(keys(both), kind="stable")]
    shares = []
    for each in stage.done:
        part, away = share(rows, each.begin, each.end)
        shares.append(part)
        print(
            f"  {each.begin - whole[0]:6.1f} s  {each.kind:<5} {each.end - each.begin:5.1f} s: {part:6.3f} "
            f"of the steps made, {away:4.2f} s in resets; heard again after {each.heard - each.end:5.2f} s  "
            f"{each.note}"
        )
    overall, away = share(rows, *whole)
    print(f"the whole time: {overall:.3f} of the steps made, {away:.1f} s in resets")
    metrics, worker = stage.overview["trainer"]["metrics"], stage.overview["workers"][0]
    acted = rows[(rows["flags"] & Flag.FINAL) == 0]
    versions = acted["policy_version"].astype(np.int64)
    late = 1e3 * acted["lateness"]
    print(
        f"{len(acted):,} steps, {metrics.get('learn/updates', 0.0):,.0f} updates; policy versions up to "
        f"{versions.max()}, {len(np.unique(versions))} of them acted; lateness p50 {np.median(late):.2f} ms, "
        f"p99 {np.percentile(late, 99):.2f} ms"
    )
    seen, counters = 1e3 * np.array(stage.rtts or [np.nan]), stage.proxy.counters
    print(
        f"round trip in the overview: {np.median(seen):.1f} ms in the median ({seen.min():.1f} to "
        f"{seen.max():.1f}); the proxy's is {2e3 * DELAY_S:g} ms"
    )
    print(
        f"rows that came twice and were left out: {worker['rows_repeated']}; lost in the proxy: "
        f"{counters.bytes_lost:,} bytes; connections: {counters.connections}"
    )
    lost, doubled, disorder = (
        sum(getattr(each, name) for each in streams) for name in ("lost", "doubled", "disorder")
    )
    equal = all(each.equal for each in streams)
    print(
        f"{len(rows):,} rows, {len(streams[0].evaluated):,} of them of evaluations, which are kept out of "
        f"the journal: lost {lost}, doubled {doubled}, out of order {disorder}, all equal: {equal}"
    )
    held = {
        "nothing lost": lost == 0 and worker["rows_lost"] == 0,
        "nothing doubled": doubled == 0 and disorder == 0,
        "all equal": equal and len(streams) == 1,
        "it trains": metrics.get("learn/updates", 0.0) > 0
        and versions[-1] > 1
        and not (np.diff(versions) < 0).any(),
        "acting goes on": min(shares) >= ACTING_BOUND,
    }
    print("bars: " + ", ".join(f"{name} {'held' if ok else 'MISSED'}" for name, ok in held.items()))
    print(f"ratio: least share of the steps made in a disturbance {min(shares):.3f}, over all {overall:.3f}")
    return 1 if check and not all(held.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
