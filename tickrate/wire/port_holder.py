"""Who holds a TCP port of this machine, for messages; only Linux tells."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

_LISTENING = "0A"


def why_not(host: str, port: int) -> str:
    """Return why a program cannot listen on an address now, or an empty string if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if os.name == "posix":  # elsewhere the option would let two programs listen on one port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return f"{error.strerror or error}"
        holder = port_holder(port)
        return f"port {port} is taken" + (f" by {holder}" if holder else "")
    return ""


def port_holder(port: int) -> str:
    """Return program and process id of who listens on a port, or an empty string if that cannot be told."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(str(handle.readlink()) in sockets for handle in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().split(b"\0")
                program = b" ".join(words).decode(errors="replace").strip()[:80]
                return f"process {process.name} ({program})"
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return "a process of another user" if sockets else ""


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes
