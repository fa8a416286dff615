from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from tickrate.tracking import plots


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Collect the figures that are saved, to look at what they show."""
    figures: list[Figure] = []
    save = plots._save

    def collect(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", collect)
    return figures


def episode(steps: int, ret: float, *, evaluation: bool = False, **more: object) -> dict[str, object]:
    return {"evaluation": evaluation, "return": ret, "total_steps": steps, "finished": 60.0 * steps, **more}


def data(figure: Figure, axis: int, label: str) -> list[tuple[float, float]]:
    (line,) = [line for line in figure.axes[axis].lines if line.get_label() == label]
    return [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_returns_stand_over_steps_and_over_minutes(tmp_path, drawn):
    plots.learning_curve(
        tmp_path / "sub" / "c.png",
        [episode(20, 3.0, duration_s=30.0), episode(10, 1.0), episode(30, 9.0, evaluation=True)],
    )
    assert len(drawn[0].axes) == 2  # no laps, no row for them
    assert data(drawn[0], 0, "training return, running mean") == [(10, 1.0), (20, 3.0)]
    assert data(drawn[0], 0, "evaluation return, running mean") == [(30, 9.0)]
    assert data(drawn[0], 1, "training return, running mean") == [(0.0, 1.0), (10.0, 3.0)]
    image = matplotlib.image.imread(tmp_path / "sub" / "c.png")
    assert image.shape[0] > 300
    assert image.std() > 0.01
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["c.png"]


def test_laps_with_contact_are_apart_and_do_not_count_as_best(tmp_path, drawn):
    plots.learning_curve(
        tmp_path / "c.png",
        [
            episode(1, 0.0, lap_time_s=30.0, clean=True),
            episode(2, 0.0, lap_time_s=20.0, clean=False),
            episode(3, 0.0, lap_time_s=28.0, clean=True, evaluation=True),
            episode(4, 0.0, lap_time_s=29.0, clean=True),
            episode(5, 0.0, lap_time_s=None),
            episode(6, 0.0, lap_time_s=float("nan")),
        ],
        references={"pure pursuit": 27.5},
    )
    figure = drawn[0]
    assert len(figure.axes) == 4
    assert data(figure, 2, "training lap") == [(1, 30.0), (4, 29.0)]
    assert data(figure, 2, "training lap, with contact") == [(2, 20.0)]
    assert data(figure, 2, "evaluation lap") == [(3, 28.0)]
    assert data(figure, 2, "best clean lap so far") == [(1, 30.0), (3, 28.0), (4, 28.0)]
    assert "pure pursuit 27.5 s" in [text.get_text() for text in figure.axes[2].texts]


@pytest.mark.parametrize(
    "episodes", [[], [{"evaluation": False}], [{"return": float("nan"), "total_steps": 1}]]
)
def test_a_run_without_episodes_draws_an_empty_picture(tmp_path, drawn, episodes):
    plots.learning_curve(tmp_path / "c.png", episodes)
    assert "no episodes yet" in [text.get_text() for text in drawn[0].axes[0].texts]


def test_the_running_mean_looks_back_only():
    y = np.arange(40.0)
    mean = plots._running_mean(y)
    assert mean[:4].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert mean[39] == (36 + 37 + 38 + 39) / 4


def test_the_histogram_names_the_quantiles(tmp_path, drawn):
    late = np.array([0.001] * 99 + [0.060, np.nan, -0.0005])
    plots.timing_histogram(tmp_path / "t.png", late, 0.05)
    figure = drawn[0]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[0] == "p50 1 ms, 2 % of the period"
    assert texts[2] == "max 60 ms, 120 % of the period"
    counts = [patch.get_height() for patch in figure.axes[0].patches if hasattr(patch, "get_height")]
    assert sum(c for c in counts if c >= 1) >= 101  # every finite value is in a bar
    assert any("over a period: 1" in text.get_text() for text in figure.axes[0].texts)


@pytest.mark.parametrize("late", [np.array([]), np.array([np.nan]), np.zeros(5), np.full(3, -1.0)])
def test_odd_lateness_draws_too(tmp_path, late):
    plots.timing_histogram(tmp_path / "t.png", late, 0.05)
    assert (tmp_path / "t.png").stat().st_size > 1000


def test_an_impossible_period_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be positive, got 0 s"):
        plots.timing_histogram(tmp_path / "t.png", np.zeros(3), 0)


def test_pictures_need_no_pyplot_and_no_display():
    root = Path(__file__).resolve().parents[2]
    code = (
        "import sys, tickrate.tracking.plots\n"
        "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False False"
