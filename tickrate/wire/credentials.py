"""Credentials: the one file that lets a worker, a trainer or a viewer join a hub under its name."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tickrate.errors import CredentialsError, WireError
from tickrate.wire.carrier import ANY, make_key

_log = logging.getLogger(__name__)

Role = Literal["worker", "trainer", "viewer"]
"""What a name may do: send as a worker, decide as the trainer, or only look."""

SUFFIX = ".tickrate-key"
MAX_NAME = 64
"""Longest name in characters; a certificate holds no longer one."""

_Pem = Annotated[str, Meta(min_length=1, max_length=65536)]


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who one is, and what proves it; ``tickrate keys add`` makes it, `load` reads it.

    Everything secret stays out of ``repr``.
    """

    tickrate_key: Literal[1] = 1
    """Version of this file's form."""
    name: str
    role: Role
    password: Annotated[str, Meta(min_length=1, max_length=256)]
    ca_certificate: _Pem
    certificate: _Pem
    private_key: _Pem
    hub: str = ""
    """Address of the hub, ``tls/HOST:PORT``; empty if it was not known when the file was made."""

    def __repr__(self) -> str:
        return f"Credentials(name={self.name!r}, role={self.role!r}, hub={self.hub!r})"

    @classmethod
    def load(cls, path: Path | str) -> Credentials:
        """Return the credentials in a file.

        Raises:
            CredentialsError: if the file is missing or holds no credentials; the message has the path.
        """
        path = Path(path)
        text = read_text(path, "tickrate keys add NAME makes it, beside the hub's keys; carry it here")
        try:
            credentials = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise CredentialsError(f"{path} is no {SUFFIX} file: {error}. Copy it here again") from error
        check_name(credentials.name)
        if sys.platform != "win32" and path.stat().st_mode & 0o077:
            _log.warning("%s can be read by other users of this machine; run: chmod 600 %s", path, path)
        return credentials

    def save(self, path: Path) -> None:
        """Write the file, readable by its owner alone."""
        write_private(path, msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n")


def check_name(name: str) -> None:
    """Check that a name can be part of a key and of a certificate.

    Raises:
        CredentialsError: if not; the message says what is allowed.
    """
    try:
        make_key("run", "present", name)
    except WireError as error:
        raise CredentialsError(str(error)) from error
    if name == ANY or len(name) > MAX_NAME:
        raise CredentialsError(f"{name!r} is no name: give 1 to {MAX_NAME} letters and digits")


def read_text(path: Path, remedy: str) -> str:
    """Return a file's text.

    Raises:
        CredentialsError: if it cannot be read; the message has the path, the reason and the remedy.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CredentialsError(f"cannot read {path}: {reason}. {remedy}") from error


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, whole or not at all.

    Raises:
        CredentialsError: if it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CredentialsError(f"cannot write {path}: {error.strerror}") from error
