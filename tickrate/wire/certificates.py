"""Certificates: an authority of one's own, what it signs, and how long that holds."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tickrate.clock import wall_time

AUTHORITY_DAYS = 3650.0
"""Days that a new authority holds; it outlives what it signs."""

_BACKDATED = datetime.timedelta(days=1)
"""Certificates are valid from a day before they were made: the clocks of the machines may differ."""


class Pair(NamedTuple):
    """A certificate and its private key, both as PEM text."""

    certificate: str
    private_key: str


def make_authority() -> Pair:
    """Return a new certificate authority (EC P-256) that signs hubs and names, and nothing below them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tickrate authority " + x509.random_serial_number().to_bytes(20, "big").hex()[:12])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def make_certificate(
    authority: Pair, name: str, days: float, *, use: Literal["hub", "role"], hosts: Sequence[str] = ()
) -> Pair:
    """Return a certificate with the common name ``name``, signed by the authority.

    Args:
        authority: the signer; a certificate never outlives it.
        name: at most 64 characters.
        days: how long it is valid from now; below 0 makes one that has expired, for tests.
        use: a hub's certificate cannot join as a role, nor a role's pose as a hub.
        hosts: host names and IP addresses that a hub is reached by.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signing_key = serialization.load_pem_private_key(authority.private_key.encode(), password=None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"the authority's key is {type(signing_key).__name__}, not an elliptic curve's")
    usage = ExtendedKeyUsageOID.SERVER_AUTH if use == "hub" else ExtendedKeyUsageOID.CLIENT_AUTH
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(name), signer.subject, key, days, last=signer.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return _pair(builder.sign(signing_key, hashes.SHA256()), key)


def valid_from(certificate: str) -> float:
    """Return the start of a PEM certificate's validity, in seconds since the epoch."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_before_utc.timestamp()


def valid_until(certificate: str) -> float:
    """Return the end of a PEM certificate's validity, in seconds since the epoch."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()


def serial_of(certificate: str) -> str:
    """Return the serial number of a PEM certificate, in hexadecimal."""
    return f"{x509.load_pem_x509_certificate(certificate.encode()).serial_number:x}"


def hosts_of(certificate: str) -> list[str]:
    """Return the host names and addresses that a PEM certificate was made for."""
    extensions = x509.load_pem_x509_certificate(certificate.encode()).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def day(seconds: float) -> str:
    """Return a time (s since the epoch) as a date and minute in UTC, for messages."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: float,
    last: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(wall_time(), datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _BACKDATED)
        .not_valid_after(end if last is None else min(end, last))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())
