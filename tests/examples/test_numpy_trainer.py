"""The trainer without torch finds known answers, continues where it was saved, and is named in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tickrate.config.experiment import dump_experiment, experiment_from_mapping, load_experiment
from tickrate.data.batch import Batch
from tickrate.errors import ConfigError, PolicyError, RunFolderError

ROOT = Path(__file__).parents[2]
GIVEN = {"seed": 0, "period_s": 0.05, "action_buffer_length": 0}
LEAVES = {"speed": spaces.Box(-9.0, 9.0, (1,)), "scan": spaces.Box(-9.0, 9.0, (3,))}
ACTIONS = spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 2.0]))


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from examples import numpy_trainer

    return numpy_trainer


def random_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    seen = [
        {path: rng.normal(size=(32, *space.shape)).astype(np.float32) for path, space in LEAVES.items()}
        for _ in range(2)
    ]
    action = rng.uniform(ACTIONS.low, ACTIONS.high, (32, 2)).astype(np.float32)
    reward, discount = rng.normal(size=32).astype(np.float32), np.full(32, 0.9, np.float32)
    return Batch(seen[0], action, reward, discount, seen[1], np.arange(32))


def act(actor, observation: float) -> float:
    return actor.act({"": np.float32([[observation]])}, {}, deterministic=True)[0].item()


def test_it_finds_the_best_action_for_what_it_sees(example):
    algorithm, actor = example.learn("observed_action", 400)
    for sign in (-1.0, 1.0):
        assert act(actor, sign) == pytest.approx(0.5 * sign, abs=0.01)
        value = algorithm.value(np.array([[sign]]), np.array([[0.5 * sign]]))
        assert value.item() == pytest.approx(1.0, abs=0.01)


def test_it_discounts(example):
    algorithm, _ = example.learn("discount", 400, gamma=0.9)
    values = algorithm.value(np.array([[0.0], [1.0]]), np.zeros((2, 1)))
    assert values == pytest.approx([0.9, 1.0], abs=0.01)


def test_a_time_limit_is_no_end(example):
    algorithm, _ = example.learn("time_limit", 600, gamma=0.8)
    assert algorithm.value(np.zeros((1, 1)), np.zeros((1, 1))).item() == pytest.approx(5.0, abs=0.1)


def test_the_best_action_is_worked_out_by_hand(example):
    """Q = 2 a b - 4 a^2 - b^2 + a is flat where 2 b - 8 a + 1 = 0 and 2 a = 2 b, at a = b = 1/6."""
    algorithm = example.FittedQ(example.FittedQConfig(), {}, ACTIONS, **GIVEN)
    # pairs of (1, a, b): 11, 1a, 1b, aa, ab, bb
    algorithm.restore(algorithm.state() | {"weights": np.array([0.0, 1.0, 0.0, -4.0, 2.0, -1.0])})
    assert algorithm.gain() == pytest.approx(np.full((2, 1), 1 / 6))
    # more is ever better: the upper bounds
    algorithm.restore(algorithm.state() | {"weights": np.array([0.0, 1.0, 3.0, 0.0, 0.0, 0.0])})
    assert algorithm.best_action(np.zeros((1, 0))).tolist() == [[1.0, 2.0]]


def test_a_restored_one_goes_on_bit_for_bit(example):
    first, second = (
        example.FittedQ(example.FittedQConfig(), LEAVES, ACTIONS, **GIVEN | {"seed": seed}) for seed in (0, 1)
    )
    for seed in range(5):
        first.update(random_batch(seed))
    state = first.state()
    second.restore(state)
    for seed in range(5, 8):
        assert first.update(random_batch(seed)) == second.update(random_batch(seed))
    assert first.policy_bytes(3) == second.policy_bytes(3)
    for name, part in first.state().items():
        assert part.tobytes() == second.state()[name].tobytes()
        assert not np.array_equal(part, state[name])  # it was a copy, and the updates did something


def test_a_foreign_state_changes_nothing(example):
    algorithm = example.FittedQ(example.FittedQConfig(), LEAVES, ACTIONS, **GIVEN)
    algorithm.update(random_batch(0))
    before = algorithm.policy_bytes(1)
    state = algorithm.state()
    lacking = {name: part for name, part in state.items() if name != "squares"}
    for foreign in (lacking, state | {"more": np.zeros(1)}, state | {"weights": np.zeros(3)}):
        with pytest.raises(RunFolderError, match="not saved by a FittedQ of these spaces"):
            algorithm.restore(foreign)
    assert algorithm.policy_bytes(1) == before


def test_the_actor_keeps_to_the_action_space_and_refuses_foreign_weights(example):
    algorithm = example.FittedQ(example.FittedQConfig(noise=5.0), LEAVES, ACTIONS, **GIVEN)
    algorithm.update(random_batch(0))
    actor = example.LinearActor(leaf_spaces=LEAVES, action_space=ACTIONS, **GIVEN)
    actor.load(algorithm.policy_bytes(1))
    seen = random_batch(1).observation
    action, state, extras = actor.act(seen, actor.initial_state(32))
    assert action.shape == (32, 2)
    assert action.dtype == np.float32
    assert all(ACTIONS.contains(one) for one in action)
    assert (state, extras) == ({}, {})
    assert not np.array_equal(actor.act(seen, {})[0], action)
    still = [actor.act(seen, {}, deterministic=True)[0].tobytes() for _ in range(2)]
    assert still[0] == still[1]
    other = example.FittedQ(example.FittedQConfig(), {"speed": LEAVES["speed"]}, ACTIONS, **GIVEN)
    for wrong, message in ((b"\x80\x04K\x01.", "no weights"), (other.policy_bytes(1), r"expected \(2, 5\)")):
        with pytest.raises(PolicyError, match=message):
            actor.load(wrong)
    assert actor.act(seen, {}, deterministic=True)[0].tobytes() == still[0]


# --- named in an experiment file ---

NAMED = {"name": "examples.numpy_trainer:ENTRY", "batch_size": 32}


def test_an_experiment_file_names_it_and_survives_being_written(example, tmp_path):
    experiment = experiment_from_mapping({"algorithm": NAMED})
    assert experiment.algorithm.settings == example.FittedQConfig(batch_size=32)
    path = tmp_path / "experiment.yaml"
    path.write_text(dump_experiment(experiment), encoding="utf-8")
    assert load_experiment(path) == experiment


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sise": 32}, "'algorithm.batch_sise'. Did you mean 'batch_size'"),
        ({"batch_size": "many"}, "algorithm.batch_size is 'many'"),
        ({"ridge": -1.0}, "in algorithm: fitted_q"),
        ({"preset": "plain"}, r"algorithm.preset is 'plain'; .*ENTRY has \[\]"),
        ({"name": "examples.numpy_trainer:FittedQ"}, "not an AlgorithmEntry.*ENTRY ="),
        ({"name": "examples.numpy_trainer:ENTRYY"}, "Did you mean 'ENTRY'"),
        ({"name": "examples.no_such_file:ENTRY"}, "cannot import 'examples.no_such_file'"),
    ],
)
def test_a_mistake_in_it_is_named(example, changes, message):
    with pytest.raises(ConfigError, match=message):
        experiment_from_mapping({"algorithm": NAMED | changes})


def test_the_settings_of_your_own_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rule.py").write_text(
        "from dataclasses import dataclass\n"
        "from tickrate.registry import AlgorithmEntry\n"
        "@dataclass(frozen=True)\n"
        "class Sizeless:\n"
        "    rate: float = 0.1\n"
        "PLAIN = AlgorithmEntry(config='builtins:dict', build='builtins:dict')\n"
        "SIZELESS = AlgorithmEntry(config='my_rule:Sizeless', build='builtins:dict')\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match="frozen dataclass"):
        experiment_from_mapping({"algorithm": {"name": "my_rule:PLAIN"}})
    with pytest.raises(ConfigError, match="my_rule:Sizeless has no batch_size"):
        experiment_from_mapping({"algorithm": {"name": "my_rule:SIZELESS"}})
    sys.modules.pop("my_rule")


# --- the learner of a run, in a process of its own, with its checkpoints and without torch ---

RUN = """
import sys
from pathlib import Path
import numpy as np
from tickrate.cli import assembling
from tickrate.config.experiment import experiment_from_mapping
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.recorder import Recorder
from tickrate.runtime.run_folder import RunFolder
from tickrate.testing import ProbeEnv
from tickrate.trees import leaf_spaces

class Silent:
    def scalars(self, step, values): ...
    def close(self): ...

def parts(contract, folder, resume):
    experiment = experiment_from_mapping({
        "algorithm": {"name": "examples.numpy_trainer:ENTRY", "batch_size": 32},
        "replay": {"capacity": 2000, "gamma": 0.9}, "trainer": {"start_steps": 50},
    })
    assembling.load_algorithm(experiment)
    return assembling.learner_parts(experiment).build(contract, folder, Silent(), resume=resume)

env, folder = ProbeEnv("chosen_action"), RunFolder(Path(sys.argv[1]))
folder.prepare("refuse")
contract = EnvironmentContract(leaf_spaces(env.observation_space), env.action_space, 0.0, 0, None)
learner = parts(contract, folder, resume=False)
recorder = Recorder(contract.schema(), 0, 0, lambda row: learner.intake.add(row.reshape(1).copy()))
env.action_space.seed(0)
for _ in range(200):
    recorder.begin({"value": env.reset(seed=0)[0]})
    action = env.action_space.sample()
    seen, reward, terminated, truncated, _ = env.step(action)
    recorder.step(action, reward, terminated, truncated, {"value": seen})
    while learner.update_if_due():
        pass
learner.save()
again = parts(contract, folder, resume=True)
print(learner.algorithm.best_action(np.zeros((1, 1))).item(), learner.figures()["learn/error"])
print(learner.limiter.updates, learner.publish() == again.publish(), "torch" in sys.modules)
"""


def test_the_learner_of_a_run_takes_it_and_no_torch_is_loaded(tmp_path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    best, error, updates, same, torch = done.stdout.split()
    assert float(best) == pytest.approx(0.5, abs=0.02)
    assert float(error) < 0.05
    assert (updates, same, torch) == ("150", "True", "False")  # 200 steps, 50 of them a warm-up


def test_the_example_runs_as_a_script():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "numpy_trainer.py"), "--steps", "300"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "observed -1: action -0.5" in done.stdout
    assert "observed +1: action +0.5" in done.stdout
