"""A picture of a track and a driven line for the terminal, in braille dots (2 x 4 a character)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tickrate.games.circuit.track import Track

Float = NDArray[np.float64]

_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


def sketch(track: Track, line: Float | None = None, *, columns: int = 72) -> str:
    """Return lines of text: the walls as dots, the start line, and the driven line.

    Args:
        track: the track.
        line: (n, 2) positions in metres, in driving order; None or empty for none.
        columns: width of the picture in characters, at least 8; its height follows from the track.
    """
    columns = max(8, columns)
    walls = np.vstack([track.left, track.right])
    low, high = walls.min(axis=0) - 1.0, walls.max(axis=0) + 1.0
    metres_per_dot = float(high[0] - low[0]) / (2 * columns)
    rows = int(np.ceil((high[1] - low[1]) / metres_per_dot / 4))
    dots = np.zeros((4 * rows, 2 * columns), dtype=bool)
    start = np.linspace(track.left[0], track.right[0], 32)
    driven = np.zeros((0, 2)) if line is None or len(line) == 0 else _dense(line, metres_per_dot)
    for points in (
        _dense(np.vstack([track.left, track.left[:1]]), metres_per_dot),
        _dense(np.vstack([track.right, track.right[:1]]), metres_per_dot),
        start,
        driven,
    ):
        column = ((points[:, 0] - low[0]) / metres_per_dot).astype(int)
        row = ((high[1] - points[:, 1]) / metres_per_dot).astype(int)
        inside = (column >= 0) & (column < dots.shape[1]) & (row >= 0) & (row < dots.shape[0])
        dots[row[inside], column[inside]] = True
    cells = dots.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)
    codes = 0x2800 + (cells * _DOTS).sum(axis=(2, 3))
    return "\n".join("".join(map(chr, row)).rstrip("\u2800") for row in codes)


def _dense(line: Float, spacing_m: float) -> Float:
    """Return the line with points at most ``spacing_m`` apart."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
    wanted = np.linspace(0.0, along[-1], int(along[-1] / spacing_m * 1.5) + 2)
    return np.stack([np.interp(wanted, along, line[:, axis]) for axis in (0, 1)], axis=1)
