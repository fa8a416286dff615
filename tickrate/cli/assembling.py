"""What several commands need to turn an experiment into parts: learner, trackers, pictures, folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tickrate import registry
from tickrate.config.experiment import Experiment, changed_options, dump_experiment
from tickrate.errors import RunFolderError
from tickrate.runtime.assembly import LearnerParts
from tickrate.runtime.environments import is_live, realtime_config
from tickrate.runtime.learner import Learner
from tickrate.runtime.limiter import UpdateLimiter
from tickrate.runtime.run_folder import OnExisting, RunFolder, load_state
from tickrate.tracking import plots
from tickrate.tracking.jsonl import JsonlTracker
from tickrate.tracking.tensorboard import TensorBoardTracker
from tickrate.tracking.tracker import MultiTracker, Tracker


def learner_parts(experiment: Experiment) -> LearnerParts:
    """Return the parts of the experiment's learner."""
    return LearnerParts(
        algorithm=experiment.algorithm.name,
        settings=experiment.algorithm.settings,
        changed=changed_options(experiment.algorithm),
        replay=experiment.replay,
        trainer=experiment.trainer,
        evaluation_episodes=experiment.worker.evaluation.episodes,
        seed=experiment.run.seed,
        journal=experiment.journal,
        synchronous_steps=experiment.worker.synchronous_steps,
    )


def load_algorithm(experiment: Experiment) -> None:
    """Import the algorithm and its framework, which takes seconds, and limit the framework's threads."""
    entry = registry.algorithm(experiment.algorithm.name)
    registry.resolve(entry.build)
    if entry.limit_threads:
        registry.resolve(entry.limit_threads)(experiment.trainer.threads)


@contextmanager
def text_log(folder: RunFolder) -> Iterator[None]:
    """Write what a learner in this process has to say into the log that a trainer process would have.

    Warnings go to standard error as well, where nobody has set up logging.
    """
    logger = logging.getLogger("tickrate")
    file = logging.FileHandler(folder.log("trainer"), encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s trainer %(levelname)s %(message)s"))
    handlers: list[logging.Handler] = [file]
    if not logging.getLogger().handlers:
        handlers.append(logging.StreamHandler())
        handlers[-1].setLevel(logging.WARNING)
    level = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)


def file_trackers(folder: RunFolder) -> Tracker:
    """Return the tracker that writes a run's metrics as JSON lines and for TensorBoard."""
    return MultiTracker([JsonlTracker(folder.metrics), TensorBoardTracker(folder.tensorboard)])


def draw_pictures(learner: Learner) -> None:
    """Draw the learning curve and the timing histogram of a learner into its run folder."""
    if learner.episodes:
        plots.learning_curve(learner.folder.learning_curve, learner.episodes)
    lateness = learner.intake.timing.lateness()
    if lateness.size:
        plots.timing_histogram(learner.folder.timing_histogram, lateness, learner.period_s)


def prepare_folder(experiment: Experiment, on_existing: OnExisting, *, device: bool = True) -> RunFolder:
    """Create (or, as wished, take over) the run folder and write the resolved experiment into it.

    Whatever can be found wrong without touching a device is found before. With ``device=False`` the device's
    interface is not looked at: it need not be installed where the trainer is.

    Raises:
        ConfigError: if the environment's settings cannot work.
        RunFolderError: if the folder may not be used, or the run to resume has nothing left to do.
    """
    if device and is_live(experiment.environment):
        realtime_config(experiment.environment)
    folder = RunFolder(experiment.folder)
    folder.prepare(on_existing)
    if on_existing == "resume":
        _check_unfinished(experiment, folder)
    try:
        text = dump_experiment(experiment)
        folder.write_experiment(text.encode(), resumes=on_existing == "resume")
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be written ({error.strerror}): mend its permissions or make room, or "
            "choose another place with run.root"
        ) from error
    return folder


def _check_unfinished(experiment: Experiment, folder: RunFolder) -> None:
    checkpoint, total = folder.latest_checkpoint(), experiment.trainer.total_steps
    if checkpoint is None or total is None:
        return
    counters = load_state(checkpoint)[1]
    limiter = UpdateLimiter(experiment.trainer.updates_per_step, experiment.trainer.start_steps)
    limiter.steps = steps = int(counters.get("steps", 0))
    limiter.updates, limiter.forgiven = int(counters.get("updates", 0)), float(counters.get("forgiven", 0.0))
    if steps >= total and not limiter.owes(total):  # killed among the last updates, it has those to make
        raise RunFolderError(
            f"{folder.path} has made {steps} steps, its limit is {total}: "
            f"give it more with --steps {2 * steps}"
        )
