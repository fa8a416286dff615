from __future__ import annotations

import math
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tickrate.errors import MessageError, VersionMismatch
from tickrate.wire import arrays, messages
from tickrate.wire.messages import (
    PROTOCOL_VERSION,
    Command,
    Credit,
    EpisodeReport,
    Hello,
    RowBatch,
    Status,
    decode,
    encode,
    make_weights,
    new_boot,
)

WHO = {"run": "r1", "worker": "w0", "boot": 7, "sequence": 3}
ROW = np.dtype([("step", "<u4"), ("reward", "<f4"), ("action", "<f4", (2,))], align=True)


def some_rows(count: int) -> np.ndarray:
    rows = np.zeros(count, ROW)
    rows["step"] = np.arange(count)
    rows["reward"] = np.arange(count) / 4
    return rows


def batch(count: int = 3) -> RowBatch:
    return arrays.pack_rows(
        some_rows(count), run="r1", worker="w0", boot=7, sequence=40, schema_digest="abc", dropped=2
    )


EXAMPLES = [
    Hello(**WHO, role="worker", version="0.1.0", schema="{}", contract='{"period_s": 0.05}'),
    batch(),
    batch(0),
    Credit(**WHO, granted=2**53 - 1),
    make_weights(b"\x00" * 1000, run="r1", worker="w0", boot=7, version=9, created=12.5),
    EpisodeReport(
        **WHO,
        episode=5,
        evaluation=True,
        policy_version=9,
        steps=100,
        return_=-3.5,
        duration_s=5.0,
        ended="terminated",
        lap_time_s=17.25,
        clean=False,
        total_steps=1000,
        finished=1.7e9,
        metrics={"train/return": math.inf},
    ),
    Status(**WHO, role="trainer", state="learning", text="1200 updates", time=1.7e9, metrics={}),
    Command(**WHO, target="*", action="stop_device"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_messages_come_back_equal(message):
    assert decode(encode(message)) == message


def test_the_header_is_four_bytes_with_the_version_last():
    assert encode(Credit(**WHO, granted=1))[:4] == b"TKR\x01"
    assert PROTOCOL_VERSION == 1


def test_the_wire_form_is_plain_messagepack():
    body = msgspec.msgpack.decode(encode(Credit(**WHO, granted=5))[4:])
    assert body == {"kind": "credit", "run": "r1", "worker": "w0", "boot": 7, "sequence": 3, "granted": 5}


def test_another_version_is_named_before_anything_is_decoded():
    with pytest.raises(VersionMismatch, match=r"version 2 .* version 1"):
        decode(b"TKR\x02 whatever the future brings")


@pytest.mark.parametrize("data", [b"", b"TKR", b"\x80\x04\x95 a pickle", b"GET / HTTP/1.1\r\n"])
def test_foreign_bytes_are_no_message(data):
    with pytest.raises(MessageError, match="not a tickrate message"):
        decode(data)


def tampered(message: object, **changes: object) -> bytes:
    fields = msgspec.msgpack.decode(encode(message)[4:]) | changes
    return b"TKR\x01" + msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (EXAMPLES[3], {"granted": -1}),
        (EXAMPLES[3], {"granted": 2**60}),
        (EXAMPLES[3], {"granted": "7"}),
        (EXAMPLES[3], {"granted": 1.5}),
        (EXAMPLES[3], {"unknown": 1}),
        (EXAMPLES[3], {"kind": "self-destruct"}),
        (EXAMPLES[3], {"run": ""}),
        (EXAMPLES[3], {"run": "x" * 129}),
        (EXAMPLES[0], {"schema": "x" * ((1 << 20) + 1)}),
        (EXAMPLES[0], {"role": "admin"}),
        (EXAMPLES[6], {"metrics": {str(i): 0.0 for i in range(257)}}),
        (EXAMPLES[6], {"metrics": {"a": "b"}}),
        (EXAMPLES[7], {"action": "rm"}),
    ],
)
def test_each_limit_is_checked_on_arrival(message, changes):
    with pytest.raises(MessageError, match="damaged or foreign"):
        decode(tampered(message, **changes))


def test_the_sender_is_told_of_a_message_no_one_would_take():
    with pytest.raises(MessageError, match=r"cannot send this Credit: .*granted"):
        encode(Credit(**WHO, granted=-1))
    with pytest.raises(MessageError, match="cannot send this Status"):
        encode(Status(**WHO, role="worker", state="x" * 200))


def test_oversize_is_refused_on_both_sides(monkeypatch):
    data = encode(batch())
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", len(data) - 1)
    with pytest.raises(MessageError, match=f"{len(data)} bytes is over the limit"):
        decode(data)
    with pytest.raises(MessageError, match="over the limit"):
        encode(batch())


def test_damaged_payloads_are_refused():
    rows = bytearray(batch().rows)
    rows[5] ^= 1
    with pytest.raises(MessageError, match="RowBatch 40 of 'w0' was damaged"):
        decode(tampered(batch(), rows=bytes(rows)))
    with pytest.raises(MessageError, match=r"Weights 9 .* damaged"):
        decode(tampered(EXAMPLES[4], payload=b"\x01" * 1000))


def decodes_or_refuses(data: bytes) -> None:
    try:
        decode(data)
    except (MessageError, VersionMismatch):
        pass


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_our_errors_only(data):
    decodes_or_refuses(data)
    decodes_or_refuses(b"TKR\x01" + data)


@given(st.sampled_from(EXAMPLES), st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_messages_raise_our_errors_only(message, data):
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if action == "flip":
            raw[position] = data.draw(st.integers(0, 255))
        elif action == "insert":
            raw[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        elif position:
            del raw[position:]
    decodes_or_refuses(bytes(raw))


@given(st.sampled_from([0x81, 0x91]), st.integers(1, 100_000))
@example(0x91, 2_000_000)
@settings(max_examples=20, deadline=None)
def test_deep_nesting_raises_our_errors_only(byte, depth):
    decodes_or_refuses(b"TKR\x01" + bytes([byte]) * depth)
    decodes_or_refuses(b"TKR\x01\x81\xa4kind" + bytes([byte]) * depth)
    decodes_or_refuses(b"TKR\x01\x82\xa1x" + bytes([0x91]) * depth + b"\xc0\xa4kind\xa6credit")


def test_boots_are_ordered_and_fit_the_field(monkeypatch):
    monkeypatch.setattr(messages, "wall_time", lambda: 1_700_000_000.000)
    first = new_boot()
    monkeypatch.setattr(messages, "wall_time", lambda: 1_700_000_000.001)
    assert first < new_boot() < 2**53
    assert first >> 10 == 1_700_000_000_000


# --- rows ---


def test_rows_come_back_bit_for_bit():
    message = decode(encode(batch(5)))
    rows = arrays.unpack_rows(message, ROW, "abc")
    assert rows.tobytes() == some_rows(5).tobytes()
    assert (message.sequence, message.count, message.dropped) == (40, 5, 2)
    assert not rows.flags.writeable


def test_no_rows_are_a_message_too():
    assert len(arrays.unpack_rows(decode(encode(batch(0))), ROW, "abc")) == 0


def test_rows_of_another_schema_are_refused():
    with pytest.raises(MessageError, match="'abc', expected 'xyz'"):
        arrays.unpack_rows(batch(), ROW, "xyz")


@pytest.mark.parametrize("count", [2, 4, 2**52])
def test_sizes_are_never_trusted(count):
    lying = msgspec.structs.replace(batch(3), count=count)
    with pytest.raises(MessageError, match=f"48 bytes are not {count} rows of 16 bytes"):
        arrays.unpack_rows(lying, ROW, "abc")


def test_non_contiguous_rows_are_packed_in_order():
    message = arrays.pack_rows(some_rows(6)[::2], run="r", worker="w", boot=1, sequence=0, schema_digest="d")
    assert arrays.unpack_rows(message, ROW, "d")["step"].tolist() == [0, 2, 4]
    assert message.crc32 == zlib.crc32(message.rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 2), ROW), "one-dimensional"),
        (np.zeros(2, [("o", object)]), "without objects"),
        (np.zeros(2, [("big", "u1", (9 << 20,))]), "send fewer"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(rows, message):
    with pytest.raises(MessageError, match=message):
        arrays.pack_rows(rows, run="r", worker="w", boot=1, sequence=0, schema_digest="d")
