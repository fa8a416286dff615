"""The code on the documentation pages runs, top to bottom, on a fake clock."""

import re
from pathlib import Path

import pytest

import tickrate.clock
from tickrate.testing import FakeClock

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["tutorial_drone.md", "testing.md"])
def test_the_code_of_a_page_runs(page, monkeypatch, capsys):
    clock = FakeClock(start=1.0)
    for module in ("realtime.env", "testing.contracts"):
        monkeypatch.setattr(f"tickrate.{module}.make_clock", lambda mode: clock)
    monkeypatch.setattr("tickrate.realtime.dummy_drone.now", clock.now)
    monkeypatch.setattr(tickrate.clock, "sleep", clock.advance)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 4
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)
    if page == "tutorial_drone.md":
        out = capsys.readouterr().out
        assert "act_buf_len of at least" in out
        assert "target reached" in out or "out of time" in out


@pytest.mark.parametrize("page", ["tutorial_drone.md", "testing.md"])
def test_links_between_the_pages_lead_somewhere(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (DOCS / target).exists(), target
    for example in re.findall(r"`(examples/[\w.]+)`", text):
        assert (DOCS.parent / example).exists(), example
