"""Why a role cannot join: a look of our own at the hub, because Zenoh gives one reason for everything."""

from __future__ import annotations

import socket
import ssl
import tempfile
from pathlib import Path

import zenoh

from tickrate.clock import wall_time
from tickrate.errors import (
    CertificateExpired,
    CredentialsError,
    EncryptionMismatch,
    HubUnreachable,
    JoinRefused,
    NameRefused,
    NotAHub,
    WireError,
    WrongAuthority,
    WrongHostName,
)
from tickrate.wire import certificates
from tickrate.wire.credentials import Credentials
from tickrate.wire.zenoh_settings import Address, check_key, client_config, parse_address

ALERT_S = 0.3
"""How long a hub may take to say that it does not like our certificate; then it has accepted it."""

# Numbers of OpenSSL's certificate verification, X509_V_ERR_*.
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _IP_MISMATCH = 9, 10, 62, 64


def diagnose(endpoint: str, key: Credentials | None = None, timeout_s: float = 2.0) -> WireError | None:
    """Return why a role cannot join the hub at ``endpoint``, or None if it can now.

    Each step takes at most ``timeout_s`` seconds: one's own certificate, the address, TLS both ways, and last
    a join without any consequence.

    Returns:
        `HubUnreachable` (nothing there), `NotAHub`, `EncryptionMismatch`, `WrongAuthority`, `WrongHostName`,
        `CertificateExpired`, `NameRefused`, `CredentialsError`, or `JoinRefused` for what has no other name.

    Raises:
        WireError: if ``endpoint`` is no address.
    """
    address = parse_address(endpoint)
    try:
        check_key(address, key)
        if key is not None:
            check_own_certificate(key)
        _check_reachable(address, timeout_s)
        if key is not None:
            _check_tls(address, key, timeout_s)
        _check_join(address, key, timeout_s)
    except WireError as reason:
        return reason
    return None


def check_own_certificate(key: Credentials) -> None:
    """Check that one's own certificate is valid by this machine's clock.

    Raises:
        CertificateExpired: if it is out of date, or not valid yet; tells the date and what to do.
        CredentialsError: if it is damaged.
    """
    try:
        begin, end = certificates.valid_from(key.certificate), certificates.valid_until(key.certificate)
    except ValueError as error:
        raise CredentialsError(
            f"the certificate of {key.name!r} is damaged: {error}. Carry the file here again"
        ) from error
    if end < wall_time():
        raise CertificateExpired(
            f"the certificate of {key.name!r} expired on {certificates.day(end)}: on the hub's machine run  "
            f"tickrate keys add {key.name} --renew  and carry the new file here"
        )
    if begin > wall_time():
        raise CertificateExpired(
            f"the certificate of {key.name!r} is valid from {certificates.day(begin)} on, and this machine's "
            f"clock says {certificates.day(wall_time())}: set the clock"
        )


def _check_reachable(address: Address, timeout_s: float) -> None:
    advice = "start it with  tickrate hub  (tickrate train has one of its own), or correct the address"
    try:
        socket.create_connection((address.host, address.port), timeout=timeout_s).close()
    except ConnectionRefusedError as error:
        raise HubUnreachable(f"no hub at {address}: nothing listens there; {advice}") from error
    except (OSError, UnicodeError) as error:
        raise HubUnreachable(
            f"no hub at {address}: the address cannot be reached ({error}); {advice}"
        ) from error


def _check_tls(address: Address, key: Credentials, timeout_s: float) -> None:
    """Shake hands as the carrier does, and listen whether the hub complains about our certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=key.ca_certificate)
        _load_own_certificate(context, key)
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsError(
            f"certificate and key of {key.name!r} do not fit together or are damaged ({error}): carry the "
            "file here again"
        ) from error
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            secure.settimeout(ALERT_S)
            try:
                secure.recv(1)  # a hub that accepts us waits for our first word
            except TimeoutError:
                pass
    except ssl.SSLCertVerificationError as error:
        raise _refused_by_us(address, key, error, timeout_s) from error
    except ssl.SSLError as error:
        raise _refused_by_hub(address, key, error, timeout_s) from error
    except OSError as error:
        raise _no_tls(address, timeout_s) from error


def _load_own_certificate(context: ssl.SSLContext, key: Credentials) -> None:
    """Python's TLS reads certificates from files only: one that others cannot read, gone at once."""
    with tempfile.TemporaryDirectory(prefix="tickrate-") as folder:  # made with mode 0700
        file = Path(folder) / "key.pem"
        file.write_text(key.certificate + key.private_key, encoding="utf-8")
        context.load_cert_chain(file)


def _refused_by_us(
    address: Address, key: Credentials, error: ssl.SSLCertVerificationError, timeout_s: float
) -> WireError:
    theirs = _peer_certificate(address, timeout_s)
    if not theirs:
        return JoinRefused(f"the hub at {address} broke off the TLS handshake: {error}; try again")
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        begin, end = certificates.valid_from(theirs), certificates.valid_until(theirs)
        return CertificateExpired(
            f"the certificate of the hub at {address} is valid from {certificates.day(begin)} to "
            f"{certificates.day(end)}, and this machine's clock says {certificates.day(wall_time())}: on the "
            "hub's machine run  tickrate keys init --renew,  or set the clock here"
        )
    if error.verify_code in (_HOST_MISMATCH, _IP_MISMATCH):
        known = ", ".join(certificates.hosts_of(theirs)) or "no address at all"
        return WrongHostName(
            f"the hub's certificate is not for {address.host!r}, it is for {known}: dial one of these, or on "
            f"the hub's machine run  tickrate keys init {address.host} --renew"
        )
    return WrongAuthority(
        f"the hub at {address} shows a certificate of another authority than the one that made the file of "
        f"{key.name!r} ({error.verify_message}): the hub's keys were made anew or this is another hub; carry "
        "a file here from that hub's  tickrate keys add"
    )


def _refused_by_hub(address: Address, key: Credentials, error: ssl.SSLError, timeout_s: float) -> WireError:
    """Return what an alert of the hub's, or something that is no TLS at all, means."""
    reason = (error.reason or "").upper()
    if "ALERT" not in reason:
        return _no_tls(address, timeout_s)
    if "EXPIRED" in reason:
        return CertificateExpired(
            f"the hub at {address} says that the certificate of {key.name!r} has expired; it is valid until "
            f"{certificates.day(certificates.valid_until(key.certificate))}: one of the two clocks is wrong"
        )
    if "UNKNOWN_CA" in reason or "DECRYPT_ERROR" in reason:
        return WrongAuthority(
            f"the hub at {address} does not know the authority that made the file of {key.name!r}: carry a "
            "file here from that hub's  tickrate keys add"
        )
    return JoinRefused(f"the hub at {address} broke off the TLS handshake: {error}")


def _no_tls(address: Address, timeout_s: float) -> WireError:
    if _joins(address._replace(kind="tcp"), None, timeout_s):
        return EncryptionMismatch(
            f"the hub at {address.host}:{address.port} has no keys and speaks no TLS: start it with  "
            f"tickrate hub --keys tickrate-keys,  or dial tcp/{str(address)[4:]} without a key"
        )
    return NotAHub(f"something listens at {address}, but it does not answer as a hub: correct the address")


def _check_join(address: Address, key: Credentials | None, timeout_s: float) -> None:
    if _joins(address, key, timeout_s):
        return
    if key is not None:
        raise NameRefused(
            f"the hub at {address} does not let in the name {key.name!r}: it was revoked or never added "
            "there, or its file was made anew. See  tickrate keys list  on the hub's machine; tickrate keys "
            f"add {key.name} --renew  makes a file that is let in"
        )
    if _peer_certificate(address, timeout_s):
        raise EncryptionMismatch(
            f"the hub at {address.host}:{address.port} speaks TLS: dial tls/{str(address)[4:]} and give the "
            "credentials with --key"
        )
    raise NotAHub(f"something listens at {address}, but it does not answer as a hub: correct the address")


def _joins(address: Address, key: Credentials | None, timeout_s: float) -> bool:
    try:
        session = zenoh.open(client_config(address, key, timeout_s))
    except zenoh.ZError:
        return False
    session.close()  # type: ignore[no-untyped-call]
    return True


def _peer_certificate(address: Address, timeout_s: float) -> str:
    """Return the certificate that is shown at an address, as PEM, unchecked; empty if none is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=timeout_s) as plain,
            context.wrap_socket(plain) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
    except OSError:
        return ""
    return ssl.DER_cert_to_PEM_cert(shown) if shown else ""
