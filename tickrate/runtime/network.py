"""Where the hub of a run is, how a role gets a way to it, and why it does not."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Self

from tickrate import clock
from tickrate.errors import ConfigError, CredentialsError, JoinRefused, WireError
from tickrate.wire.arrays import Compression
from tickrate.wire.credentials import Credentials
from tickrate.wire.diagnosis import diagnose
from tickrate.wire.zenoh_carrier import ZenohCarrier

DEFAULT_HUB = "tcp/127.0.0.1:7447"
"""Where `tickrate hub` listens unless told otherwise."""
LOOK_AFTER_S = 2.0
"""Seconds without a hub after which a look of our own is taken at what is there."""
LOOK_EVERY_S = 10.0
LOOK_LIMIT_S = 15.0
"""Longest time that a look under way is waited for at the end; each of its steps has a limit of its own."""


@dataclass(frozen=True)
class NetworkConfig:
    """How roles on several machines, or in several terminals, find each other.

    ``tickrate train`` has a hub of its own and uses none of it.
    """

    hub: str = DEFAULT_HUB
    """Address of the hub: ``tcp/127.0.0.1:7447`` on this machine, ``tls/HOST:7447`` anywhere else."""
    key: str = ""
    """Credentials file that `tickrate keys add` has made; needed for a ``tls/`` address."""


def credentials_of(network: NetworkConfig) -> Credentials | None:
    """Return who a role is, None on a hub without keys.

    Raises:
        CredentialsError: if the file is missing, damaged, or open to others.
    """
    return Credentials.load(network.key) if network.key else None


def open_carrier(network: NetworkConfig) -> ZenohCarrier:
    """Return a way to the hub at once, whether it is there or not; it is reached in the background.

    Raises:
        WireError: if the address or the credentials cannot work.
    """
    return ZenohCarrier(network.hub, key=credentials_of(network), wait_for_hub=False)


class HubWatch:
    """Finds out, beside the work, why the hub is not reached.

    Args:
        network: where the hub is.
        carrier: the way to it.
    """

    def __init__(self, network: NetworkConfig, carrier: ZenohCarrier) -> None:
        self._network, self._carrier = network, carrier
        self._key = credentials_of(network)
        self._next_look = clock.now() + LOOK_AFTER_S
        self._found: WireError | None = None
        self._looking: threading.Thread | None = None
        self._ever_connected = False

    def reason(self) -> str:
        """Return why there is no connection, or an empty string; never waits.

        Raises:
            JoinRefused, CredentialsError: if the hub refuses us, or we it, and there was no connection
            before.
        """
        if self._carrier.connected:
            self._ever_connected, self._found = True, None
            self._next_look = clock.now() + LOOK_AFTER_S
            return ""
        if isinstance(self._found, JoinRefused | CredentialsError) and not self._ever_connected:
            raise self._found
        if clock.now() >= self._next_look and (self._looking is None or not self._looking.is_alive()):
            self._next_look = clock.now() + LOOK_EVERY_S
            # Not a daemon: cut off inside Zenoh at the interpreter's end it would abort the process.
            self._looking = threading.Thread(target=self._look, name="tickrate-diagnosis", daemon=False)
            self._looking.start()
        return "" if self._found is None else str(self._found)

    def _look(self) -> None:
        self._found = diagnose(self._network.hub, self._key)

    def close(self) -> None:
        """Wait for a look that is under way; it takes a few seconds at most."""
        if self._looking is not None:
            self._looking.join(LOOK_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def name_of(network: NetworkConfig, wanted: str | None) -> str | None:
    """Return the name that a worker goes by: its key's, or what the person wants; None if neither says one.

    Raises:
        ConfigError: if the two differ: a name speaks only for itself.
    """
    key = credentials_of(network)
    if key is None or wanted is None:
        return wanted if key is None else key.name
    if wanted != key.name:
        raise ConfigError(
            f"--name is {wanted!r}, but the credentials {network.key} are those of {key.name!r}: a name "
            f"speaks only for itself. Leave --name out, or run  tickrate keys add {wanted}"
        )
    return wanted


def compression_for(network: NetworkConfig, wanted: Compression) -> Compression:
    """Return how rows travel: on this machine's own loopback it never pays to compress them."""
    local = any(host in network.hub for host in ("/127.", "/localhost", "/[::1]"))
    return "never" if wanted == "auto" and local else wanted
