"""Learns from demonstrations alone, without an environment; leaves behind what any run leaves."""

from __future__ import annotations

from collections.abc import Callable

from tickrate import clock
from tickrate.runtime.learner import Learner

WATCH_EVERY_S = 0.2


def run_offline(learner: Learner, watch: Callable[[], bool] = lambda: False) -> None:
    """Make the updates that are left; a checkpoint with its policy is written at the end, also on an error.

    Args:
        learner: what learns, with demonstrations.
        watch: called some times a second; it may return True to end the run.
    """
    config = learner.config
    next_watch = next_log = clock.now()
    next_checkpoint = clock.now() + config.checkpoint_every_s
    try:
        while not learner.finished:
            now = clock.now()
            if now >= next_watch:
                next_watch = now + WATCH_EVERY_S
                if watch():
                    break
            if now >= next_log and learner.updates > 0:
                next_log = now + config.log_every_s
                learner.log()
            if now >= next_checkpoint:
                next_checkpoint = now + config.checkpoint_every_s
                _save(learner)
            learner.update_offline()
    finally:
        if learner.updates > 0:
            _save(learner)
            learner.log()
    watch()


def _save(learner: Learner) -> None:
    """Write a checkpoint whose policy has a version of its own, as if it had been handed out."""
    learner.publish()
    learner.save()
