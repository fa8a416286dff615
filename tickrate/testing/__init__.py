"""Tools for tests, ours and yours: fake clock, scripted devices, probes, contract checks, bad links."""

from tickrate.realtime.spaces import neutral_action
from tickrate.testing.behaviours import (
    Behaviour,
    Block,
    End,
    NotFinite,
    Raise,
    Return,
    Script,
    Silent,
    Stale,
    Stall,
)
from tickrate.testing.contracts import Finding, check_environment, check_interface, require
from tickrate.testing.fake_clock import FakeClock
from tickrate.testing.fake_interface import Command, FakeInterface
from tickrate.testing.faulty_carrier import FaultyCarrier
from tickrate.testing.link import LinkCounters, LinkProxy
from tickrate.testing.probes import PROBES, Moment, Probe, ProbeEnv

__all__ = [
    "PROBES",
    "Behaviour",
    "Block",
    "Command",
    "End",
    "FakeClock",
    "FakeInterface",
    "FaultyCarrier",
    "Finding",
    "LinkCounters",
    "LinkProxy",
    "Moment",
    "NotFinite",
    "Probe",
    "ProbeEnv",
    "Raise",
    "Return",
    "Script",
    "Silent",
    "Stale",
    "Stall",
    "check_environment",
    "check_interface",
    "neutral_action",
    "require",
]
