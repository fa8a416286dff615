"""Settings of Zenoh that hub, carriers and the diagnosis share, and addresses as they are written."""

from __future__ import annotations

import base64
import json
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import zenoh

from tickrate.errors import CredentialsError, WireError
from tickrate.wire.access import access_rules
from tickrate.wire.credentials import Credentials
from tickrate.wire.keys_folder import HubFiles
from tickrate.wire.messages import MAX_MESSAGE_BYTES

_log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost", "::1")

COMMON: dict[str, Any] = {
    "scouting/multicast/enabled": False,
    "scouting/gossip/enabled": False,
    "transport/shared_memory/enabled": False,  # it would leave files behind when a process is killed
    "scouting/delay": 0,  # there is nobody to wait for; the default costs 0.5 s a start
    "transport/link/rx/max_message_size": MAX_MESSAGE_BYTES + 65536,
    # Microseconds. The default of 1 ms drops status lines whenever the machine is merely busy.
    "transport/link/tx/queue/congestion_control": {
        "drop": {"wait_before_drop": 20_000, "max_wait_before_drop_fragments": 1_000_000}
    },
    # Batches of 64 KB that may wait on a link. The default of 2 costs a fifth of the throughput through TLS.
    "transport/link/tx/queue/size/data": 16,
}
_RETRY = {"period_init_ms": 100, "period_max_ms": 500, "period_increase_factor": 2}
"""How often a lost hub is dialled again: it is found within half a second of its return."""


class Address(NamedTuple):
    """A hub's address, taken apart."""

    kind: str
    """``tcp`` or ``tls``."""
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.kind}/[{self.host}]:{self.port}" if ":" in self.host else "{}/{}:{}".format(*self)


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """Return an address written as ``tcp/HOST:PORT`` or ``tls/HOST:PORT``.

    Args:
        text: what a person wrote; an IPv6 address stands in brackets.
        any_port: allow port 0, a free one.

    Raises:
        WireError: if it is none.
    """
    kind, _, address = text.partition("/")
    host, _, port = address.rpartition(":")
    # More than five digits are no port, and int() of very many raises.
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else -1
    if kind not in ("tcp", "tls") or not host.strip("[]") or not (not any_port) <= number < 65536:
        raise WireError(
            f"{text!r} is no hub address: write it as tcp/HOST:PORT, for example tcp/127.0.0.1:7447, or as "
            "tls/HOST:PORT for a hub with keys"
        )
    return Address(kind, host.strip("[]"), number)


def make_config(settings: dict[str, Any]) -> zenoh.Config:
    """Return a configuration of Zenoh: the common settings and these."""
    config = zenoh.Config()
    for key, value in (COMMON | settings).items():
        config.insert_json5(key, json.dumps(value))
    return config


def client_config(address: Address, key: Credentials | None, timeout_s: float) -> zenoh.Config:
    """Return the configuration of a session that dials a hub and gives up after ``timeout_s`` seconds.

    Raises:
        CredentialsError: if the address needs credentials and there are none, or the reverse.
    """
    check_key(address, key)
    settings: dict[str, Any] = {
        "mode": "client",
        "connect/endpoints": [str(address)],
        "connect/timeout_ms": max(1, int(timeout_s * 1000)),
        "connect/exit_on_failure": True,
        "connect/retry": _RETRY,
    }
    if key is not None:
        settings["transport/auth/usrpwd"] = {"user": key.name, "password": key.password}
        settings["transport/link/tls"] = {
            "enable_mtls": True,
            "root_ca_certificate_base64": _base64(key.ca_certificate),
            "connect_certificate_base64": _base64(key.certificate),
            "connect_private_key_base64": _base64(key.private_key),
        }
    return make_config(settings)


def check_key(address: Address, key: Credentials | None) -> None:
    """Check that there are credentials for a ``tls/`` address, and for no other.

    Raises:
        CredentialsError: if not.
        WireError: for an IPv6 address with TLS; Zenoh takes it for a host name and refuses it as one.
    """
    if address.kind == "tls" and ":" in address.host:
        raise WireError(
            f"{address}: over TLS a hub on IPv6 is dialled by a host name, not by its address. Give it one "
            "(/etc/hosts will do), and write it into the hub's certificate: tickrate keys init NAME --renew"
        )
    if address.kind == "tls" and key is None:
        raise CredentialsError(
            f"{address} needs credentials: on the hub's machine run  tickrate keys add NAME,  carry the file "
            "here, and name it with --key"
        )
    if address.kind == "tcp" and key is not None:
        raise CredentialsError(
            f"the credentials of {key.name!r} are for a hub with keys, and {address} is not encrypted: "
            f"write tls/{str(address)[4:]}, or leave out the key"
        )


def router_settings(address: Address, files: HubFiles | None, passwords_file: str = "") -> dict[str, Any]:
    """Return the settings of a hub's router; with files it lets in the names that stand in them alone."""
    settings: dict[str, Any] = {
        "mode": "router",
        "listen/endpoints": [str(address)],
        "listen/exit_on_failure": True,
    }
    if files is not None:
        settings["transport/link/tls"] = {
            "enable_mtls": True,
            "close_link_on_expiration": True,
            "root_ca_certificate_base64": _base64(files.ca_certificate),
            "listen_certificate_base64": _base64(files.certificate),
            "listen_private_key_base64": _base64(files.private_key),
        }
        settings["transport/auth/usrpwd"] = {"dictionary_file": passwords_file}
        settings["access_control"] = access_rules(files.entries)
    return settings


def standalone_router_config(address: Address, files: HubFiles, folder: Path, passwords_file: Path) -> str:
    """Return a JSON5 configuration with which ``zenohd`` serves in place of our hub, under the same rules."""
    settings = COMMON | router_settings(address, files, str(passwords_file.resolve()))
    settings["transport/link/tls"] = {
        "enable_mtls": True,
        "close_link_on_expiration": True,
        "root_ca_certificate": str((folder / "ca.crt").resolve()),
        "listen_certificate": str((folder / "hub.crt").resolve()),
        "listen_private_key": str((folder / "hub.key").resolve()),
    }
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, last = key.split("/")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        if isinstance(place.get(last), dict):
            place[last].update(value)
        else:
            place[last] = value
    return json.dumps(nested, indent=2)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def within(action: Callable[[], object], timeout_s: float, what: str) -> bool:
    """Run ``action`` in a thread, wait at most ``timeout_s`` seconds for it, return whether it ended."""
    thread = threading.Thread(target=action, name=what, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # Python 3.12.0 and 3.12.1 start none once the main thread has ended. Only `_Closer` comes here then,
        # and it limits its wait itself.
        action()
        return True
    thread.join(timeout_s)
    if thread.is_alive():
        _log.warning("%s took over %g s and was left behind", what, timeout_s)
    return not thread.is_alive()


CLOSER_LIMIT_S = 15.0
"""Longest that the end of a process is held up by what it forgot to close."""


class _Closable(Protocol):
    def close(self) -> None: ...


class _Closer:
    """Closes what a program forgot to close, when its main thread ends.

    Zenoh runs callbacks on threads that the interpreter waits for at its end, without a limit, until their
    session is closed: a forgotten ``close()`` would keep the process alive for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[_Closable] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._closing: threading.Thread

    def add(self, what: _Closable) -> None:
        """Close it at the end, if it still exists."""
        with self._lock:
            self._open.add(what)
            if self._thread is None:
                # Not a daemon: the interpreter must wait for it, or it is cut off inside Zenoh, which aborts.
                self._thread = threading.Thread(target=self._watch, name="tickrate-wire-closer", daemon=False)
                # Started now: at the end there may be no starting a thread any more.
                self._closing = threading.Thread(
                    target=self._close, name="tickrate-wire-closing", daemon=True
                )
                self._closing.start()
                self._thread.start()

    def _watch(self) -> None:
        threading.main_thread().join()
        self._closing.join(CLOSER_LIMIT_S)
        if self._closing.is_alive():
            _log.warning("closing what was left open took over %g s and was left behind", CLOSER_LIMIT_S)

    def _close(self) -> None:
        threading.main_thread().join()
        for what in list(self._open):
            what.close()


closer = _Closer()
"""The one closer of this process."""
