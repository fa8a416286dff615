"""What `fuzz_decoder.py` throws bytes at: each decoder, what it may raise, and valid bytes to begin with.

A checksum would stop nearly every mutated input at the door, but whoever is hostile computes it. So where a
format has one, the input is tried as it is and once more with its checksum put right.
"""

from __future__ import annotations

import functools
import json
import math
import re
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
from _fuzz_changes import TREE, TREE_SEED, as_json, changed, text_of
from gymnasium import spaces

from tickrate import artefact
from tickrate.data import segment_file, snapshot
from tickrate.data.records import Segment
from tickrate.data.schema import Field, RecordSchema
from tickrate.errors import MessageError, PolicyError, RecordError, Refused, VersionMismatch, WireError
from tickrate.games.circuit import protocol
from tickrate.policy import Policy
from tickrate.program import spec
from tickrate.runtime import shared_file
from tickrate.runtime.contract import EnvironmentContract
from tickrate.runtime.ledger import Ledger
from tickrate.runtime.remote_format import InferenceFormat
from tickrate.runtime.weights_file import WeightsFile
from tickrate.wire import arrays, messages
from tickrate.wire.credentials import Credentials

SCHEMA = RecordSchema(
    (Field("speed", "float32", (2,)), Field("camera", "uint8", (8, 8), stack=4)),
    Field("action", "float32", (1,)),
)
FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
FOLDER = Path(tempfile.gettempdir())
"""Where targets that read files put them; `use_folder` sets it."""


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        decode: feeds it the bytes.
        allowed: what it may raise for bytes that are nothing of its kind; anything else is an escape.
        seeds: valid inputs to start from.
    """

    decode: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]


def use_folder(folder: Path) -> None:
    """Let the targets that read files write them into ``folder``."""
    global FOLDER
    FOLDER = folder


# --- messages ----------------------------------------------------------------------------------------------


def example_of(kind: msgspec.inspect.Type) -> Any:
    """Return a valid value of a field's type, of every type that messages use."""
    match kind:
        case msgspec.inspect.LiteralType(values):
            return values[0]
        case msgspec.inspect.UnionType(types):
            return example_of(next(t for t in types if not isinstance(t, msgspec.inspect.NoneType)))
        case msgspec.inspect.IntType():
            return kind.ge or 0
        case msgspec.inspect.FloatType():
            return 1.5
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.StrType():
            return "x" * max(1, kind.min_length or 0)
        case msgspec.inspect.BytesType():
            return bytes(range(32))
        case msgspec.inspect.DictType():
            return {example_of(kind.key_type): example_of(kind.value_type)}
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return [example_of(kind.item_type)]
        case msgspec.inspect.TupleType(item_types):
            return [example_of(each) for each in item_types]
        case msgspec.inspect.StructType():
            return {field.encode_name: example_of(field.type) for field in kind.fields}
    return None


def example_messages() -> list[bytes]:
    """Return one valid message of each kind, as bytes."""
    found = []
    for kind in get_args(messages.AnyMessage):
        info = msgspec.inspect.type_info(kind)
        assert isinstance(info, msgspec.inspect.StructType)
        body = checksum_put_right({info.tag_field: info.tag, **example_of(info)})
        found.append(messages.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=kind)))
    return found


def checksum_put_right(body: dict[Any, Any]) -> dict[Any, Any]:
    blobs = [value for value in body.values() if isinstance(value, bytes)]
    if "crc32" in body and blobs:
        body["crc32"] = zlib.crc32(blobs[0])
    return body


HEADER = example_messages()[0][:4]


def decode_message(data: bytes) -> None:
    """Decode as it is; then, with the header and the checksum put right, decode and unpack rows."""
    try:
        messages.decode(data)
    except (MessageError, VersionMismatch):
        pass
    try:
        if data[:1] == bytes([TREE]):
            body = changed(BODIES[data[-1] % len(BODIES)], data)
        else:
            body = msgspec.msgpack.decode(data[4:])
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return
    if isinstance(body, dict):
        body = checksum_put_right(body)
    try:
        again = msgspec.msgpack.encode(body)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError):
        return  # MessagePack has no way to say this
    message = messages.decode(HEADER + again)
    messages.encode(message)
    if isinstance(message, messages.RowBatch):
        arrays.unpack_rows(message, SCHEMA.row_dtype, message.schema_digest)


ROWS = SCHEMA.empty(3)


def example_batch(rows: np.ndarray) -> messages.RowBatch:
    found = next(m for m in map(messages.decode, example_messages()) if isinstance(m, messages.RowBatch))
    data = rows.tobytes()
    return msgspec.structs.replace(found, rows=data, count=len(rows), crc32=zlib.crc32(data))


BATCH = example_batch(ROWS)
EXAMPLES = [*example_messages(), messages.encode(BATCH)]
BODIES = [msgspec.msgpack.decode(example[4:]) for example in EXAMPLES]


def decode_rows(data: bytes) -> None:
    """Take packing and count from the first bytes and the rows from the rest."""
    batch = msgspec.structs.replace(
        BATCH,
        packing="zlib" if data[:1] == b"z" else "raw",
        count=int.from_bytes(data[1:6], "little"),
        rows=data[6:],
        crc32=zlib.crc32(data[6:]),
    )
    rows = arrays.unpack_rows(batch, SCHEMA.row_dtype, BATCH.schema_digest)
    assert len(rows) == batch.count
    rows.tolist()


def row_seeds() -> list[bytes]:
    count, rows = (3).to_bytes(5, "little"), ROWS.tobytes()
    return [
        b"r" + count + rows,
        b"z" + count + zlib.compress(rows),
        b"z" + count + zlib.compress(bytes(1 << 22)),
    ]


INFERENCE = InferenceFormat(
    {"speed": spaces.Box(-1.0, 1.0, (2,)), "camera": spaces.Box(0, 255, (4, 4), np.uint8)},
    spaces.Box(-1.0, 1.0, (2,)),
)


def decode_inference(data: bytes) -> None:
    """Read a request and an answer; a request that is accepted can be answered."""
    try:
        request = INFERENCE.read_request(data)
        answer = INFERENCE.read_answer(INFERENCE.answer(request, 1, ready=True, actions=np.zeros((3, 2))))
        assert (answer.session, answer.number) == (request.session, request.number)
    except MessageError:
        pass
    INFERENCE.read_answer(data)


def inference_seeds() -> list[bytes]:
    leaves = {"speed": np.zeros(2), "camera": np.ones((4, 4))}
    request = INFERENCE.request(7, 8, 1, leaves)
    asked = INFERENCE.read_request(request)
    return [request, INFERENCE.answer(asked, 9, ready=True, actions=np.ones((3, 2)))]


# --- descriptions ------------------------------------------------------------------------------------------


def decode_schema(data: bytes) -> None:
    """Read a schema; one that is accepted describes itself."""
    schema = RecordSchema.from_json(text_of(data, json.loads(SCHEMA.to_json())))
    assert RecordSchema.from_json(schema.to_json()) == schema
    schema.digest()
    assert schema.empty(1).nbytes == schema.row_dtype.itemsize


CONTRACT = EnvironmentContract(
    {
        "speed": spaces.Box(np.float32([0, -1]), np.float32([9, 1])),
        "gear": spaces.Discrete(5, start=1),
        "keys": spaces.MultiBinary(3),
        "modes": spaces.MultiDiscrete([2, 3]),
    },
    spaces.Box(-1.0, 1.0, (2,)),
    0.05,
    2,
    {"observation": {"speed": [[1, 0], [1, -1]]}, "action": [-1.0, 1.0]},
)


def decode_contract(data: bytes) -> None:
    """Read an environment's contract as the trainer does, and make its schema."""
    try:
        plain = json.loads(text_of(data, CONTRACT.to_dict()))
    except (ValueError, RecursionError):
        return
    contract = EnvironmentContract.from_dict(plain)
    contract.schema()
    json.dumps(contract.to_dict())


# --- policies ----------------------------------------------------------------------------------------------


MANY_OPS: tuple[Any, ...] = (
    spec.ReadLeaf("camera", "image", 1 / 255, -0.5, (2, 0, 1)),
    spec.Conv2d("image", "conv", 2, (3, 2), (2, 1), (1, 0)),
    spec.Scale("conv", "scaled"),
    spec.Activation("scaled", "active", "elu"),
    spec.Reshape("active", "flat", (24,)),
    spec.ReadLeaf("scan", "history", axes=(1, 0)),
    spec.Conv1d("history", "along", 2, 2),
    spec.Reshape("along", "steps", (4,)),
    spec.Read(("speed",), "speed"),
    spec.ReadOneHot("gear", "gear", (-1, 0), (3, 2)),
    spec.Concat(("flat", "steps", "speed", "gear"), "all"),
    spec.Affine("all", "small", 4),
    spec.LayerNorm("small", "norm"),
    spec.RmsNorm("norm", "root"),
    spec.GruCell("root", "gru", 4, "mind"),
    spec.Add(("gru", "root"), "sum"),
    spec.LstmCell("sum", "lstm", 4, "short", "long"),
    spec.Affine("lstm", "logits", 10),
    spec.ExpectedValue("logits", "values", 2, -1.0, 1.0),
)
"""Every operation of a program once."""

LEAVES = (
    artefact.LeafSpec("camera", "uint8", (6, 5, 3)),
    artefact.LeafSpec("scan", "float64", (3, 2)),
    artefact.LeafSpec("speed", "float32", (2,)),
    artefact.LeafSpec("gear", "int16", (2,), (-1, 0), (3, 2)),
)


@functools.cache
def example_policies() -> tuple[bytes, ...]:
    """Return a plain policy, one with every operation and several choices, and one of the first format."""
    plain = artefact.PolicyContract(
        algorithm="x",
        observation=LEAVES[2:3],
        action=artefact.BoxAction("float32", (1,), (-1.0,), (1.0,)),
        groups={"actor": ("speed",)},
        program=spec.mlp_program(("speed",), (3, 2)),
        exploration=artefact.Exploration(),
        period_s=0.05,
        action_buffer_length=0,
    )
    many = msgspec.structs.replace(
        plain,
        observation=LEAVES,
        action=artefact.MultiDiscreteAction("int64", (2,), (2, 3), (0, -1)),
        head="greedy",
        groups={"actor": ("camera", "scan", "speed", "gear")},
        program=spec.Program(MANY_OPS),
        exploration=artefact.Exploration(epsilon=0.5),
    )
    return packed(plain), packed(many), (FIXTURES / "first_format.policy").read_bytes()


def packed(contract: artefact.PolicyContract) -> bytes:
    """Return an artefact whose tensors are ones."""
    shapes = artefact.check_contract(contract).tensors
    return artefact.pack(contract, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})


@functools.cache
def policy_parts(which: int) -> tuple[Any, bytes]:
    """Return the header of a valid policy, its contract no longer text, and the bytes of its tensors."""
    blob = example_policies()[which % len(example_policies())]
    end = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:end])
    header["__metadata__"]["contract"] = json.loads(header["__metadata__"]["contract"])
    return header, blob[end:]


def changed_policy(data: bytes) -> bytes:
    header, tensors = policy_parts(data[-1])
    header = changed(header, data)
    meta = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(meta, dict) and "contract" in meta:
        meta["contract"] = as_json(meta["contract"]).decode()
    text = as_json(header)
    return len(text).to_bytes(8, "little") + text + tensors


MOST_WEIGHTS = 1 << 20
"""Most weights that are made to fit a contract; each is there several times while its policy is made."""


def decode_policy(data: bytes) -> None:
    """Load a policy as it is; then, with tensors that fit its contract, load it and act."""
    if data[:1] == bytes([TREE]):
        data = changed_policy(data)
    try:
        artefact.unpack(data)
    except PolicyError:
        pass
    contract = artefact.read_contract(data)
    tensors = artefact.check_contract(contract).tensors.values()
    if sum(math.prod(shape) for shape in tensors) > MOST_WEIGHTS:
        return
    policy = Policy.from_bytes(packed(contract), seed=0)
    leaves = {
        leaf.path: np.array(leaf.lowest or np.zeros(leaf.size), leaf.dtype).reshape(1, *leaf.shape)
        for leaf in contract.observation
    }
    state = policy.initial_state(1)
    for deterministic in (False, True):
        action, state, _ = policy.act(leaves, state, deterministic=deterministic)
        assert action.shape == (1, *contract.action.shape)
        assert action.dtype == contract.action.dtype


# --- files -------------------------------------------------------------------------------------------------


def written(data: bytes) -> Path:
    path = FOLDER / "input"
    path.write_bytes(data)
    return path


def with_header(text: bytes) -> bytes:
    """Return a segment file's header with this description, its checksum right."""
    start = (segment_file.MAGIC, segment_file.FORMAT, len(text), zlib.crc32(text))
    return np.array(start, np.dtype([("m", "V8"), ("f", "<u4"), ("l", "<u4"), ("c", "<u4")])).tobytes() + text


HEADER_BODY = {"schema": json.loads(SCHEMA.to_json()), "digest": SCHEMA.digest(), "capacity": 16}


def decode_segment_header(data: bytes) -> None:
    """Open a file of these bytes; then one of this description, of the size that it asks for if small."""
    try:
        segment_file.open_file(written(data))
    except RecordError:
        pass
    path = written(with_header(text_of(data, HEADER_BODY)))
    try:
        segment_file.open_file(path)
    except RecordError as error:
        size = re.search(r"its header says (\d+)", str(error))
        if size is None or not 0 < int(size[1]) < 1 << 20:
            return
        with path.open("r+b") as file:
            file.truncate(int(size[1]))
    Segment.open(path).close()


def example_segment() -> bytes:
    path = FOLDER / "example"
    path.unlink(missing_ok=True)
    small = RecordSchema((Field("speed", "float32", (2,)),), Field("action", "float32", (1,)))
    segment = Segment.create(path, small, 8)
    for _ in range(5):
        segment.append(small.empty(2))
    segment.close()
    return path.read_bytes()


def decode_journal(data: bytes) -> None:
    """Overwrite the log of a good file; one that is accepted can be read and written."""
    begin, entry = 4096, 24
    whole = bytearray(example_file())
    whole[begin : begin + len(data[: 8 * entry])] = data[: 8 * entry]
    for at in range(begin, begin + 8 * entry, entry):
        whole[at + 16 : at + 20] = zlib.crc32(whole[at : at + 16]).to_bytes(4, "little")
    segment = Segment.open(written(bytes(whole)))
    try:
        segment.read(np.arange(segment.oldest, segment.head))
        segment.append(segment.schema.empty(3))
    finally:
        segment.close()


_example: list[bytes] = []


def example_file() -> bytes:
    if not _example:
        _example.append(example_segment())
    return _example[0]


SNAPSHOT_HEADER = {"rows": 3, "state": [1, 2]}


def decode_snapshot(data: bytes) -> None:
    """Read a file of these bytes; then one with this header, its checksum right."""
    try:
        snapshot.read_snapshot(written(data))
    except RecordError:
        pass
    data = text_of(data, SNAPSHOT_HEADER)
    body = snapshot.MAGIC + snapshot.FORMAT.to_bytes(4, "little") + len(data).to_bytes(4, "little") + data
    header, _ = snapshot.read_snapshot(written(body + zlib.crc32(body).to_bytes(4, "little")))
    header.get("anything")


DESCRIPTION = {"kind": "ring", "dtype": "abc", "capacity": 16}


def decode_shared_file(data: bytes) -> None:
    """Join a shared file that says this of itself, its checksum right."""
    text = text_of(data, DESCRIPTION)[:2048]
    start = b"TICKSHM\0" + shared_file.FORMAT.to_bytes(4, "little") + len(text).to_bytes(4, "little")
    header = start + zlib.crc32(text).to_bytes(4, "little") + text
    for whole in (data.ljust(8192, b"\0"), header.ljust(8192, b"\0")):
        try:
            shared_file.SharedFile(written(whole), DESCRIPTION, 4096, create=False).close()
        except (WireError, VersionMismatch):
            pass


def decode_ledger(data: bytes) -> None:
    """Overwrite the streams of a good ledger; one that is accepted takes two more, or says it is full."""
    path = FOLDER / "ledger"
    path.unlink(missing_ok=True)
    Ledger(path, 5, capacity=4).close()
    whole = bytearray(path.read_bytes())
    whole[LEDGER_HEAD : LEDGER_HEAD + len(data)] = data
    path.write_bytes(whole[: path.stat().st_size])
    with Ledger(path, 5, capacity=4) as ledger:
        for name in ("w0", "w1"):
            try:
                ledger.advance(ledger.stream(name, 1), 10)
            except Refused:
                pass
        for number in ledger.streams():
            ledger.expected(number)


LEDGER_HEAD = 4096


def ledger_seeds() -> list[bytes]:
    path = FOLDER / "ledger"
    path.unlink(missing_ok=True)
    with Ledger(path, 5, capacity=4) as ledger:
        for number, name in enumerate(("w0", "w1")):
            ledger.advance(ledger.stream(name, 1 << number), 100)
    return [path.read_bytes()[LEDGER_HEAD:]]


def decode_weights_file(data: bytes) -> None:
    """Read the policy that a worker kept on its disk; it is never an error, only no policy."""
    found = WeightsFile(written(data), 5).read()
    assert found is None or isinstance(found[1], bytes)


# --- the game, and credentials -------------------------------------------------------------------


def decode_circuit(data: bytes) -> None:
    """Read the game's three packets."""
    for unpack in (protocol.unpack_sensors, protocol.unpack_telemetry, protocol.unpack_control):
        try:
            unpack(data)
        except MessageError:
            pass


def circuit_seeds() -> list[bytes]:
    sensors = bytearray(protocol.SENSORS.size)
    sensors[:4] = protocol.SENSOR_MAGIC
    control = protocol.CONTROL.pack(protocol.CONTROL_MAGIC, protocol.CONTROL_VERSION, 1, 0.5, 1.0, 0.0)
    return [bytes(sensors), bytes(protocol.TELEMETRY.size), control]


def decode_credentials(data: bytes) -> None:
    """Read a credentials file."""
    path = written(data)
    path.chmod(0o600)
    Credentials.load(path)


def credentials_seeds() -> list[bytes]:
    return [msgspec.json.encode(example_of(msgspec.inspect.type_info(Credentials)))]


TARGETS: dict[str, Target] = {
    "message": Target(
        decode_message,
        (MessageError, VersionMismatch),
        lambda: [*EXAMPLES, *(TREE_SEED + bytes([n]) for n in range(len(EXAMPLES)))],
    ),
    "rows": Target(decode_rows, (MessageError,), row_seeds),
    "inference": Target(decode_inference, (MessageError,), inference_seeds),
    "schema": Target(decode_schema, (RecordError,), lambda: [SCHEMA.to_json().encode(), TREE_SEED]),
    "contract": Target(
        decode_contract,
        (MessageError, RecordError),
        lambda: [json.dumps(CONTRACT.to_dict()).encode(), TREE_SEED],
    ),
    "policy": Target(decode_policy, (PolicyError,), lambda: [*example_policies(), TREE_SEED]),
    "segment header": Target(
        decode_segment_header,
        (RecordError,),
        lambda: [example_file(), example_file()[20:].split(b"\0")[0], TREE_SEED],
    ),
    "journal": Target(decode_journal, (RecordError,), lambda: [example_file()[4096 : 4096 + 192]]),
    "snapshot": Target(
        decode_snapshot, (RecordError,), lambda: [json.dumps(SNAPSHOT_HEADER).encode(), TREE_SEED]
    ),
    "shared file": Target(decode_shared_file, (), lambda: [json.dumps(DESCRIPTION).encode(), TREE_SEED]),
    "ledger": Target(decode_ledger, (RecordError,), ledger_seeds),
    "weights file": Target(
        decode_weights_file, (), lambda: [struct.pack("<8sQQI", b"TICKPOL\0", 3, 5, zlib.crc32(b"x")) + b"x"]
    ),
    "circuit": Target(decode_circuit, (), circuit_seeds),
    "credentials": Target(decode_credentials, (WireError,), credentials_seeds),
}
