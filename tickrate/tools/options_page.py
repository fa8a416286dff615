"""The tables on an algorithm's page: options, presets and metrics, made from the code that defines them.

A table stands between ``<!-- WHAT: ... -->`` and ``<!-- end -->``. WHAT is one of

- ``options: module:Class`` the fields of a configuration dataclass,
- ``presets: NAME`` what the presets of the algorithm NAME set, side by side,
- ``metrics: key key ...`` rows of `tickrate.tracking.metrics.METRICS`.

A test fails when a page differs; ``python -m tickrate.tools.options_page docs/algorithms/sac.md`` writes it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tickrate import registry
from tickrate.config.experiment import as_mapping, experiment_from_mapping
from tickrate.config.loading import to_mapping
from tickrate.errors import ConfigError, suggest
from tickrate.tools.field_docstrings import field_docstrings
from tickrate.tracking.metrics import METRICS

_PLACE = re.compile(r"(<!-- (options|presets|metrics): ([^\n]*?) -->\n).*?(<!-- end -->)", re.S)
_BEGIN = re.compile(r"<!-- (?:options|presets|metrics):")
_PARTS = ("algorithm", "replay", "trainer")
"""Sections that a preset may set."""


def make_page(page: str) -> str:
    """Return the page with its tables made anew.

    Raises:
        ConfigError: if the page has no table, one without an end, or one of something that is not there.
    """
    if not _PLACE.search(page) or len(_BEGIN.findall(page)) != len(_PLACE.findall(page)):
        raise ConfigError(
            "the page needs '<!-- options: module:Class -->' (or presets, or metrics), each with its own "
            "'<!-- end -->' after it"
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
    said, hints = field_docstrings(kind), typing.get_type_hints(kind)
    lines = ["| option | default | values | effect |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(kind):
        if field.name not in said:
            raise ConfigError(f"{target}: the option {field.name!r} has no docstring below it")
        effect, _, usual = said[field.name].partition("Usual: ")
        values = _values(hints[field.name], usual.removesuffix("."))
        lines.append(_row(f"`{field.name}`", _default(field), values, effect.strip()))
    return "\n".join(lines)


def presets_table(name: str) -> str:
    """Return what the presets of an algorithm differ in, one column each."""
    presets = list(registry.algorithm(name).presets)
    made = [as_mapping(experiment_from_mapping({"algorithm": {"name": name, "preset": p}})) for p in presets]
    flat = [_flat({part: values[part] for part in _PARTS}) for values in made]
    lines = [_row("option", *(f"`{preset}`" for preset in presets)), "| --- " * (len(presets) + 1) + "|"]
    for key in flat[0]:
        found = [values[key] for values in flat]
        if any(value != found[0] for value in found):
            lines.append(_row(f"`{key}`", *(_shown(value) for value in found)))
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
    "metrics": metrics_table,
}


def _values(kind: Any, usual: str) -> str:
    """Return what an option of this type may be, or usually is."""
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
        changed = [f.name for f in dataclasses.fields(value) if f.default != own[f.name]]
        return _shown({name: own[name] for name in changed}) if changed else "its defaults"
    return _shown(value)


def _shown(value: Any) -> str:
    """Return a value as it would stand in an experiment file."""
    plain = to_mapping(value)
    if isinstance(plain, dict):
        return f"`{{{', '.join(f'{k}: {json.dumps(v)}' for k, v in plain.items())}}}`"
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
