"""Claim: 50,000 acknowledged 1 KB transitions a second and 200 MB/s of frames, mutual TLS, onto disks.

A sender (outbox and courier of a worker, fed as fast as it takes), a hub with keys and a trainer with its
journal, all processes of their own on loopback. A transition counts when its acknowledgement is back at the
sender: it is in the outbox and in the journal then. The same is measured without disks, in memory at both
ends. tlspyo's relay, which tmrl uses, runs in the same run: 1 KB messages from one endpoint to another, where
it delivers at all within a minute.

    python benchmarks/transport.py            15 s a scene
    python benchmarks/transport.py --quick    5 s a scene
    python benchmarks/transport.py --sync     also with every commit forced to the disk (survives a power cut)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from _roles import ROOT, Role, free_port, quiet_machine
from gymnasium import spaces

from tickrate import clock
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.courier import Courier
from tickrate.runtime.outbox import Outbox, OutboxConfig
from tickrate.runtime.supervision import keep_memory
from tickrate.wire.credentials import Credentials
from tickrate.wire.keys_folder import KeysFolder
from tickrate.wire.zenoh_carrier import ZenohCarrier

BARS = {"1 KB rows": 50_000.0, "frames": 200.0}
"""Rows a second, and MB a second."""
LEAVES: dict[str, dict[str, spaces.Space[Any]]] = {
    "1 KB rows": {"state": spaces.Box(-1, 1, (240,), np.float32)},
    "frames": {"image": spaces.Box(0, 255, (64, 64, 3), np.uint8)},
}
CAPACITY = {"1 KB rows": 500_000, "frames": 40_000}
RUN = "transport"
PENDING_BYTES = 96 << 20
"""The sender's outbox is kept filled up to here."""


def contract_of(kind: str) -> EnvironmentContract:
    """Return the contract of a worker with such rows."""
    actions = spaces.Box(-1, 1, (2,), np.float32)
    return EnvironmentContract(LEAVES[kind], actions, period_s=0.0, action_buffer_length=0, mirror=None)


class Filler(threading.Thread):
    """Keeps an outbox filled with numbered rows."""

    def __init__(self, outbox: Outbox, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._outbox, self._end = outbox, stop
        row_bytes = outbox.schema.stored_bytes
        self._count = max(16, min(1024, (1 << 20) // row_bytes))
        self._most = PENDING_BYTES // row_bytes
        rng = np.random.default_rng(0)
        self._rows = np.zeros(self._count, outbox.schema.row_dtype)
        for field in outbox.schema.observation:
            shape = (self._count, *field.shape)
            noise = rng.integers(0, 256, shape) if field.storage.kind == "u" else rng.uniform(-1, 1, shape)
            self._rows[f"o/{field.name}"] = noise

    def run(self) -> None:
        step = 0
        while not self._end.is_set():
            if self._outbox.pending > self._most:
                clock.sleep(0.002)
                continue
            self._rows["step"] = np.arange(step, step + self._count)
            step += self._count
            self._outbox.append(self._rows)


def send(options: argparse.Namespace) -> None:
    """Be the sender: print acknowledged rows a second, and this process's share of a core."""
    keep_memory()  # as every companion does
    contract = contract_of(options.kind)
    config = OutboxConfig(max_bytes=256 << 20, storage=options.storage, sync=options.sync)
    outbox = Outbox(Path(options.folder) / "outbox", contract.schema(), config)
    stop = threading.Event()
    with ZenohCarrier(options.hub, key=Credentials.load(options.key), wait_for_hub=False) as carrier:
        courier = Courier(carrier, outbox, contract, f"run-{RUN}", "sender")
        filler = Filler(outbox, stop)
        filler.start()

        def work(seconds: float) -> tuple[int, float]:
            begun, first = clock.now(), courier.sender.acknowledged
            while clock.now() < begun + seconds:
                courier.step()
                if not courier.busy:
                    clock.sleep(0.001)
            return courier.sender.acknowledged - first, clock.now() - begun

        deadline = clock.now() + 60.0
        while courier.sender.acknowledged == 0 and clock.now() < deadline:
            work(0.1)
        work(2.0)
        cpu = clock.cpu_time()
        count, seconds = work(options.seconds)
        result = {
            "rows_per_s": count / seconds,
            "row_bytes": outbox.schema.row_dtype.itemsize,
            "resent": courier.sender.resent,
            "dropped": outbox.dropped,
            "cores": (clock.cpu_time() - cpu) / seconds,
        }
        stop.set()
        filler.join(10.0)
    outbox.close()
    print(json.dumps(result), flush=True)


def scene(kind: str, folder: Path, seconds: float, *, disk: bool, sync: bool) -> dict[str, Any]:
    """Run sender, hub and trainer once."""
    place = folder / f"{kind.replace(' ', '-')}-{disk}-{sync}"
    place.mkdir()
    hub = f"tls/127.0.0.1:{free_port()}"
    keys = KeysFolder.init(place / "keys", ["127.0.0.1"])
    files = {name: keys.add(name) for name in ("trainer", "sender")}
    experiment = place / "e.yaml"
    settings = {
        "environment": {"id": "not_there:Needed"},
        "algorithm": {"name": "_collect:ENTRY"},
        "replay": {
            "capacity": CAPACITY[kind],
            "n_step": 1,
            "mirror": False,
            "storage": "journal" if disk else "memory",
            "sync": sync,
        },
        "trainer": {"start_steps": 10**9, "checkpoint_every_s": 1e6, "priority": "normal"},
        "run": {"name": RUN, "root": str(place / "runs")},
    }
    experiment.write_text(yaml.safe_dump(settings), encoding="utf-8")
    roles = [
        Role("hub", ["hub", "--listen", hub, "--keys", str(keys.path)], place),
        Role("trainer", ["trainer", str(experiment), "--hub", hub, "--key", str(files["trainer"])], place),
    ]
    for role in roles:
        role.start()
    try:
        command = [sys.executable, __file__, "--send", "--kind", kind, "--hub", hub, "--folder", str(place)]
        command += ["--key", str(files["sender"]), "--seconds", str(seconds)]
        command += ["--storage", "disk" if disk else "memory", *(["--sync"] if sync else [])]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        sender = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        before = {role.name: psutil.Process(role.pid).cpu_times() for role in roles}
        begun = clock.now()
        output, _ = sender.communicate(timeout=seconds + 120)
        took = clock.now() - begun
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        for role in roles:
            after = psutil.Process(role.pid).cpu_times()
            used = after.user + after.system - before[role.name].user - before[role.name].system
            result[f"{role.name}_cores"] = used / took
    except (subprocess.TimeoutExpired, IndexError, TimeoutError):
        for role in roles:
            print(f"--- {role.name}\n{role.last_words()}")
        raise
    finally:
        for role in reversed(roles):
            role.end()
    return result


def peer(python: Path, seconds: float) -> tuple[str, float]:
    """Run tlspyo's relay; return what came of it, and messages a second."""
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    install = [str(python), "-m", "pip", "install", "-qq", "tlspyo==0.3.0", "numpy"]
    if subprocess.run(install, check=False, capture_output=True).returncode != 0:
        return "could not be installed", 0.0
    command = [str(python), str(ROOT / "benchmarks" / "_tlspyo_peer.py"), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return "delivered too little within 90 s, and did not end", 0.0
    if not done.stdout.strip():
        return f"failed: {done.stderr[-300:]}", 0.0
    result = json.loads(done.stdout.strip().splitlines()[-1])
    rate = result["delivered"] / result["seconds"]
    return "{delivered} of {sent} delivered in {seconds:.2f} s, without TLS".format(**result), rate


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 below the bars")
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--peer", type=Path, default=ROOT / ".venv-tlspyo" / "bin" / "python")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--scenes", nargs="*", choices=list(LEAVES), default=list(LEAVES))
    for name in ("--send",):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    for name in ("--kind", "--hub", "--folder", "--key", "--storage"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send(options)
        return 0
    seconds = options.seconds or (5.0 if options.quick else 15.0)
    print(f"{platform.platform()}, Python {platform.python_version()}; {quiet_machine()}")
    print(f"{'scene':<34}{'rows/s':>10}{'MB/s':>8}{'cores: sender':>15}{'hub':>6}{'trainer':>9}{'resent':>8}")
    measured = {}
    with tempfile.TemporaryDirectory(prefix="tickrate-transport-") as name:
        modes = [(True, False), (False, False), *([(True, True)] if options.sync else [])]
        for kind in options.scenes:
            for disk, sync in modes:
                got = scene(kind, Path(name), seconds, disk=disk, sync=sync)
                mb = got["rows_per_s"] * got["row_bytes"] / 1e6
                words = "outbox and journal on disk" if disk else "in memory"
                title = f"{kind}, {words}{', forced' if sync else ''}"
                print(
                    f"{title:<34}{got['rows_per_s']:>10,.0f}{mb:>8.1f}{got['cores']:>15.2f}"
                    f"{got['hub_cores']:>6.2f}{got['trainer_cores']:>9.2f}{got['resent']:>8}",
                    flush=True,
                )
                measured[kind, disk, sync] = got["rows_per_s"] if kind == "1 KB rows" else mb
                if got["dropped"]:
                    print(f"  {got['dropped']} rows were dropped by the outbox")
    words, peer_rate = peer(options.peer, 40.0)
    print(f"tlspyo's relay, 1 KB messages: {words}")
    held = {kind: measured[kind, True, False] >= bar for kind, bar in BARS.items() if kind in options.scenes}
    print("bars: " + ", ".join(f"{kind} {'held' if ok else 'MISSED'}" for kind, ok in held.items()))
    ratios = {kind: measured[kind, True, False] / BARS[kind] for kind in options.scenes}
    if peer_rate > 0 and "1 KB rows" in ratios:
        print(f"ratio to tlspyo, 1 KB: {measured['1 KB rows', True, False] / peer_rate:.1f}")
    print("ratio to the bar: " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()))
    return 1 if options.check and not all(held.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
