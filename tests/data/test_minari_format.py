"""Recordings as Minari datasets: whole episodes bit-equal there and back, and datasets of others."""

import json
import sys

import numpy as np
import pytest
from gymnasium import spaces
from naive_replay import episode_keys, make_rows, make_schema

from tickrate import registry
from tickrate.data.fields import Field
from tickrate.data.schema import Flag, RecordSchema
from tickrate.errors import ConfigError, MissingExtra, RecordError

MODULE = "tickrate.data.minari_format"


def test_without_minari_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'tickrate\[minari\]'"):
        registry.resolve(f"{MODULE}:read_minari")
    sys.modules.pop(MODULE, None)


@pytest.fixture
def minari(monkeypatch):
    module = pytest.importorskip("minari")

    def never(*_, **__):
        raise AssertionError("Minari was about to download")

    monkeypatch.setattr(sys.modules["minari.storage.hosting"], "download_dataset", never)
    return module


@pytest.fixture
def ours(minari):
    return sys.modules.get(MODULE) or __import__(MODULE, fromlist=["write_minari"])


def recorded(stack):
    """Episodes of two streams: both ends, one that was cut, one that is not over, one without a beginning."""
    schema = make_schema(stack)
    schema = RecordSchema(
        (*schema.observation, Field("arm/left", "float32", ()), Field("arm/on", "bool", (2,))),
        schema.action,
        schema.extras,
    )
    keys = episode_keys(0, 3, 5, Flag.TERMINATED) + episode_keys(7, 0, 4, Flag.TRUNCATED)
    keys += [*episode_keys(7, 2, 3, None), (7, 2, 3, int(Flag.FINAL))]  # cut
    part = episode_keys(0, 4, 6, None) + episode_keys(7, 5, 4, Flag.TERMINATED)[1:]
    rows = make_rows(schema, keys + part, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    rows["o/arm/left"], rows["o/arm/on"] = rng.random(len(rows)), rng.random((len(rows), 2)) < 0.5
    rows["start"], rows["policy_version"] = np.arange(len(rows)), 4
    rows["flags"] |= int(Flag.EXPERT)
    final = (rows["flags"] & Flag.FINAL) != 0
    for name in ("reward", "action"):  # means nothing in a final row, and has no place in a Minari episode
        rows[name][final] = 0
    return schema, rows, len(keys)


@pytest.mark.parametrize("stack", [1, 3])
def test_whole_episodes_come_back_bit_for_bit_and_others_are_left_out(tmp_path, ours, stack):
    schema, rows, whole = recorded(stack)
    assert ours.write_minari(tmp_path / "demos-v0", schema, rows) == 2
    read_schema, read = ours.read_minari(tmp_path / "demos-v0")
    assert read_schema == schema
    assert read.tobytes() == rows[:whole].tobytes()


def test_minari_reads_what_is_written(tmp_path, ours, minari, monkeypatch):
    schema, rows, _ = recorded(3)
    ours.write_minari(tmp_path / "demos-v0", schema, rows)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("demos-v0", download=False)
    assert (dataset.total_episodes, dataset.total_steps) == (3, 12)
    one, two, cut = dataset.iterate_episodes()
    np.testing.assert_array_equal(one.rewards, rows["reward"][:5])
    assert one.terminations.tolist() == [False] * 4 + [True]
    assert two.truncations.tolist() == [False] * 3 + [True]
    assert cut.truncations.tolist() == [False, False, True]
    assert one.observations["frame"].shape == (6, 3, 2, 2)  # whole stacks
    np.testing.assert_array_equal(one.observations["frame"][3], rows["o/frame"][1:4])
    np.testing.assert_array_equal(one.observations["frame"][0], rows["o/frame"][[0, 0, 0]])
    np.testing.assert_array_equal(one.observations["arm"]["left"], rows["o/arm/left"][:6])
    assert one.observations["frame"].dtype == np.uint8


def foreign(minari, path, observation_space, action_space, episodes):
    data = path / "data"
    data.mkdir(parents=True)
    storage = sys.modules["minari.dataset.minari_storage"].MinariStorage.new(
        data, observation_space, action_space, data_format="hdf5"
    )
    storage.update_metadata({"dataset_id": path.name, "minari_version": minari.__version__})
    buffer = sys.modules["minari.data_collector"].EpisodeBuffer
    storage.update_episodes([buffer(**episode) for episode in episodes])
    return path


def episode(steps, **changes):
    return {
        "observations": {"speed": np.arange(steps + 1.0), "gear": np.arange(steps + 1)},
        "actions": np.arange(2.0 * steps).reshape(steps, 2),
        "rewards": np.arange(steps) + 0.5,
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, bool),
    } | changes


OBSERVATION = spaces.Dict({"speed": spaces.Box(-1e6, 1e6, (), np.float64), "gear": spaces.Discrete(99)})
ACTION = spaces.Box(-1e6, 1e6, (2,), np.float64)


def test_a_dataset_of_another_program_is_read(tmp_path, ours, minari):
    path = foreign(minari, tmp_path / "other-v1", OBSERVATION, ACTION, [episode(3), episode(2)])
    schema, rows = ours.read_minari(path)
    assert {f.name: f.dtype for f in schema.observation} == {"speed": "float32", "gear": "int64"}
    assert schema.action.dtype == "float32"
    assert rows["episode"].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert rows["step"].tolist() == [0, 1, 2, 3, 0, 1, 2]
    t, f = int(Flag.TERMINATED), int(Flag.FINAL)
    assert rows["flags"].tolist() == [0, 0, t, f, 0, t, f]
    assert rows["reward"].tolist() == [0.5, 1.5, 2.5, 0.0, 0.5, 1.5, 0.0]
    assert rows["o/speed"].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert rows["action"][:4].tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.array([0.5, np.nan, 0.5])}, "'reward' holds a number that is not finite"),
        ({"actions": np.zeros((2, 2))}, "action has 2 entries for 3 steps"),
        ({"observations": {"speed": np.zeros(3), "gear": np.zeros(4, np.int64)}}, "'speed': shape"),
        ({"terminations": np.array([True, False, True])}, "step 0 ends its episode, and no final"),
    ],
)
def test_episodes_that_cannot_be_are_refused(tmp_path, ours, minari, changes, message):
    path = foreign(minari, tmp_path / "bad-v0", OBSERVATION, ACTION, [episode(3, **changes)])
    with pytest.raises(RecordError, match=message):
        ours.read_minari(path)


def test_a_dataset_that_would_have_an_environment_made_is_refused(tmp_path, ours, minari):
    path = foreign(minari, tmp_path / "bad-v0", OBSERVATION, ACTION, [episode(3)])
    file = path / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["action_space"]
    file.write_text(json.dumps(metadata | {"env_spec": '{"id": "Evil-v0", "entry_point": "os:system"}'}))
    with pytest.raises(RecordError, match=r"lacks \['action_space'\]"):
        ours.read_minari(path)
    file.write_text("{")
    with pytest.raises(RecordError, match="cannot be read as a Minari dataset"):
        ours.read_minari(path)
    with pytest.raises(RecordError, match="cannot be read as a Minari dataset"):
        ours.read_minari(tmp_path / "nothing-v0")


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, ours):
    schema, rows, _ = recorded(1)
    with pytest.raises(ConfigError, match="call it demos-v0"):
        ours.write_minari(tmp_path / "demos", schema, rows)
    with pytest.raises(RecordError, match="none of the 1 episodes is whole"):
        ours.write_minari(tmp_path / "demos-v0", schema, rows[:3])
    both = RecordSchema(
        (Field("a", "float32", ()), Field("a/b", "float32", ())), Field("action", "float32", ())
    )
    keys = episode_keys(0, 0, 2, Flag.TERMINATED)
    other = both.empty(3)
    other["step"], other["flags"] = np.arange(3), [k[3] for k in keys]
    with pytest.raises(RecordError, match=r"\['a'\] are leaves and have leaves below"):
        ours.write_minari(tmp_path / "demos-v0", both, other)
    assert list(tmp_path.iterdir()) == []
    ours.write_minari(tmp_path / "demos-v0", schema, rows)
    with pytest.raises(ConfigError, match="exists already"):
        ours.write_minari(tmp_path / "demos-v0", schema, rows)
