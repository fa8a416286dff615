"""An endless episode that another thread writes into a replay: every value of row n is n, so tears show."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from tickrate.data.schema import Field, RecordSchema

WIDE = RecordSchema(
    (Field("a", "float64", (4,)), Field("frame", "float64", (160,)), Field("pair", "float64", (), stack=2)),
    Field("action", "float64", (3,)),
)
"""Rows long enough to be torn: narrow columns, a wide one, and a history."""
CHUNK = 100
LIMIT_S = 30.0


@contextmanager
def endless_writer(replay):
    """Write into ``replay`` until the block ends; give a function that tells how many rows came meanwhile."""
    schema, done = replay.schema, threading.Event()

    def write():
        number = 0
        while not done.is_set():
            rows = schema.empty(CHUNK)
            value = np.arange(number, number + CHUNK)
            rows["step"], rows["reward"] = value, value
            for name in ("action", *(f"o/{field.name}" for field in schema.observation)):
                rows[name] = value.reshape(-1, *[1] * (rows[name].ndim - 1))
            replay.add(rows)
            number += CHUNK

    def written():
        if writing.done():
            writing.result()  # raises what ended it
        assert time.monotonic() < limit, "the writer does not come on"
        return replay.rows_added - first

    first, limit = 0, time.monotonic() + LIMIT_S
    pool = ThreadPoolExecutor(1)
    writing = pool.submit(write)
    try:
        while not len(replay):
            written()
            done.wait(0.001)
        first = replay.rows_added
        yield written
    finally:
        done.set()
        pool.shutdown(wait=False)
    writing.result(10)
