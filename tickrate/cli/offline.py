"""Runs an experiment offline: where its spaces come from, the progress that is shown, the last words."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tickrate import clock
from tickrate.cli import assembling
from tickrate.config.experiment import Experiment
from tickrate.errors import ConfigError, RunFolderError
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import open_environment
from tickrate.runtime.learner import Learner
from tickrate.runtime.lock_file import LockFile
from tickrate.runtime.offline import run_offline
from tickrate.runtime.run_folder import OnExisting, RunFolder, write_atomically

LINE_EVERY_S = 5.0


def learn_offline(
    experiment: Experiment,
    on_existing: OnExisting,
    console: Console,
    announce: Callable[[RunFolder], None],
    interrupted: Callable[[], bool],
    started: float,
) -> Path:
    """Make the experiment's offline updates, or those until ``interrupted``; return the run folder.

    Raises:
        ConfigError, RecordError, RunFolderError: before the first update, if it cannot work.
    """
    contract = spaces_of(experiment, RunFolder(experiment.folder) if on_existing == "resume" else None)
    folder = assembling.prepare_folder(experiment, on_existing, device=False)
    announce(folder)
    write_atomically(folder.contract, json.dumps(contract.to_dict()).encode())
    assembling.load_algorithm(experiment)
    with (
        LockFile(folder.lock, f"the run folder {folder.path}"),
        assembling.text_log(folder),
        closing(assembling.file_trackers(folder)) as tracker,
    ):
        learner = assembling.learner_parts(experiment).build(
            contract, folder, tracker, resume=on_existing == "resume", started=started
        )
        if learner.offline_updates >= (experiment.trainer.offline_updates or 0):
            raise RunFolderError(
                f"{folder.path} has made {learner.offline_updates} updates offline, its limit is "
                f"{experiment.trainer.offline_updates}: give it more with --updates"
            )
        with _Shown(console, learner, interrupted) as shown:
            run_offline(learner, shown)
        learner.replay.close()
    _farewell(console, folder, learner)
    return folder.path


def spaces_of(experiment: Experiment, resumed: RunFolder | None) -> EnvironmentContract:
    """Return what the run's actions and observations are: from a contract that is there, or the environment.

    An environment is opened for its spaces alone: nothing is reset and nothing sent.

    Raises:
        ConfigError: if ``trainer.offline_contract`` names no contract.
        MessageError: if the file there is none.
    """
    named = experiment.trainer.offline_contract
    if named:
        path = Path(named)
        contract = EnvironmentContract.load(path if path.is_file() else RunFolder(path).contract)
        if contract is None:
            raise ConfigError(
                f"trainer.offline_contract is {named!r}: it is neither a run folder with contract.json in it "
                "nor such a file"
            )
        return contract
    kept = None if resumed is None else EnvironmentContract.load(resumed.contract)
    if kept is not None:
        return kept
    with closing(open_environment(experiment.environment)) as environment:
        return EnvironmentContract.of(environment, checksum=experiment.worker.checksum)


class _Shown:
    """A progress bar in a terminal, a line every few seconds elsewhere; tells when a person ends it."""

    def __init__(self, console: Console, learner: Learner, interrupted: Callable[[], bool]) -> None:
        self._console, self._learner, self._interrupted = console, learner, interrupted
        self._total = learner.config.offline_updates
        self._bar = Progress(
            TextColumn("learning offline"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} updates/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=self._total, rate="-")
        self._next = clock.now()

    def __enter__(self) -> _Shown:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(None, None, None)

    def __call__(self) -> bool:
        """Show how far it is; return whether to end."""
        done, rate = self._learner.offline_updates, f"{self._learner.updates_per_s:.1f}"
        self._bar.update(self._task, completed=done, rate=rate)
        if self._console.is_terminal or (clock.now() < self._next and done != self._total):
            return self._interrupted()
        self._next = clock.now() + LINE_EVERY_S
        self._console.print(
            f"{done:,} of {self._total:,} updates, {rate} updates/s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return self._interrupted()


def _farewell(console: Console, folder: RunFolder, learner: Learner) -> None:
    lines = [f"ended after {learner.offline_updates:,} updates offline, everything saved in {folder.path}"]
    if folder.latest_policy.exists():
        lines += [
            f"drive with the policy:   tickrate play {folder.path}",
            f"go on by acting:         tickrate train --resume {folder.path} "
            "--set trainer.offline_updates=null --steps 10000",
        ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
