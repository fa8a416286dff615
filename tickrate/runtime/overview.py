"""The state of a run as one JSON object, for ``tickrate status`` and for dashboards; see docs/protocol.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tickrate import __version__, clock
from tickrate.errors import MessageError
from tickrate.runtime.courier import here
from tickrate.runtime.peers import STALLED_AFTER_S, Peer

FORMAT = 1
"""Raised whenever a key changes its meaning; new keys do not raise it."""

MAX_BYTES = 4 << 20


def overview(
    run: str,
    peers: list[Peer],
    trainer: Mapping[str, float],
    *,
    state: str,
    text: str,
    newest_version: int,
    lag_alarm_s: float,
    now: float,
) -> bytes:
    """Return the JSON text of a run's state.

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
    workers = [_worker(peer, newest_version, lag_alarm_s, now) for peer in peers]
    body = {
        "format": FORMAT,
        "run": run,
        "time": clock.wall_time(),
        "version": __version__,
        "trainer": {
            "host": here(),
            "state": state,
            "text": text,
            "policy_version": newest_version,
            "metrics": {name: _plain(value) for name, value in trainer.items()},
        },
        "workers": workers,
        "alarms": [f"{w['name']}: {alarm}" for w in workers for alarm in w["alarms"]],
    }
    return json.dumps(body).encode()


def _worker(peer: Peer, newest_version: int, lag_alarm_s: float, now: float) -> dict[str, Any]:
    status, ping, receiver = peer.status, peer.ping, peer.receiver
    metrics = {} if status is None else dict(status.metrics)
    version, age = peer.policy
    silent_s = now - peer.heard_at
    gone = status is not None and status.state == "stopped"
    waiting_rows = 0 if ping is None else max(0, ping.head - receiver.expected)
    alarms = []
    if silent_s > STALLED_AFTER_S and not gone:
        alarms.append(f"silent for {silent_s:.0f} s")
    if age is not None and age > lag_alarm_s and not gone:
        alarms.append(f"acts with a policy {age:.0f} s old (alarm at {lag_alarm_s:g} s)")
    if receiver.lost:
        alarms.append(f"{receiver.lost} rows were dropped before they could be delivered")
    return {
        "name": peer.name,
        "host": peer.hello.host,
        "purpose": peer.hello.purpose,
        "version": peer.hello.version,
        "connected": not gone and silent_s <= STALLED_AFTER_S,
        "state": "silent" if status is None else status.state,
        "text": "" if status is None else status.text,
        "heard_s_ago": _plain(silent_s),
        "samples_per_s": peer.rate.per_second(),
        "rows": peer.rows,
        "steps": peer.steps,
        "episodes": peer.episodes,
        "last_return": _plain(peer.last_return),
        "rows_lost": receiver.lost,
        "rows_repeated": receiver.repeated,
        "rows_waiting": waiting_rows,
        "outbox_rows": _plain(metrics.get("worker/outbox_rows")),
        "outbox_bytes": _plain(metrics.get("worker/outbox_bytes")),
        "acknowledgement_age_s": _plain(now - peer.stored_at) if waiting_rows else 0.0,
        "policy_version": version,
        "policy_lag_versions": max(0, newest_version - version) if version else None,
        "policy_lag_s": _plain(age),
        "clock_offset_s": None if ping is None else _plain(ping.clock_offset_s),
        "rtt_s": None if ping is None else _plain(ping.rtt_s),
        "metrics": {name: _plain(value) for name, value in metrics.items()},
        "alarms": alarms,
    }


def _plain(value: float | None) -> float | None:
    """Return a number that JSON knows, or None."""
    return value if value is not None and math.isfinite(value) else None


def read_overview(payload: bytes) -> dict[str, Any]:
    """Return the object that `overview` wrote.

    Raises:
        MessageError: if it is no such object; it comes over the network.
    """
    if len(payload) > MAX_BYTES:
        raise MessageError(f"a status of {len(payload)} bytes is too long (at most {MAX_BYTES})")
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the status is no JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("workers"), list):
        raise MessageError("the status is no object with a list of workers")
    if body.get("format") != FORMAT:
        raise MessageError(
            f"the status has format {body.get('format')!r}, this tickrate reads format {FORMAT}"
        )
    return body
