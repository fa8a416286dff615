"""Pictures of a track: a PNG file and lines of text."""

from pathlib import Path

import numpy as np
import pytest

from tickrate.games.circuit.drivers import GapFollower
from tickrate.games.circuit.picture import draw_png
from tickrate.games.circuit.simulation import simulate_lap
from tickrate.games.circuit.sketch import sketch
from tickrate.games.circuit.track import TRACKS, make_track


def test_a_png_of_a_lap(tmp_path: Path) -> None:
    track = make_track("oval")
    lap = simulate_lap(GapFollower(), track)
    line = np.column_stack([lap.xy, lap.speed])
    path = draw_png(
        track, {"gap follower": line, "nothing yet": line[:0]}, tmp_path / "lap.png", title="oval"
    )
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 10_000
    assert len(draw_png(track, {}, tmp_path / "empty.png").read_bytes()) < len(data)


@pytest.mark.parametrize("name", TRACKS)
def test_a_sketch_is_as_wide_as_asked_and_shows_the_line(name: str) -> None:
    track = make_track(name)
    empty = sketch(track, columns=40)
    assert max(map(len, empty.splitlines())) <= 40
    assert set(empty) - {"\n"} <= set(map(chr, range(0x2800, 0x2900)))
    driven = sketch(track, track.centre, columns=40)

    def dots(text: str) -> int:
        return sum((ord(char) - 0x2800).bit_count() for char in text if char != "\n")

    assert dots(driven) > dots(empty)
    assert sketch(track, np.array([[1e6, 1e6], [1e6, 1e6]]), columns=40) == empty
