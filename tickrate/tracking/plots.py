"""The pictures of a run folder: learning curve and timing histogram. The one file that uses matplotlib.

Figures are built without pyplot: no global state, no window, and it works in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

_TRAIN = "#4477aa"
_EVAL = "#ee6677"
_GOOD = "#228833"
_INK = "#333333"
_FAINT = "#bbbbbb"


def learning_curve(
    path: Path,
    episodes: Sequence[Mapping[str, Any]],
    *,
    title: str = "Learning curve",
    references: Mapping[str, float] | None = None,
) -> None:
    """Draw the returns and lap times of a run's episodes, over steps and over wall time, as a PNG.

    Args:
        path: where to write it; replaced in one step, so that no viewer meets half a picture.
        episodes: one mapping each with ``evaluation`` (bool), ``return`` and ``total_steps``; and, if known,
            ``finished`` (wall time, s since the epoch), ``duration_s``, ``lap_time_s`` and ``clean`` (bool).
            The row of lap times is left out when no episode has one.
        title: stands above.
        references: name to lap time (s) of yardsticks, drawn as lines.

    Raises:
        OSError: if the file cannot be written.
    """
    laps = any(_number(e, "lap_time_s") is not None for e in episodes)
    height = 6.4 if laps else 3.6
    figure = Figure(figsize=(10.5, height), dpi=110, layout="constrained")
    grid: NDArray[Any] = figure.subplots(2 if laps else 1, 2, squeeze=False, sharey="row", sharex="col")
    start = _start(episodes)
    for column in range(2):
        x_of = (lambda e: _number(e, "total_steps")) if column == 0 else (lambda e: _minutes(e, start))
        _draw_returns(grid[0, column], episodes, x_of)
        if laps:
            _draw_laps(grid[1, column], episodes, x_of, references or {})
    for ax in grid.flat:
        _dress(ax)
    grid[0, 0].set_ylabel("return")
    if laps:
        grid[1, 0].set_ylabel("lap time (s)")
    grid[-1, 0].set_xlabel("steps")
    grid[-1, 0].xaxis.set_major_formatter(FuncFormatter(_thousands))
    grid[-1, 1].set_xlabel("wall time (min)")
    handles = [h for row in grid[:, 0] for h in row.get_legend_handles_labels()[0]]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color=_INK)
    _save(figure, path)


def timing_histogram(path: Path, lateness_s: NDArray[Any], period_s: float, *, title: str = "") -> None:
    """Draw how late the commands of a run were, as a PNG.

    Args:
        path: where to write it; replaced in one step.
        lateness_s: ``(n,)`` lateness of each step's command (s); values that are not finite are left out.
        period_s: the control period (s); the share of it is said beside the milliseconds.
        title: stands above; a sentence with the rate is made when empty.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if ``period_s`` is not positive.
    """
    if period_s <= 0:
        raise ValueError(f"the control period must be positive, got {period_s} s")
    late_ms = np.asarray(lateness_s, dtype=np.float64).ravel() * 1e3
    late_ms = late_ms[np.isfinite(late_ms)]
    figure = Figure(figsize=(9.0, 4.2), dpi=110, layout="constrained")
    ax = figure.subplots()
    _dress(ax)
    ax.set_xlabel("lateness of the command (ms, logarithmic)")
    ax.set_ylabel("steps (logarithmic)")
    figure.suptitle(
        title or f"Lateness at {1 / period_s:g} Hz, {len(late_ms):,} steps",
        x=0.01,
        ha="left",
        fontsize=13,
        color=_INK,
    )
    if len(late_ms):
        _draw_histogram(figure, ax, late_ms, period_s * 1e3)
    else:
        _say_empty(ax, "no steps yet")
    _save(figure, path)


def _draw_returns(ax: Axes, episodes: Sequence[Mapping[str, Any]], x_of: Any) -> None:
    any_drawn = False
    for evaluation, color, name in ((False, _TRAIN, "training"), (True, _EVAL, "evaluation")):
        x, y = _points([e for e in episodes if bool(e.get("evaluation")) == evaluation], x_of, "return")
        if not len(x):
            continue
        any_drawn = True
        ax.plot(
            x,
            y,
            "o",
            ms=3 if not evaluation else 4.5,
            color=color,
            alpha=0.3 if not evaluation else 0.75,
            mew=0,
        )
        ax.plot(x, _running_mean(y), "-", lw=2, color=color, label=f"{name} return, running mean")
    if not any_drawn:
        _say_empty(ax, "no episodes yet")


def _draw_laps(
    ax: Axes, episodes: Sequence[Mapping[str, Any]], x_of: Any, references: Mapping[str, float]
) -> None:
    for evaluation, color, marker in ((False, _TRAIN, "o"), (True, _EVAL, "D")):
        kind = "evaluation" if evaluation else "training"
        chosen = [e for e in episodes if bool(e.get("evaluation")) == evaluation]
        for clean in (True, False):
            x, y = _points([e for e in chosen if bool(e.get("clean", True)) == clean], x_of, "lap_time_s")
            if len(x):
                face = color if clean else "none"
                label = f"{kind} lap" + ("" if clean else ", with contact")
                ax.plot(x, y, marker, ms=5, mfc=face, mec=color, mew=1, ls="none", alpha=0.8, label=label)
    x, y = _points([e for e in episodes if e.get("clean", True)], x_of, "lap_time_s")
    if len(x):
        ax.step(x, np.minimum.accumulate(y), where="post", color=_GOOD, lw=1.8, label="best clean lap so far")
    for name, lap_s in references.items():
        ax.axhline(lap_s, color=_INK, lw=1, ls=(0, (4, 3)))
        ax.annotate(
            f"{name} {lap_s:.1f} s", (1, lap_s), xycoords=("axes fraction", "data"), xytext=(-3, 3),
            textcoords="offset points", ha="right", fontsize=8, color=_INK,
        )  # fmt: skip


def _draw_histogram(figure: Figure, ax: Axes, late_ms: NDArray[np.float64], period_ms: float) -> None:
    # Early and punctual commands would stretch a logarithmic axis without an end: they stand at its left.
    floor = max(1e-3, float(np.median(late_ms)) / 100)
    values = np.maximum(late_ms, floor)
    top = max(float(values.max()) * 2, floor * 100)
    bins = np.geomspace(floor, top, 70)
    ax.hist(values, bins=bins.tolist(), color=_TRAIN, alpha=0.85)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.7)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    p50, p99, worst = (float(v) for v in (*np.percentile(late_ms, [50, 99]), late_ms.max()))
    for value, color in ((p50, _GOOD), (p99, _EVAL), (worst, _INK)):
        ax.axvline(max(value, floor), color=color, lw=1.5, ls=(0, (4, 2)))
    if period_ms < top:
        ax.axvspan(period_ms, top, color=_EVAL, alpha=0.1, lw=0)
        over = int((late_ms > period_ms).sum())
        ax.text(
            period_ms,
            0.97,
            f" over a period: {over} ",
            transform=ax.get_xaxis_transform(),
            ha="right",
            va="top",
            fontsize=8,
            color=_INK,
        )
    ax.set_xlim(floor, top)
    lines = [
        f"{name} {value:.3g} ms, {100 * value / period_ms:.3g} % of the period"
        for name, value in (("p50", p50), ("p99", p99), ("max", worst))
    ]
    figure.legend(ax.lines[:3], lines, loc="outside lower center", ncols=3, fontsize=9, frameon=False)


def _points(
    episodes: Sequence[Mapping[str, Any]], x_of: Any, key: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x and y of the episodes that have both, by x."""
    pairs = [(x, y) for e in episodes if (x := x_of(e)) is not None and (y := _number(e, key)) is not None]
    array = np.array(sorted(pairs), dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _number(episode: Mapping[str, Any], key: str) -> float | None:
    value = episode.get(key)
    return float(value) if value is not None and np.isfinite(value) else None


def _start(episodes: Sequence[Mapping[str, Any]]) -> float:
    """Return the wall time at which the first episode began, as well as its report tells."""
    begins = [
        f - (_number(e, "duration_s") or 0.0) for e in episodes if (f := _number(e, "finished")) is not None
    ]
    return min(begins, default=0.0)


def _minutes(episode: Mapping[str, Any], start: float) -> float | None:
    finished = _number(episode, "finished")
    return None if finished is None else (finished - start) / 60


def _running_mean(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each point and those before it: over a tenth of all points, at most 20."""
    window = int(np.clip(len(y) // 10, 1, 20))
    total = np.concatenate([[0.0], np.cumsum(y)])
    last = np.arange(1, len(y) + 1)
    first = np.maximum(0, last - window)
    mean: NDArray[np.float64] = (total[last] - total[first]) / (last - first)
    return mean


def _dress(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_FAINT)
    ax.tick_params(colors=_INK, labelsize=9, which="both", color=_FAINT)
    ax.grid(True, color=_FAINT, lw=0.5, alpha=0.5)
    ax.set_axisbelow(True)


def _say_empty(ax: Axes, text: str) -> None:
    ax.tick_params(labelbottom=False, labelleft=False)
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=_FAINT, fontsize=12)


def _thousands(value: float, _: object) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"


def _save(figure: Figure, path: Path) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, format="png")
    partial.replace(path)
