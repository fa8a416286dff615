"""Runs an experiment with a view and keys: what ``train`` and ``demo`` have in common."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from rich.console import Console

from tickrate import clock
from tickrate.cli import assembling
from tickrate.cli.keys import Keys
from tickrate.cli.live import View, best_lap, clock_text, make_view
from tickrate.config.experiment import Experiment
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import open_environment
from tickrate.runtime.run import LocalRun, RunState
from tickrate.runtime.run_folder import OnExisting, RunFolder
from tickrate.runtime.serial import run_serial
from tickrate.runtime.worker import EpisodeSummary
from tickrate.wire import messages

POLL_S = 0.1


class Interrupts:
    """Turns Ctrl-C and SIGTERM into a flag, so that a run ends in order; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
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


def run_experiment(experiment: Experiment, title: str, on_existing: OnExisting = "refuse") -> int:
    """Run an experiment to its end and tell how it went; return the exit code."""
    started = clock.now()
    folder = assembling.prepare_folder(experiment, on_existing)
    console = Console()
    console.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    console.print(effective_values(experiment), highlight=False, soft_wrap=True)
    view = make_view(title, total_s=experiment.trainer.time_limit_s, total_steps=experiment.trainer.total_steps)
    resume = on_existing == "resume"
    with Interrupts() as interrupts:
        if experiment.serial:
            state = _run_serial(experiment, folder, view, interrupts, resume)
            problems: list[str] = []
        else:
            state, problems = _run_roles(experiment, folder, view, interrupts, resume, started)
    _farewell(console, folder, state, problems)
    return 1 if problems else 0


def effective_values(experiment: Experiment) -> str:
    """Return the line that says what will really be used."""
    replay, trainer = experiment.replay, experiment.trainer
    return (
        f"{experiment.algorithm.name} on {experiment.environment.id}, seed {experiment.run.seed}: "
        f"{trainer.updates_per_step:g} updates/step from step {trainer.start_steps} on, "
        f"batch {experiment.algorithm.settings.batch_size}, gamma {replay.gamma:g} (float32), {replay.n_step}-step, "
        f"replay {replay.capacity:,}"
    )


def _run_roles(
    experiment: Experiment, folder: RunFolder, view: View, interrupts: Interrupts, resume: bool, started: float
) -> tuple[RunState, list[str]]:
    run = LocalRun(folder, resume=resume, trainer_threads=experiment.trainer.threads, started=started)
    try:
        run.start()
        with view, Keys() as keys:
            while not interrupts.requested.is_set() and not run.finished:
                view.show(run.poll())
                if (key := keys.pressed()) is not None:
                    _obey(run, key)
                clock.sleep(POLL_S)
            problems = list(run.stop())
            view.show(run.state)
    except BaseException:
        run.stop()
        raise
    return run.state, problems


def _obey(run: LocalRun, key: str) -> None:
    if key == "p":
        run.order("resume" if run.state.paused else "pause")
    elif key in ("s", " "):
        run.order("stop_device")


def _run_serial(
    experiment: Experiment, folder: RunFolder, view: View, interrupts: Interrupts, resume: bool
) -> RunState:
    state = RunState()
    began = clock.now()
    environment = open_environment(experiment.environment)
    contract = EnvironmentContract.of(environment)
    tracker = assembling.file_trackers(folder)
    learner = assembling.learner_parts(experiment).build(contract, folder, tracker, resume=resume)

    def watch(words: str, summary: EpisodeSummary | None) -> bool:
        state.elapsed_s = clock.now() - began
        if summary is not None:
            state.episodes.append(_report(summary, len(learner.episodes)))
        metrics = learner.figures() | {"trainer/steps": float(learner.limiter.steps)}
        metrics["trainer/policy_version"] = float(learner.version)
        for role, text, figures in (("worker", words, {}), ("trainer", f"{learner.limiter.updates} updates", metrics)):
            state.statuses[role] = messages.Status(
                run=folder.wire_name, worker=role, boot=0, role=role, state="learning", text=text, metrics=figures
            )
        view.show(state)
        return interrupts.requested.is_set()

    try:
        with view:
            run_serial(
                environment,
                contract.schema(),
                learner,
                experiment.worker,
                seed=experiment.run.seed,
                boot=folder.next_boot(),
                watch=watch,
            )
        assembling.draw_pictures(learner)
    finally:
        tracker.close()
        environment.close()
    return state


def _report(summary: EpisodeSummary, number: int) -> messages.EpisodeReport:
    return messages.EpisodeReport(
        run="serial",
        worker="worker-0",
        boot=0,
        sequence=number,
        episode=summary.episode,
        evaluation=summary.evaluation,
        policy_version=summary.policy_version,
        steps=summary.steps,
        return_=summary.total_return,
        duration_s=summary.duration_s,
        ended=summary.ended,
        lap_time_s=summary.metrics.get("lap_time_s"),
        clean=bool(summary.metrics.get("lap_clean", 1.0)),
    )


def _farewell(console: Console, folder: RunFolder, state: RunState, problems: list[str]) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    training = sum(not r.evaluation for r in state.episodes)
    say(f"ended after {clock_text(state.elapsed_s)}: {training} training episodes seen, everything saved in {folder.path}")
    if (best := best_lap(state)) is not None:
        say(f"best clean lap: {best.lap_time_s:.2f} s ({'evaluation' if best.evaluation else 'training'})")
    if folder.best_policy.exists():
        say(f"drive with the best policy:  tickrate play {folder.path}")
    if folder.latest_checkpoint() is not None:
        say(f"go on learning:              tickrate train --resume {folder.path}")
    if folder.learning_curve.exists():
        say(f"pictures:                    {folder.learning_curve}, {folder.timing_histogram.name}")
    for problem in problems:
        say(f"problem: {problem}")

