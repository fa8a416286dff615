"""What joins the roles of a run: messages, row batches, their delivery, and the carriers that move them.

`ZenohHub` and `ZenohCarrier` are in `tickrate.wire.zenoh_carrier`, so that the in-memory mode loads no Zenoh.
"""

from tickrate.wire.arrays import pack_rows, unpack_rows
from tickrate.wire.carrier import ANY, Carrier, Roster, make_key
from tickrate.wire.delivery import Receiver, Sender
from tickrate.wire.mailbox import Mailbox
from tickrate.wire.memory import MemoryCarrier, MemoryHub
from tickrate.wire.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Ack,
    AnyMessage,
    Command,
    EpisodeReport,
    Hello,
    InferReply,
    InferRequest,
    Ping,
    Refusal,
    RowBatch,
    Status,
    Weights,
    decode,
    encode,
    make_weights,
    new_boot,
)

__all__ = [
    "ANY",
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "Ack",
    "AnyMessage",
    "Carrier",
    "Command",
    "EpisodeReport",
    "Hello",
    "InferReply",
    "InferRequest",
    "Mailbox",
    "MemoryCarrier",
    "MemoryHub",
    "Ping",
    "Receiver",
    "Refusal",
    "Roster",
    "RowBatch",
    "Sender",
    "Status",
    "Weights",
    "decode",
    "encode",
    "make_key",
    "make_weights",
    "new_boot",
    "pack_rows",
    "unpack_rows",
]
