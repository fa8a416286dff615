"""Categories as actions, end to end: warm-up, takeover, fallback, chunks, remote inference, checksums."""

import itertools
import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from runtime_kit import RecordingOutlet, policy_bytes

from tickrate.data.checksums import Verdict
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag
from tickrate.errors import ActionError, ConfigError, MessageError, PolicyMismatch
from tickrate.runtime.actors import make_actor
from tickrate.runtime.assembly import mirror_of
from tickrate.runtime.chunks import ChunkConfig
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import EnvironmentConfig, LockStepEnvironment, open_environment
from tickrate.runtime.fallback import Fallback
from tickrate.runtime.inference import InferenceServer
from tickrate.runtime.remote import RemoteActor, RemoteConfig
from tickrate.runtime.remote_format import InferenceFormat
from tickrate.runtime.takeover import Takeover
from tickrate.runtime.warmup import WarmupActor, WarmupConfig
from tickrate.runtime.worker import ControlLoop, EvaluationConfig, WorkerConfig
from tickrate.testing import FakeClock, FakeInterface

GEARS = spaces.Discrete(3, start=-1)
DIALS = spaces.MultiDiscrete([2, 4], start=[0, 3])
KEYS = spaces.MultiBinary(3)
KINDS = {"gears": GEARS, "dials": DIALS, "keys": KEYS}
EVALUATION = EvaluationConfig(every_steps=0)


class GearInterface(FakeInterface):
    """A live system whose commands are categories."""

    def __init__(self, kind="gears"):
        super().__init__(clock=FakeClock(), action_space=KINDS[kind])


class Echo(gymnasium.Env):
    """A simulator that observes the last command as the category it is, and ends after five steps."""

    def __init__(self, kind="gears"):
        self.action_space = KINDS[kind]
        self.observation_space = spaces.Dict({"last": KINDS[kind], "count": spaces.Discrete(6)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.last = 0, self.action_space.sample()
        return {"last": self.last, "count": self.count}, {}

    def step(self, action):
        assert self.action_space.contains(action), (action, type(action))
        self.count, self.last = self.count + 1, action
        return {"last": action, "count": np.int64(self.count)}, 1.0, self.count == 5, False, {}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """This file as a module that an experiment can name."""
    module = types.ModuleType("discrete_here")
    module.GearInterface, module.Scripted, module.Chunks = GearInterface, Scripted, Chunks
    monkeypatch.setitem(sys.modules, "discrete_here", module)


def live(kind="gears", **realtime):
    clock = FakeClock()
    config = EnvironmentConfig(
        id="discrete_here:GearInterface", kwargs={"kind": kind}, realtime={"act_buf_len": 2, **realtime}
    )
    return open_environment(config, clock)


def drive(environment, steps, config=None, checksum=False, seed=0):
    """Return (contract, rows) of a control loop on an environment."""
    config = config or WorkerConfig(evaluation=EVALUATION, checksum=checksum)
    contract = EnvironmentContract.of(environment, checksum=config.checksum)
    outlet = RecordingOutlet(stop_after_steps=steps)
    ControlLoop(environment, contract.schema(), outlet, config, seed=seed).run()
    return contract, outlet.rows


# -- environments and rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("real_time", [True, False])
def test_a_live_environment_records_the_category_and_the_buffer_it_came_to(kind, real_time):
    environment = live(kind, real_time=real_time)
    assert environment.action_space == KINDS[kind]
    assert list(environment.leaf_spaces)[-1] == "actions"
    contract, rows = drive(environment, 40)
    field = contract.schema().action
    assert (field.shape, field.dtype) == (KINDS[kind].shape, KINDS[kind].dtype.name)
    default = np.asarray(environment.env.default_action)
    np.testing.assert_array_equal(rows[0]["o/actions"], np.stack([default, default]))
    for before, after in itertools.pairwise(rows):
        if not before["flags"] & Flag.FINAL:
            assert KINDS[kind].contains(before["action"] if field.shape else before["action"][()])
            np.testing.assert_array_equal(after["o/actions"][-1], before["action"])
            np.testing.assert_array_equal(after["o/actions"][0], before["o/actions"][-1])
    seen = {tuple(np.atleast_1d(row["action"]).tolist()) for row in rows}
    assert len(seen) >= 3
    environment.close()


def test_a_gymnasium_environment_of_categories_is_driven_and_proved_by_checksums():
    contract, rows = drive(LockStepEnvironment(Echo(), "echo"), 50, checksum=True)
    assert {row["action"].item() for row in rows if not row["flags"] & Flag.FINAL} == {-1, 0, 1}
    replay = Replay(contract.schema(), 100, gamma=0.9, n_step=1, seed=0)
    for row in rows:
        replay.add(row.reshape(1))
    verdicts = replay.verify(np.arange(len(rows)))
    assert np.count_nonzero(verdicts == Verdict.EQUAL) == 50
    assert not np.any(verdicts == Verdict.DIFFERENT)


def test_cart_pole_opens():
    environment = open_environment(EnvironmentConfig(id="CartPole-v1"))
    assert environment.action_space == spaces.Discrete(2)
    _, rows = drive(environment, 10)
    assert {row["action"].item() for row in rows} <= {0, 1}
    environment.close()


# -- warm-up


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_is_uniform_over_the_categories(kind):
    actor = WarmupActor(WarmupConfig(), KINDS[kind], 0)
    actions, _, _ = actor.act({}, actor.initial_state(6000))
    assert actions.shape == (6000, *KINDS[kind].shape)
    assert actions.dtype == KINDS[kind].dtype
    columns = actions.reshape(6000, -1)
    counts = {"gears": [3], "dials": [2, 4], "keys": [2, 2, 2]}[kind]
    lowest = {"gears": [-1], "dials": [0, 3], "keys": [0, 0, 0]}[kind]
    for column, count, low in zip(columns.T, counts, lowest, strict=True):
        found, times = np.unique(column, return_counts=True)
        assert found.tolist() == list(range(low, low + count))
        # Each share has the standard deviation sqrt(p (1 - p) / n), below 0.0065 here.
        np.testing.assert_allclose(times / 6000, 1 / count, atol=0.03)


def test_warmup_holds_categories():
    actor = WarmupActor(WarmupConfig(hold=(3, 3)), GEARS, 1)
    state, actions = actor.initial_state(1), []
    for _ in range(30):
        action, state, _ = actor.act({}, state)
        actions.append(int(action[0]))
    assert all(len(set(actions[i : i + 3])) == 1 for i in range(0, 30, 3))
    assert len(set(actions)) == 3


@pytest.mark.parametrize(
    "config", [{"low": (0.0,)}, {"high": (1.0,)}, {"normal": {0: (0.0, 1.0)}}], ids=lambda c: next(iter(c))
)
def test_a_range_of_categories_is_refused(config):
    with pytest.raises(ConfigError, match=f"warmup.{next(iter(config))} is set.*categories are drawn"):
        WarmupActor(WarmupConfig(**config), GEARS, 0)


# -- takeover


class Scripted:
    """Takes over on every other step."""

    def __init__(self, *, action_space, period_s):
        self.steps = 0

    def command(self, observation):
        self.steps += 1
        return 1 if self.steps % 2 else None


def test_an_operator_chooses_categories():
    config = WorkerConfig(evaluation=EVALUATION, takeover="discrete_here:Scripted")
    _, rows = drive(LockStepEnvironment(Echo(), "echo"), 20, config)
    taken = [row for row in rows if row["flags"] & Flag.TAKEOVER]
    assert len(taken) == 10
    assert {row["action"].item() for row in taken} == {1}


@pytest.mark.parametrize("command", [2, -2, 0.5, [0], "up", float("nan")])
def test_an_operator_s_command_that_is_no_category_is_refused(command):
    takeover = Takeover(types.SimpleNamespace(command=lambda observation: command), GEARS, 0.0)
    with pytest.raises(ActionError, match=r"the operator's command is .* an element of Discrete"):
        takeover.choose({}, np.int64(0), 0)


def test_between_categories_there_is_nothing_to_approach():
    with pytest.raises(ConfigError, match=r"takeover_max_step is 0.5.*nothing between two categories"):
        Takeover(types.SimpleNamespace(), GEARS, 0.5)


# -- fallback, chunks and remote inference


def test_the_fallback_is_the_default_the_safe_or_the_last_category():
    environment = live(safe_action=1)
    assert Fallback("default", environment).action() == -1
    assert Fallback("safe", environment).action() == 1
    hold = Fallback("hold", environment)
    hold.chosen(np.int64(0))
    assert hold.action() == 0
    np.testing.assert_array_equal(Fallback("hold", LockStepEnvironment(Echo("dials"), "e")).action(), [0, 3])
    environment.close()


class Chunks:
    """Answers with the chunk -1, 0, 1, 0."""

    def __init__(self, *, leaf_spaces, action_space, period_s, action_buffer_length, seed):
        pass

    def initial_state(self, batch):
        return {}

    def act(self, observation, state, *, deterministic=False):
        return np.array([[-1, 0, 1, 0]]), state, {}

    def load(self, weights):
        pass


def test_chunks_of_categories_are_played():
    config = WorkerConfig(
        purpose="expert",
        actor="discrete_here:Chunks",
        chunks=ChunkConfig(horizon=4, threshold=0.0, background=False),
        evaluation=EVALUATION,
    )
    _, rows = drive(LockStepEnvironment(Echo(), "echo"), 10, config)
    acted = [row["action"].item() for row in rows if not row["flags"] & Flag.FINAL]
    assert acted == [-1, 0, 1, 0, -1] * 2


class Registers:
    """The two registers of remote inference, with a server that answers at once."""

    def __init__(self, server):
        self.server, self.number, self.reply = server, 0, b""
        self.inference = types.SimpleNamespace(write=self._ask)
        self.answer = types.SimpleNamespace(
            version=lambda: self.number, read=lambda: (self.number, self.reply)
        )

    def _ask(self, version, request):
        self.number += 1
        self.reply = self.server.answer(request)


@pytest.mark.parametrize(("kind", "action"), [("gears", -1), ("dials", [1, 6]), ("keys", [0, 1, 1])])
def test_a_remote_side_answers_with_categories(kind, action):
    environment = live(kind)
    contract = EnvironmentContract.of(environment)
    fixed = types.SimpleNamespace(
        initial_state=lambda batch: {}, act=lambda o, state, deterministic: (np.array([action]), state, {})
    )
    server = InferenceServer(lambda weights: fixed, contract, needs_weights=False)
    actor = RemoteActor(
        RemoteConfig(enabled=True),
        Registers(server),
        environment.leaf_spaces,
        environment.action_space,
        Fallback("hold", environment),
    )
    observation, _ = environment.reset(seed=0)
    batch = {path: np.asarray(value)[None] for path, value in observation.items()}
    actions, _, extras = actor.act(batch, actor.initial_state(1))
    np.testing.assert_array_equal(actions, [action])
    assert actions.dtype == KINDS[kind].dtype
    assert not extras["fallback"][0]
    environment.close()


def test_categories_that_do_not_exist_are_no_answer():
    form = InferenceFormat({"speed": spaces.Box(-1, 1, (1,), np.float32)}, GEARS)
    request = form.read_request(form.request(1, 1, 0, {"speed": np.zeros(1)}))
    good = form.answer(request, 1, ready=True, actions=np.array([1]))
    assert form.read_answer(good).actions.tolist() == [1]
    for actions in (np.array([2]), np.array([-2]), np.array([0.5])):
        with pytest.raises(MessageError, match="no categories from -1 to 1"):
            form.answer(request, 1, ready=True, actions=actions)
    with pytest.raises(MessageError, match=r"the actions of an answer are \[7\]"):
        form.read_answer(good[:-8] + (7).to_bytes(8, "little"))


# -- what cannot be


def test_our_policy_of_a_box_is_refused_before_anything_is_driven():
    environment = LockStepEnvironment(Echo(), "echo")
    with pytest.raises(PolicyMismatch):
        make_actor("", environment, policy_bytes(1), 0)


def test_categories_have_no_mirror():
    contract = EnvironmentContract(
        {"speed": spaces.Box(-1, 1, (1,), np.float32)}, GEARS, 0.05, 0, {"observation": {}, "action": [-1]}
    )
    with pytest.raises(ConfigError, match="categories have none"):
        mirror_of(contract)
