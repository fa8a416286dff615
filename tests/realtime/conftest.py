"""Fixtures of the real-time tests: an environment around a scripted device, on a fake clock."""

from types import SimpleNamespace

import pytest

from tickrate.realtime import RealTimeEnv
from tickrate.testing import FakeClock, FakeInterface


@pytest.fixture
def bench():
    """Make environments: ``bench(fake={...}, key=value)`` returns env, device, clock. Closes them after."""
    made = []

    def make(fake=None, *, clock="fake", oversleep=0.0, interface=FakeInterface, **config):
        clock = FakeClock(100.0, oversleep=oversleep) if clock == "fake" else clock
        kwargs = {} if interface is not FakeInterface else {"clock": clock}
        settings = {
            "interface": interface,
            "interface_kwargs": kwargs | (fake or {}),
            "time_step_duration": 0.02,
            "start_obs_capture": 0.02,
        }
        env = RealTimeEnv(settings | config, clock=clock)
        made.append(env)
        return SimpleNamespace(env=env, device=env.interface, clock=clock)

    yield make
    for env in made:
        env.close()
