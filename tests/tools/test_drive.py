"""Driving with a saved policy: which file is meant, what is driven, and that the device ends up safe."""

import numpy as np
import pytest

from tickrate.artefact import BoxAction, Exploration, LeafSpec, PolicyContract
from tickrate.errors import ConfigError, PolicyMismatch
from tickrate.policy import Policy
from tickrate.program.spec import mlp_program
from tickrate.runtime.environments import EnvironmentConfig, open_environment
from tickrate.testing import FakeClock
from tickrate.tools.drive import drive, find_policy
from tickrate.tools.export import export_onnx

LIVE = EnvironmentConfig(
    id="tickrate.testing:FakeInterface",
    kwargs={"reward": 1.0},
    realtime={"time_step_duration": 0.02, "start_obs_capture": 0.02, "ep_max_length": 4, "act_buf_len": 1},
)


def make_policy(period_s=0.02):
    contract = PolicyContract(
        algorithm="fixed",
        observation=(LeafSpec("command", "float32", (1,)), LeafSpec("actions", "float32", (1, 1))),
        action=BoxAction("float32", (1,), (-1.0,), (1.0,)),
        groups={"actor": ("command",)},
        program=mlp_program(("command",), (2,)),
        exploration=Exploration(),
        period_s=period_s,
        action_buffer_length=1,
    )
    weights = {
        "layer.0.weight": np.zeros((1, 2), np.float32),
        "layer.0.bias": np.array([1.0, 0.0], np.float32),
    }
    return Policy(contract, weights)


@pytest.fixture
def live():
    environment = open_environment(LIVE, FakeClock())
    yield environment
    environment.close()


def test_episodes_are_driven_and_the_device_ends_safe(live):
    episodes = list(drive(live, make_policy(), 2, deterministic=True, seed=0, interrupted=lambda: False))
    assert [(s.steps, s.total_return, s.ended) for s in episodes] == [(4, 4.0, "truncated")] * 2
    values = [v.item() for v in live.env.interface.values]
    assert values[1:4] == pytest.approx([np.tanh(1.0)] * 3)
    assert values[-1] == 0.0


def test_an_onnx_file_drives_as_the_policy_does(live, tmp_path):
    path = tmp_path / "p.onnx"
    export_onnx(make_policy(), path)
    episodes = list(drive(live, path, 1, deterministic=True, seed=0, interrupted=lambda: False))
    assert [(s.steps, s.total_return) for s in episodes] == [(4, 4.0)]
    assert [v.item() for v in live.env.interface.values[1:4]] == pytest.approx([np.tanh(1.0)] * 3)
    list(drive(live, path, 1, deterministic=False, seed=0, interrupted=lambda: False))
    assert len({v.item() for v in live.env.interface.values[-4:-1]}) == 3


def test_with_noise_the_actions_differ(live):
    list(drive(live, make_policy(), 1, deterministic=False, seed=0, interrupted=lambda: False))
    assert len({v.item() for v in live.env.interface.values[1:4]}) == 3


def test_ctrl_c_ends_it_with_the_device_safe(live):
    device = live.env.interface
    episodes = list(
        drive(
            live, make_policy(), 5, deterministic=True, seed=0, interrupted=lambda: len(device.commands) > 6
        )
    )
    assert episodes[-1].ended == "shutdown"
    assert len(episodes) < 5
    assert device.values[-1].item() == 0.0


def test_a_policy_for_another_rate_is_refused_before_anything_moves(live):
    with pytest.raises(PolicyMismatch, match="period_s"):
        list(drive(live, make_policy(0.05), 1, deterministic=True, seed=0, interrupted=lambda: False))
    assert live.env.interface.commands == []
    assert live.env.interface.reset_times == []


def test_a_path_means_a_file_or_the_best_policy_of_a_run(tmp_path):
    with pytest.raises(ConfigError, match="neither a policy file nor a run folder"):
        find_policy(tmp_path)
    (tmp_path / "latest.policy").touch()
    assert find_policy(tmp_path).name == "latest.policy"
    (tmp_path / "best.policy").touch()
    assert find_policy(tmp_path).name == "best.policy"
    assert find_policy(tmp_path / "latest.policy").name == "latest.policy"
