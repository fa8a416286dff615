"""Every metric that a run logs: its key, unit and meaning. ``docs/metrics.md`` is made from this table.

A test fails when the file differs from the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tickrate.errors import suggest


class Metric(NamedTuple):
    """One row of the table."""

    unit: str
    """Empty for numbers without one."""
    label: str
    """Two or three words for a console line or an axis."""
    meaning: str
    """One sentence: what is measured, over what, and which way is good if that is not plain."""


METRICS: dict[str, Metric] = {
    # One value an episode.
    "train/return": Metric("reward", "return", "Undiscounted sum of rewards of a training episode."),
    "train/length_steps": Metric("steps", "length", "Steps of a training episode."),
    "train/lap_time_s": Metric(
        "s", "lap", "Best full lap of a training episode; absent in episodes without one."
    ),
    "eval/return": Metric(
        "reward",
        "eval return",
        "Undiscounted sum of rewards of an evaluation episode (no exploration noise).",
    ),
    "eval/lap_time_s": Metric(
        "s", "eval lap", "Best full lap of an evaluation episode; absent in episodes without one."
    ),
    "eval/length_steps": Metric("steps", "eval length", "Steps of an evaluation episode."),
    "eval/score": Metric(
        "",
        "score",
        "What evaluations compare: the environment's own score, or the return where it has none.",
    ),
    "eval/best_score": Metric("", "best", "The best evaluation so far: the worst score among its episodes."),
    "eval/best_version": Metric("", "best policy", "Version of the policy with the best evaluation so far."),
    # The control loop, since its last report.
    "timing/lateness_p50_ms": Metric(
        "ms", "late p50", "Median lateness of a step's command against the planned start of the step."
    ),
    "timing/lateness_p99_ms": Metric("ms", "late p99", "99th percentile of the same lateness."),
    "timing/lateness_max_ms": Metric("ms", "late max", "Largest lateness in the reported window."),
    "timing/overruns": Metric(
        "steps", "overruns", "Steps since the start that ended after their planned end."
    ),
    "timing/achieved_hz": Metric(
        "1/s", "Hz", "Steps per second within episodes; equals the target rate unless periods are missed."
    ),
    # The learner.
    "learn/updates_per_s": Metric("1/s", "updates/s", "Gradient updates per second of wall time, recently."),
    "learn/updates": Metric(
        "updates", "updates", "Gradient updates since the start of the run, resumes included."
    ),
    "learn/updates_per_step": Metric(
        "updates", "updates/step", "Updates made per training step after the warm-up; the effective ratio."
    ),
    "learn/critic_loss": Metric(
        "",
        "critic loss",
        "Mean loss over a batch, summed over the critics: half the squared error, or the cross-entropy of "
        "distributions.",
    ),
    "learn/actor_loss": Metric(
        "",
        "actor loss",
        "Mean of alpha * log-probability minus Q; of a clone minus the log-likelihood, or a mixture.",
    ),
    "learn/alpha": Metric("", "alpha", "Entropy temperature: weight of entropy against reward."),
    "learn/entropy": Metric(
        "nats", "entropy", "Mean entropy estimate (minus log-probability) of the policy."
    ),
    "learn/q_mean": Metric(
        "reward", "Q", "Mean value that the critics give to the stored actions of a batch."
    ),
    "learn/q_loss": Metric(
        "", "Q loss", "Mean loss of DQN over a batch: of its errors, or the cross-entropy of distributions."
    ),
    "learn/q_gradient": Metric("", "Q gradient", "Length of DQN's gradient before any cut."),
    "learn/td_error": Metric(
        "reward", "TD error", "Mean absolute difference between DQN's values and their targets."
    ),
    "learn/epsilon": Metric("", "epsilon", "Probability of a random action in the newest policy of DQN."),
    "learn/target_mean": Metric("reward", "target", "Mean value that the targets of a batch have."),
    "learn/critic_gradient": Metric(
        "", "critic gradient", "Length of the last gradient of all critics together, before any cut."
    ),
    "learn/actor_gradient": Metric(
        "", "actor gradient", "Length of the last gradient of the actor, before any cut."
    ),
    "learn/skipped_updates": Metric(
        "updates",
        "skipped",
        "Updates left out because their batch held a number that is not finite, or a category that does not "
        "exist; should be 0.",
    ),
    "learn/policy_lag_versions": Metric(
        "versions", "lag", "Newest policy version minus the version that made the newest stored row."
    ),
    "learn/policy_lag_s": Metric("s", "lag s", "Age of the weights that act, at the time they act."),
    "replay/transitions": Metric("transitions", "replay", "Transitions that can be sampled now."),
    # The way from worker to trainer.
    "worker/dropped_rows": Metric(
        "rows",
        "dropped",
        "Rows dropped undelivered in the outbox's life, as it or the shared memory was full; should be 0.",
    ),
    "worker/outbox_rows": Metric(
        "rows",
        "outbox",
        "Rows that wait in the worker for the trainer's acknowledgement, on the disk or on their way to it.",
    ),
    "worker/outbox_bytes": Metric("bytes", "outbox bytes", "Size of the rows that wait in the outbox."),
    "worker/acknowledgement_age_s": Metric(
        "s", "ack age", "Time since new rows were acknowledged last; 0 while none wait for it."
    ),
    "worker/rows_sent": Metric("rows", "sent", "Number of the next row to be sent, in the outbox's count."),
    "worker/rows_resent": Metric(
        "rows", "resent", "Rows sent again since the companion's start, because they were lost on the way."
    ),
    "worker/reports_sent": Metric(
        "episodes", "reports", "Episodes that the companion has had to report since its start."
    ),
    "worker/policy_version": Metric(
        "", "policy", "Version of the newest policy that has reached the worker."
    ),
    "trainer/workers": Metric("workers", "workers", "Workers that have joined since the trainer's start."),
    "trainer/steps": Metric("steps", "steps", "Training steps of the run so far, resumes included."),
    "trainer/policy_version": Metric("", "policy", "Version of the newest policy handed out."),
    "trainer/lost_rows": Metric(
        "rows",
        "lost",
        "Rows that full outboxes had dropped before they could be delivered; should be 0.",
    ),
    "trainer/repeated_rows": Metric(
        "rows", "repeated", "Rows that came again and were left out; the price of a bad way."
    ),
    "trainer/spoilt_rows": Metric(
        "rows", "spoilt", "Rows left out because a number in them was not finite; should be 0."
    ),
    "trainer/refused_messages": Metric(
        "messages", "refused", "Messages left out as damaged, foreign, too large or of another version."
    ),
}


def check_keys(keys: Iterable[str]) -> None:
    """Check that every key stands in the table; for tests, a run logs what it is given.

    Raises:
        ValueError: if one does not; names it and the nearest that does.
    """
    for key in keys:
        if key not in METRICS:
            raise ValueError(
                f"the metric {key!r} is not in METRICS; add its unit and meaning.{suggest(key, METRICS)}"
            )


_HEAD = """# Metrics

Every key that a run knows, and where it goes:

- **Logged**, to `metrics.jsonl`, TensorBoard and (the main ones) the console: `train/*`, `eval/*` but for
  the two below, `timing/*`, `learn/*` and `replay/*`. The x axis (`step`) is the number of transitions of the
  run so far, plus the updates that it made offline. In `metrics.jsonl` each line also has `time`, the wall
  time in seconds since the epoch.
- **In the status alone** (`tickrate status`, [the overview](protocol.md) as JSON), of runs with roles in
  processes of their own: `trainer/*`, `worker/*`, `eval/best_score` and `eval/best_version`, beside what is
  logged of `learn/*`, `timing/*` and `replay/*`. A run in one process (serial) or offline has none of these.

This page is made from `tickrate/tracking/metrics.py`; `make_page` there says how.

| key | unit | meaning |
| --- | --- | --- |
"""


def make_page() -> str:
    """Return the page ``docs/metrics.md``.

    Written with: ``python -c "from tickrate.tracking.metrics import *; print(make_page(), end='')"``
    """
    rows = [f"| `{key}` | {metric.unit or '-'} | {metric.meaning} |\n" for key, metric in METRICS.items()]
    return _HEAD + "".join(rows)
