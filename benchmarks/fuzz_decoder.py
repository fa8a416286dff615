"""Claim: nothing that arrives from outside gets past a decoder except as the error its documentation names.

Atheris (libFuzzer for Python) throws mutated bytes at everything that decodes what a network or a file gave:
messages, rows, inference, schemas, contracts, policies, journals, snapshots, ledgers, the game's packets,
credentials. Each decoder has a process of its own, an equal share of the time, valid bytes to start from, and
coverage of tickrate's code to be led by; inputs are also read as changes to a valid description, and their
checksums are put right. Bars: no other exception comes out (an escape), no input takes more than 5 s or lets
the process grow over 1 GiB. The bytes of an escape are written into a file.

    python benchmarks/fuzz_decoder.py                 ten minutes
    python benchmarks/fuzz_decoder.py --quick         half a minute, the same bars
    python benchmarks/fuzz_decoder.py --replay FILE --target message    what one file does

It needs atheris, which tickrate does not: pip install atheris
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

INPUT_LIMIT_S = 5
RSS_LIMIT_MB = 1024
MAX_INPUT_BYTES = 8192


def fuzz(name: str, seconds: float, folder: Path, scratch: Path) -> None:
    """Fuzz one target in this process; does not return.

    Escapes are written into ``folder``, corpus and other files into ``scratch``.
    """
    import atheris

    with atheris.instrument_imports(include=["tickrate", "_fuzz_targets", "_fuzz_changes"]):
        import _fuzz_targets
    target = _fuzz_targets.TARGETS[name]
    corpus, files = scratch / "corpus", scratch / "files"
    for each in (corpus, files):
        each.mkdir()
    _fuzz_targets.use_folder(files)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    known: set[str] = set()

    def one(data: bytes) -> None:
        try:
            target.decode(data)
        except target.allowed:
            pass
        except Exception as error:  # noqa: BLE001 (whatever it is, it is what we are looking for)
            place = where(error)
            if place not in known:
                known.add(place)
                path = folder / f"{name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}.escape"
                path.write_bytes(data)
                print(f"ESCAPE {place}: {str(error)[:200]!r} -> {path}", flush=True)

    options = {
        "max_total_time": max(1, round(seconds)),
        "max_len": MAX_INPUT_BYTES,
        "rss_limit_mb": RSS_LIMIT_MB,
        "timeout": INPUT_LIMIT_S,
        "print_final_stats": 1,
        "artifact_prefix": f"{folder}/{name.replace(' ', '-')}-",
    }
    atheris.Setup([sys.argv[0], *(f"-{k}={v}" for k, v in options.items()), str(corpus)], one)
    atheris.Fuzz()


def where(error: BaseException) -> str:
    """Return the type of an error and the last line of tickrate's that it went through."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}tickrate{os.sep}" in f.filename
    ]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def in_its_own_process(name: str, seconds: float, folder: Path) -> dict[str, float]:
    """Fuzz one target and return its figures; what it found is printed."""
    from tickrate.runtime.shared_file import shared_folder

    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    arguments = ["--target", name, "--seconds", str(seconds), "--folder", str(folder)]
    with tempfile.TemporaryDirectory(dir=shared_folder(64 << 20), prefix="tickrate-fuzz-") as scratch:
        done = subprocess.run(
            [sys.executable, __file__, *arguments, "--scratch", scratch],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + 120,
        )
    escapes = [line for line in done.stdout.splitlines() if line.startswith("ESCAPE")]
    for line in escapes:
        print(f"  {name}: {line}")
    log = done.stderr
    states = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)/", log)
    stats = dict(re.findall(r"stat::(\w+): +(\d+)", log))
    if done.returncode != 0:  # a limit, or the process died: libFuzzer has written the input
        escapes.append(f"exit code {done.returncode}")
        kept = "\n    ".join(log.splitlines()[-12:])
        print(f"  {name}: ended with exit code {done.returncode}\n    {kept}")
    return {
        "runs": float(stats.get("number_of_executed_units", 0)),
        "per_s": float(stats.get("average_exec_per_sec", 0)),
        "cov_first": float(states[0][0]) if states else 0.0,
        "cov": float(states[-1][0]) if states else 0.0,
        "corpus_first": float(states[0][1]) if states else 0.0,
        "corpus": float(states[-1][1]) if states else 0.0,
        "rss_mb": float(stats.get("peak_rss_mb", 0)),
        "escapes": float(len(escapes)),
    }


def replay(name: str, path: Path) -> int:
    """Feed one file to a target and say what comes of it."""
    import _fuzz_targets

    target = _fuzz_targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        _fuzz_targets.use_folder(Path(folder))
        try:
            target.decode(path.read_bytes())
        except target.allowed as error:
            print(f"refused as documented: {type(error).__name__}: {error}")
            return 0
    print("accepted")
    return 0


def main() -> int:
    """Run the benchmark; return 1 with --check if a bar is missed, 2 where atheris is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all targets together")
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--check", action="store_true", help="exit 1 if anything escapes")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--replay", type=Path, help="a file to feed to --target")
    parser.add_argument("--folder", type=Path, help="where escapes go (default: a new temporary folder)")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.target, options.replay)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed in this environment. Install it there: pip install atheris")
        return 2
    if options.scratch is not None:
        warnings.simplefilter("ignore")
        fuzz(options.target, options.seconds, options.folder, options.scratch)
    import _fuzz_targets

    names = [options.target] if options.target else list(_fuzz_targets.TARGETS)
    minutes = 0.5 if options.quick else options.minutes
    seconds = minutes * 60 / len(names)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tickrate-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{len(names)} targets, {seconds:.0f} s each, one after the other; escapes go to {folder}\n")
    print(
        f"{'target':<16}{'executions':>12}{'per s':>9}{'branches':>14}{'corpus':>11}{'MB':>6}{'escapes':>9}"
    )
    total = {"runs": 0.0, "escapes": 0.0}
    for name in names:
        found = in_its_own_process(name, seconds, folder)
        branches = f"{found['cov_first']:.0f} -> {found['cov']:.0f}"
        corpus = f"{found['corpus_first']:.0f} -> {found['corpus']:.0f}"
        print(
            f"{name:<16}{found['runs']:>12,.0f}{found['per_s']:>9,.0f}{branches:>14}{corpus:>11}"
            f"{found['rss_mb']:>6.0f}{found['escapes']:>9.0f}",
            flush=True,
        )
        total = {key: total[key] + found[key] for key in total}
    print(f"\n{total['runs']:,.0f} executions in {minutes:g} minutes")
    print(f"escapes {total['escapes']:.0f} (none): {'held' if total['escapes'] == 0 else 'MISSED'}")
    return int(options.check and total["escapes"] > 0)


if __name__ == "__main__":
    sys.exit(main())
