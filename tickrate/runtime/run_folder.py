"""The folder of a run: where each file lives, whether it may be used, and writes that are all or nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from tickrate.errors import FolderInUse, RunFolderError
from tickrate.runtime.lock_file import LockFile

OnExisting = Literal["refuse", "resume", "replace"]
MEMORY_PREFIX = "tickrate-"
"""How the names of shared memory folders begin; nothing else is ever taken over and removed."""
KEPT_CHECKPOINTS = 2
"""Complete checkpoints that stay; older ones are deleted once a newer one is complete."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a crash leaves either the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. Nothing is created before `prepare` is called."""

    path: Path

    @property
    def wire_name(self) -> str:
        """The run's name on the wire: the folder's name with only the letters that keys allow."""
        name = self.path.resolve().name
        return "run-" + "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)[:120]

    @property
    def experiment(self) -> Path:
        """The resolved configuration, as YAML."""
        return self.path / "experiment.yaml"

    @property
    def kept_experiment(self) -> Path:
        """What the run is known to work with: the configuration before a resume that has not restored yet."""
        before = self._experiment_before
        return before if before.exists() else self.experiment

    @property
    def _experiment_before(self) -> Path:
        return self.path / "experiment.before.yaml"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints, one folder each."""
        return self.path / "checkpoints"

    @property
    def journal(self) -> Path:
        """Every transition that was acknowledged: the replay's storage."""
        return self.path / "journal.seg"

    @property
    def ledger(self) -> Path:
        """Which streams there are and how far each has come."""
        return self.path / "ledger"

    @property
    def hub(self) -> Path:
        """Address of the hub that the launcher holds (or held), as text."""
        return self.path / "hub"

    @property
    def lock(self) -> Path:
        """Held by the trainer that uses the folder."""
        return self.path / "trainer.lock"

    @property
    def best_policy(self) -> Path:
        """The policy with the best evaluation so far."""
        return self.path / "best.policy"

    @property
    def best(self) -> Path:
        """Score and version of the best policy, as JSON."""
        return self.path / "best.json"

    @property
    def latest_policy(self) -> Path:
        """The policy of the newest checkpoint."""
        return self.path / "latest.policy"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: every metric with its step."""
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        """One JSON object a line: every finished episode."""
        return self.path / "episodes.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def learning_curve(self) -> Path:
        """Picture of returns (and lap times) over steps and time."""
        return self.path / "learning_curve.png"

    @property
    def timing_histogram(self) -> Path:
        """Picture of the lateness of commands."""
        return self.path / "timing.png"

    def log(self, role: str) -> Path:
        """Text log of one role."""
        return self.path / "logs" / f"{role}.log"

    def worker(self, name: str) -> WorkerFolder:
        """Return the folder of a worker, on the machine where it runs."""
        return WorkerFolder(self.path / "workers" / name)

    @property
    def contract(self) -> Path:
        """What the run's workers act in, as JSON; written when the first of them has joined."""
        return self.path / "contract.json"

    @property
    def resumable(self) -> bool:
        """Whether there is something that a trainer can continue from."""
        return self.journal.exists() or self.latest_checkpoint() is not None

    @property
    def begun(self) -> bool:
        """Whether the folder holds something that a run has made."""
        return self.episodes.exists() or self.resumable

    def prepare(self, on_existing: OnExisting) -> None:
        """Create the folder, or decide what a folder that is there means, before any device is touched.

        A folder whose run never got as far as one episode or checkpoint (a device that was not there, a typo)
        counts as empty: the next attempt takes it over.

        Raises:
            RunFolderError: if it holds a run and ``on_existing`` is "refuse", or nothing can be resumed.
            FolderInUse: if a trainer uses it now.
        """
        if self.lock.exists():  # nothing is deleted under a trainer that runs
            LockFile(self.lock, f"the run folder {self.path}").close()
        holds_run = self.experiment.exists()
        if on_existing == "resume":
            if not holds_run:
                raise RunFolderError(f"{self.path} holds no run to resume (no {self.experiment.name} in it)")
            if not self.resumable:
                raise RunFolderError(
                    f"{self.path} has neither a complete checkpoint nor a journal to resume from: "
                    "start it anew with --replace"
                )
        elif holds_run and self.begun and on_existing == "refuse":
            raise RunFolderError(
                f"{self.path} holds a run already: continue it with --resume, start it anew with --replace, "
                "or choose another --name"
            )
        elif self.path.exists() and on_existing == "replace":
            ours = ("workers", "logs", self.lock.name)
            left = [entry for entry in self.path.iterdir() if entry.name not in ours]
            if not holds_run and left:
                raise RunFolderError(f"{self.path} is not empty and holds no run: refusing to replace it")
            self._clear()
        try:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be written ({error.strerror}): choose another place with run.root, "
                "or mend its permissions"
            ) from error

    def _clear(self) -> None:
        """Delete everything but the folders of workers that run now."""
        for folder in (self.path / "workers").glob("*/"):
            try:
                for lock in ("lock", "outbox.lock"):  # the control process's and the companion's
                    LockFile(folder / lock, str(folder)).close()
            except FolderInUse:
                continue
            shutil.rmtree(folder)
        for entry in self.path.iterdir():
            if entry.name in ("workers", self.lock.name):
                continue
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def write_experiment(self, data: bytes, *, resumes: bool) -> None:
        """Write the configuration; that of a run to resume stays `kept_experiment` until `accept_experiment`.

        A resume may be refused late, by a replay or networks that the change does not fit. What was changed
        must not stand in the way of the next attempt.
        """
        if resumes and not self._experiment_before.exists():
            write_atomically(self._experiment_before, self.experiment.read_bytes())
        write_atomically(self.experiment, data)

    def accept_experiment(self) -> None:
        """Keep the configuration that was written last: a learner stands on it."""
        self._experiment_before.unlink(missing_ok=True)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint folder, or None."""
        complete = sorted(p for p in self.checkpoints.glob("step-*") if (p / "counters.json").exists())
        return complete[-1] if complete else None

    def begin_checkpoint(self, step: int) -> Path:
        """Return a fresh hidden folder for the parts of a checkpoint; what a crash left is removed."""
        for left in self.checkpoints.glob(".step-*"):
            shutil.rmtree(left)
        temporary = self.checkpoints / f".step-{step:012d}.tmp"
        temporary.mkdir(parents=True)
        return temporary

    def finish_checkpoint(self, temporary: Path, step: int) -> Path:
        """Make the checkpoint real by one rename, and drop all but the newest few."""
        # A second checkpoint at the same step stands beside the first: at no time is there none.
        name = f"step-{step:012d}"
        number = 0
        while (final := self.checkpoints / (name if number == 0 else f"{name}.{number:03d}")).exists():
            number += 1
        temporary.rename(final)
        for old in sorted(self.checkpoints.glob("step-*"))[:-KEPT_CHECKPOINTS]:
            hidden = old.with_name(f".{old.name}.old")  # half deleted, it must not be taken for a checkpoint
            old.rename(hidden)
            shutil.rmtree(hidden)
        return final


@dataclass(frozen=True)
class WorkerFolder:
    """Paths of one worker, on its own machine. Nothing is created before it is used."""

    path: Path

    @property
    def lock(self) -> Path:
        """Held by the worker that uses the folder."""
        return self.path / "lock"

    @property
    def memory(self) -> Path:
        """Where the memory lies that control process and companion share, as text."""
        return self.path / "memory"

    @property
    def contract(self) -> Path:
        """The environment's contract, for delivering without the device."""
        return self.path / "contract.json"

    @property
    def policy(self) -> Path:
        """The newest policy that has come, to start with it when no trainer is there."""
        return self.path / "newest.weights"

    @property
    def experiment(self) -> Path:
        """The resolved configuration that the worker was started with last, as YAML."""
        return self.path / "experiment.yaml"

    def make(self) -> None:
        """Create the folder.

        Raises:
            RunFolderError: if it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written ({error.strerror})") from error

    def keep(self, path: Path, data: bytes) -> None:
        """Write one of the files, all of it or nothing.

        Raises:
            RunFolderError: if it cannot be written (a full disk, missing rights).
        """
        try:
            write_atomically(path, data)
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written ({error.strerror}): make room, or mend the permissions of "
                f"{self.path}"
            ) from error

    def left_memory(self) -> Path | None:
        """Return the shared memory that an earlier start left behind: both its processes were killed."""
        try:
            left = Path(self.memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return left if left.name.startswith(MEMORY_PREFIX) and left.is_dir() else None

    def next_boot(self) -> int:
        """Return how often this worker was started before, and count one more.

        Raises:
            RunFolderError: if the count cannot be read.
        """
        self.make()
        file = self.path / "boot"
        try:
            boot = int(file.read_text(encoding="utf-8")) + 1 if file.exists() else 0
        except ValueError as error:
            raise RunFolderError(
                f"{file} holds no number, so that episodes cannot be numbered on: {error}"
            ) from error
        self.keep(file, str(boot).encode())
        return boot


def save_state(folder: Path, state: Mapping[str, np.ndarray], counters: Mapping[str, Any]) -> None:
    """Write an algorithm's state and the trainer's counters into a checkpoint folder."""
    # order="C" and not ascontiguousarray, which would turn a scalar into a vector
    data = save({k: np.array(v, order="C") for k, v in state.items()})
    write_atomically(folder / "algorithm.safetensors", data)  # a full disk is an OSError here
    write_atomically(folder / "counters.json", json.dumps(counters, indent=1).encode())


def load_state(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save_state` wrote.

    Raises:
        RunFolderError: if a part is missing or damaged.
    """
    try:
        state = load_file(folder / "algorithm.safetensors")
        counters = json.loads((folder / "counters.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise RunFolderError(f"checkpoint {folder} cannot be read: {error}") from error
    if not isinstance(counters, dict):
        raise RunFolderError(f"checkpoint {folder}: counters.json holds no object")
    return state, counters
