"""The carrier between processes: one Zenoh client in each role, which dials the hub, over TCP or mutual TLS.

Zenoh reconnects by itself and says nothing when it loses a payload on a broken way; see `carrier` for what is
promised here. Nothing looks for partners on the network: scouting and gossip are off, addresses are given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import zenoh

from tickrate import clock
from tickrate.errors import HubUnreachable, WireError
from tickrate.wire.carrier import ANY, Roster
from tickrate.wire.credentials import Credentials
from tickrate.wire.diagnosis import check_own_certificate, diagnose
from tickrate.wire.mailbox import DEFAULT_MAX_BYTES, Accept, Mailbox
from tickrate.wire.messages import MAX_MESSAGE_BYTES
from tickrate.wire.zenoh_hub import ZenohHub
from tickrate.wire.zenoh_settings import Address, check_key, client_config, closer, parse_address, within

_log = logging.getLogger(__name__)

__all__ = ["ZenohCarrier", "ZenohHub"]

CLOSE_TIMEOUT_S = 5.0
"""Longest time that closing a session may take; then it is left to the end of the process."""
DIAL_S = 1.0
"""Seconds that one attempt to reach the hub may take; Zenoh dials several times in it."""
PAUSE_MAX_S = 0.5
"""Longest pause between two attempts in the background."""

_Declaration = Callable[[zenoh.Session], object]


class ZenohCarrier:
    """A `Carrier` that dials a `ZenohHub`, in this process, another one, or on another machine.

    Args:
        endpoint: the hub's address, ``tcp/127.0.0.1:7447``, or ``tls/HOST:PORT`` for a hub with keys.
        timeout_s: how long to try to reach it, in seconds; finding out why it failed adds a few. Later breaks
            are mended without a limit, in the background; ``connected`` tells.
        key: who one is; needed for ``tls/``, refused for ``tcp/``.
        wait_for_hub: if False, return at once and go on dialling in the background, without a limit. What is
            subscribed, announced and watched meanwhile holds from the moment of the connection on; what is
            published is lost. `diagnosis.diagnose` tells what stands in the way.

    Raises:
        HubUnreachable: if no hub answers there in time; the message says what was found instead.
        JoinRefused: if there is a hub and it refuses us, or we it; each reason is a class of its own.
        CertificateExpired: if our own certificate is out of date; this is seen before anything is dialled.
        WireError: if the address is none, or does not go with the key.
    """

    def __init__(
        self,
        endpoint: str,
        timeout_s: float = 10.0,
        key: Credentials | None = None,
        *,
        wait_for_hub: bool = True,
    ) -> None:
        self._address = parse_address(endpoint)
        self._key = key
        check_key(self._address, key)
        if key is not None:
            check_own_certificate(key)
        self._lock = threading.Lock()
        self._session: zenoh.Session | None = None
        self._declarations: list[tuple[str, _Declaration]] = []
        self._kept: list[object] = []  # subscribers and tokens live as long as somebody holds them
        self._mailboxes: list[Mailbox] = []
        self._closed = False
        self._stop = threading.Event()
        self._dialler: threading.Thread | None = None
        if wait_for_hub:
            self._session = _connect(self._address, key, timeout_s)
        else:
            # Not a daemon: cut off inside Zenoh at the interpreter's end it would abort the process.
            self._dialler = threading.Thread(target=self._dial, name="tickrate-wire-dialler", daemon=False)
            self._dialler.start()
        closer.add(self)

    @property
    def connected(self) -> bool:
        """True while there is a connection to the hub."""
        session = self._session
        return not self._closed and session is not None and bool(session.info.routers_zid())

    def publish(self, key: str, payload: bytes, *, wait: bool = True) -> None:
        """Send a payload. See `Carrier`."""
        self._check_open()
        if ANY in key:
            raise WireError(f"cannot publish under {key!r}: name one key, '*' is for subscriptions")
        if len(payload) > MAX_MESSAGE_BYTES:
            raise WireError(f"a payload of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        session = self._session
        if session is None:
            return  # no hub yet: lost, as it would be while the hub is gone
        control = zenoh.CongestionControl.BLOCK if wait else zenoh.CongestionControl.DROP
        try:
            session.put(key, payload, congestion_control=control)
        except zenoh.ZError as error:
            raise WireError(f"cannot publish {len(payload)} bytes under {key!r}: {error}") from error

    def subscribe(
        self,
        key: str,
        *,
        capacity: int,
        newest_only: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        accept: Accept | None = None,
    ) -> Mailbox:
        """Return a mailbox for what is published from now on. See `Carrier`."""
        mailbox = Mailbox(capacity, newest_only=newest_only, max_bytes=max_bytes, accept=accept)

        def hand_over(sample: zenoh.Sample) -> None:
            mailbox.put(str(sample.key_expr), sample.payload.to_bytes())

        self._declare(key, lambda session: session.declare_subscriber(key, hand_over))
        self._mailboxes.append(mailbox)
        return mailbox

    def announce(self, key: str) -> None:
        """Be present under ``key`` until closed. See `Carrier`."""
        self._declare(key, lambda session: session.liveliness().declare_token(key))

    def watch(self, key: str) -> Roster:
        """Return who is present under matching keys. See `Carrier`."""
        roster = Roster()

        def note(sample: zenoh.Sample) -> None:
            roster.update(str(sample.key_expr), present=sample.kind == zenoh.SampleKind.PUT)

        self._declare(key, lambda session: session.liveliness().declare_subscriber(key, note, history=True))
        return roster

    def close(self) -> None:
        """Leave the hub. See `Carrier`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        if self._dialler is not None:
            self._dialler.join(CLOSE_TIMEOUT_S)
        if self._session is not None:
            within(self._session.close, CLOSE_TIMEOUT_S, f"closing the connection to {self._address}")
        self._kept.clear()
        for mailbox in self._mailboxes:
            mailbox.close()

    def _declare(self, key: str, declaration: _Declaration) -> None:
        """Declare now if there is a session, otherwise when there will be one; Zenoh repeats it by itself."""
        self._check_open()
        try:
            zenoh.KeyExpr(key)  # a wrong key is the caller's mistake, now and not in the background
            with self._lock:
                if self._session is None:
                    self._declarations.append((key, declaration))
                else:
                    self._kept.append(declaration(self._session))
        except zenoh.ZError as error:
            raise WireError(f"cannot use the key {key!r}: {error}") from error

    def _dial(self) -> None:
        pause = 0.05
        config = client_config(self._address, self._key, DIAL_S)
        while not self._stop.is_set():
            try:
                session = zenoh.open(config)
            except zenoh.ZError:
                self._stop.wait(pause)
                pause = min(PAUSE_MAX_S, 2 * pause)
                continue
            with self._lock:
                for key, declaration in self._declarations:
                    try:
                        self._kept.append(declaration(session))
                    except (
                        zenoh.ZError
                    ) as error:  # keys were checked before, so this is not the caller's fault
                        _log.error("cannot declare %r at the hub: %s", key, error)
                self._declarations.clear()
                self._session = session
            return

    def _check_open(self) -> None:
        if self._closed:
            raise WireError("this carrier is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _connect(address: Address, key: Credentials | None, timeout_s: float) -> zenoh.Session:
    """Dial until the time is up; stop early if a hub is there and will not have us."""
    deadline = clock.now() + timeout_s
    while True:
        left = deadline - clock.now()
        try:
            return zenoh.open(client_config(address, key, max(0.05, min(DIAL_S, left))))
        except zenoh.ZError as error:
            over = clock.now() >= deadline
            reason = diagnose(str(address), key, min(2.0, max(0.3, timeout_s)))
            if reason is None and not over:
                continue
            if reason is None:
                reason = HubUnreachable(f"{error}; it answers now: try again, or allow more time")
            if over or not isinstance(reason, HubUnreachable):
                if isinstance(reason, HubUnreachable):
                    reason = type(reason)(f"no hub answered within {timeout_s:g} s: {reason}")
                raise reason from error
