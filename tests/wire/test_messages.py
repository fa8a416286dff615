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
    Ack,
    Command,
    EpisodeReport,
    Hello,
    InferReply,
    InferRequest,
    Ping,
    Refusal,
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
        some_rows(count), run="r1", worker="w0", boot=7, outbox=11, sequence=40, schema_digest="abc", oldest=2
    )


ACK = Ack(**WHO, outbox=11, acknowledged=40, granted=2**53 - 1, life=5)


EXAMPLES = [
    Hello(
        **WHO,
        role="worker",
        version="0.1.0",
        host="process 3 on box",
        purpose="drain",
        schema="{}",
        contract='{"period_s": 0.05}',
        outbox=11,
        oldest=2,
        head=45,
        reports=1,
        life=5,
    ),
    batch(),
    batch(0),
    ACK,
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
    Ping(**WHO, outbox=11, oldest=2, head=45, sent=44, sent_at=1.5, clock_offset_s=-3600.0, rtt_s=0.001),
    Ping(**WHO, outbox=11, oldest=0, head=0, sent=0, sent_at=0.0),
    Refusal(**WHO, code="evicted", text="another took its name"),
    InferRequest(**WHO, observation=b"o" * 8),
    InferReply(**WHO, actions=b"a" * 4),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_messages_come_back_equal(message):
    assert decode(encode(message)) == message


def test_the_header_is_four_bytes_with_the_version_last():
    assert encode(ACK)[:4] == b"TKR\x02"
    assert PROTOCOL_VERSION == 2


def test_the_wire_form_is_plain_messagepack():
    body = msgspec.msgpack.decode(encode(ACK)[4:])
    head = {"kind": "ack", "run": "r1", "worker": "w0", "boot": 7, "sequence": 3}
    assert body == head | {
        "outbox": 11,
        "acknowledged": 40,
        "granted": 2**53 - 1,
        "resend": False,
        "reports": 0,
        "life": 5,
        "echo": 0.0,
        "received_at": 0.0,
        "answered_at": 0.0,
    }


def test_another_version_is_named_before_anything_is_decoded():
    for other in (1, 3):
        with pytest.raises(VersionMismatch, match=rf"version {other} .* version 2"):
            decode(b"TKR" + bytes([other]) + b" whatever the future brings")


@pytest.mark.parametrize("data", [b"", b"TKR", b"\x80\x04\x95 a pickle", b"GET / HTTP/1.1\r\n"])
def test_foreign_bytes_are_no_message(data):
    with pytest.raises(MessageError, match="not a tickrate message"):
        decode(data)


def tampered(message: object, **changes: object) -> bytes:
    fields = msgspec.msgpack.decode(encode(message)[4:]) | changes
    return b"TKR\x02" + msgspec.msgpack.encode(fields)


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
        (EXAMPLES[1], {"packing": "bz2"}),
        (EXAMPLES[1], {"outbox": 2**60}),
        (EXAMPLES[1], {"crc32": 2**32}),
        (EXAMPLES[8], {"sent": -1}),
        (EXAMPLES[8], {"sent_at": "now"}),
        (EXAMPLES[10], {"code": "because"}),
        (EXAMPLES[10], {"text": "x" * 4097}),
    ],
)
def test_each_limit_is_checked_on_arrival(message, changes):
    with pytest.raises(MessageError, match="damaged or foreign"):
        decode(tampered(message, **changes))


def test_the_sender_is_told_of_a_message_no_one_would_take():
    with pytest.raises(MessageError, match=r"cannot send this Ack: .*granted"):
        encode(msgspec.structs.replace(ACK, granted=-1))
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
    decodes_or_refuses(b"TKR\x02" + data)


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
    decodes_or_refuses(b"TKR\x02" + bytes([byte]) * depth)
    decodes_or_refuses(b"TKR\x02\x81\xa4kind" + bytes([byte]) * depth)
    decodes_or_refuses(b"TKR\x02\x82\xa1x" + bytes([0x91]) * depth + b"\xc0\xa4kind\xa3ack")


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
    assert (message.outbox, message.sequence, message.count, message.oldest) == (11, 40, 5, 2)
    assert not rows.flags.writeable


def test_no_rows_are_a_message_too():
    assert len(arrays.unpack_rows(decode(encode(batch(0))), ROW, "abc")) == 0


def test_rows_of_another_schema_are_refused():
    with pytest.raises(MessageError, match="'abc', expected 'xyz'"):
        arrays.unpack_rows(batch(), ROW, "xyz")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, "48 bytes are not 2 rows of 16"),
        (4, "48 bytes are not 4 rows of 16"),
        (2**52, "are over 16777216"),
    ],
)
def test_sizes_are_never_trusted(count, words):
    lying = msgspec.structs.replace(batch(3), count=count)
    with pytest.raises(MessageError, match=words):
        arrays.unpack_rows(lying, ROW, "abc")


def test_non_contiguous_rows_are_packed_in_order():
    message = arrays.pack_rows(
        some_rows(6)[::2], run="r", worker="w", boot=1, outbox=1, sequence=0, schema_digest="d"
    )
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
        arrays.pack_rows(rows, run="r", worker="w", boot=1, outbox=1, sequence=0, schema_digest="d")


# --- compression ---


def packed(rows: np.ndarray, compress: arrays.Compression) -> RowBatch:
    return arrays.pack_rows(
        rows, run="r", worker="w", boot=1, outbox=1, sequence=0, schema_digest="d", compress=compress
    )


def noise(count: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(0).bytes(count * ROW.itemsize), ROW)


@pytest.mark.parametrize(
    ("rows", "compress", "packing"),
    [
        (some_rows(4000), "auto", "zlib"),  # mostly zeros: pays
        (noise(4000), "auto", "raw"),  # does not
        (some_rows(4000), "never", "raw"),
        (some_rows(4000), "always", "zlib"),
        (noise(4000), "always", "raw"),  # would only grow
        (some_rows(0), "always", "raw"),
    ],
)
def test_rows_are_compressed_where_it_pays_and_come_back_bit_for_bit(rows, compress, packing):
    message = decode(encode(packed(rows, compress)))
    assert message.packing == packing
    assert arrays.unpack_rows(message, ROW, "d").tobytes() == rows.tobytes()
    if packing == "zlib":
        assert len(message.rows) < 0.8 * rows.nbytes


def test_a_bomb_is_refused_and_never_inflated(monkeypatch):
    """64 MiB of zeros in 64 KB, said to be 3 rows: 49 bytes are the most that is ever unpacked."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    lying = msgspec.structs.replace(batch(3), packing="zlib", rows=bomb, crc32=zlib.crc32(bomb))
    made = []
    real = zlib.decompressobj

    class Watched:
        def __init__(self):
            self._real = real()

        def decompress(self, data, limit):
            made.append(self._real.decompress(data, limit))
            return made[-1]

    monkeypatch.setattr(arrays.zlib, "decompressobj", Watched)
    with pytest.raises(MessageError, match="49 bytes are not 3 rows of 16 bytes"):
        arrays.unpack_rows(decode(encode(lying)), ROW, "abc")
    assert [len(piece) for piece in made] == [49]
    huge = msgspec.structs.replace(lying, count=2**40)
    with pytest.raises(MessageError, match="are over 16777216"):
        arrays.unpack_rows(huge, ROW, "abc")
    assert len(made) == 1


@pytest.mark.parametrize("data", [b"", b"no zlib at all", zlib.compress(bytes(48))[:-9]])
def test_what_cannot_be_unpacked_is_refused(data):
    broken = msgspec.structs.replace(batch(3), packing="zlib", rows=data, crc32=zlib.crc32(data))
    with pytest.raises(MessageError, match=r"worker 'w0'"):
        arrays.unpack_rows(broken, ROW, "abc")
