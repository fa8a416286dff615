"""The state of a run as one JSON object, for ``tickrate status`` and for dashboards; see docs/protocol.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from tickrate import __version__, clock
from tickrate.errors import MessageError
from tickrate.runtime.courier import here
from tickrate.runtime.peers import STALLED_AFTER_S, Peer
from tickrate.wire import messages

FORMAT = 1
"""Raised whenever a key changes its meaning; new keys do not raise it."""

MAX_BYTES = 4 << 20
"""Longest overview that is read, in bytes."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should look at."""

    kind: str
    """``silent``, ``old_policy``, ``dropped_rows``, ``different``, ``not_admitted``; more may come."""
    text: str
    """In words, with the numbers."""


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, as the trainer knows it; without a trainer, as it speaks of itself."""

    name: str
    host: str | None = None
    """Machine and process."""
    purpose: str | None = None
    """``train``, ``expert``, ``test`` or ``drain``."""
    version: str | None = None
    """Its tickrate release."""
    connected: bool = False
    """Whether it was heard in the last 5 s and has not said goodbye; without a trainer, whether it is at the
    hub."""
    state: str = "silent"
    """One word: ``acting``, ``paused``, ``draining``, ``stopped``, ...; ``silent`` before its first
    status."""
    text: str = ""
    """What it is doing, in words."""
    heard_s_ago: float | None = None
    """Since its last message, s."""
    samples_per_s: float | None = None
    """Rows stored, 1/s, over the last 5 s."""
    rows: int | None = None
    """Rows stored since this trainer admitted this start of the worker."""
    steps: int | None = None
    """Transitions among them: the last row of an episode is none."""
    episodes: int | None = None
    """Episode reports taken in since then."""
    last_return: float | None = None
    """Return of its last episode."""
    rows_lost: int | None = None
    """Rows that the outbox had dropped before they could be delivered, since then."""
    rows_repeated: int | None = None
    """Rows that came again and were left out, since then."""
    rows_waiting: int | None = None
    """Rows that are in its outbox and not stored yet, by its last ping."""
    checksums_equal: int | None = None
    """Transitions that were proved equal to what the worker saw (checksum mode), since then."""
    checksums_different: int | None = None
    """Transitions that were not; should be 0."""
    rows_dropped: int | None = None
    """Rows dropped by the worker, over the whole life of its outbox."""
    outbox_rows: int | None = None
    """Rows in its outbox and before it, by its own word."""
    outbox_bytes: int | None = None
    """Bytes of the rows in its outbox."""
    acknowledgement_age_s: float | None = None
    """Since rows of it were last stored, s; 0 while none wait."""
    policy_version: int | None = None
    """Version that chose its newest stored action; without a trainer, the newest that it has received.
    ``null`` before the first."""
    policy_lag_versions: int | None = None
    """The trainer's newest version minus that one."""
    policy_lag_s: float | None = None
    """Age of that version when it acted, s."""
    clock_offset_s: float | None = None
    """The trainer's monotonic clock minus the worker's, s."""
    rtt_s: float | None = None
    """The shortest round trip of its last pings, s: the offset is right within half of it."""
    metrics: dict[str, float | None] = {}
    """All metrics of its last status, by name."""
    alarms: list[Alarm] = []
    """What a person should look at."""


class TrainerView(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer, by its own word."""

    host: str
    """Machine and process."""
    state: str
    """``waiting``, ``building``, ``collecting``, ``learning``, ``in trouble``, ``finished``, ``saving``,
    ``stopped``."""
    text: str
    """What it is doing, in words."""
    policy_version: int
    """The newest version that it has published; 0 before the first."""
    metrics: dict[str, float | None]
    """Its metrics by name; see metrics.md."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    format: int
    """``1``; another number means that a key has another meaning. New keys may come at any time."""
    run: str | None
    """Name of the run on the wire; ``null`` if none was heard of."""
    time: float
    """Wall time at sending, s since the epoch, by the sender's clock."""
    version: str
    """The sender's tickrate release."""
    trainer: TrainerView | None
    """``null`` when no trainer was heard."""
    workers: list[WorkerView]
    """In the order of their first coming."""
    alarms: list[str]
    """All alarms, ``name: text``; empty when all is well."""


def overview(
    run: str,
    peers: Iterable[Peer],
    trainer: Mapping[str, float],
    *,
    state: str,
    text: str,
    newest_version: int,
    lag_alarm_s: float,
    now: float,
) -> bytes:
    """Return the JSON text of a run's state, as its trainer publishes it.

    Args:
        run: name of the run.
        peers: the workers.
        trainer: the trainer's metrics by name.
        state: the trainer's state in one word.
        text: and in words.
        newest_version: of the policies handed out.
        lag_alarm_s: policy lag that raises the alarm, s.
        now: the trainer's monotonic time, s.
    """
    head = TrainerView(
        host=here(), state=state, text=text, policy_version=newest_version, metrics=_all_plain(trainer)
    )
    workers = [_admitted(peer, newest_version, lag_alarm_s, now) for peer in peers]
    return to_json(whole(run, head, workers))


def whole(
    run: str | None, trainer: TrainerView | None, workers: list[WorkerView], *, version: str = __version__
) -> Overview:
    """Return the state of a run, now, with the alarms of its workers gathered."""
    alarms = [f"{worker.name}: {alarm.text}" for worker in workers for alarm in worker.alarms]
    return Overview(
        format=FORMAT,
        run=run,
        time=clock.wall_time(),
        version=version,
        trainer=trainer,
        workers=workers,
        alarms=alarms,
    )


def to_json(state: Overview) -> bytes:
    """Return the JSON text of a run's state."""
    return msgspec.json.encode(state)


def _admitted(peer: Peer, newest_version: int, lag_alarm_s: float, now: float) -> WorkerView:
    status, ping, receiver = peer.status, peer.ping, peer.receiver
    metrics: Mapping[str, float] = {} if status is None else status.metrics
    version, age = peer.policy
    silent_s = now - peer.heard_at
    gone = status is not None and status.state == "stopped"
    waiting_rows = 0 if ping is None else max(0, ping.head - receiver.expected)
    alarms = []
    if silent_s > STALLED_AFTER_S and not gone:
        alarms.append(Alarm(kind="silent", text=f"silent for {silent_s:.0f} s"))
    if age is not None and age > lag_alarm_s and not gone:
        text = f"acts with a policy {age:.0f} s old (alarm at {lag_alarm_s:g} s)"
        alarms.append(Alarm(kind="old_policy", text=text))
    alarms += _dropped(max(receiver.lost, _count(metrics, "worker/dropped_rows") or 0))
    if peer.different:
        text = f"{peer.different} transitions differ from what the worker saw"
        alarms.append(Alarm(kind="different", text=text))
    return WorkerView(
        name=peer.name,
        host=peer.hello.host,
        purpose=peer.hello.purpose,
        version=peer.hello.version,
        connected=not gone and silent_s <= STALLED_AFTER_S,
        state="silent" if status is None else status.state,
        text="" if status is None else status.text,
        heard_s_ago=_plain(silent_s),
        samples_per_s=peer.rate.per_second(),
        rows=peer.rows,
        steps=peer.steps,
        episodes=peer.episodes,
        last_return=_plain(peer.last_return),
        rows_lost=receiver.lost,
        rows_repeated=receiver.repeated,
        rows_waiting=waiting_rows,
        checksums_equal=peer.proved,
        checksums_different=peer.different,
        rows_dropped=_count(metrics, "worker/dropped_rows"),
        outbox_rows=_count(metrics, "worker/outbox_rows"),
        outbox_bytes=_count(metrics, "worker/outbox_bytes"),
        acknowledgement_age_s=_plain(now - peer.stored_at) if waiting_rows else 0.0,
        policy_version=version or None,
        policy_lag_versions=max(0, newest_version - version) if version else None,
        policy_lag_s=_plain(age),
        clock_offset_s=None if ping is None else _plain(ping.clock_offset_s),
        rtt_s=None if ping is None else _plain(ping.rtt_s),
        metrics=_all_plain(metrics),
        alarms=alarms,
    )


def by_its_own_word(
    status: messages.Status, *, present: bool, heard_s_ago: float, trainer_there: bool
) -> WorkerView:
    """Return what is known of a worker that no trainer speaks of.

    Args:
        status: its last status.
        present: whether it is at the hub.
        heard_s_ago: since that status, s.
        trainer_there: whether there is a trainer: then it has not admitted the worker.
    """
    metrics = status.metrics
    alarms = _dropped(_count(metrics, "worker/dropped_rows") or 0)
    if trainer_there and present:
        alarms.append(Alarm(kind="not_admitted", text="the trainer has not admitted it; see its log"))
    return WorkerView(
        name=status.worker,
        connected=present and status.state != "stopped",
        state=status.state,
        text=status.text,
        heard_s_ago=_plain(heard_s_ago),
        rows_dropped=_count(metrics, "worker/dropped_rows"),
        outbox_rows=_count(metrics, "worker/outbox_rows"),
        outbox_bytes=_count(metrics, "worker/outbox_bytes"),
        acknowledgement_age_s=_plain(metrics.get("worker/acknowledgement_age_s")),
        policy_version=_count(metrics, "worker/policy_version") or None,
        metrics=_all_plain(metrics),
        alarms=alarms,
    )


def _dropped(rows: int) -> list[Alarm]:
    text = f"{rows} rows were dropped before they could be delivered"
    return [Alarm(kind="dropped_rows", text=text)] if rows else []


def _plain(value: float | None) -> float | None:
    """Return a number that JSON knows, or None."""
    return value if value is not None and math.isfinite(value) else None


def _all_plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _plain(value) for name, value in metrics.items()}


def _count(metrics: Mapping[str, float], name: str) -> int | None:
    """Return a metric that counts something; what cannot be a count was not told."""
    value = metrics.get(name)
    return int(value) if value is not None and 0 <= value < 1 << 63 else None


def read_overview(payload: bytes) -> Overview:
    """Return the object that `overview` wrote.

    Raises:
        MessageError: if it is no such object; it comes over the network.
    """
    if len(payload) > MAX_BYTES:
        raise MessageError(f"a status of {len(payload)} bytes is too long (at most {MAX_BYTES})")
    try:
        number = _format_decoder.decode(payload).format
        if number != FORMAT:
            raise MessageError(f"the status has format {number}, this tickrate reads format {FORMAT}")
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"the status is no overview of a run: {error}") from error


class _Format(msgspec.Struct):
    """Read before the rest, which may mean something else in another format."""

    format: int


_decoder = msgspec.json.Decoder(Overview)
_format_decoder = msgspec.json.Decoder(_Format)
