from __future__ import annotations

import re
from pathlib import Path

import pytest

from tickrate.tracking import METRICS, check_keys
from tickrate.tracking.console import SHOWN
from tickrate.tracking.metrics import make_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_page_is_the_table():
    assert PAGE.read_text(encoding="utf-8") == make_page(), f"{PAGE} is stale; see make_page()"


def test_every_metric_is_named_and_explained():
    for key, metric in METRICS.items():
        assert re.fullmatch(r"[a-z]+/[a-z0-9_]+", key)
        assert metric.meaning.endswith(".")
        assert metric.label
        assert "|" not in metric.meaning


@pytest.mark.parametrize(("suffix", "unit"), [("_ms", "ms"), ("_s", "s"), ("_hz", "1/s"), ("_per_s", "1/s")])
def test_units_in_names_agree_with_the_table(suffix, unit):
    for key, metric in METRICS.items():
        if key.endswith(suffix) and not (suffix == "_s" and key.endswith("_per_s")):
            assert metric.unit == unit, key


def test_the_console_shows_metrics_of_the_table():
    check_keys(SHOWN)


def test_a_key_outside_the_table_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"'train/retrun' is not in METRICS.*Did you mean 'train/return'"):
        check_keys(["eval/return", "train/retrun"])
