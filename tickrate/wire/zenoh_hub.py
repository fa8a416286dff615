"""The hub, where the roles of a run meet: a Zenoh router in this process, for loopback or holders of keys."""

from __future__ import annotations

import logging
import socket
import threading
from types import TracebackType
from typing import Self

import zenoh

from tickrate import clock
from tickrate.errors import CertificateExpired, CredentialsError, WireError
from tickrate.wire import certificates
from tickrate.wire.carrier import ANY, Roster, make_key
from tickrate.wire.keys_folder import HubFiles, KeysFolder
from tickrate.wire.port_holder import why_not
from tickrate.wire.zenoh_settings import LOOPBACK, Address, closer, make_config, router_settings, within

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""Longest time that closing a session may take; then it is left to the end of the process."""
LOOK_EVERY_S = 0.5
"""Seconds between two looks at the keys."""


class ZenohHub:
    """The meeting point of a run: a Zenoh router in this process.

    Args:
        host: address to listen on. Without keys a loopback address: what arrives is not authenticated.
        port: TCP port; 0 takes a free one, told by ``endpoint``.
        keys: who may join; everything is encrypted then. Names that are added or revoked while the hub runs
            are let in or cut off within about a second. For that all connections are cut for a moment and
            mend themselves, because a router reads its rules once.
        see_presence: keep ``roster`` up to date.

    Attributes:
        endpoint: the address, ``tcp/HOST:PORT`` or ``tls/HOST:PORT``.
        reopened: how often changed keys have been taken up.
        roster: who is present, in all runs; a new, empty one whenever the hub reopens.

    Raises:
        WireError: if the address is not loopback and there are no keys, or it cannot be listened on; tells
            who holds the port where the system tells it.
        CertificateExpired: if the hub's own certificate is out of date.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        keys: KeysFolder | None = None,
        *,
        see_presence: bool = False,
    ) -> None:
        if host not in LOOPBACK and keys is None:
            raise WireError(
                f"without keys the hub listens on loopback only, not on {host!r}: nothing would tell friend "
                "from stranger. Make keys with  tickrate keys init HOST  and start  tickrate hub --keys "
                f"tickrate-keys --listen tls/{host}:{port or 7447},  or use 127.0.0.1 and a tunnel (ssh -L)"
            )
        self._keys = keys
        self._seen = keys.state() if keys else None
        session, self._address = _listen(Address("tls" if keys else "tcp", host, port), keys)
        self._session: zenoh.Session | None = session
        self.endpoint = str(self._address)
        self.reopened = 0
        self.roster = Roster()
        self._see_presence = see_presence
        self._subscriber: object = None  # lives as long as somebody holds it
        self._look_around(session)
        self._closed = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if keys is not None:
            # Not a daemon: cut off inside Zenoh at the interpreter's end it would abort the process.
            self._thread = threading.Thread(target=self._follow_keys, args=(keys,), name="tickrate-hub-keys")
            self._thread.start()
        if keys is not None or see_presence:
            closer.add(self)

    def close(self) -> None:
        """Stop listening and drop the connections; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * CLOSE_TIMEOUT_S)
        if self._session is not None:
            within(self._session.close, CLOSE_TIMEOUT_S, f"closing the hub at {self.endpoint}")

    def _follow_keys(self, keys: KeysFolder) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            state = keys.state()
            if self._session is not None and (state is None or state == self._seen):
                continue
            try:
                self._reopen(keys, state)
            except WireError as error:
                _log.error("the hub's keys changed and cannot be used: %s", error)

    def _reopen(self, keys: KeysFolder, state: tuple[int, ...] | None) -> None:
        """Take up changed keys; damaged ones leave the door as it is."""
        self._seen = state
        files = _checked(keys, starting=False)
        begin = clock.now()
        if self._session is not None:
            within(self._session.close, CLOSE_TIMEOUT_S, f"closing the hub at {self.endpoint} for new keys")
            self._session = None
        self._session = _open(self._address, keys, files)
        self._look_around(self._session)
        self.reopened += 1
        _log.info(
            "the keys changed: %d names may join; the door was shut for %.0f ms",
            len(files.entries),
            1000 * (clock.now() - begin),
        )

    def _look_around(self, session: zenoh.Session) -> None:
        if not self._see_presence:
            return
        self.roster = roster = Roster()

        def note(sample: zenoh.Sample) -> None:
            roster.update(str(sample.key_expr), present=sample.kind == zenoh.SampleKind.PUT)

        key = make_key(ANY, "present", ANY)
        self._subscriber = session.liveliness().declare_subscriber(key, note, history=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listen(wanted: Address, keys: KeysFolder | None) -> tuple[zenoh.Session, Address]:
    """Open a router. A port of 0 is chosen here, because a router does not tell which one it took."""
    files = _checked(keys, starting=True) if keys is not None else None
    attempts = 1 if wanted.port else 10  # another program may take a chosen port before the router has it
    while True:
        address = wanted._replace(port=wanted.port or _free_port(wanted.host))
        attempts -= 1
        try:
            return _open(address, keys, files), address
        except WireError:
            if not attempts:
                raise


def _open(address: Address, keys: KeysFolder | None, files: HubFiles | None) -> zenoh.Session:
    passwords = ""
    if keys is not None and files is not None:
        passwords = str(keys.write_passwords(files.entries))
    try:
        return zenoh.open(make_config(router_settings(address, files, passwords)))
    except zenoh.ZError as error:
        reason = why_not(address.host, address.port) or str(error)
        raise WireError(
            f"the hub cannot listen on {address}: {reason}. Is another run using it? Choose another port, "
            "or an address of this machine"
        ) from error


def _checked(keys: KeysFolder, *, starting: bool) -> HubFiles:
    """Return the hub's files after a look at what Zenoh would not name.

    A hub that runs already takes up a revocation also when its own certificate has run out.

    Raises:
        CredentialsError: if one is missing or damaged.
        CertificateExpired: if the hub's certificate is out of date at the start.
    """
    files = keys.hub_files()
    try:
        end = certificates.valid_until(files.certificate)
        certificates.valid_until(files.ca_certificate)
    except ValueError as error:
        raise CredentialsError(f"a certificate in {keys.path} is damaged: {error}") from error
    if starting and end < clock.wall_time():
        raise CertificateExpired(
            f"the hub's certificate in {keys.path} expired on {certificates.day(end)}: run  tickrate keys "
            f"init --renew --keys {keys.path}"
        )
    return files


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
