"""The tables of ``docs/protocol.md``, made from the messages and the overview as the code defines them.

A test fails when the page differs; ``python -m tickrate.tools.protocol_page docs/protocol.md`` writes it.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect as inspection

from tickrate.errors import ConfigError
from tickrate.runtime import (
    companion,
    courier,
    incumbency,
    overview,
    peers,
    reception,
    report_queue,
    trainer,
)
from tickrate.tools.field_docstrings import field_docstrings, one_line
from tickrate.wire import delivery, messages, zenoh_hub

MESSAGES: tuple[type[messages.Message], ...] = (
    messages.Hello,
    messages.Ping,
    messages.RowBatch,
    messages.Ack,
    messages.Refusal,
    messages.Weights,
    messages.EpisodeReport,
    messages.Status,
    messages.Command,
    messages.InferRequest,
    messages.InferReply,
)
"""In the order of the page; a test sees to it that none is missing."""

_EVIDENT = {
    "name": "Its name.",
    "role": "What the sender is.",
    "count": "How many rows.",
    "crc32": "Of `payload`.",
    "episode": "Number of the episode: of one start of the worker, then within it.",
    "steps": "Transitions in it.",
    "duration_s": "How long it took, s.",
    "text": "In words.",
    "metrics": "More numbers, by name.",
    "action": "What to do.",
    "actions": "The packed actions, as opaque.",
}
"""Meanings of fields that the code leaves without a word."""

OVERVIEW: tuple[type[msgspec.Struct], ...] = (
    overview.Overview,
    overview.TrainerView,
    overview.WorkerView,
    overview.Alarm,
)


LIMITS: tuple[tuple[ModuleType, str, str], ...] = (
    (messages, "MAX_MESSAGE_BYTES", "bytes, a message, its head included"),
    (messages, "MAX_ROW_BYTES", "bytes, the rows of one message, packed and unpacked"),
    (courier, "BATCH_BYTES", "bytes, rows that a worker puts into one message"),
    (courier, "BATCH_ROWS", "rows that a worker puts into one message"),
    (peers, "WINDOW_BYTES", "bytes, rows of one worker that are granted beyond what is stored ..."),
    (peers, "WINDOW_ROWS", "... and in rows"),
    (reception, "ROWS_WAITING", "messages with rows that wait at the trainer to be read ..."),
    (reception, "ROWS_WAITING_BYTES", "... and in bytes; what does not fit is lost and sent again"),
    (report_queue, "BUFFERED_REPORTS", "episode reports that a worker keeps; the oldest give way"),
    (overview, "MAX_BYTES", "bytes, an overview"),
)
"""Numbers that bound what is sent or kept: where each stands in the code, and its unit."""

TIMERS: tuple[tuple[ModuleType, str, str], ...] = (
    (companion, "COMMIT_EVERY_S", "the companion moves rows from the shared memory to the outbox"),
    (courier, "PING_EVERY_S", "a worker pings"),
    (courier, "GREET_EVERY_S", "a worker greets, until it is welcomed"),
    (companion, "STATUS_EVERY_S", "a worker says its status"),
    (trainer, "STATUS_EVERY_S", "the trainer says its status and the overview"),
    (incumbency, "GREET_EVERY_S", "the trainer greets at most so often"),
    (
        reception,
        "ACK_EVERY_S",
        "the trainer acknowledges to one worker at most so often, unless its grant runs low",
    ),
    (courier, "SILENCE_S", "a trainer that is silent for so long has to welcome the worker again"),
    (peers, "STALLED_AFTER_S", "a worker that is silent for so long is stalled: its name may be taken"),
    (courier, "REFUSAL_PATIENCE_S", "a worker goes on trying while its name seems to be taken"),
    (delivery, "RESEND_AFTER_S", "without progress a worker sends again; the pause doubles each time ..."),
    (delivery, "LONGEST_PAUSE_S", "... up to this"),
    (report_queue, "REPORTS_AGAIN_S", "episode reports that are not acknowledged are sent again"),
    (incumbency, "SETTLE_S", "a trainer that finds another one present waits for its objection"),
    (incumbency, "STALL_S", "a trainer that has stood still for so long asks again whether it may serve"),
    (companion, "DRAIN_PATIENCE_S", "at its end a worker goes on delivering; the rest stays in the outbox"),
    (trainer, "LAST_ROWS_S", "at its end the trainer waits for rows that are on their way"),
    (zenoh_hub, "LOOK_EVERY_S", "the hub looks whether its keys have changed"),
)
"""Times in seconds: where each stands in the code, and what happens then."""


def make_page(page: str) -> str:
    """Return the page with what stands between ``<!-- made: NAME -->`` and ``<!-- end -->`` made anew.

    Raises:
        ConfigError: if the page has not each section once.
    """
    sections = {
        "limits": lambda: _numbers(LIMITS, "limit", ""),
        "timers": lambda: _numbers(TIMERS, "seconds", " s"),
        "messages": _messages,
        "overview": _overview,
    }
    for name, make in sections.items():
        begin, end = f"<!-- made: {name} -->", "<!-- end -->"
        if page.count(begin) != 1 or end not in page.split(begin)[1]:
            raise ConfigError(f"the page needs {begin!r} once, and {end!r} after it")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{make()}\n\n{end}{rest.partition(end)[2]}"
    return page


def _messages() -> str:
    common = f"### Every message\n\n{_docstring(messages.Message)}\n\n{_table(messages.Message, ())}"
    known = messages.Message.__struct_fields__
    parts = [common]
    for kind in MESSAGES:
        tag = kind.__struct_config__.tag
        parts.append(f"### `{tag}`\n\n{_docstring(kind)}\n\n{_table(kind, known)}")
    return "\n\n".join(parts)


def _overview() -> str:
    titles = ("The object", "`trainer`", "`workers`, each", "`alarms` of a worker, each")
    parts = [
        f"### {title}\n\n{_docstring(kind)}\n\n{_table(kind, ())}"
        for title, kind in zip(titles, OVERVIEW, strict=True)
    ]
    return "\n\n".join(parts)


def _numbers(entries: tuple[tuple[ModuleType, str, str], ...], title: str, unit: str) -> str:
    lines = [f"| {title} | what | in the code |", "| --- | --- | --- |"]
    for module, name, what in entries:
        value = getattr(module, name)
        shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        lines.append(f"| {shown}{unit} | {what} | `{module.__name__.removeprefix('tickrate.')}.{name}` |")
    return "\n".join(lines)


def _table(kind: type[msgspec.Struct], leave_out: tuple[str, ...]) -> str:
    """Return the fields of a struct with what may stand in them and what they mean."""
    meanings = _EVIDENT | _said_elsewhere() | field_docstrings(kind)
    described = inspection.type_info(kind)
    assert isinstance(described, inspection.StructType)
    lines = ["| field | what may stand there | meaning |", "| --- | --- | --- |"]
    for field in described.fields:
        if field.name in leave_out:
            continue
        allowed = _allowed(field.type)
        if not field.required:
            allowed += f"; default {_default(field)}"
        lines.append(f"| `{field.encode_name}` | {allowed} | {meanings.get(field.name, '')} |")
    return "\n".join(lines)


def _default(field: inspection.Field) -> str:
    if field.default is msgspec.NODEFAULT:
        return f"`{field.default_factory()}`"
    return f"`{json.dumps(field.default.decode() if isinstance(field.default, bytes) else field.default)}`"


def _allowed(kind: inspection.Type) -> str:
    """Return in words what the decoder accepts."""
    match kind:
        case inspection.UnionType():
            return " or ".join(_allowed(part) for part in kind.types)
        case inspection.LiteralType():
            return "one of " + ", ".join(f"`{value}`" for value in kind.values)
        case inspection.StrType():
            return _sized("text", kind.min_length, kind.max_length, "characters")
        case inspection.BytesType():
            return _sized("binary", kind.min_length, kind.max_length, "bytes")
        case inspection.DictType():
            numbers = "number" if isinstance(kind.value_type, inspection.FloatType) else "number or null"
            return _sized(f"map from name to {numbers}", kind.min_length, kind.max_length, "entries")
        case inspection.ListType():
            return f"list of {_allowed(kind.item_type)}s"
        case inspection.IntType():
            return f"whole number{_range(kind)}"
        case inspection.StructType():
            return "object"
    words = {
        inspection.FloatType: "number",
        inspection.BoolType: "true or false",
        inspection.NoneType: "null",
    }
    return words[type(kind)]


def _sized(what: str, least: int | None, most: int | None, unit: str) -> str:
    if most is None:
        return what
    return f"{what}, {least} to {most} {unit}" if least else f"{what}, at most {most} {unit}"


def _range(kind: inspection.IntType) -> str:
    return "" if kind.lt is None else f", {kind.ge} to 2^{kind.lt.bit_length() - 1} - 1"


def _said_elsewhere() -> dict[str, str]:
    """Return what the messages say of their fields; the first that speaks of a name counts."""
    found: dict[str, str] = {}
    for kind in reversed(MESSAGES):
        found |= field_docstrings(kind)
    return {name: text for name, text in found.items() if name in ("outbox", "oldest", "head", "sequence")}


def _docstring(kind: type[Any]) -> str:
    return one_line(inspect.getdoc(kind) or "").replace(" Build it with", "\nBuild it with").split("\n")[0]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(make_page(place.read_text(encoding="utf-8")), encoding="utf-8")
