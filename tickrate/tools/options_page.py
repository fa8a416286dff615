"""The tables of options, presets and metrics on the pages, made from the code that defines them.

A table stands between ``<!-- WHAT: ... -->`` and ``<!-- end -->``. WHAT is one of

- ``options: module:Class`` the fields of a configuration dataclass,
- ``presets: NAME`` what the presets of the algorithm NAME set, side by side,
- ``preset: NAME PRESET`` what one of them sets, with effect and usual values,
- ``metrics: key key ...`` rows of `tickrate.tracking.metrics.METRICS`.

A test fails when a page differs; ``python -m tickrate.tools.options_page docs/algorithms/sac.md`` writes it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tickrate import registry
from tickrate.config.experiment import as_mapping, experiment_from_mapping
from tickrate.config.loading import parse_yaml, to_mapping
from tickrate.errors import ConfigError, suggest
from tickrate.tools.field_docstrings import field_docstrings
from tickrate.tracking.metrics import METRICS

_PLACE = re.compile(r"(<!-- (options|presets?|metrics): ([^\n]*?) -->\n).*?(<!-- end -->)", re.S)
_BEGIN = re.compile(r"<!-- (?:options|presets?|metrics):")
_PARTS = ("algorithm", "replay", "trainer")
"""Sections that a preset may set."""


def make_page(page: str) -> str:
    """Return the page with its tables made anew.

    Raises:
        ConfigError: if the page has no table, one without an end, or one of something that is not there.
    """
    if not _PLACE.search(page) or len(_BEGIN.findall(page)) != len(_PLACE.findall(page)):
        raise ConfigError(
            "the page needs '<!-- options: module:Class -->' (or presets, preset, metrics), each with "
            "its own '<!-- end -->' after it"
        )
    return _PLACE.sub(lambda m: f"{m[1]}\n{_TABLES[m[2]](m[3])}\n\n{m[4]}", page)


def options_table(target: str) -> str:
    """Return the table of a configuration dataclass, given as ``module:Class``.

    The column of values says what is possible where that is a list, otherwise what is usual: what its
    docstring says after ``Usual:``.

    Raises:
        ConfigError: if it is no dataclass, or a field says nothing.
    """
    kind = registry.resolve(target)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ConfigError(f"{target} is {kind!r}, not a dataclass of options")
    lines = ["| option | default | values | effect |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(kind):
        lines.append(_row(f"`{field.name}`", _default(field), *_said(kind, field.name)))
    return "\n".join(lines)


def presets_table(name: str) -> str:
    """Return what the presets of an algorithm differ in, one column each."""
    presets = list(registry.algorithm(name).presets)
    made = [as_mapping(experiment_from_mapping({"algorithm": {"name": name, "preset": p}})) for p in presets]
    flat = [_flat({part: values[part] for part in _PARTS}) for values in made]
    lines = [_row("option", *(f"`{preset}`" for preset in presets)), "| --- " * (len(presets) + 1) + "|"]
    for key in flat[0]:
        found = [values[key] for values in flat]
        if key != "algorithm.preset" and any(value != found[0] for value in found):
            lines.append(_row(f"`{key}`", *(_shown(value) for value in found)))
    return "\n".join(lines)


def preset_table(name: str) -> str:
    """Return what one preset, given as ``ALGORITHM PRESET``, sets each option to, beside its default.

    Options that several sections share, as those of the optimisers, have one row where their values agree.

    Raises:
        ConfigError: if there is no such preset.
    """
    algorithm, _, preset = name.partition(" ")
    entry = registry.algorithm(algorithm)
    if preset not in entry.presets:
        raise ConfigError(f"{algorithm} has no preset {preset!r}.{suggest(preset, entry.presets)}")
    package, _, path = entry.presets[preset].partition(":")
    file = parse_yaml(resources.files(package).joinpath(path).read_text(encoding="utf-8"), path)
    made = experiment_from_mapping({"algorithm": {"name": algorithm, "preset": preset}})
    sections = {"algorithm": made.algorithm.settings, "replay": made.replay, "trainer": made.trainer}
    rows: dict[tuple[str, ...], list[str]] = {}
    for key in _flat(file):
        section, *parents, last = key.split(".")
        owner = sections[section]
        default = type(owner)()
        for parent in parents:
            owner, default = getattr(owner, parent), getattr(default, parent)
        values = _shown(getattr(owner, last)), _shown(getattr(default, last))
        rows.setdefault((last, *values, *_said(type(owner), last)), []).append(f"`{key}`")
    lines = ["| option | preset | default | values | effect |", "| --- | --- | --- | --- | --- |"]
    lines += [_row(", ".join(keys), *cells[1:]) for cells, keys in rows.items()]
    return "\n".join(lines)


def metrics_table(keys: str) -> str:
    """Return rows of the table of metrics.

    Raises:
        ConfigError: for a key that is not in it.
    """
    lines = ["| metric | unit | meaning |", "| --- | --- | --- |"]
    for key in keys.split():
        if key not in METRICS:
            raise ConfigError(f"there is no metric {key!r}.{suggest(key, METRICS)}")
        lines.append(_row(f"`{key}`", METRICS[key].unit or "-", METRICS[key].meaning))
    return "\n".join(lines)


_TABLES: Mapping[str, Callable[[str], str]] = {
    "options": options_table,
    "presets": presets_table,
    "preset": preset_table,
    "metrics": metrics_table,
}


def _said(kind: type[Any], option: str) -> tuple[str, str]:
    """Return what an option may be or usually is, and its effect.

    Raises:
        ConfigError: if nothing is said below it.
    """
    said = field_docstrings(kind)
    if option not in said:
        raise ConfigError(
            f"{kind.__module__}:{kind.__name__}: the option {option!r} has no docstring below it"
        )
    effect, _, usual = said[option].partition("Usual: ")
    return _values(typing.get_type_hints(kind)[option], usual.removesuffix(".")), effect.strip()


def _values(kind: Any, usual: str) -> str:
    """Return what an option of this type may be, or usually is."""
    if typing.get_origin(kind) is types.UnionType:
        (kind, *others) = (part for part in typing.get_args(kind) if part is not types.NoneType)
        kind = Any if others else kind
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return f"section, see `{kind.__name__}`"
    possible = ""
    if typing.get_origin(kind) is typing.Literal:
        possible = ", ".join(f"`{value}`" for value in typing.get_args(kind))
    elif kind is bool:
        possible = "`true`, `false`"
    return "; usual: ".join(part for part in (possible, usual) if part) or "-"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return _shown(field.default)
    if field.default_factory is dataclasses.MISSING:
        return "needed"
    value = field.default_factory()
    if dataclasses.is_dataclass(value):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changed = [f.name for f in dataclasses.fields(value) if _own_default(f) != own[f.name]]
        return _shown({name: own[name] for name in changed}) if changed else "its defaults"
    return _shown(value)


def _own_default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _shown(value: Any) -> str:
    """Return a value as it would stand in an experiment file."""
    plain = to_mapping(value)
    if isinstance(plain, dict):
        return f"`{{{', '.join(f'{k}: {json.dumps(v)}' for k, v in plain.items())}}}`"
    if isinstance(plain, type):
        return f"`{plain.__name__}`"
    if plain == math.inf:
        return "`.inf`"  # as YAML has it
    return f"`{plain}`" if isinstance(plain, str) and plain else f"`{json.dumps(plain)}`"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping) and bool(value)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(make_page(place.read_text(encoding="utf-8")), encoding="utf-8")
