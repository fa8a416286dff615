"""The registry of names in a keys folder: who holds which certificate, until when, and who was shut out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Literal

import msgspec

from tickrate.clock import now, sleep, wall_time
from tickrate.errors import CredentialsError
from tickrate.wire import certificates
from tickrate.wire.credentials import Role, read_text, write_private

try:
    import fcntl
except ImportError:  # Windows: two people who type at the same time may undo each other's change
    fcntl = None  # type: ignore[assignment]

HUB: Final = "hub"
"""Name and role of the hub itself."""
WARN_DAYS = 30.0
"""Days before its end at which a certificate is warned of."""

_LOCK_PATIENCE_S = 10.0


class Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One certificate that was given out; times are seconds since the epoch."""

    name: str
    role: Role | Literal["hub"]
    serial: str
    issued: float
    expires: float
    revoked_at: float | None = None
    password: str = ""

    @property
    def live(self) -> bool:
        """True unless revoked; an expired one is still live, and refused because it is expired."""
        return self.revoked_at is None

    @property
    def days_left(self) -> float:
        """Days until the certificate expires; below 0 when it has."""
        return (self.expires - wall_time()) / 86400.0

    @property
    def warning(self) -> str:
        """What is to be done soon about this certificate, or an empty string."""
        if not self.live or self.days_left > WARN_DAYS:
            return ""
        verb = "expired on" if self.days_left <= 0 else "expires on"
        cure = "keys init --renew" if self.role == HUB else f"keys add {self.name} --renew"
        return f"{verb} {certificates.day(self.expires)}: tickrate {cure}"


class Registry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All entries, as they stand in ``names.json``."""

    version: Literal[1] = 1
    names: list[Entry] = []

    @classmethod
    def read(cls, file: Path, cure: str) -> Registry:
        """Return what a file holds.

        Raises:
            CredentialsError: if it is missing or damaged; the message has the path and the cure.
        """
        try:
            return msgspec.json.decode(read_text(file, cure), type=cls)
        except msgspec.MsgspecError as error:
            raise CredentialsError(
                f"{file} is damaged: {error}. Restore it from a copy, or {cure}"
            ) from error

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        write_private(file, msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n")

    def shut_out(self, entries: list[Entry]) -> None:
        """Revoke these entries now."""
        for entry in entries:
            entry.revoked_at = wall_time()
            entry.password = ""

    def living(self, name: str) -> list[Entry]:
        """Return the live entries of a name; upper and lower case are not told apart, as in file names."""
        return [e for e in self.names if e.live and e.name.casefold() == name.casefold()]


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Keep other processes from changing a keys folder meanwhile.

    Raises:
        CredentialsError: if the folder cannot be written, or another process does not let go of it.
    """
    try:
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise CredentialsError(f"cannot change {folder}: {error.strerror}") from error
    with file:
        if fcntl is not None:
            _wait_for_lock(file, folder)
        yield


def _wait_for_lock(file: IO[str], folder: Path) -> None:
    deadline = now() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if now() > deadline:
                raise CredentialsError(f"another command is changing {folder}; try again") from error
            sleep(0.02)
