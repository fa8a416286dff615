"""How much memory and disk is free: asked before a run, so that a store too large is refused at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tickrate.errors import ConfigError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return the bytes of memory still free, a container's limit included; None where unknown."""
    limits = [free for free in (_machine_memory(), _container_memory()) if free is not None]
    return min(limits, default=None)


def available_disk(folder: Path) -> int:
    """Return the bytes free for this user on the file system of ``folder``."""
    return shutil.disk_usage(folder).free


def require(needed: int, available: int | None, *, rows: int, row_bytes: int, where: str) -> None:
    """Refuse a store that does not fit.

    Raises:
        ConfigError: with the numbers, and the capacity that would fit.
    """
    if available is None or needed <= available:
        return
    fits = int(rows * available / needed)
    raise ConfigError(
        f"a replay of {rows:,} rows of {row_bytes:,} bytes needs {_gigabytes(needed)}, but only "
        f"{_gigabytes(available)} of {where} is free: lower the capacity to at most about {fits:,}"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**8 else f"{count / 1e6:.2f} MB"


def _machine_memory() -> int | None:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _container_memory() -> int | None:
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if not (limit.exists() and used.exists()):
        return None
    text = limit.read_text(encoding="ascii").strip()
    return max(0, int(text) - int(used.read_text(encoding="ascii"))) if text.isdigit() else None
