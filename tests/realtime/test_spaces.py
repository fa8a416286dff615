"""The three forms of an observation, for every kind of space."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tickrate.errors import ConfigError
from tickrate.realtime.action_guard import ActionGuard
from tickrate.realtime.spaces import ActionBuffer, ObservationLayout, buffer_space
from tickrate.testing import FakeClock, FakeInterface

ACTIONS = {
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "scalar box": spaces.Box(-1.0, 1.0, (), np.float32),
    "float64 box": spaces.Box(-2.0, 1.0, (1,), np.float64),
    "uint8 box": spaces.Box(0, 255, (2, 2), np.uint8),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([5, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(3))),
    "dict": spaces.Dict({"steer": spaces.Box(-1, 1, (1,)), "keys": spaces.MultiBinary(2)}),
}
OBSERVATIONS = {
    **{name: space for name, space in ACTIONS.items() if name != "dict"},
    "nested": spaces.Dict(
        {"pose": spaces.Tuple((ACTIONS["box"], spaces.Discrete(2))), "image": ACTIONS["uint8 box"]}
    ),
    "tuple of dict": spaces.Tuple((spaces.Dict({"a": ACTIONS["box"]}), ACTIONS["box"])),
}


@pytest.mark.parametrize("form", ["tuple", "dict", "flat"])
@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("length", [0, 1, 3])
def test_every_action_space_has_every_form(form, action, length):
    space = ACTIONS[action]
    guard = ActionGuard(space)
    layout = ObservationLayout(spaces.Tuple((ACTIONS["box"],)), None, space, length, form)
    space.seed(0)
    buffer = ActionBuffer(space, length, guard.strict(space.sample(), "first"))
    for _ in range(2):
        buffer.push(guard.strict(space.sample(), "next"))
    observation = layout.assemble([np.zeros(2, np.float32)], layout.tail(buffer)(None))
    assert layout.space.contains(observation)


@pytest.mark.parametrize("form", ["tuple", "dict", "flat"])
@pytest.mark.parametrize("source", list(OBSERVATIONS))
def test_every_observation_space_passes_gymnasiums_checker(form, source):
    space = OBSERVATIONS[source]
    space.seed(1)
    fake = {"observe": lambda _: space.sample(), "observation_space": space}
    config = {"interface": FakeInterface, "interface_kwargs": fake, "obs_format": form, "act_buf_len": 2}
    env = gymnasium.make("tickrate/RealTime-v0", config=config, clock=FakeClock())
    check_env(env.unwrapped)  # warnings are errors here
    env.reset()
    env.step(env.action_space.sample())
    env.close()


def test_the_dict_form_is_the_canonical_one(bench):
    b = bench(obs_format="dict", act_buf_len=3)
    assert list(b.env.observation_space.spaces) == list(b.env.leaf_spaces) == ["command", "actions"]
    assert b.env.leaf_spaces["actions"] == spaces.Box(-1, 1, (3, 1))
    observation, _ = b.env.reset()
    assert list(observation) == ["command", "actions"]
    for value in (0.1, 0.2):
        observation, *_ = b.env.step(np.array([value], np.float32))
    assert observation["actions"] == pytest.approx(np.array([[0.0], [0.1], [0.2]]))


def test_nested_leaves_and_actions_have_paths(bench):
    space = OBSERVATIONS["nested"]
    b = bench(
        fake={
            "observe": lambda _: space.sample(),
            "observation_space": space,
            "action_space": ACTIONS["dict"],
        },
        obs_format="dict",
    )
    assert list(b.env.leaf_spaces) == ["image", "pose/0", "pose/1", "actions/keys", "actions/steer"]


def test_the_flat_form_by_hand():
    source = spaces.Tuple((spaces.Box(-2.0, 2.0, (2,)), spaces.Discrete(3, start=1)))
    layout = ObservationLayout(source, None, spaces.Discrete(2), 2, "flat")
    buffer = ActionBuffer(spaces.Discrete(2), 2, [0])
    buffer.push([1])
    flat = layout.assemble([np.array([0.5, -1.5], np.float32), np.int64(3)], layout.tail(buffer)(None))
    assert flat.tolist() == [0.5, -1.5, 0, 0, 1, 1, 0, 0, 1]
    assert layout.space.low.tolist() == [-2, -2, 0, 0, 0, 0, 0, 0, 0]
    assert layout.space.high.tolist() == [2, 2, 1, 1, 1, 1, 1, 1, 1]


def test_multi_discrete_is_one_hot_by_head():
    layout = ObservationLayout(spaces.MultiDiscrete([3, 5]), None, spaces.Discrete(2), 0, "flat")
    buffer = ActionBuffer(spaces.Discrete(2), 0, [0])
    assert layout.assemble([np.array([2, 0])], layout.tail(buffer)(None)).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


def test_buffer_spaces_by_kind():
    assert buffer_space(ACTIONS["discrete"], 2) == spaces.MultiDiscrete([5, 5], start=[2, 2])
    assert buffer_space(ACTIONS["multi-discrete"], 2) == spaces.MultiDiscrete([[5, 3], [5, 3]])
    assert buffer_space(ACTIONS["multi-binary"], 2) == spaces.MultiBinary((2, 3))
    with pytest.raises(ConfigError, match="Text"):
        buffer_space(spaces.Text(3), 2)


def test_a_leaf_named_actions_is_refused(bench):
    with pytest.raises(ConfigError, match="'actions'"):
        ObservationLayout(spaces.Dict({"actions": ACTIONS["box"]}), None, ACTIONS["box"], 1, "dict")


def test_names_that_do_not_fit_are_refused(bench):
    class Misnamed(FakeInterface):
        def observation_names(self):
            return ["a", "b"]

    with pytest.raises(ConfigError, match="observation_names"):
        bench(interface=Misnamed)


def test_no_action_buffer_when_it_is_not_wanted(bench):
    observation, _ = bench(act_in_obs=False, act_buf_len=3).env.reset()
    assert len(observation) == 1
