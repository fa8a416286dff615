"""Runs an experiment with a view and keys: what ``train``, ``demo`` and `tickrate.train` have in common."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
from rich.console import Console

from tickrate import clock
from tickrate.cli import assembling
from tickrate.cli.keyboard import Keys
from tickrate.cli.live import View, best_lap, clock_text, make_view
from tickrate.cli.offline import learn_offline
from tickrate.config.experiment import Experiment
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import open_environment
from tickrate.runtime.episode import EpisodeSummary
from tickrate.runtime.learner import Learner
from tickrate.runtime.reports import report_of
from tickrate.runtime.run import LocalRun, RunState
from tickrate.runtime.run_folder import OnExisting, RunFolder, write_atomically
from tickrate.runtime.serial import check_limits, run_serial
from tickrate.wire import messages

POLL_S = 0.1
HURRY_S = 1.0
"""Patience with each role after a second Ctrl-C."""


class Interrupts:
    """Turns Ctrl-C and SIGTERM into a flag, so that a run ends in order; a second one ends it at once.

    Outside of the main thread, where no signal can be handled, the flag stays down.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested.is_set():
            raise KeyboardInterrupt
        self.requested.set()


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        folder: path of the run folder.
        problems: what went wrong at the end, one sentence each.
    """

    folder: Path
    problems: tuple[str, ...] = ()


def run_experiment(experiment: Experiment, title: str, on_existing: OnExisting = "refuse") -> Outcome:
    """Run an experiment to its end, or until Ctrl-C, and tell how it went.

    Raises:
        ConfigError, RunFolderError: before anything has been started, if it cannot work.
        RoleFailed: if a role ended with an error; everything up to then is saved.
    """
    started = clock.now()
    console = Console()
    with Interrupts() as interrupts:
        run = _run_offline if experiment.offline else _run_serial if experiment.serial else _run_roles
        return run(experiment, title, on_existing, console, interrupts, started)


def effective_values(experiment: Experiment) -> str:
    """Return the line that says what will really be used."""
    replay, trainer = experiment.replay, experiment.trainer
    gamma = float(np.float32(replay.gamma))
    rate = f"{trainer.updates_per_step:g} updates/step from step {trainer.start_steps} on"
    if experiment.offline:
        rate = f"{trainer.offline_updates:,} updates offline"
    sampling = ""
    if replay.sampling == "prioritised":
        ends = experiment.offline or trainer.total_steps is not None
        sampling = (
            f", by priority to the power of {replay.priority_exponent:g} (importance "
            f"{f'from {replay.importance_exponent:g} to 1' if ends else f'{replay.importance_exponent:g}'})"
        )
    if replay.demonstrations:
        share = 1.0 if experiment.offline else replay.demonstration_share
        sampling += f", {share:.0%} of each batch from demonstrations"
    algorithm = experiment.algorithm
    if algorithm.traits.value_range and not replay.return_limit:
        low, high = algorithm.traits.value_range
        sampling += (
            f", values clamped to {low:g} to {high:g} (replay.return_limit would scale returns to fit)"
        )
    if not algorithm.traits.explores and not experiment.offline:
        sampling += "; NOTHING EXPLORES after the warm-up: set algorithm.epsilon or algorithm.noisy_policies"
    recipe = f" ({algorithm.preset})" if algorithm.preset not in ("", algorithm.name) else ""
    steps = algorithm.traits.sequence_length
    returns = f"sequences of {steps} steps" if steps else f"{replay.n_step}-step returns"
    return (
        f"{algorithm.name}{recipe} on {experiment.environment.id}, seed {experiment.run.seed}: {rate}, "
        f"batch {algorithm.settings.batch_size}, "
        f"gamma {gamma:.9g} (float32, looks {1 / (1 - gamma):.0f} steps ahead), "
        f"{returns}, replay {replay.capacity:,}{sampling}"
    )


def _announce(console: Console, experiment: Experiment, folder: RunFolder) -> None:
    console.print(f"run folder: {folder.path}", highlight=False, markup=False, soft_wrap=True)
    console.print(effective_values(experiment), highlight=False, markup=False, soft_wrap=True)


def _view(experiment: Experiment, title: str, *, keys: bool) -> View:
    trainer = experiment.trainer
    return make_view(title, total_s=trainer.time_limit_s, total_steps=trainer.total_steps, keys=keys)


# --- roles in processes of their own -------------------------------------------------------------------


def _run_roles(
    experiment: Experiment,
    title: str,
    on_existing: OnExisting,
    console: Console,
    interrupts: Interrupts,
    started: float,
) -> Outcome:
    folder = assembling.prepare_folder(experiment, on_existing)
    _announce(console, experiment, folder)
    run = LocalRun(
        folder,
        resume=on_existing == "resume",
        trainer_threads=experiment.trainer.threads,
        started=started,
        time_limit_s=experiment.trainer.time_limit_s,
        workers=experiment.run.workers,
    )
    try:
        run.start()
        _watch(run, _view(experiment, title, keys=True), interrupts)
        problems = tuple(run.stop())
    except KeyboardInterrupt:
        run.stop(HURRY_S)
        raise
    except BaseException:
        run.stop()
        raise
    _farewell(console, folder, run.state, problems)
    return Outcome(folder.path, problems)


def _watch(run: LocalRun, view: View, interrupts: Interrupts) -> None:
    with view, Keys() as keys:
        while not interrupts.requested.is_set() and not run.finished:
            view.show(run.poll())
            if (key := keys.pressed()) is not None:
                _obey(run, key)
            clock.sleep(POLL_S)
        view.show(run.poll() if run.finished else run.state)


def _obey(run: LocalRun, key: str) -> None:
    if key == "p":
        run.order("resume" if run.state.paused else "pause")
    elif key in ("s", " "):
        run.order("stop_device")


# --- without an environment --------------------------------------------------------------------------------


def _run_offline(
    experiment: Experiment,
    title: str,
    on_existing: OnExisting,
    console: Console,
    interrupts: Interrupts,
    started: float,
) -> Outcome:
    def announce(folder: RunFolder) -> None:
        _announce(console, experiment, folder)

    stop = interrupts.requested.is_set
    return Outcome(learn_offline(experiment, on_existing, console, announce, stop, started))


# --- all in this process -----------------------------------------------------------------------------------


def _run_serial(
    experiment: Experiment,
    title: str,
    on_existing: OnExisting,
    console: Console,
    interrupts: Interrupts,
    started: float,
) -> Outcome:
    check_limits(experiment.trainer)
    with ExitStack() as cleanup:
        # Environment and algorithm come first: what cannot be made leaves no run folder behind.
        environment = cleanup.enter_context(closing(open_environment(experiment.environment)))
        contract = EnvironmentContract.of(environment, checksum=experiment.worker.checksum)
        assembling.load_algorithm(experiment)
        parts = assembling.learner_parts(experiment)
        algorithm = parts.make_algorithm(contract)
        folder = assembling.prepare_folder(experiment, on_existing)
        _announce(console, experiment, folder)
        write_atomically(folder.contract, json.dumps(contract.to_dict()).encode())
        cleanup.enter_context(assembling.text_log(folder))
        tracker = cleanup.enter_context(closing(assembling.file_trackers(folder)))
        resume = on_existing == "resume"
        learner = parts.build(contract, folder, tracker, resume=resume, started=started, algorithm=algorithm)
        view = cleanup.enter_context(_view(experiment, title, keys=False))
        watcher = _SerialWatcher(learner, view, interrupts, started)
        run_serial(
            environment,
            contract.schema(),
            learner,
            experiment.worker,
            seed=experiment.run.seed,
            boot=folder.worker("worker-0").next_boot(),
            watch=watcher,
        )
        watcher.show("stopped")
        assembling.draw_pictures(learner)
    _farewell(console, folder, watcher.state, ())
    return Outcome(folder.path)


class _SerialWatcher:
    """Feeds the view of a serial run, and tells it when the person wants it to end."""

    def __init__(self, learner: Learner, view: View, interrupts: Interrupts, started: float) -> None:
        self.state = RunState()
        self._learner, self._view, self._interrupts, self._started = learner, view, interrupts, started

    def __call__(self, words: str, summary: EpisodeSummary | None) -> bool:
        """Take in a finished episode, or show the present state; return whether to end the run."""
        if summary is None:
            self.show(words)
        else:
            number = self.state.finished_episodes + 1
            run = self._learner.folder.wire_name
            self.state.add_episode(report_of(summary, run=run, worker="worker-0", boot=0, sequence=number))
        return self._interrupts.requested.is_set()

    def show(self, words: str) -> None:
        """Show the present state."""
        learner, state = self._learner, self.state
        state.elapsed_s = clock.now() - self._started
        metrics = learner.figures() | {
            "trainer/steps": float(learner.limiter.steps),
            "trainer/policy_version": float(learner.version),
        }
        run = learner.folder.wire_name
        state.statuses["worker-0"] = messages.Status(
            run=run, worker="worker-0", boot=0, role="worker", state="acting", text=words
        )
        state.statuses["trainer"] = messages.Status(
            run=run,
            worker="trainer",
            boot=0,
            role="trainer",
            state="learning",
            text=f"{learner.limiter.updates} updates, policy {learner.version}",
            metrics=metrics,
        )
        self._view.show(state)


def _farewell(console: Console, folder: RunFolder, state: RunState, problems: tuple[str, ...]) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    checkpoint = folder.latest_checkpoint()
    saved = f"everything saved in {folder.path}" if checkpoint else "nothing to save yet"
    if problems and checkpoint:
        saved = f"saved up to {checkpoint}"
    say(f"ended after {clock_text(state.elapsed_s)}: {state.training_episodes} training episodes, {saved}")
    if (best := best_lap(state)) is not None:
        say(f"best clean lap: {best.lap_time_s:.2f} s ({'evaluation' if best.evaluation else 'training'})")
    if folder.best_policy.exists():
        say(f"drive with the best policy:  tickrate play {folder.path}")
    if checkpoint is not None:
        say(f"go on learning:              tickrate train --resume {folder.path}")
    if folder.learning_curve.exists():
        say(f"learning curve:              {folder.learning_curve}")
    for problem in problems:
        say(f"problem: {problem}")
