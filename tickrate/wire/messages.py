"""The messages of a run: their fields, their limits, and how they become bytes and are checked coming back.

A message on the wire is four bytes, ``TKR`` and the protocol version, then one MessagePack map. The version
is read before anything is decoded, so that two releases that cannot talk say so. Whatever arrives is hostile
until `decode` has returned it: sizes, ranges, types and check sums are verified, and every failure is a
`MessageError` or a `VersionMismatch`, never another exception.
"""

from __future__ import annotations

import json
import secrets
import zlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tickrate.clock import wall_time
from tickrate.errors import MessageError, VersionMismatch

PROTOCOL_VERSION = 2
"""Raised whenever a message changes so that an older or newer side could misread it."""

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message that is sent or looked at: 64 MiB, a few times the largest weights expected."""

MAX_ROW_BYTES = 16 << 20
"""Largest block of rows in one `RowBatch`: 16 MiB."""

_MAGIC = b"TKR"
_BULK_BYTES = 1 << 16
_HEADER = _MAGIC + bytes([PROTOCOL_VERSION])
HEADER_BYTES = len(_HEADER)
"""Bytes before the MessagePack map: ``TKR`` and the version."""

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
    """The sender's `new_boot` (in `Ack` and `Refusal`: the worker's); another after each start of a
    process."""
    sequence: Count = 0
    """Number of this message within the boot; in a `RowBatch` the number of its first row."""


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """A role has come up: what it is, and what it acts on or learns from.

    The trainer answers a worker's with an `Ack` and the newest weights, or with a `Refusal`.
    """

    role: Literal["worker", "trainer", "hub"]
    version: Name
    """The tickrate release of the sender, for messages to people."""
    host: Text = ""
    """Machine and process of the sender, for messages to people."""
    purpose: Literal["train", "expert", "test", "drain"] = "train"
    """What a worker is there for; ``drain`` delivers what an earlier start recorded and does not act."""
    schema: Json = ""
    """JSON of the record schema of the rows that will follow; empty from roles that send none."""
    contract: Json = ""
    """JSON of the policy contract (spaces, period, action buffer) the sender acts by or trains for."""
    outbox: Count = 0
    """The worker's outbox: a number drawn when it was made. With the sequence it identifies a row for
    ever."""
    oldest: Count = 0
    """The lowest row number that the outbox still holds."""
    head: Count = 0
    """The number that the next row will get."""
    reports: Count = 0
    """Episode reports of this boot that are acknowledged so far."""
    life: Count = 0
    """Of a trainer: the run's life, drawn when its folder was made. Of a worker: the life its outbox belongs
    to, 0 before the first `Ack`."""


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """A worker is alive, and says where it stands. The trainer answers each with an `Ack`."""

    outbox: Count
    oldest: Count
    """The lowest row number that the outbox still holds: what is missing below it is gone for good."""
    head: Count
    """The number that the next row will get."""
    sent: Count
    """All rows below have been sent: whichever of them has not arrived was lost on the way."""
    sent_at: float
    """The worker's monotonic time (s); comes back in the `Ack`."""
    clock_offset_s: float | None = None
    """The trainer's monotonic clock minus the worker's (s), as the worker has measured it so far."""
    rtt_s: float | None = None
    """The shortest round trip of the last pings (s): the offset is right within half of it."""


class RowBatch(Message, frozen=True, kw_only=True, tag="rows"):
    """Consecutive rows of a worker, numbered ``sequence`` to ``sequence + count - 1`` in its outbox.

    Build it with `arrays.pack_rows`, read it with `arrays.unpack_rows`.
    """

    outbox: Count
    count: Count
    """How many rows."""
    oldest: Count = 0
    """See `Ping`."""
    schema_digest: Name
    """Digest of the record schema; rows of another schema are refused before their bytes are looked at."""
    packing: Literal["raw", "zlib"] = "raw"
    """How ``rows`` is packed; ``zlib`` where that makes it much smaller."""
    crc32: Crc32
    """Of ``rows`` as they travel."""
    rows: Annotated[bytes, Meta(max_length=MAX_ROW_BYTES)] = b""
    """``count`` rows of the schema's dtype, C order, little endian, packed."""


class Ack(Message, frozen=True, kw_only=True, tag="ack"):
    """The trainer's word to one worker: what is safe, and what may be sent. Losing one is harmless."""

    outbox: Count
    acknowledged: Count
    """Rows of this outbox below this number survive a kill of the trainer; the worker may forget them."""
    granted: Count
    """Rows of this outbox with a number below this may be sent."""
    resend: bool = False
    """Rows are missing from ``acknowledged`` on: send again from there."""
    reports: Count = 0
    """Episode reports of this boot below or at this number have arrived."""
    life: Count
    """The run's life; see `Hello`."""
    echo: float = 0.0
    """``sent_at`` of the ping that is answered; 0 if none is."""
    received_at: float = 0.0
    """The trainer's monotonic time (s) when that ping came."""
    answered_at: float = 0.0
    """The trainer's monotonic time (s) when this was sent."""


class Refusal(Message, frozen=True, kw_only=True, tag="refusal"):
    """The trainer takes nothing from this boot of a worker (or, to ``trainer``, from that trainer)."""

    code: Literal["mismatch", "evicted", "duplicate", "full"]
    """``mismatch``: other spaces or timing. ``evicted``: it was silent and another start took its name.
    ``duplicate``: another process of this name is connected. ``full``: no room for one more
    stream."""
    text: Text
    """What to tell the person at the worker: both sides, and the leaf that differs."""


class Weights(Message, frozen=True, kw_only=True, tag="weights"):
    """A policy artefact; the newest version wins. Build it with `make_weights`."""

    version: Count
    """Policy version; counts up by one a publication."""
    crc32: Crc32
    created: float
    """The trainer's monotonic time (s, `clock.now`) at which it was made."""
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
    """Name of the role, ``worker`` for all workers, or ``all``; the last part of the key as well."""
    action: Literal["pause", "resume", "stop_device", "shutdown"]


class InferRequest(Message, frozen=True, kw_only=True, tag="infer"):
    """A worker asks for actions: ``sequence`` numbers the requests, and only the newest matters."""

    observation: Annotated[bytes, Meta(max_length=MAX_ROW_BYTES)]
    """The packed observation, opaque to the carrier's side."""


class InferReply(Message, frozen=True, kw_only=True, tag="answer"):
    """Actions for the request with the same ``sequence`` and ``boot``."""

    actions: Annotated[bytes, Meta(max_length=MAX_ROW_BYTES)]


AnyMessage = (
    Hello
    | Ping
    | RowBatch
    | Ack
    | Refusal
    | Weights
    | EpisodeReport
    | Status
    | Command
    | InferRequest
    | InferReply
)

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


def json_of(text: str) -> Any:
    """Return the value of a JSON field of a message.

    Raises:
        MessageError: if it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a field of a message is no JSON: {error}") from error


def encode(message: AnyMessage) -> bytes:
    """Return the bytes of a message.

    Raises:
        MessageError: if the message breaks the limits of its fields, or is longer than ``MAX_MESSAGE_BYTES``.
            A receiver would refuse it; the sender is told instead.
    """
    try:
        body = _encoder.encode(message)
        _check_size(len(body) + len(_HEADER))
        _decoder.decode(_without_bulk(message, body))
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


def _without_bulk(message: AnyMessage, body: bytes) -> bytes:
    """Return the bytes to be checked before they are sent: megabytes of rows need no second look."""
    if len(body) < _BULK_BYTES:
        return body
    for name in ("rows", "payload"):
        bulk = getattr(message, name, None)
        if isinstance(bulk, bytes) and len(bulk) <= (MAX_ROW_BYTES if name == "rows" else MAX_MESSAGE_BYTES):
            return _encoder.encode(msgspec.structs.replace(message, **{name: b""}))
    return body


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
