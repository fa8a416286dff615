"""Builds frozen dataclasses from nested mappings: each unknown key or wrong type is an error by name."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from tickrate.errors import ConfigError, suggest

T = TypeVar("T")


def from_mapping(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Return ``cls(**values)`` with nested dataclasses, tuples and dicts built the same way.

    Args:
        cls: a dataclass type.
        values: what a YAML file gave.
        where: dotted path of this section, for messages.

    Raises:
        ConfigError: for a key that does not exist (names the nearest one), a value of a wrong type, or a
            value that the dataclass itself refuses; the message names the section.
    """
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where or 'the experiment'}: expected a section with keys, got {values!r}. Valid keys there: "
            f"{', '.join(names)}"
        )
    arguments = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in names:
            near = suggest(str(key), names)
            raise ConfigError(f"unknown key {path!r}.{near} Valid keys here: {', '.join(names)}")
        arguments[key] = convert(hints[key], value, path)
    try:
        return cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"in {where or 'the experiment'}: {error}") from error


def convert(kind: Any, value: Any, where: str) -> Any:
    """Return ``value`` as the annotated type ``kind``.

    Raises:
        ConfigError: if it does not fit; names ``where`` and both.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is typing.Literal:
        if value not in args:
            near = suggest(str(value), map(str, args))
            raise ConfigError(f"{where} is {value!r}; choose one of {list(args)}.{near}")
        return value
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else from_mapping(kind, value, where)  # type: ignore[arg-type]
    if origin is tuple:
        return _convert_tuple(args, value, where)
    if origin is list:
        return list(_convert_tuple((args[0], ...), value, where))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {value!r}; expected a mapping")
        return {
            convert(args[0], k, f"a key of {where}"): convert(args[1], v, f"{where}.{k}")
            for k, v in value.items()
        }
    return _convert_plain(kind, value, where)


def _convert_union(kinds: Sequence[Any], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    reasons = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return convert(kind, value, where)
        except ConfigError as error:
            reasons.append(str(error))
    raise ConfigError("; or ".join(reasons))


def _convert_tuple(args: Sequence[Any], value: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ConfigError(f"{where} is {value!r}; expected a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(args):
        raise ConfigError(f"{where} is {value!r}; expected {len(args)} values")
    pairs = zip(args, value, strict=True)
    return tuple(convert(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _convert_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, bool) and kind is not bool:
        raise ConfigError(f"{where} is {value!r}; expected {kind.__name__}")
    if not isinstance(value, kind):
        raise ConfigError(f"{where} is {value!r} ({type(value).__name__}); expected {kind.__name__}")
    return value


def to_mapping(value: Any) -> Any:
    """Return a dataclass as plain dicts, lists and scalars, which `from_mapping` reads back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_mapping(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {to_mapping(k): to_mapping(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_mapping(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if isinstance(value, np.generic) else value


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of plain values.

    Raises:
        ConfigError: if it cannot be read, is no YAML, repeats a key, or holds no mapping; names file and
        line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}") from error
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}, not a mapping of sections")
    return values


def parse_yaml(text: str, source: str) -> Any:
    """Return the plain value that YAML text holds.

    Raises:
        ConfigError: if it is no YAML or repeats a key; names ``source`` and the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is no valid YAML: {error}") from error


def dump_yaml(values: Any) -> str:
    """Return YAML text that `parse_yaml` reads back to the same plain values.

    Raises:
        ConfigError: if a value is none that YAML can hold.
    """
    try:
        return yaml.dump(values, Dumper=_Dumper, sort_keys=False)
    except yaml.YAMLError as error:
        raise ConfigError(f"only plain values can be written into an experiment file: {error}") from error


class _Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-3 as a number and refuses a key given twice.

    Plain YAML 1.1 reads 1e-3 as text and keeps the last of two equal keys in silence.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            if isinstance(key, Hashable):  # the base class refuses other keys
                seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes text which `_Loader` would read as a number."""


_MERGE = "tag:yaml.org,2002:merge"
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
