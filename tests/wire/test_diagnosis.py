"""Each way of not getting in has an error of its own, found on real sockets with real certificates."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import msgspec
import pytest

from tickrate import clock
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
from tickrate.wire import certificates, diagnosis
from tickrate.wire.certificates import Pair
from tickrate.wire.credentials import Credentials
from tickrate.wire.diagnosis import diagnose
from tickrate.wire.keys_folder import KeysFolder
from tickrate.wire.zenoh_carrier import ZenohCarrier, ZenohHub

QUICK_S = 0.3


@pytest.fixture
def keys(tmp_path) -> KeysFolder:
    return KeysFolder.init(tmp_path / "keys", [])


@pytest.fixture
def w0(keys) -> Credentials:
    return Credentials.load(keys.add("w0"))


@pytest.fixture
def stranger(tmp_path) -> Credentials:
    """Holds a file of another hub's."""
    return Credentials.load(KeysFolder.init(tmp_path / "other", []).add("w0"))


def authority(keys: KeysFolder) -> Pair:
    return Pair((keys.path / "ca.crt").read_text(), (keys.path / "ca.key").read_text())


def aged(keys: KeysFolder, key: Credentials, days: float) -> Credentials:
    pair = certificates.make_certificate(authority(keys), key.name, days, use="role")
    return msgspec.structs.replace(key, certificate=pair.certificate, private_key=pair.private_key)


def refused(endpoint: str, key: Credentials | None, kind: type[WireError], *words: str) -> None:
    """Check that a carrier says what the diagnosis found: exactly this kind, in these words."""
    with pytest.raises(kind) as raised:
        ZenohCarrier(endpoint, QUICK_S, key)
    assert type(raised.value) is kind
    for word in words:
        assert word in str(raised.value)


def test_nothing_stands_in_the_way(keys, w0):
    with ZenohHub(keys=keys) as hub, ZenohHub() as open_hub:
        assert diagnose(hub.endpoint, w0) is None
        assert diagnose(hub.endpoint.replace("127.0.0.1", "localhost"), w0) is None
        assert diagnose(open_hub.endpoint) is None


def test_hub_not_there(w0):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    refused(f"tls/{address}", w0, HubUnreachable, address, "nothing listens there", "tickrate hub")
    refused(f"tcp/{address}", None, HubUnreachable, address, "nothing listens there", "tickrate hub")
    reason = diagnose("tls/no-such-host.invalid:7447", w0, QUICK_S)
    assert type(reason) is HubUnreachable
    assert "cannot be reached" in str(reason)


def test_wrong_authority(keys, w0, stranger):
    with ZenohHub(keys=keys) as hub:
        refused(hub.endpoint, stranger, WrongAuthority, "another authority", "keys add")
        theirs = msgspec.structs.replace(stranger, ca_certificate=w0.ca_certificate)
        refused(hub.endpoint, theirs, WrongAuthority, "does not know the authority")


def test_own_certificate_expired(keys, w0):
    old = aged(keys, w0, -2)
    date = certificates.day(clock.wall_time() - 2 * 86400)[:10]
    # Nothing is dialled for that: the port is closed.
    refused("tls/127.0.0.1:1", old, CertificateExpired, "'w0' expired on", date, "keys add w0 --renew")


def test_own_certificate_expired_by_the_hubs_clock_only(keys, w0, monkeypatch):
    old = aged(keys, w0, -2)
    monkeypatch.setattr(diagnosis, "check_own_certificate", lambda key: None)
    with ZenohHub(keys=keys) as hub:
        reason = diagnose(hub.endpoint, old, QUICK_S)
    assert type(reason) is CertificateExpired
    assert "one of the two clocks is wrong" in str(reason)


def test_own_certificate_not_valid_yet(keys, w0, monkeypatch):
    behind = clock.wall_time() - 30 * 86400
    monkeypatch.setattr(diagnosis, "wall_time", lambda: behind)
    reason = diagnose("tls/127.0.0.1:1", w0, QUICK_S)
    assert type(reason) is CertificateExpired
    assert "set the clock" in str(reason)


def test_hubs_certificate_expired(keys, w0):
    with ZenohHub(keys=keys) as hub:
        pair = certificates.make_certificate(
            authority(keys), "hub", -3, use="hub", hosts=["127.0.0.1", "localhost"]
        )
        (keys.path / "hub.key").write_text(pair.private_key)
        (keys.path / "hub.crt").write_text(pair.certificate)
        keys.add("another")  # the hub takes up its files anew
        deadline = clock.now() + 20
        while not hub.reopened:
            assert clock.now() < deadline
            clock.sleep(0.01)
        date = certificates.day(clock.wall_time() - 3 * 86400)[:10]
        refused(hub.endpoint, w0, CertificateExpired, "certificate of the hub", date, "keys init --renew")


def test_wrong_host_name(keys, w0):
    pair = certificates.make_certificate(
        authority(keys), "hub", 10, use="hub", hosts=["hub.example.org", "192.0.2.7"]
    )
    (keys.path / "hub.key").write_text(pair.private_key)
    (keys.path / "hub.crt").write_text(pair.certificate)
    with ZenohHub(keys=keys) as hub:
        known = "it is for hub.example.org, 192.0.2.7"
        refused(hub.endpoint, w0, WrongHostName, "'127.0.0.1'", known, "keys init 127.0.0.1 --renew")
        by_name = hub.endpoint.replace("127.0.0.1", "localhost")
        refused(by_name, w0, WrongHostName, "'localhost'", known)


def test_name_unknown_or_revoked(keys, w0):
    keys.revoke("w0")
    with ZenohHub(keys=keys) as hub:
        refused(hub.endpoint, w0, NameRefused, "'w0'", "revoked", "keys list")
        wrong = msgspec.structs.replace(Credentials.load(keys.add("w1")), password="guessed")
        refused(hub.endpoint, wrong, NameRefused, "'w1'")


def test_tls_expected_and_plain_found_and_the_reverse(keys, w0):
    with ZenohHub(keys=keys) as hub, ZenohHub() as open_hub:
        plain, secure = hub.endpoint.replace("tls/", "tcp/"), open_hub.endpoint.replace("tcp/", "tls/")
        refused(plain, None, EncryptionMismatch, "speaks TLS", hub.endpoint, "--key")
        refused(secure, w0, EncryptionMismatch, "speaks no TLS", open_hub.endpoint, "hub --keys")


@contextlib.contextmanager
def server(answer: bytes | ssl.SSLContext) -> Iterator[str]:
    """Something that listens and is no hub: it says ``answer``, or shakes hands."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def serve() -> None:
            kept = []
            while not over.is_set():
                try:
                    connection, _ = listening.accept()
                    connection.settimeout(2.0)
                    if isinstance(answer, ssl.SSLContext):
                        connection = answer.wrap_socket(connection, server_side=True)
                    elif answer:
                        connection.sendall(answer)
                    kept.append(connection)
                except OSError:
                    connection.close()
            for connection in kept:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        try:
            yield address
        finally:
            over.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join(20)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_listens(w0, answer):
    with server(answer) as address:
        for endpoint, key in ((f"tls/{address}", w0), (f"tcp/{address}", None)):
            reason = diagnose(endpoint, key, QUICK_S)
            assert type(reason) is NotAHub, reason
            assert "does not answer as a hub" in str(reason)
            assert isinstance(reason, HubUnreachable)


def test_a_role_cannot_pose_as_the_hub(keys, w0, tmp_path):
    """A worker's own certificate is by the right authority and for the right host, but for roles only."""
    pair = certificates.make_certificate(authority(keys), "w1", 10, use="role", hosts=["127.0.0.1"])
    file = tmp_path / "pair.pem"
    file.write_text(pair.certificate + pair.private_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with server(context) as address:
        reason = diagnose(f"tls/{address}", w0, QUICK_S)
        assert type(reason) is WrongAuthority, reason
        with pytest.raises(JoinRefused):
            ZenohCarrier(f"tls/{address}", QUICK_S, w0)


def test_damaged_credentials_are_said_before_anything_is_dialled(w0):
    for broken in (
        msgspec.structs.replace(w0, certificate="no certificate"),
        msgspec.structs.replace(w0, private_key="no key"),
        msgspec.structs.replace(w0, ca_certificate="no authority"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            endpoint = f"tls/127.0.0.1:{listening.getsockname()[1]}"
            reason = diagnose(endpoint, broken, QUICK_S)
        assert type(reason) is CredentialsError, reason
        assert "again" in str(reason)
    assert type(diagnose("tls/127.0.0.1:1", None)) is CredentialsError


def test_the_own_key_leaves_nothing_behind(keys, w0, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    with ZenohHub(keys=keys) as hub:
        assert diagnose(hub.endpoint, w0) is None
    assert list((tmp_path / "t").iterdir()) == []
