"""The protocol's page says what the code does: tables, example, links, and nothing is left out."""

import json
import re
import typing
from pathlib import Path

import msgspec
import pytest

from tickrate.errors import ConfigError
from tickrate.runtime.overview import Overview, TrainerView, WorkerView, read_overview
from tickrate.tools.field_docstrings import field_docstrings
from tickrate.tools.protocol_page import MESSAGES, make_page
from tickrate.wire import messages

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    again = "python -m tickrate.tools.protocol_page docs/protocol.md"
    assert make_page(TEXT) == TEXT, f"docs/protocol.md is stale; write it with {again}"


def test_every_message_is_there_and_every_field_has_a_meaning():
    assert set(MESSAGES) == set(typing.get_args(messages.AnyMessage))
    for line in TEXT.splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.strip("|").split("|")), line


def test_the_page_names_the_version_that_is_spoken():
    assert TEXT.startswith(f"# The protocol, version {messages.PROTOCOL_VERSION}\n")
    assert f"(`{messages.PROTOCOL_VERSION:02d}`)" in TEXT


def test_the_example_is_a_whole_overview():
    (example,) = re.findall(r"^```json\n(.*?)^```", TEXT, re.M | re.S)
    state = read_overview(example.encode())
    assert msgspec.json.decode(msgspec.json.encode(state)) == json.loads(example)
    shown = json.loads(example)
    assert tuple(shown) == Overview.__struct_fields__
    assert tuple(shown["trainer"]) == TrainerView.__struct_fields__
    assert tuple(shown["workers"][0]) == WorkerView.__struct_fields__


def test_fields_are_read_with_the_words_below_them():
    class Thing(msgspec.Struct):
        """A thing."""

        first: int
        """One
        line, ``coded``."""
        second: int
        third: int = 3
        """Last."""

    assert field_docstrings(Thing) == {"first": "One line, `coded`.", "third": "Last."}


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(ConfigError, match="<!-- made: limits -->"):
        make_page(TEXT.replace("<!-- made: limits -->", ""))


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
