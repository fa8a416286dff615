"""What passes between a control loop and the other roles: orders in, rows and episode summaries out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tickrate.runtime.recorder import Row

CUT_REASONS = frozenset(("paused", "held", "shutdown", "policy lost"))
"""What ends an episode from outside: such an episode says nothing about its policy."""

MAX_REASON_LETTERS = 120
MAX_METRICS = 200
MAX_METRIC_NAME = 128


@dataclass(frozen=True)
class Orders:
    """What the worker is to do now.

    Attributes:
        paused: the person at the keyboard wants the device to stand still.
        shutdown: end.
        hold: why acting cannot go on for now ("outbox full"): the device is made safe and the worker waits
            until this is empty again.
    """

    paused: bool = False
    shutdown: bool = False
    hold: str = ""


@dataclass(frozen=True)
class EpisodeSummary:
    """What one episode came to.

    Attributes:
        ended: "terminated", "truncated", the device's own reason of a truncation, or one of `CUT_REASONS`.
        training_steps: training steps that this boot of the worker had made by its end.
        metrics: every plain number that the environment put into the last ``info``.
    """

    episode: int
    evaluation: bool
    policy_version: int
    steps: int
    total_return: float
    duration_s: float
    ended: str
    training_steps: int
    metrics: dict[str, float]

    @property
    def score(self) -> float:
        """What evaluations compare: the environment's own ``info["score"]``, or else the return."""
        return self.metrics.get("score", self.total_return)

    @property
    def cut(self) -> bool:
        """Whether the episode was cut from outside rather than ended by the world."""
        return self.ended in CUT_REASONS


class Outlet(Protocol):
    """Where a control loop hands things over; nothing in it may block."""

    def put_row(self, row: Row) -> None:
        """Take a row (to be copied)."""
        ...

    def put_summary(self, summary: EpisodeSummary) -> None:
        """Take the summary of a finished episode."""
        ...

    def put_state(self, state: str) -> None:
        """Take a few words on what the worker is doing."""
        ...

    def newest_weights(self, known_version: int) -> tuple[int, bytes] | None:
        """Return (version, weights) if there are newer ones than ``known_version``."""
        ...

    def orders(self) -> Orders:
        """Return the current orders."""
        ...


def end_of(terminated: bool, truncated: bool, info: Mapping[str, Any]) -> str:
    """Return how the step ended the episode, as short as a report may be; empty if it goes on."""
    if terminated:
        return "terminated"
    if truncated:
        return str(info.get("truncation_reason") or "truncated")[:MAX_REASON_LETTERS]
    return ""


def plain_numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of an ``info`` that are single finite numbers; the first `MAX_METRICS`."""
    numbers = {
        key: float(value)
        for key, value in info.items()
        if isinstance(key, str)
        and 0 < len(key) <= MAX_METRIC_NAME
        and isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)
    }
    finite = {key: value for key, value in numbers.items() if np.isfinite(value)}
    return dict(itertools.islice(finite.items(), MAX_METRICS))
