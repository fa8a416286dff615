"""What a run measures and where it goes: metrics by name and unit, trackers, pictures.

`TensorBoardTracker` is in `tickrate.tracking.tensorboard`, the pictures are in `tickrate.tracking.plots`:
roles that need neither do not load them.
"""

from tickrate.tracking.console import ConsoleTracker
from tickrate.tracking.jsonl import JsonlTracker, read_jsonl
from tickrate.tracking.metrics import METRICS, Metric, check_keys
from tickrate.tracking.tracker import MultiTracker, Tracker

__all__ = [
    "METRICS",
    "ConsoleTracker",
    "JsonlTracker",
    "Metric",
    "MultiTracker",
    "Tracker",
    "check_keys",
    "read_jsonl",
]
