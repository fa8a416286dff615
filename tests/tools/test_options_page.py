"""The tables of the algorithms' pages are those of the code, and leave nothing unsaid."""

import typing
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from tickrate.algorithms.options import NetworkConfig, OptimiserConfig
from tickrate.algorithms.sac_config import SACConfig
from tickrate.errors import ConfigError
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.tools.options_page import make_page, metrics_table, options_table, presets_table

PAGES = Path(__file__).resolve().parents[2] / "docs" / "algorithms"
WITH_TABLES = sorted(page for page in PAGES.glob("*.md") if "\n<!-- options: " in page.read_text("utf-8"))


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    """How fast. Usual: 0.1
    to 1."""
    name: str = ""
    """What it is called."""


@dataclass(frozen=True)
class Outer:
    kind: typing.Literal["one", "two"] = "two"
    """Which ``kind``: a|b."""
    on: bool = False
    """Whether. Usual: false."""
    same: Inner = field(default_factory=Inner)
    """As it is."""
    other: Inner = field(default_factory=lambda: Inner(2.0))
    """Changed."""
    limit: int | None = None
    """Most steps."""


@dataclass(frozen=True)
class Silent:
    rate: float = 0.5


def name(kind):
    return f"{kind.__module__}:{kind.__name__}"


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_code(page):
    text = page.read_text(encoding="utf-8")
    again = f"python -m tickrate.tools.options_page docs/algorithms/{page.name}"
    assert make_page(text) == text, f"{page.name} is stale; write it with {again}"


def test_the_page_of_sac_has_every_option_and_every_preset():
    assert [page.name for page in WITH_TABLES if page.name == "sac.md"] == ["sac.md"]
    text = (PAGES / "sac.md").read_text(encoding="utf-8")
    for kind in (SACConfig, NetworkConfig, OptimiserConfig, EncoderConfig):
        assert f"<!-- options: {name(kind)} -->\n" in text
        for option in fields(kind):
            assert text.count(f"\n| `{option.name}` | ") >= 1, option.name
    for preset in ("sac", "redq", "droq", "crossq", "flashsac", "live"):
        assert f"\n### `{preset}`\n" in text


NAMES = {"history_leaves", "groups"}
"""Options whose values are the environment's own."""


@pytest.mark.parametrize("kind", [SACConfig, NetworkConfig, OptimiserConfig, EncoderConfig])
def test_every_option_says_what_is_possible_or_usual(kind):
    for line in options_table(name(kind)).splitlines()[2:]:
        option, _, values, effect = line.strip("| ").split(" | ")
        assert effect.endswith("."), line
        assert values != "-" or option.strip("`") in NAMES, line


def test_a_table_says_defaults_values_and_effects():
    inner = ["| `rate` | `0.5` | 0.1 to 1 | How fast. |", '| `name` | `""` | - | What it is called. |']
    assert options_table("test_options_page:Inner").splitlines()[2:] == inner
    assert options_table("test_options_page:Outer").splitlines()[2:] == [
        "| `kind` | `two` | `one`, `two` | Which `kind`: a\\|b. |",
        "| `on` | `false` | `true`, `false`; usual: false | Whether. |",
        "| `same` | its defaults | section, see `Inner` | As it is. |",
        "| `other` | `{rate: 2.0}` | section, see `Inner` | Changed. |",
        "| `limit` | `null` | - | Most steps. |",
    ]


def test_presets_stand_side_by_side_where_they_differ():
    lines = presets_table("sac").splitlines()
    assert lines[0] == "| option | `live` | `sac` | `crossq` | `redq` | `droq` | `flashsac` |"
    assert "| `trainer.updates_per_step` | `1.0` | `1.0` | `1.0` | `20.0` | `20.0` | `1.0` |" in lines
    assert not any("memory_units" in line for line in lines)


def test_what_is_not_there_is_named():
    with pytest.raises(ConfigError, match="'rate' has no docstring"):
        options_table("test_options_page:Silent")
    with pytest.raises(ConfigError, match="not a dataclass of options"):
        options_table("test_options_page:name")
    with pytest.raises(ConfigError, match=r"no metric 'learn/q_men'.*Did you mean 'learn/q_mean'"):
        metrics_table("learn/q_mean learn/q_men")


@pytest.mark.parametrize(
    "page",
    ["", "<!-- options: a:b -->\n", "<!-- presets: x -->\n<!-- metrics: learn/q_mean -->\n<!-- end -->"],
)
def test_a_page_without_a_whole_place_for_a_table_is_refused(page):
    with pytest.raises(ConfigError, match="its own '<!-- end -->'"):
        make_page(page)


def test_only_what_stands_between_the_marks_is_made_anew():
    page = "before\n<!-- metrics: learn/q_mean -->\nold\n<!-- end -->\nafter\n"
    made = make_page(page)
    assert made.startswith("before\n<!-- metrics: learn/q_mean -->\n\n| metric |")
    assert made.endswith(" |\n\n<!-- end -->\nafter\n")
    assert "old" not in made
    assert make_page(made) == made
