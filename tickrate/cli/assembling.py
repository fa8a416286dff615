"""What several commands need to turn an experiment into parts: learner, trackers, pictures, folder."""

from __future__ import annotations

from tickrate import registry
from tickrate.config.experiment import Experiment, dump_experiment
from tickrate.runtime.assembly import LearnerParts
from tickrate.runtime.learner import Learner
from tickrate.runtime.run_folder import OnExisting, RunFolder, write_atomically
from tickrate.tracking import plots
from tickrate.tracking.jsonl import JsonlTracker
from tickrate.tracking.tracker import MultiTracker, Tracker
from tickrate.tracking.tensorboard import TensorBoardTracker


def learner_parts(experiment: Experiment) -> LearnerParts:
    """Return the parts of the experiment's learner."""
    return LearnerParts(
        algorithm=experiment.algorithm.name,
        settings=experiment.algorithm.settings,
        replay=experiment.replay,
        trainer=experiment.trainer,
        evaluation_episodes=experiment.worker.evaluation.episodes,
        seed=experiment.run.seed,
    )


def load_algorithm(experiment: Experiment) -> None:
    """Import the algorithm and the framework under it; takes seconds the first time."""
    registry.resolve(registry.algorithm(experiment.algorithm.name).build)


def file_trackers(folder: RunFolder) -> Tracker:
    """Return the tracker that writes a run's metrics as JSON lines and for TensorBoard."""
    return MultiTracker([JsonlTracker(folder.metrics), TensorBoardTracker(folder.tensorboard)])


def draw_pictures(learner: Learner) -> None:
    """Draw the learning curve and the timing histogram of a learner into its run folder."""
    if learner.episodes:
        plots.learning_curve(learner.folder.learning_curve, learner.episodes)
    lateness = learner.lateness()
    if lateness.size:
        plots.timing_histogram(learner.folder.timing_histogram, lateness, learner.period_s)


def prepare_folder(experiment: Experiment, on_existing: OnExisting) -> RunFolder:
    """Create (or, as wished, take over) the run folder and write the resolved experiment into it."""
    folder = RunFolder(experiment.folder)
    folder.prepare(on_existing)
    write_atomically(folder.experiment, dump_experiment(experiment).encode())
    return folder
