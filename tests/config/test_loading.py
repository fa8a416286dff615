"""Mappings become dataclasses strictly: every mistake is named with its place and the nearest right word."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickrate.config.loading import convert, dump_yaml, from_mapping, parse_yaml, read_yaml, to_mapping
from tickrate.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    rate: float = 1.0
    pair: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ConfigError(f"rate is {self.rate}; it must not be negative")


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    mode: Literal["fast", "slow"] = "fast"
    names: tuple[str, ...] = ()
    limit: int | None = None
    table: dict[int, tuple[float, float]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    free: dict[str, Any] = field(default_factory=dict)
    on: bool = False
    place: Path = Path("x")


def test_everything_is_built_as_annotated():
    outer = from_mapping(
        Outer,
        {
            "inner": {"rate": 3, "pair": [3, 4]},
            "mode": "slow",
            "names": ["a", "b"],
            "limit": None,
            "table": {0: [0, 0.5]},
            "sizes": [1],
            "free": {"anything": [1, {"x": None}]},
            "on": True,
            "place": "some/where",
        },
    )
    assert outer == Outer(
        inner=Inner(3.0, (3, 4)),
        mode="slow",
        names=("a", "b"),
        table={0: (0.0, 0.5)},
        sizes=[1],
        free={"anything": [1, {"x": None}]},
        on=True,
        place=Path("some/where"),
    )
    assert isinstance(outer.inner.rate, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"iner": {}}, "unknown key 'iner'. Did you mean 'inner'"),
        ({"inner": {"rat": 1}}, "unknown key 'inner.rat'. Did you mean 'rate'.*Valid keys here: rate, pair"),
        ({"inner": {"rate": "fast"}}, "inner.rate is 'fast' .str.; expected float"),
        ({"inner": {"rate": True}}, "inner.rate is True; expected float"),
        ({"inner": {"rate": -1}}, "in inner: rate is -1"),
        ({"inner": {"pair": [1]}}, "inner.pair is .1.; expected 2 values"),
        ({"inner": {"pair": [1, 2.5]}}, r"inner.pair\[1\] is 2.5"),
        ({"inner": {"pair": "12"}}, "inner.pair is '12'; expected a list"),
        ({"inner": None}, "inner: expected a section with keys, got None. Valid keys there: "),
        ({"inner": [1]}, "inner: expected a section with keys"),
        ({"mode": "fats"}, "mode is 'fats'; choose one of .*Did you mean 'fast'"),
        ({"names": "abc"}, "names is 'abc'; expected a list"),
        ({"names": [1]}, r"names\[0\] is 1"),
        ({"limit": 1.5}, "limit is 1.5"),
        ({"limit": True}, "limit is True"),
        ({"table": [1]}, "table is .1.; expected a mapping"),
        ({"table": {"a": [0, 1]}}, "a key of table is 'a'"),
        ({"table": {0: [0]}}, "table.0 is .0.; expected 2 values"),
        ({"on": 1}, "on is 1 .int.; expected bool"),
        ({"on": "yes"}, "on is 'yes'"),
        ({"place": 3}, "place is 3"),
        ({1: 2}, "unknown key '1'"),
    ],
)
def test_each_mistake_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        from_mapping(Outer, values)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), (" 2 ", 2.0), ("inf", np.inf)])
def test_numbers_written_as_text_are_numbers_where_a_number_is_due(text, value):
    assert convert(float, text, "x") == value


def test_a_whole_number_too_large_for_a_float_is_refused():
    with pytest.raises(ConfigError, match="x is 1000"):
        convert(float, 10**400, "x")


# --- YAML ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".1e-2", "+1e-3", "1.0e-3"])
def test_yaml_reads_exponents_as_numbers(text):
    assert parse_yaml(text, "here") == pytest.approx(1e-3)


@pytest.mark.parametrize("text", ["1e", "e3", "1e3x", "v1e3", "1-e3"])
def test_yaml_leaves_words_alone(text):
    assert parse_yaml(text, "here") == text


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(plain | st.sampled_from(["1e-3", "-1E5", ".5e3", "1.e7", "yes", "null", "0x10", "1_000", "12:30"]))
def test_what_is_dumped_is_read_back(value):
    back = parse_yaml(dump_yaml(value), "here")
    assert back == value
    assert type(back) is type(value)


def test_what_yaml_cannot_hold_is_refused():
    with pytest.raises(ConfigError, match="only plain values"):
        dump_yaml({"x": object()})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "the key 'c' is given twice(.|\n)*line 4"),
        ("a: [1,\n", "no valid YAML"),
        ("? [1, 2]\n: 3\n", "no valid YAML"),
        ("!!python/object/apply:os.system ['true']\n", "no valid YAML"),
        ("- 1\n", "holds list, not a mapping"),
        ("", "holds NoneType"),
    ],
)
def test_files_that_are_no_experiment_are_refused_with_their_line(tmp_path, text, message):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_yaml(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_yaml(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_yaml(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="no text"):
        read_yaml(tmp_path / "b.yaml")


def test_anchors_and_merges_work(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: &base {x: 1, y: 2}\nb:\n  <<: *base\n  y: 3\n", encoding="utf-8")
    assert read_yaml(path) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


def test_dataclasses_become_plain_values():
    outer = Outer(names=("a",), table={np.int64(1): (np.float32(0.5), 1.0)}, place=Path("p"))
    values = to_mapping(outer)
    assert values["names"] == ["a"]
    assert values["table"] == {1: [0.5, 1.0]}
    assert values["place"] == "p"
    assert from_mapping(Outer, parse_yaml(dump_yaml(values), "here")) == outer
