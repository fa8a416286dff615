"""The tables of options on the pages are those of the code, and leave nothing unsaid."""

import math
import re
import typing
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

import pytest

from tickrate.algorithms.options import NetworkConfig, OptimiserConfig
from tickrate.algorithms.sac_config import SACConfig
from tickrate.config.experiment import Experiment
from tickrate.errors import ConfigError
from tickrate.nn.encoder_config import EncoderConfig
from tickrate.realtime.config import RealTimeConfig
from tickrate.registry import ALGORITHMS
from tickrate.tools.options_page import make_page, metrics_table, options_table, preset_table, presets_table

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "algorithms"
BEGINS = re.compile(r"^<!-- (options|presets?|metrics): ", re.M)
WITH_TABLES = sorted(p for p in (ROOT / "docs").rglob("*.md") if BEGINS.search(p.read_text("utf-8")))
PRESETS = [(algorithm, preset) for algorithm, entry in ALGORITHMS.items() for preset in entry.presets]


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    """How fast. Usual: 0.1
    to 1."""
    name: str = ""
    """What it is called."""


@dataclass(frozen=True)
class Tables:
    by_name: dict[str, int] = field(default_factory=dict)
    """Numbers."""


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
    length: float = math.inf
    """Longest."""
    perhaps: Inner | None = None
    """If at all."""
    made: type = Inner
    """What is made."""
    tables: Tables = field(default_factory=lambda: Tables())
    """As they are."""


@dataclass(frozen=True)
class Silent:
    rate: float = 0.5


def name(kind):
    return f"{kind.__module__}:{kind.__name__}"


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_code(page):
    text = page.read_text(encoding="utf-8")
    again = f"python -m tickrate.tools.options_page {page.relative_to(ROOT)}"
    assert make_page(text) == text, f"{page.name} is stale; write it with {again}"


def test_the_page_of_options_has_every_section_but_the_algorithms():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    hints, kinds = typing.get_type_hints(Experiment), {RealTimeConfig}
    for section in fields(Experiment):
        if section.name != "algorithm":
            assert f"\n## `{section.name}`\n" in text
            kinds |= configurations(hints[section.name])
    assert len(kinds) >= 12
    for kind in kinds:
        assert f"<!-- options: {name(kind)} -->\n" in text


def configurations(kind):
    """Return a configuration's class and those of all sections in it."""
    inner = [part for hint in typing.get_type_hints(kind).values() for part in (hint, *typing.get_args(hint))]
    return {kind}.union(*(configurations(part) for part in inner if is_dataclass(part)))


@pytest.mark.parametrize(("algorithm", "preset"), PRESETS, ids=lambda name: name)
def test_every_preset_has_a_page_that_the_index_names(algorithm, preset):
    own = PAGES / f"{preset}.md"
    assert f"\n<!-- preset: {algorithm} {preset} -->\n" in own.read_text(encoding="utf-8")
    assert f"]({own.name})" in (PAGES / "README.md").read_text(encoding="utf-8")


def test_the_page_of_sac_has_every_option():
    text = (PAGES / "sac.md").read_text(encoding="utf-8")
    for kind in (SACConfig, NetworkConfig, OptimiserConfig, EncoderConfig):
        assert f"<!-- options: {name(kind)} -->\n" in text
        for option in fields(kind):
            assert text.count(f"\n| `{option.name}` | ") >= 1, option.name


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
        "| `length` | `.inf` | - | Longest. |",
        "| `perhaps` | `null` | section, see `Inner` | If at all. |",
        "| `made` | `Inner` | - | What is made. |",
        "| `tables` | its defaults | section, see `Tables` | As they are. |",
    ]


def test_presets_stand_side_by_side_where_they_differ():
    lines = presets_table("sac").splitlines()
    assert lines[0] == "| option | `live` | `sac` | `crossq` | `redq` | `droq` | `flashsac` |"
    assert "| `trainer.updates_per_step` | `1.0` | `1.0` | `1.0` | `20.0` | `20.0` | `1.0` |" in lines
    assert not any("memory_units" in line for line in lines)


def test_a_preset_says_what_its_file_does_beside_the_defaults():
    lines = preset_table("sac redq").splitlines()
    assert lines[0] == "| option | preset | default | values | effect |"
    assert lines[2] == "| `algorithm.critics` | `10` | `2` | 2; 10 (REDQ) | Number of critics. |"
    assert lines[-1].startswith("| `trainer.updates_per_step` | `20.0` | `1.0` | ")
    rates = [line for line in preset_table("sac crossq").splitlines() if ".learning_rate`" in line]
    assert [line.count("learning_rate`") for line in rates] == [3]
    assert "| `algorithm.epsilon.end` | `0.0` | `0.05` | " in preset_table("dqn rainbow")


def test_what_is_not_there_is_named():
    with pytest.raises(ConfigError, match="'rate' has no docstring"):
        options_table("test_options_page:Silent")
    with pytest.raises(ConfigError, match="not a dataclass of options"):
        options_table("test_options_page:name")
    with pytest.raises(ConfigError, match=r"sac has no preset 'redk'.*Did you mean 'redq'"):
        preset_table("sac redk")
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
