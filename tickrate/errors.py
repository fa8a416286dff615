"""The exception tree: every error that tickrate raises on purpose, and what it means.

TickrateError
    ConfigError (ValueError)            a key, a value or a combination that cannot work
    ActionError (ValueError)            a command the guard refuses to pass on
    ObservationError (ValueError)       an observation that does not fit the declared space
    InterfaceError (RuntimeError)       an interface broke its contract
        InterfaceTimeout (TimeoutError)     one of its calls did not return in time
    DeviceLost (ConnectionError)        the device is gone for now; the next reset() reconnects
    EpisodeOver (RuntimeError)          step() was called with no running episode
    DelayNotSeen (RuntimeError)         a delay probe saw no effect of its commands
    WireError                           the roles of a run cannot talk
        MessageError (ValueError)           bytes that are no message of this protocol
        VersionMismatch                     the two sides speak different protocol versions
        HubUnreachable (ConnectionError)    nothing answers at the hub's address
            NotAHub                             something answers there, but no hub
        CredentialsError (ValueError)       a keys folder or credentials file that cannot be used
        JoinRefused (PermissionError)       a hub is there, and the two do not accept each other
            CertificateExpired                  its certificate or ours is out of date; tells the date
            EncryptionMismatch                  one side speaks TLS, the other does not
            NameRefused                         the hub does not know this name, or it was revoked
            WrongAuthority                      the certificates come from different keys folders
            WrongHostName                       the hub's certificate was made for other addresses
        Refused                             the trainer takes nothing from this role; says why
    PolicyError (ValueError)            a policy artefact that cannot be used
        PolicyMismatch                      it was trained for another contract; names the leaf
    RecordError (ValueError)            stored records that are damaged or of another schema
    RoleFailed (RuntimeError)           a process of a run ended with an error; holds its last words
    RunFolderError (RuntimeError)       a run folder that exists, is missing, or cannot be resumed
        FolderInUse                         another process uses it; says which
    MissingExtra (ImportError)          an optional package is not installed; names the extra
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TickrateError(Exception):
    """Base of every error that tickrate raises on purpose."""


class ConfigError(TickrateError, ValueError):
    """A configuration key, value or combination that cannot work."""


class ActionError(TickrateError, ValueError):
    """A command that the guard refuses to pass to the device."""


class ObservationError(TickrateError, ValueError):
    """An observation that does not fit the declared space; the message names the leaf."""


class InterfaceError(TickrateError, RuntimeError):
    """A user's interface broke its contract."""


class InterfaceTimeout(InterfaceError, TimeoutError):
    """A call into the interface did not return within its limit."""


class DeviceLost(TickrateError, ConnectionError):
    """Raised by an interface when its device is gone for now.

    The environment truncates the episode with ``info["truncation_reason"]`` and lets the interface
    reconnect at the next ``reset()``.
    """


class EpisodeOver(TickrateError, RuntimeError):
    """``step()`` was called although no episode is running."""


class DelayNotSeen(TickrateError, RuntimeError):
    """A delay probe saw no effect of its commands, or the system never came to rest."""


class WireError(TickrateError):
    """The roles of a run cannot talk to each other."""


class MessageError(WireError, ValueError):
    """Bytes that are no valid message of this protocol."""


class VersionMismatch(WireError):
    """Two sides speak different versions of the protocol; the message names both."""


class HubUnreachable(WireError, ConnectionError):
    """Nothing answers at the hub's address."""


class NotAHub(HubUnreachable):
    """Something listens at the hub's address, but it does not answer as a hub."""


class CredentialsError(WireError, ValueError):
    """A keys folder or a credentials file that is missing, damaged, or does not allow what was asked."""


class JoinRefused(WireError, PermissionError):
    """A hub is there, and it refuses this side or is refused by it; each reason is a class of its own."""


class CertificateExpired(JoinRefused):
    """A certificate, the hub's or one's own, is out of date or not valid yet; the message tells the date."""


class EncryptionMismatch(JoinRefused):
    """One side speaks TLS and the other does not."""


class NameRefused(JoinRefused):
    """The certificates are right, but the hub does not know this name (any more)."""


class WrongAuthority(JoinRefused):
    """Hub and role hold certificates of different keys folders."""


class WrongHostName(JoinRefused):
    """The hub's certificate was made for other addresses than the one that was dialled."""


class Refused(WireError):
    """The other side takes nothing from this role: other spaces, another process of its name, ..."""


class PolicyError(TickrateError, ValueError):
    """A policy artefact that is damaged or cannot be used."""


class PolicyMismatch(PolicyError):
    """A policy was made for another environment; the message names the leaf that differs."""


class RecordError(TickrateError, ValueError):
    """Stored records that are damaged or follow another schema."""


class RunFolderError(TickrateError, RuntimeError):
    """A run folder exists already, is missing, or cannot be resumed."""


class FolderInUse(RunFolderError):
    """Another process uses this folder; the message says which."""


class RoleFailed(TickrateError, RuntimeError):
    """A process of a run ended with an error of its own, or was killed too often.

    Attributes:
        exit_code: the process's exit code.
    """

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MissingExtra(TickrateError, ImportError):
    """An optional package is not installed; the message names the extra to install."""


def suggest(key: str, valid: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest valid key, or an empty string if none is near."""
    near = difflib.get_close_matches(key, list(valid), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
