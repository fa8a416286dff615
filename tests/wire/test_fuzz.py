"""Whatever arrives, `decode` returns a message or raises its own two errors: for every kind of message.

The kinds and their fields are read from `AnyMessage`, so that a new message is covered as soon as it exists.
"""

from __future__ import annotations

import pickle
import random
import tracemalloc
import zlib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickrate.data.schema import RecordSchema
from tickrate.errors import MessageError, PolicyError, RecordError, VersionMismatch
from tickrate.policy import Policy
from tickrate.runtime.contract import EnvironmentContract
from tickrate.wire.messages import PROTOCOL_VERSION, AnyMessage, decode, encode

KINDS = get_args(AnyMessage)
HEADER = b"TKR" + bytes([PROTOCOL_VERSION])
fuzzed = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def values(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Return valid values of a field's type."""
    match kind:
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.LiteralType(literals):
            return st.sampled_from(literals)
        case msgspec.inspect.UnionType(types):
            return st.one_of([values(each) for each in types])
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType():
            least = kind.ge if kind.ge is not None else -(2**53)
            most = kind.le if kind.le is not None else (2**53 if kind.lt is None else kind.lt - 1)
            return st.integers(least, most)
        case msgspec.inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False, allow_infinity=kind.ge is kind.le is None)
        case msgspec.inspect.StrType(min_length, max_length, pattern):
            if pattern is not None:
                return st.from_regex(pattern, fullmatch=True)
            letters = st.characters(codec="utf-8")
            return st.text(letters, min_size=min_length or 0, max_size=min(max_length or 30, 30))
        case msgspec.inspect.BytesType():
            return st.binary(max_size=100)
        case msgspec.inspect.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=3)
        case msgspec.inspect.TupleType(item_types):
            return st.tuples(*map(values, item_types)).map(list)
        case msgspec.inspect.StructType():
            return st.fixed_dictionaries({f.encode_name: values(f.type) for f in kind.fields})
    raise NotImplementedError(f"say how to make values of {kind}")


def with_checksum(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message with the check sum of its bytes put right, as a liar would."""
    blobs = [value for value in body.values() if isinstance(value, bytes)]
    return body | {"crc32": zlib.crc32(blobs[0])} if "crc32" in body and blobs else body


def bodies(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Return the fields of valid messages of one kind, by their names on the wire."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    tag = {info.tag_field: info.tag}
    return values(info).map(lambda fields: with_checksum(tag | fields))


def on_the_wire(body: Any) -> bytes:
    return HEADER + msgspec.msgpack.encode(body)


anything = st.one_of([bodies(kind) for kind in KINDS])


def decodes_or_refuses(data: bytes) -> Any:
    """Return the message, or None if it was refused as it should be; any other exception fails the test."""
    try:
        message = decode(data)
    except (MessageError, VersionMismatch):
        return None
    assert isinstance(message, KINDS)
    return message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_comes_back_equal_and_no_part_of_it_is_taken_for_the_whole(kind):
    seen = 0

    @settings(fuzzed, max_examples=25)
    @given(bodies(kind))
    def check(body: dict[str, Any]) -> None:
        nonlocal seen
        message = decodes_or_refuses(on_the_wire(body))
        if message is None:  # fields that are valid each by itself, and not together
            return
        seen += 1
        data = encode(message)
        assert decode(data) == message
        for end in range(len(data)):
            with pytest.raises(MessageError):
                decode(data[:end])

    check()
    assert seen > 5, f"hardly any {kind.__name__} made from its fields' types is valid"


@fuzzed
@given(st.binary(max_size=200))
def test_random_bytes(data):
    decodes_or_refuses(data)
    decodes_or_refuses(HEADER + data)


@fuzzed
@given(anything, st.integers(0, 2**32))
def test_mutated_messages(body, seed):
    rng = random.Random(seed)
    for _ in range(30):
        raw = bytearray(on_the_wire(body))
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(raw))
            match rng.randrange(3):
                case 0:
                    raw[position] = rng.randrange(256)
                case 1:
                    raw[position:position] = rng.randbytes(rng.randint(1, 8))
                case _:
                    del raw[position : position + rng.randint(1, 8)]
                    raw = raw or bytearray(1)
        decodes_or_refuses(bytes(raw))


integers = st.integers(-(2**63), 2**64 - 1)
garbage = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | integers, inner, max_size=4),
    max_leaves=12,
)


@fuzzed
@given(garbage)
def test_well_formed_garbage(value):
    assert decodes_or_refuses(on_the_wire(value)) is None


@fuzzed
@given(anything, st.data())
def test_a_field_of_another_type(body, data):
    """A field replaced by garbage, its check sum right, is refused or as good as the message it becomes."""
    name = data.draw(st.sampled_from(sorted(body)))
    body = with_checksum(body | {name: data.draw(garbage)})
    message = decodes_or_refuses(on_the_wire(body))
    if message is not None:
        assert decode(encode(message)) == message or "nan" in repr(message)


@fuzzed
@given(anything, st.text(max_size=20), garbage)
def test_an_unknown_field_is_refused(body, name, value):
    if name not in body:
        with pytest.raises(MessageError):
            decode(on_the_wire(body | {name: value}))


HUGE = [
    b"\xc6\xff\xff\xff\xff",  # bin 32
    b"\xdb\xff\xff\xff\xff",  # str 32
    b"\xdd\xff\xff\xff\xff",  # array 32
    b"\xdf\xff\xff\xff\xff",  # map 32
    b"\xc9\xff\xff\xff\xff\x05",  # ext 32
    b"\xc5\xff\xff",  # bin 16
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_size_that_is_only_announced_is_not_allocated(kind):
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    tag = msgspec.msgpack.encode(info.tag_field) + msgspec.msgpack.encode(info.tag)
    tracemalloc.start()
    try:
        for announced in HUGE:
            with pytest.raises(MessageError):
                decode(HEADER + announced)
            for field in info.fields:
                name = msgspec.msgpack.encode(field.encode_name)
                with pytest.raises(MessageError):
                    decode(HEADER + b"\x82" + tag + name + announced + b"x")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1x", b"\xdd\x00\x00\x00\x01", b"\x92\xc0"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_deep_nesting_in_any_field(opening, kind):
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    tag = msgspec.msgpack.encode(info.tag_field) + msgspec.msgpack.encode(info.tag)
    nested = opening * 1200 + b"\xc0"
    names = [msgspec.msgpack.encode(field.encode_name) for field in info.fields]
    starts = [b"", b"\x82\xa1?", b"\x81" + msgspec.msgpack.encode(info.tag_field)]
    for start in [*starts, *(b"\x82" + tag + name for name in [b"\xa1?", *names])]:
        with pytest.raises(MessageError):
            decode(HEADER + start + nested)
    with pytest.raises(MessageError):
        decode(HEADER + b"\x82" + tag + names[-1] + opening * 200_000)


def test_every_other_version_is_named_beside_ours():
    for version in set(range(256)) - {PROTOCOL_VERSION}:
        with pytest.raises(VersionMismatch, match=rf"version {version}\b.* version {PROTOCOL_VERSION}\b"):
            decode(b"TKR" + bytes([version]) + b"\x80")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "boom")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_bomb_does_not_go_off(tmp_path, protocol):
    target = tmp_path / "boom"
    bomb = pickle.dumps(Bomb(target), protocol)
    pickle.loads(bomb)
    assert target.read_text() == "boom"  # it is a live one
    target.unlink()

    text = bomb.decode("latin-1")
    for data in (bomb, HEADER + bomb, on_the_wire(bomb), on_the_wire(text), on_the_wire({"kind": bomb})):
        with pytest.raises(MessageError):
            decode(data)
    for kind in KINDS:
        info = msgspec.inspect.type_info(kind)
        assert isinstance(info, msgspec.inspect.StructType)
        for planted in (bomb, text, [bomb], {"x": bomb}):
            fields = {field.encode_name: planted for field in info.fields}
            with pytest.raises(MessageError):  # no kind takes it in every field
                decode(on_the_wire(with_checksum({info.tag_field: info.tag, **fields})))
    with pytest.raises(PolicyError):
        Policy.from_bytes(bomb)
    with pytest.raises(RecordError):
        RecordSchema.from_json(bomb)
    with pytest.raises(MessageError):
        EnvironmentContract.from_dict({"observation": text, "action": bomb})
    assert not target.exists()


@settings(fuzzed, max_examples=20)
@given(st.data())
def test_a_pickle_in_any_one_field_stays_bytes(data):
    """Where a message carries bytes, a pickle is bytes like any others: it comes out as it went in."""
    bomb = pickle.dumps(Bomb(Path("never")))
    body = data.draw(anything)
    for name, value in body.items():
        if isinstance(value, bytes):
            message = decodes_or_refuses(on_the_wire(with_checksum(body | {name: bomb})))
            assert message is None or bomb in [getattr(message, f) for f in message.__struct_fields__]
    assert not Path("never").exists()
