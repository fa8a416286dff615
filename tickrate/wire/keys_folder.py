"""The keys folder: who may join a hub, kept beside it as an authority and a list of names."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tickrate.clock import wall_time
from tickrate.errors import CredentialsError, suggest
from tickrate.wire import certificates
from tickrate.wire.certificates import Pair
from tickrate.wire.credentials import SUFFIX, Credentials, Role, check_name, read_text, write_private
from tickrate.wire.name_registry import HUB, Entry, Registry, changing

DEFAULT_FOLDER = Path("tickrate-keys")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*")


class HubFiles(NamedTuple):
    """What a hub needs to open its door, read at one moment; all PEM text but the entries."""

    ca_certificate: str
    certificate: str
    private_key: str
    entries: list[Entry]
    """The names that may join, hub excluded."""


class KeysFolder:
    """The keys of one hub; every change is whole or not at all, and seen by a running hub within a second.

    Args:
        path: a folder that `init` has made.

    Raises:
        CredentialsError: if it is no keys folder, or a file of it is missing; the message has the path.
    """

    def __init__(self, path: Path | str = DEFAULT_FOLDER) -> None:
        self.path = Path(path)
        for file in (self._registry_file, *self._hub_files):
            read_text(file, f"make the keys first: tickrate keys init HOST... --keys {self.path}")

    @classmethod
    def init(
        cls,
        path: Path | str,
        hosts: Sequence[str],
        days: float = 365.0,
        *,
        existing: Literal["refuse", "renew", "replace"] = "refuse",
    ) -> KeysFolder:
        """Make a keys folder: an authority, and a certificate for the hub.

        Args:
            path: the folder; its parent must exist.
            hosts: host names and IP addresses that others will dial; loopback is always added.
            days: how long the hub's certificate is valid.
            existing: what to do with a folder that has keys: ``refuse``; ``renew`` the hub's certificate and
                keep authority and names; ``replace`` everything, so that no file given out joins any more.

        Raises:
            CredentialsError: if a host is none, the folder has keys and ``existing`` is ``refuse``, or there
                is nothing to renew.
        """
        folder = cls.__new__(cls)
        folder.path = Path(path)
        for host in hosts:
            _check_host(host)
        has_keys = folder._registry_file.exists() or folder._authority_key.exists()
        if has_keys and existing == "refuse":
            raise CredentialsError(
                f"{folder.path} holds keys already: --renew gives the hub a new certificate and keeps the "
                "names, --replace makes everything anew, and then every file given out so far is worthless"
            )
        if existing == "renew" and not has_keys:
            raise CredentialsError(f"{folder.path} holds no keys that could be renewed; leave out --renew")
        try:
            folder.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CredentialsError(f"cannot make the folder {folder.path}: {error.strerror}") from error
        with changing(folder.path):
            folder._write_hub(hosts, days, keep=existing == "renew")
        return folder

    def add(
        self,
        name: str,
        role: Role | None = None,
        *,
        days: float = 365.0,
        hub: str = "",
        renew: bool = False,
        file: Path | None = None,
    ) -> Path:
        """Let a name join; return the file to carry to its machine.

        Args:
            name: letters, digits, ``.``, ``_``, ``-``; what it sends goes under this name.
            role: default ``trainer`` for the name ``trainer`` and ``worker`` for any other.
            days: how long its certificate is valid.
            hub: the hub's address, to be carried along.
            renew: give a name that may join already a new file; the old one stops to work.
            file: where to write, default ``NAME.tickrate-key`` in this folder.

        Raises:
            CredentialsError: for a name or role that cannot be, or a name that may join already.
        """
        check_name(name)
        role = role or ("trainer" if name == "trainer" else "worker")
        kept = name.casefold()
        if kept == HUB or (kept == "trainer" and (name != kept or role != kept)):
            raise CredentialsError(f"the name {name!r} is kept for the {kept}; choose another for a {role}")
        file = file or self.path / f"{name}{SUFFIX}"
        with changing(self.path):
            registry = self._read()
            before = registry.living(name)
            if before and not renew:
                raise CredentialsError(
                    f"{before[0].name!r} may join already; --renew makes a new file in place of the one "
                    f"given out, and tickrate keys revoke {before[0].name} shuts it out"
                )
            registry.shut_out(before)
            pair = certificates.make_certificate(self._authority(), name, days, use="role")
            password = secrets.token_urlsafe(24)
            registry.names.append(_entry(name, role, pair, password))
            Credentials(
                name=name,
                role=role,
                password=password,
                ca_certificate=self._read_file(self._hub_files[0]),
                certificate=pair.certificate,
                private_key=pair.private_key,
                hub=hub,
            ).save(file)
            registry.write(self._registry_file)
        return file

    def revoke(self, name: str) -> None:
        """Shut a name out: a running hub cuts it off within seconds and refuses it from then on.

        Raises:
            CredentialsError: if no such name may join; the message has the nearest.
        """
        with changing(self.path):
            registry = self._read()
            found = [entry for entry in registry.living(name) if entry.name == name and name != HUB]
            if not found:
                names = [entry.name for entry in registry.names if entry.live and entry.role != HUB]
                raise CredentialsError(
                    f"no {name!r} among the names that may join: {', '.join(names) or 'none'}."
                    + suggest(name, names)
                )
            registry.shut_out(found)
            registry.write(self._registry_file)
        (self.path / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Return every certificate given out, the hub's first, the revoked ones last."""
        names = self._read().names
        return sorted(names, key=lambda entry: (not entry.live, entry.role != HUB, entry.name))

    def hub_files(self) -> HubFiles:
        """Return what a hub needs now.

        Raises:
            CredentialsError: if a file is missing or damaged; the message has its path.
        """
        authority, certificate, private_key = map(self._read_file, self._hub_files)
        names = [entry for entry in self._read().names if entry.live and entry.role != HUB]
        return HubFiles(authority, certificate, private_key, names)

    def write_passwords(self, entries: Sequence[Entry]) -> Path:
        """Write the file of names and passwords that a Zenoh router reads when it starts; return its path."""
        write_private(self.passwords_file, "".join(f"{entry.name}:{entry.password}\n" for entry in entries))
        return self.passwords_file

    def state(self) -> tuple[int, ...] | None:
        """Return something that is different after every change; None while the folder cannot be read.

        The registry is written last of all files, so that whoever looks at it finds the others complete.
        """
        try:
            stat = self._registry_file.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    @property
    def passwords_file(self) -> Path:
        """What `write_passwords` writes."""
        return self.path / "passwords.txt"

    @property
    def _registry_file(self) -> Path:
        return self.path / "names.json"

    @property
    def _authority_key(self) -> Path:
        return self.path / "ca.key"

    @property
    def _hub_files(self) -> tuple[Path, Path, Path]:
        return self.path / "ca.crt", self.path / "hub.crt", self.path / "hub.key"

    def _write_hub(self, hosts: Sequence[str], days: float, *, keep: bool) -> None:
        registry = self._read() if keep else Registry()
        authority = self._authority() if keep else certificates.make_authority()
        ca_file, certificate_file, key_file = self._hub_files
        if keep and not hosts:
            hosts = certificates.hosts_of(self._read_file(certificate_file))
        everyone = list(dict.fromkeys([*hosts, *_LOOPBACK]))
        pair = certificates.make_certificate(authority, HUB, days, use="hub", hosts=everyone)
        registry.shut_out(registry.living(HUB))
        registry.names.append(_entry(HUB, HUB, pair, ""))
        write_private(self._authority_key, authority.private_key)
        write_private(ca_file, authority.certificate)
        write_private(key_file, pair.private_key)
        write_private(certificate_file, pair.certificate)
        registry.write(self._registry_file)

    def _authority(self) -> Pair:
        remedy = "names are added and renewed where the authority's key is kept"
        return Pair(self._read_file(self._hub_files[0]), read_text(self._authority_key, remedy))

    def _read_file(self, file: Path) -> str:
        return read_text(file, f"make the keys first: tickrate keys init HOST... --keys {self.path}")

    def _read(self) -> Registry:
        cure = f"make all keys anew: tickrate keys init HOST... --replace --keys {self.path}"
        return Registry.read(self._registry_file, cure)


def _entry(name: str, role: Role | Literal["hub"], pair: Pair, password: str) -> Entry:
    return Entry(
        name=name,
        role=role,
        serial=certificates.serial_of(pair.certificate),
        issued=wall_time(),
        expires=certificates.valid_until(pair.certificate),
        password=password,
    )


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host) or len(host) > 253:
            raise CredentialsError(
                f"{host!r} is neither a host name nor an IP address; write it without tls/ and port, as "
                "hub.example.org or 192.0.2.7"
            ) from None
