"""Parts for the tests of the roles: scripted environment, recording outlet, policy and learner of numpy."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from tickrate.artefact import BoxAction, Exploration, LeafSpec, PolicyContract
from tickrate.data.replay import Replay
from tickrate.errors import RunFolderError
from tickrate.policy import Policy
from tickrate.program.spec import mlp_program
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.environments import record_schema
from tickrate.runtime.episode import Orders
from tickrate.runtime.learner import Learner
from tickrate.runtime.learner_config import TrainerConfig
from tickrate.runtime.run_folder import RunFolder

LEAVES = {"place": spaces.Box(-1e6, 1e6, (2,), np.float32)}
ACTIONS = spaces.Box(-1.0, 1.0, (1,), np.float32)
SCHEMA = record_schema(LEAVES, ACTIONS)
CONTRACT = EnvironmentContract(LEAVES, ACTIONS, period_s=0.0, action_buffer_length=0, mirror=None)


def policy_bytes(version: int, action: float = 0.0) -> bytes:
    """Return a policy that always acts with ``action`` (without noise to speak of)."""
    contract = PolicyContract(
        algorithm="fixed",
        observation=(LeafSpec("place", "float32", (2,)),),
        action=BoxAction("float32", (1,), (-1.0,), (1.0,)),
        groups={"actor": ("place",)},
        program=mlp_program(("place",), (2,)),
        exploration=Exploration(log_std_min=-20.0),
        period_s=0.0,
        action_buffer_length=0,
        policy_version=version,
    )
    weights = {
        "layer.0.weight": np.zeros((2, 2), np.float32),
        "layer.0.bias": np.array([np.arctanh(action), -20.0], np.float32),
    }
    return Policy(contract, weights).to_bytes()


class ScriptedEnvironment:
    """An `Environment` whose observation is (number of the episode, number of the step), both from 0.

    Args:
        lengths: steps of the episodes in turn; the last length is repeated.
        truncates: how they end.
        on_step: called before each step with the number of steps made so far in total.
        on_reset: called before each reset with the number of resets so far; may raise.
        info: entries of every ``info``, or a function of (episode, step).
    """

    leaf_spaces = LEAVES
    action_space = ACTIONS
    period_s = 0.0
    action_buffer_length = 0

    def __init__(self, *lengths, truncates=False, on_step=None, on_reset=None, info=None):
        self._lengths = lengths or (3,)
        self._truncates, self._on_step, self._on_reset = truncates, on_step, on_reset
        self._info = info or {}
        self.actions, self.seeds, self.events = [], [], []
        self.episode, self.step_number = -1, 0
        self.closed = 0

    def reset(self, seed=None):
        self.seeds.append(seed)
        if self._on_reset is not None:
            self._on_reset(len(self.seeds) - 1)
        self.events.append("reset")
        self.episode += 1
        self.step_number = 0
        return self._observe(), {}

    def step(self, action):
        if self._on_step is not None:
            self._on_step(len(self.actions))
        self.actions.append(float(action[0]))
        self.events.append("step")
        self.step_number += 1
        ended = self.step_number >= self._lengths[min(self.episode, len(self._lengths) - 1)]
        info = self._info(self.episode, self.step_number) if callable(self._info) else dict(self._info)
        return self._observe(), 1.0, ended and not self._truncates, ended and self._truncates, info

    def stop_device(self):
        self.events.append("stop")

    def timing(self):
        return None

    def close(self):
        self.closed += 1

    def _observe(self):
        return {"place": np.array([self.episode, self.step_number], np.float32)}


class RecordingOutlet:
    """An `Outlet` that keeps everything and whose orders and weights a test sets."""

    def __init__(self, *, stop_after_steps=None, stop_after_episodes=None):
        self.rows, self.summaries, self.states = [], [], []
        self.weights = None
        self.paused = self.shutdown = False
        self._stop_steps, self._stop_episodes = stop_after_steps, stop_after_episodes

    def put_row(self, row):
        self.rows.append(row.copy())

    def put_summary(self, summary):
        self.summaries.append(summary)

    def put_state(self, state):
        self.states.append(state)

    def newest_weights(self, known_version):
        return self.weights if self.weights is not None and self.weights[0] > known_version else None

    def orders(self):
        if (
            self._stop_steps is not None
            and len([r for r in self.rows if not r["flags"] & 4]) >= self._stop_steps
        ):
            self.shutdown = True
        if self._stop_episodes is not None and len(self.summaries) >= self._stop_episodes:
            self.shutdown = True
        return Orders(paused=self.paused, shutdown=self.shutdown)

    def column(self, name):
        return [row[name].item() for row in self.rows]


class FixedAlgorithm:
    """An `Algorithm` whose state is a running sum of the rewards it has seen; its policies act with 0.25."""

    def __init__(self, *_, **__):
        self.total = np.zeros((), np.float64)
        self.updates = 0
        self.observed = 0

    def observe(self, observation):
        self.observed += len(observation["place"])

    def update(self, batch):
        self.total = self.total + float(batch.reward.sum()) + float(batch.observation["place"].sum())
        self.updates += 1
        return {"critic_loss": np.float32(self.total)}

    def policy_bytes(self, version):
        return policy_bytes(version, 0.25)

    def state(self):
        return {"total": np.array(self.total), "updates": np.array(self.updates)}

    def restore(self, state):
        if set(state) != {"total", "updates"}:
            raise RunFolderError(f"foreign state {sorted(state)}")
        self.total, self.updates = state["total"], int(state["updates"])


class ListTracker:
    """A tracker that keeps what it is told."""

    def __init__(self):
        self.calls = []

    def scalars(self, step, values):
        self.calls.append((step, dict(values)))

    def close(self):
        pass


def make_learner(
    path,
    *,
    capacity=1000,
    evaluation_episodes=1,
    gamma=0.9,
    n_step=1,
    journal=False,
    algorithm=FixedAlgorithm,
    synchronous_steps=0,
    **config,
):
    """Return a learner with a fresh algorithm in a prepared run folder; ``journal`` keeps rows in a file."""
    folder = RunFolder(path)
    if not folder.checkpoints.exists():
        folder.prepare("refuse")
        folder.experiment.write_text("{}", encoding="utf-8")
    settings = {"start_steps": 1, "publish_every": 2, "checkpoint_every_s": 1e6, "log_every_s": 1e6}
    settings["publish_every_s"] = 1e-6
    return Learner(
        algorithm(),
        Replay(
            SCHEMA, capacity, gamma=gamma, n_step=n_step, seed=5, path=folder.journal if journal else None
        ),
        TrainerConfig(**settings | config),
        folder,
        ListTracker(),
        batch_size=4,
        evaluation_episodes=evaluation_episodes,
        synchronous_steps=synchronous_steps,
    )


def rows_of(episode, steps, *, first=0, flags=0, version=0, final=True, stream=0):
    """Return the rows of an episode of ``steps`` transitions, terminated, with its final row."""
    rows = np.zeros(steps + final, SCHEMA.row_dtype)
    rows["stream"], rows["episode"], rows["flags"], rows["policy_version"] = stream, episode, flags, version
    rows["step"] = np.arange(first, first + len(rows))
    rows["reward"][:steps] = 1.0
    rows["o/place"][:, 0] = episode
    rows["o/place"][:, 1] = rows["step"]
    if final:
        rows["flags"][steps - 1] |= 1
        rows["flags"][steps] |= 4
    return rows
