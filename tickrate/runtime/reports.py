"""Episode summaries as messages and back: what a worker noted, and what crosses the wire of it."""

from __future__ import annotations

from tickrate import clock
from tickrate.runtime.episode import EpisodeSummary
from tickrate.wire import messages


def report_of(
    summary: EpisodeSummary, *, run: str, worker: str, boot: int, sequence: int
) -> messages.EpisodeReport:
    """Return the message about an episode that has just ended."""
    return messages.EpisodeReport(
        run=run,
        worker=worker,
        boot=boot,
        sequence=sequence,
        episode=summary.episode,
        evaluation=summary.evaluation,
        policy_version=summary.policy_version,
        steps=summary.steps,
        return_=summary.total_return,
        duration_s=summary.duration_s,
        ended=summary.ended,
        lap_time_s=summary.metrics.get("lap_time_s"),
        clean=bool(summary.metrics.get("lap_clean", 1.0)),
        total_steps=summary.training_steps,
        finished=clock.wall_time(),
        metrics=summary.metrics,
    )


def summary_of(report: messages.EpisodeReport) -> EpisodeSummary:
    """Return the summary that a report carries."""
    return EpisodeSummary(
        episode=report.episode,
        evaluation=report.evaluation,
        policy_version=report.policy_version,
        steps=report.steps,
        total_return=report.return_,
        duration_s=report.duration_s,
        ended=report.ended,
        training_steps=report.total_steps,
        metrics=dict(report.metrics),
    )
