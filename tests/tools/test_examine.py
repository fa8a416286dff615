"""Examining an interface says what is there and what is wrong; dry, it moves nothing."""

import numpy as np
import pytest
from gymnasium import spaces

from tickrate import __main__ as command
from tickrate.errors import ConfigError
from tickrate.runtime.environments import DelayConfig, EnvironmentConfig
from tickrate.testing import FakeInterface, Finding
from tickrate.tools.examine import examine, time_environment

FAST = {"time_step_duration": 0.005, "start_obs_capture": 0.005, "ep_max_length": 20}


class Watched(FakeInterface):
    """A fake device that the tests can find again."""

    last = None

    def __init__(self, **options):
        super().__init__(**options)
        Watched.last = self


class Jumpy(Watched):
    """An interface whose observation leaves its space and whose shape is wrong."""

    def __init__(self):
        super().__init__(
            observe=lambda device: (np.zeros(3, np.float32),),
            observation_space=spaces.Tuple((spaces.Box(0, 1, (2,), np.float32),)),
        )


def seen(config, **options):
    settings = {"dry": False, "steps": 20, "seed": 0} | options
    return list(examine(config, **settings))


def config(name="Watched", **kwargs):
    return EnvironmentConfig(id=f"{__name__}:{name}", kwargs=kwargs, realtime=FAST)


def test_dry_sends_nothing_and_resets_at_most_once():
    topics = dict(seen(config(), dry=True))
    device = Watched.last
    assert device.commands == []
    assert len(device.reset_times) <= 1
    assert device.closed == 1
    assert topics["interface"] == "Watched"
    assert topics["clock"] == "200 Hz, observed at 100% of the step"
    assert topics["default action"] == "[0.]"
    assert "timing" not in topics


def test_a_full_examination_drives_measures_and_leaves_the_device_safe():
    found = seen(config(lag=2, reward=0.5))
    topics = dict(found)
    assert topics["contract"] == "kept"
    assert "Hz" in topics["timing"]
    assert "ms (median)" in topics["observation age"]
    assert [text for topic, text in found if topic == "rewards"] == [
        "0.5 to 0.5, mean 0.5 over 20 steps and 1 episodes of random actions",
        "the same at every step: a policy cannot learn from it unless other actions change it",
    ]
    assert "delay" in topics
    assert Watched.last.values[-1].tolist() == [0.0]
    assert Watched.last.closed == 1


def test_added_delays_are_shown_and_measured():
    delayed = EnvironmentConfig(
        id=f"{__name__}:Watched",
        realtime=FAST | {"ep_max_length": 1000},
        delays=DelayConfig(action=2, observation=1),
    )
    topics = dict(seen(delayed))
    assert topics["interface"] == "Watched"
    assert topics["delays added"] == "action 2 to 2 steps, observation 1 to 1 steps"
    assert topics["delay"].startswith("delay 4 steps")  # 2 and 1, and one that is under way in real time
    assert topics["recorded"] == "80 bytes a step"
    assert topics["contract"] == "kept"


class TwoHands(Watched):
    """An interface whose commands are two arrays."""

    def __init__(self):
        super().__init__(action_space=spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}))


def test_what_no_run_can_act_in_is_a_warning():
    found = seen(config("TwoHands"), dry=True)
    warnings = [str(text) for _, text in found if isinstance(text, Finding)]
    assert any("no run can act in Dict" in text for text in warnings)
    assert all(text.startswith("warning") for text in warnings)


class Stacked(Watched):
    """An interface that declares a history of the wrong length."""

    def stacks(self):
        return {"command": 4}


def test_a_history_of_another_length_is_an_error():
    errors = [str(text) for _, text in seen(config("Stacked"), dry=True) if isinstance(text, Finding)]
    assert any("'command' holds 4 frames, but its shape is (1,)" in text for text in errors)


def test_a_broken_interface_is_not_driven():
    found = seen(config("Jumpy"))
    errors = [text for _, text in found if isinstance(text, Finding) and text.level == "error"]
    assert errors
    assert "timing" not in dict(found)
    assert Watched.last.closed == 1


@pytest.mark.parametrize(
    ("name", "code", "words"), [("Watched", 0, "all good"), ("Jumpy", 1, "not good yet")]
)
def test_the_command_says_it_and_ends_with_a_code(name, code, words, capsys):
    assert command.main(["check", f"{__name__}:{name}", "--dry"]) == code
    assert words in capsys.readouterr().out


def test_timing_counts_every_step():
    summary, parts, lateness = time_environment(
        config(), seconds=0.1, seed=0, overrides={"time_step_duration": 0.01, "start_obs_capture": 0.01}
    )
    assert summary.steps == len(lateness) == 10
    assert summary.target_hz == pytest.approx(100.0)
    assert parts
    assert (lateness >= 0).all()
    assert Watched.last.closed == 1
    with pytest.raises(ConfigError, match="positive"):
        time_environment(config(), seconds=0.0, seed=0, overrides={})


def test_the_bench_command(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"environment: {{id: '{__name__}:Watched'}}\n", encoding="utf-8")
    assert command.main(["bench", str(file), "--seconds", "0.1", "--hz", "200", "--clock", "precise"]) == 0
    out = capsys.readouterr().out
    assert "of 200.00 Hz" in out
    assert "us a step in this process" in out
    assert "lateness" in out
    assert command.main(["bench", str(file), "--hz", "0"]) == 2
    assert "--hz" in capsys.readouterr().err
