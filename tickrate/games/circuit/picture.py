"""A PNG of a track with driven lines, coloured by speed. Needs matplotlib; draws without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tickrate.games.circuit.track import Track

Float = NDArray[np.float64]


def draw_png(
    track: Track, lines: Mapping[str, Float], path: Path | str, *, title: str = "", top_speed: float = 30.0
) -> Path:
    """Write a PNG with one panel for each driven line (one empty track if there is none); returns its path.

    Args:
        track: the track.
        lines: by title, (n, 3) arrays of x, y in metres and speed in m/s, in driving order.
        path: the file to write.
        title: headline of the whole picture.
        top_speed: speed in m/s at the bright end of the colours.
    """
    panels = list(lines.items()) or [("", np.zeros((0, 3)))]
    size = np.ptp(np.vstack([track.left, track.right]), axis=0)
    width = 5.0
    figure = Figure(
        figsize=(width * len(panels) + 1.0, width * float(size[1] / size[0]) + 1.0), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    coloured: LineCollection | None = None
    for axis, (name, line) in zip(axes, panels, strict=True):
        draw_track(axis, track)
        axis.set_title(name, fontsize=10)
        if len(line) > 1:
            coloured = draw_line(axis, line, top_speed)
    if coloured is not None:
        figure.colorbar(coloured, ax=list(axes), label="speed (m/s)", shrink=0.8)
    if title:
        figure.suptitle(title)
    path = Path(path)
    figure.savefig(path, dpi=110)
    return path


def draw_track(axis: Axes, track: Track) -> None:
    """Draw walls, start line and driving direction of a track."""
    ring = np.vstack([track.left, track.left[:1], track.right[:1], track.right[::-1]])
    axis.fill(ring[:, 0], ring[:, 1], color="0.92", linewidth=0)
    for wall in (track.left, track.right):
        closed = np.vstack([wall, wall[:1]])
        axis.plot(closed[:, 0], closed[:, 1], color="0.25", linewidth=1.2)
    start = np.stack([track.left[0], track.right[0]])
    axis.plot(start[:, 0], start[:, 1], color="tab:red", linewidth=2.5)
    x, y = track.centre[0] + 0.5 * track.tangent[0]
    dx, dy = 12.0 * track.tangent[0]
    axis.annotate("", (x + dx, y + dy), (x, y), arrowprops={"arrowstyle": "->", "color": "tab:red"})
    axis.set_aspect("equal")
    axis.set_axis_off()


def draw_line(axis: Axes, line: Float, top_speed: float) -> LineCollection:
    """Draw a driven line, (n, 3) of x, y in metres and speed in m/s; ``top_speed`` ends the colours."""
    segments = np.stack([line[:-1, :2], line[1:, :2]], axis=1)
    coloured = LineCollection(list(segments), cmap="plasma", linewidths=2.0)
    coloured.set_array(line[1:, 2])
    coloured.set_clim(0.0, top_speed)
    axis.add_collection(coloured)
    return coloured
