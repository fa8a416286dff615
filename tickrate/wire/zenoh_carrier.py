"""The carrier between processes: Zenoh over TCP, a router in the hub's process and one client in each role.

Zenoh reconnects by itself and says nothing when it loses a payload on a broken way; see `carrier` for what is
promised here. Nothing looks for partners on the network: scouting and gossip are off, addresses are given.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zenoh

from tickrate.errors import HubUnreachable, WireError
from tickrate.wire.carrier import ANY, Roster
from tickrate.wire.mailbox import DEFAULT_MAX_BYTES, Mailbox
from tickrate.wire.messages import MAX_MESSAGE_BYTES

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""Longest time that closing a session may take; then it is left to the end of the process."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_COMMON: dict[str, Any] = {
    "scouting/multicast/enabled": False,
    "scouting/gossip/enabled": False,
    "transport/shared_memory/enabled": False,  # it would leave files behind when a process is killed
    "scouting/delay": 0,  # there is nobody to wait for; the default costs 0.5 s a start
    "transport/link/rx/max_message_size": MAX_MESSAGE_BYTES + 65536,
    # Microseconds. The default of 1 ms drops status lines whenever the machine is merely busy.
    "transport/link/tx/queue/congestion_control": {
        "drop": {"wait_before_drop": 20_000, "max_wait_before_drop_fragments": 1_000_000}
    },
}


class ZenohHub:
    """The meeting point of a run: a Zenoh router in this process.

    Args:
        host: a loopback address. Others are refused: what arrives is not authenticated.
        port: TCP port; 0 takes a free one, told by ``endpoint``.

    Raises:
        WireError: if the address is not loopback or cannot be listened on.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        if host not in _LOOPBACK:
            raise WireError(
                f"the hub listens on loopback only, not on {host!r}: the connection is not authenticated. "
                "Use 127.0.0.1 and a tunnel (for example ssh -L) to reach it from another machine"
            )
        self._session, self.endpoint = _listen(host, port)
        self._closed = False

    def close(self) -> None:
        """Stop listening and drop the connections; a second call does nothing."""
        if not self._closed:
            self._closed = True
            _within(self._session.close, CLOSE_TIMEOUT_S, f"closing the hub at {self.endpoint}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ZenohCarrier:
    """A `Carrier` that dials a `ZenohHub`, in this process, another one, or at the end of a tunnel.

    Args:
        endpoint: the hub's address, ``tcp/127.0.0.1:7447``.
        timeout_s: how long to try to reach it, in seconds. Later breaks are mended without a limit, in the
            background; ``connected`` tells.

    Raises:
        HubUnreachable: if no hub answers there in time; the message says what was found instead.
    """

    def __init__(self, endpoint: str, timeout_s: float = 10.0) -> None:
        self._endpoint = endpoint
        self._session = _connect(endpoint, timeout_s)
        self._mailboxes: list[Mailbox] = []
        self._kept: list[object] = []  # subscribers and tokens live as long as somebody holds them
        self._closed = False
        _closer.add(self)

    @property
    def connected(self) -> bool:
        """True while there is a connection to the hub."""
        return not self._closed and bool(self._session.info.routers_zid())

    def publish(self, key: str, payload: bytes, *, wait: bool = True) -> None:
        """Send a payload. See `Carrier`."""
        self._check_open()
        if ANY in key:
            raise WireError(f"cannot publish under {key!r}: name one key, '*' is for subscriptions")
        if len(payload) > MAX_MESSAGE_BYTES:
            raise WireError(f"a payload of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        control = zenoh.CongestionControl.BLOCK if wait else zenoh.CongestionControl.DROP
        try:
            self._session.put(key, payload, congestion_control=control)
        except zenoh.ZError as error:
            raise WireError(f"cannot publish {len(payload)} bytes under {key!r}: {error}") from error

    def subscribe(
        self, key: str, *, capacity: int, newest_only: bool = False, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> Mailbox:
        """Return a mailbox for what is published from now on. See `Carrier`."""
        self._check_open()
        mailbox = Mailbox(capacity, newest_only=newest_only, max_bytes=max_bytes)

        def hand_over(sample: zenoh.Sample) -> None:
            mailbox.put(str(sample.key_expr), sample.payload.to_bytes())

        try:
            self._kept.append(self._session.declare_subscriber(key, hand_over))
        except zenoh.ZError as error:
            raise WireError(f"cannot subscribe to {key!r}: {error}") from error
        self._mailboxes.append(mailbox)
        return mailbox

    def announce(self, key: str) -> None:
        """Be present under ``key`` until closed. See `Carrier`."""
        self._check_open()
        self._kept.append(self._session.liveliness().declare_token(key))

    def watch(self, key: str) -> Roster:
        """Return who is present under matching keys. See `Carrier`."""
        self._check_open()
        roster = Roster()

        def note(sample: zenoh.Sample) -> None:
            roster.update(str(sample.key_expr), present=sample.kind == zenoh.SampleKind.PUT)

        self._kept.append(self._session.liveliness().declare_subscriber(key, note, history=True))
        return roster

    def close(self) -> None:
        """Leave the hub. See `Carrier`."""
        if self._closed:
            return
        self._closed = True
        _within(self._session.close, CLOSE_TIMEOUT_S, f"closing the connection to {self._endpoint}")
        self._kept.clear()
        for mailbox in self._mailboxes:
            mailbox.close()

    def _check_open(self) -> None:
        if self._closed:
            raise WireError("this carrier is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Closer:
    """Closes the carriers that a program forgot, when its main thread ends.

    Zenoh runs callbacks on threads that the interpreter waits for at its end, without a limit, until their
    session is closed: a forgotten ``close()`` would keep the process alive for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._carriers: weakref.WeakSet[ZenohCarrier] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def add(self, carrier: ZenohCarrier) -> None:
        with self._lock:
            self._carriers.add(carrier)
            if self._thread is None:
                # Not a daemon: the interpreter must wait for it, or it is cut off inside Zenoh, which aborts.
                self._thread = threading.Thread(target=self._watch, name="tickrate-wire-closer", daemon=False)
                self._thread.start()

    def _watch(self) -> None:
        threading.main_thread().join()
        for carrier in list(self._carriers):
            carrier.close()


_closer = _Closer()


def _config(settings: dict[str, Any]) -> zenoh.Config:
    config = zenoh.Config()
    for key, value in (_COMMON | settings).items():
        config.insert_json5(key, json.dumps(value))
    return config


def _listen(host: str, port: int) -> tuple[zenoh.Session, str]:
    """Open a router. A port of 0 is chosen here, because a router does not tell which one it took."""
    failure: zenoh.ZError | None = None
    for _ in range(
        1 if port else 10
    ):  # a chosen port may be taken by another program before the router has it
        shown = f"[{host}]" if ":" in host else host
        endpoint = f"tcp/{shown}:{port or _free_port(host)}"
        settings = {"mode": "router", "listen/endpoints": [endpoint], "listen/exit_on_failure": True}
        try:
            return zenoh.open(_config(settings)), endpoint
        except zenoh.ZError as error:
            failure = error
    raise WireError(f"the hub cannot listen on {endpoint}; is another run using it? ({failure})") from failure


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _connect(endpoint: str, timeout_s: float) -> zenoh.Session:
    host, port = _parse(endpoint)
    settings = {
        "mode": "client",
        "connect/endpoints": [endpoint],
        "connect/timeout_ms": max(1, int(timeout_s * 1000)),
        "connect/exit_on_failure": True,
        "connect/retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2},
    }
    try:
        return zenoh.open(_config(settings))
    except zenoh.ZError as error:
        found = _what_is_there(host, port)
        raise HubUnreachable(
            f"no hub answered at {endpoint} within {timeout_s:g} s: {found}. "
            "Start the run that holds the hub (tickrate train), or correct the address"
        ) from error


def _parse(endpoint: str) -> tuple[str, int]:
    kind, _, address = endpoint.partition("/")
    host, _, port = address.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WireError(
            f"{endpoint!r} is no hub address: write it as tcp/HOST:PORT, for example tcp/127.0.0.1:7447"
        )
    return host.strip("[]"), int(port)


def _what_is_there(host: str, port: int) -> str:
    """Return what a plain connection meets, because Zenoh gives one and the same reason for every failure."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return "something listens there, but it does not answer as a hub"
    except ConnectionRefusedError:
        return "nothing listens there"
    except OSError as error:
        return f"the address cannot be reached ({error})"


def _within(action: Callable[[], object], timeout_s: float, what: str) -> None:
    """Run ``action`` in a thread and wait for it, but not longer than ``timeout_s`` seconds."""
    thread = threading.Thread(target=action, name=what, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        _log.warning("%s took over %g s and was left behind", what, timeout_s)
