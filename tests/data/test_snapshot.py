"""A snapshot whose checksum is right may still hold no header; that is said, and nothing else is raised."""

import zlib

import numpy as np
import pytest

from tickrate.data.snapshot import FORMAT, MAGIC, read_snapshot, write_snapshot
from tickrate.errors import RecordError


def test_header_and_bytes_come_back(tmp_path):
    path = tmp_path / "snapshot"
    write_snapshot(path, {"rows": 3}, [np.arange(3, dtype=np.uint8), np.ones(2, np.uint8)])
    header, data = read_snapshot(path)
    assert header == {"rows": 3}
    assert data.tolist() == [0, 1, 2, 1, 1]


@pytest.mark.parametrize("text", [b"", b"\xff", b"7", b"[1, 2]", b"null", b"[" * 100_000, b"9" * 5000])
def test_a_header_that_is_no_object_is_refused(tmp_path, text):
    body = MAGIC + FORMAT.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text
    path = tmp_path / "snapshot"
    path.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
    with pytest.raises(RecordError, match="its header is no JSON"):
        read_snapshot(path)
