"""The messages of a run: their fields, their limits, and how they become bytes and are checked coming back.

A message on the wire is four bytes, ``TKR`` and the protocol version, then one MessagePack map. The version
is read before anything is decoded, so that two releases that cannot talk say so. Whatever arrives is hostile
until `decode` has returned it: sizes, ranges, types and check sums are verified, and every failure is a
`MessageError` or a `VersionMismatch`, never another exception.
"""

from __future__ import annotations

import secrets
import zlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tickrate.clock import wall_time
from tickrate.errors import MessageError, VersionMismatch

PROTOCOL_VERSION = 1
"""Raised whenever a message changes so that an older or newer side could misread it."""

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message that is sent or looked at: 64 MiB, a few times the largest weights expected."""

MAX_ROW_BYTES = 16 << 20
"""Largest block of rows in one `RowBatch`: 16 MiB."""

_MAGIC = b"TKR"
_HEADER = _MAGIC + bytes([PROTOCOL_VERSION])

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
Json = Annotated[str, Meta(max_length=1 << 20)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Crc32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
Metrics = Annotated[dict[Name, float], Meta(max_length=256)]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What each message carries: who sent it, in which life of that process, and its number there."""

    run: Name
    """The run it belongs to; a receiver ignores other runs."""
    worker: Name
    """Name of the sender, or, in messages of the trainer, of the worker it is meant for."""
    boot: Count
    """The sender's (for `Credit`: the worker's) `new_boot`; it changes when the process is started again."""
    sequence: Count = 0
    """Number of this message within the boot; in a `RowBatch` the number of its first row."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """A role has come up. The trainer answers a worker's with the newest weights and a credit."""

    role: Literal["worker", "trainer", "hub"]
    version: Name
    """The tickrate release of the sender, for messages to people."""
    schema: Json = ""
    """JSON of the record schema of the rows that will follow; empty from roles that send none."""
    contract: Json = ""
    """JSON of the policy contract (spaces, period, action buffer) the sender acts by or trains for."""


class RowBatch(Message, frozen=True, kw_only=True, tag="rows"):
    """Consecutive rows of a worker, numbered ``sequence`` to ``sequence + count - 1``.

    With ``count`` 0 it only says where the worker stands: all rows below ``sequence`` have been sent. Build
    it with `arrays.pack_rows`, read it with `arrays.unpack_rows`.
    """

    count: Count
    schema_digest: Name
    """Digest of the record schema; rows of another schema are refused before their bytes are looked at."""
    crc32: Crc32
    dropped: Count = 0
    """Rows this boot dropped unsent so far, because its buffer was full."""
    rows: Annotated[bytes, Meta(max_length=MAX_ROW_BYTES)] = b""
    """``count`` rows of the schema's dtype, C order, little endian."""


class Credit(Message, frozen=True, kw_only=True, tag="credit"):
    """The trainer allows a worker to send rows. Cumulative: repeating or losing one does no harm."""

    granted: Count
    """Rows of ``boot`` with a number below this may be sent."""


class Weights(Message, frozen=True, kw_only=True, tag="weights"):
    """A policy artefact; the newest version wins. Build it with `make_weights`."""

    version: Count
    """Policy version; counts up by one a publication."""
    crc32: Crc32
    created: float
    """Monotonic machine time (s, `clock.now`) at which the trainer made it."""
    payload: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]
    """The artefact, opaque here."""


class EpisodeReport(Message, frozen=True, kw_only=True, tag="episode", rename={"return_": "return"}):
    """How one episode went."""

    episode: Count
    evaluation: bool
    """True for an episode played without exploration and kept out of the training data."""
    policy_version: Count
    """The version at the episode's end."""
    steps: Count
    return_: float
    """Undiscounted sum of rewards."""
    duration_s: float
    ended: Name
    """``terminated``, ``truncated``, or the reason of the truncation."""
    lap_time_s: float | None = None
    """Best full lap in the episode, for games that have laps."""
    clean: bool = True
    """False if the lap or episode had contact, a takeover or a lost device."""
    total_steps: Count = 0
    """Transitions the worker has made in this run up to the episode's end; the x axis of learning curves."""
    finished: float = 0.0
    """Wall time (s since the epoch) at the end."""
    metrics: Metrics = {}


class Status(Message, frozen=True, kw_only=True, tag="status"):
    """What a role is doing now, for the live view; losing one does no harm."""

    role: Literal["worker", "trainer", "hub"]
    state: Name
    """One word: ``acting``, ``learning``, ``waiting``, ``paused``, ``evaluating``, ``stopped``, ..."""
    text: Text = ""
    time: float = 0.0
    """Wall time (s since the epoch) at sending."""
    metrics: Metrics = {}


class Command(Message, frozen=True, kw_only=True, tag="command"):
    """What a person asks of a role."""

    target: Name
    """Name of the role, or ``*`` for all."""
    action: Literal["pause", "resume", "stop_device", "shutdown"]


AnyMessage = Hello | RowBatch | Credit | Weights | EpisodeReport | Status | Command

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def new_boot() -> int:
    """Return a number for this start of a process: unique, and larger later unless the clock is set back.

    Milliseconds since the epoch with ten random bits below them; it fits in 53 bits until the year 2248.
    """
    return (int(wall_time() * 1000) << 10) | secrets.randbits(10)


def make_weights(
    payload: bytes, *, run: str, worker: str, boot: int, version: int, created: float
) -> Weights:
    """Return the message for a policy artefact, with its check sum."""
    crc = zlib.crc32(payload)
    return Weights(
        run=run,
        worker=worker,
        boot=boot,
        sequence=version,
        version=version,
        crc32=crc,
        created=created,
        payload=payload,
    )


def encode(message: AnyMessage) -> bytes:
    """Return the bytes of a message.

    Raises:
        MessageError: if the message breaks the limits of its fields, or is longer than ``MAX_MESSAGE_BYTES``.
            A receiver would refuse it; the sender is told instead.
    """
    try:
        body = _encoder.encode(message)
        _check_size(len(body) + len(_HEADER))
        _decoder.decode(body)
    except (msgspec.MsgspecError, OverflowError, UnicodeError, TypeError) as error:
        raise MessageError(f"cannot send this {type(message).__name__}: {error}") from error
    return _HEADER + body


def decode(data: bytes) -> AnyMessage:
    """Return the message in ``data``, checked.

    Raises:
        VersionMismatch: if the other side speaks another version of the protocol.
        MessageError: if it is too long, no message of this protocol, outside a limit, or damaged.
    """
    _check_size(len(data))
    if len(data) < len(_HEADER) or data[: len(_MAGIC)] != _MAGIC:
        raise MessageError(f"not a tickrate message: {len(data)} bytes that begin with {data[:8]!r}")
    version = data[len(_MAGIC)]
    if version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the other side speaks version {version} of the protocol, this side version {PROTOCOL_VERSION}: "
            "install the same tickrate release on both"
        )
    try:
        message = _decoder.decode(memoryview(data)[len(_HEADER) :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"damaged or foreign message of {len(data)} bytes: {error}") from error
    _check_crc(message)
    return message


def _check_size(size: int) -> None:
    if size > MAX_MESSAGE_BYTES:
        raise MessageError(f"a message of {size} bytes is over the limit of {MAX_MESSAGE_BYTES}")


def _check_crc(message: AnyMessage) -> None:
    if isinstance(message, RowBatch):
        body = message.rows
    elif isinstance(message, Weights):
        body = message.payload
    else:
        return
    if (found := zlib.crc32(body)) != message.crc32:
        raise MessageError(
            f"{type(message).__name__} {message.sequence} of {message.worker!r} was damaged on the way: "
            f"check sum {found:#010x}, sent as {message.crc32:#010x}"
        )
