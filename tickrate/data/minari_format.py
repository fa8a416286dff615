"""Recordings as Minari datasets: the one file that imports Minari. Nothing in it downloads anything.

A dataset is a folder ``NAME-vN`` as Minari keeps it (``NAME-vN/data/``), written and read by its path. What
a Minari episode has no place for (flags, times, policy versions, extras) stands in its infos under
``tickrate``, and the record schema in the dataset's metadata, so that episodes come back bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tickrate import trees
from tickrate.data.fields import Field
from tickrate.data.recordings import check_order, joined, require_memory
from tickrate.data.schema import FIXED_FIELDS, Flag, RecordSchema, Rows
from tickrate.errors import ConfigError, MissingExtra, RecordError
from tickrate.trees import Leaves

try:
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage
except ImportError as error:
    raise MissingExtra(f"Minari is not installed ({error}): pip install 'tickrate[minari]'") from error

SCHEMA_KEY = "tickrate_schema"
INFO_KEY = "tickrate"
_FIXED = {name: np.dtype(code) for name, code in FIXED_FIELDS}
_KEPT = tuple(name for name in _FIXED if name not in ("episode", "step", "reward"))


def write_minari(path: Path, schema: RecordSchema, rows: Rows) -> int:
    """Write the episodes of rows as a new dataset; return how many were left out.

    Left out are episodes whose beginning or end is not among the rows.

    Args:
        path: the folder, named as a dataset: ``demos-v0``.
        schema: what a row holds.
        rows: the rows, each stream's in order.

    Raises:
        ConfigError: if the folder's name is no name of a dataset, or it exists.
        RecordError: if no episode is whole.
    """
    try:
        parse_dataset_id(path.name)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path.name!r} is no name of a Minari dataset: call it {path.name}-v0") from error
    if path.exists():
        raise ConfigError(f"{path} exists already: remove it, or choose another name")
    episodes = list(_episodes(rows))
    whole = [episode for episode in episodes if _is_whole(rows[episode])]
    if not whole:
        raise RecordError(
            f"none of the {len(episodes)} episodes is whole, from its first to its final observation"
        )
    data = path.resolve() / "data"  # Minari looks for parts of a relative path inside of it
    data.mkdir(parents=True)
    try:
        observation = _nested({field.name: _space(field) for field in schema.observation})
        storage = MinariStorage.new(
            data, observation, _space(schema.action), data_format="hdf5", jpeg_encoding=False
        )
        storage.update_metadata(
            {
                "dataset_id": path.name,
                "minari_version": minari.__version__,
                SCHEMA_KEY: schema.to_json(),
            }
        )
        storage.update_episodes(_buffer(schema, observation, rows[episode]) for episode in whole)
    except BaseException:
        shutil.rmtree(path)
        raise
    return len(episodes) - len(whole)


def read_minari(path: Path) -> tuple[RecordSchema, Rows]:
    """Return (schema, rows) of a dataset, one episode after the other; all of one stream if it names none.

    Of a dataset that tickrate did not write, floats become float32, as runs record them.

    Raises:
        RecordError: if it is no dataset, or its spaces or arrays cannot be recorded; names what.
        ConfigError: if it does not fit into memory.
    """
    try:
        storage = _open(path / "data" if (path / "data").is_dir() else path)
        text = storage.metadata.get(SCHEMA_KEY)
        space = storage.observation_space
        schema = _derived(space, storage.action_space) if text is None else RecordSchema.from_json(str(text))
        require_memory(schema, int(storage.total_steps) + int(storage.total_episodes))
        parts = [
            _rows(schema, space, number, episode)
            for number, episode in enumerate(storage.get_episodes(range(storage.total_episodes)))
        ]
    except (KeyError, ValueError, TypeError, AssertionError, OSError, AttributeError) as error:
        if isinstance(error, RecordError | ConfigError):
            raise
        raise RecordError(f"{path} cannot be read as a Minari dataset: {error!r}") from error
    if not parts:
        raise RecordError(f"{path} holds no episode")
    rows = joined(schema, parts, sum(map(len, parts)))
    try:
        check_order(rows)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    return schema, rows


def _open(data: Path) -> MinariStorage:
    """Open a dataset that says its spaces itself: of others Minari would make the environment they name."""
    metadata = MinariStorage.read_raw_metadata(data)
    if missing := [name for name in ("observation_space", "action_space") if name not in metadata]:
        raise ValueError(f"its metadata lacks {missing}")
    return MinariStorage.read(data)


# --- out --------------------------------------------------------------------------------------------------


def _episodes(rows: Rows) -> Iterator[NDArray[np.int64]]:
    """Yield where the rows of each episode are, in order."""
    order = np.lexsort((rows["step"], rows["episode"], rows["stream"]))
    ordered = rows[["stream", "episode"]][order]
    yield from np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _is_whole(rows: Rows) -> bool:
    steps = rows["step"].astype(np.int64)
    return (
        len(rows) > 1 and bool(rows["flags"][-1] & Flag.FINAL) and bool((steps == np.arange(len(rows))).all())
    )


def _buffer(schema: RecordSchema, space: spaces.Dict, rows: Rows) -> EpisodeBuffer:
    observation = {field.name: _leaf(field, rows[f"o/{field.name}"]) for field in schema.observation}
    flags = rows["flags"][:-1]
    ended = (flags & (Flag.TERMINATED | Flag.TRUNCATED)) != 0
    truncations = (flags & Flag.TRUNCATED) != 0
    truncations[-1] |= not ended[-1]  # it was cut: readers expect that one of the two is set
    kept = {name: np.ascontiguousarray(rows[name]) for name in (*_KEPT, "episode")}
    kept |= {f"extra_{i}": np.ascontiguousarray(rows[f"x/{f.name}"]) for i, f in enumerate(schema.extras)}
    return EpisodeBuffer(
        observations=trees.rebuild(space, observation),
        actions=np.ascontiguousarray(rows["action"][:-1]),
        rewards=np.ascontiguousarray(rows["reward"][:-1]),
        terminations=(flags & Flag.TERMINATED) != 0,
        truncations=truncations,
        infos={INFO_KEY: kept},
    )


def _leaf(field: Field, frames: NDArray[Any]) -> NDArray[Any]:
    """Return whole leaves, ``(n, *leaf)``: stacks are rebuilt from the episode's own frames."""
    if field.stack == 1:
        return np.ascontiguousarray(frames)
    back = np.arange(len(frames))[:, None] - np.arange(field.stack - 1, -1, -1)
    stacked: NDArray[Any] = frames[np.maximum(back, 0)]
    return stacked


def _space(field: Field) -> spaces.Box:
    """Return a space of a field's dtype and shape; records know no bounds."""
    dtype = np.dtype(field.dtype)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (0, 1)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, field.leaf_shape, dtype.type)


def _nested(leaves: dict[str, spaces.Box]) -> spaces.Dict:
    """Return the Dict space whose leaves have these paths."""
    groups: dict[str, dict[str, spaces.Box]] = {}
    nested: dict[str, spaces.Space[Any]] = {}
    for path, space in leaves.items():
        head, _, rest = path.partition("/")
        if rest:
            groups.setdefault(head, {})[rest] = space
        nested[head] = space  # a group takes the place of its first leaf
    if both := [head for head in groups if head in leaves]:
        raise RecordError(f"{both} are leaves and have leaves below: Minari has no such observations")
    return spaces.Dict(nested | {head: _nested(group) for head, group in groups.items()})


# --- in ---------------------------------------------------------------------------------------------------


def _derived(observation: spaces.Space[Any], action: spaces.Space[Any]) -> RecordSchema:
    schema = RecordSchema.from_spaces(trees.leaf_spaces(observation), action)

    def narrowed(field: Field) -> Field:
        floats = np.dtype(field.dtype).kind == "f"
        return Field(field.name, "float32" if floats else field.dtype, field.shape)

    return RecordSchema(tuple(map(narrowed, schema.observation)), narrowed(schema.action))


def _rows(schema: RecordSchema, space: spaces.Space[Any], number: int, episode: dict[str, Any]) -> Rows:
    """Return the rows of one episode, as long as all its arrays say it is."""
    steps = len(episode["rewards"])
    rows = schema.empty(steps + 1)
    leaves: Leaves = {path: np.asarray(a) for path, a in trees.leaves(space, episode["observations"]).items()}
    values = {"action": np.asarray(episode["actions"]), "reward": np.asarray(episode["rewards"])}
    flags = np.zeros(steps + 1, np.uint32)
    for name, flag in (("terminations", Flag.TERMINATED), ("truncations", Flag.TRUNCATED)):
        flags[:-1] |= np.asarray(episode[name]).astype(np.bool_) * np.uint32(flag)
    flags[-1] = Flag.FINAL
    kept = (episode.get("infos") or {}).get(INFO_KEY)
    extras: dict[str, NDArray[Any]] = {}
    given: dict[str, Any] = {"stream": 0, "episode": number, "flags": flags}
    if kept is not None:
        given |= {name: _checked(name, np.asarray(kept[name]), steps + 1) for name in (*_KEPT, "episode")}
        extras = {field.name: np.asarray(kept[f"extra_{i}"]) for i, field in enumerate(schema.extras)}
    for name, array in values.items():
        if len(array) != steps:
            raise RecordError(f"episode {number}: {name} has {len(array)} entries for {steps} steps")
        values[name] = np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
    schema.pack(rows, leaves, step=np.arange(steps + 1), **given, **values, extras=extras)
    for name in rows.dtype.names or ():
        if rows[name].dtype.kind == "f" and not np.isfinite(rows[name]).all():
            raise RecordError(f"episode {number}: {name!r} holds a number that is not finite")
    return rows


def _checked(name: str, array: NDArray[Any], count: int) -> NDArray[Any]:
    """Return an array of one value a row, as it was written."""
    if array.shape != (count,) or array.dtype != _FIXED[name]:
        raise RecordError(f"infos/{INFO_KEY}/{name} is {array.dtype}{list(array.shape)}: it was changed")
    return array
