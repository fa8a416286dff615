"""A name speaks only for itself: what a message says of its sender has to fit the key it came under.

The hub lets a holder of credentials publish under its own name alone. Whoever listens through `listen` can
therefore believe the name in a message; without it, a worker could put another's name into a message of its
own.
"""

from __future__ import annotations

import msgspec

from tickrate.wire.carrier import Carrier
from tickrate.wire.mailbox import DEFAULT_MAX_BYTES, Mailbox
from tickrate.wire.messages import HEADER_BYTES


class _Said(msgspec.Struct):
    """The fields of a message that its key repeats; the others are skipped, not read."""

    run: str
    worker: str
    target: str | None = None


_decoder = msgspec.msgpack.Decoder(_Said)


def listen(
    carrier: Carrier,
    key: str,
    *,
    capacity: int,
    newest_only: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Mailbox:
    """Subscribe to messages under ``key``; those that speak for another name than their key's are refused."""
    return carrier.subscribe(
        key, capacity=capacity, newest_only=newest_only, max_bytes=max_bytes, accept=speaks_for_itself
    )


def speaks_for_itself(key: str, payload: bytes) -> bool:
    """Tell whether a message names the run and the name of its key; a command names its target there.

    Bytes that are no message pass: `messages.decode` says what is wrong with them.
    """
    _, run, _, name = key.split("/")
    try:
        said = _decoder.decode(memoryview(payload)[HEADER_BYTES:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True
    return said.run == run and name == (said.worker if said.target is None else said.target)
