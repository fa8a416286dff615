"""A lock holds until its holder ends, however it ends, and names the holder."""

import os
import signal
import subprocess
import sys

import pytest

from tickrate.errors import FolderInUse, RunFolderError
from tickrate.runtime.lock_file import LockFile

HOLDER = """
import sys
from pathlib import Path
from tickrate.runtime.lock_file import LockFile
lock = LockFile(Path(sys.argv[1]), "it")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_told_of_the_first_until_that_one_is_gone(tmp_path):
    path = tmp_path / "lock"
    first = LockFile(path, "the folder")
    with pytest.raises(FolderInUse, match=rf"the folder is in use by process {os.getpid()} on .*lock"):
        LockFile(path, "the folder")
    first.close()
    lock = LockFile(path, "the folder")
    lock.close()
    lock.close()
    LockFile(path, "the folder").close()


def test_a_kill_lifts_it(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(FolderInUse, match=f"process {holder.pid} on "):
        LockFile(path, "it")
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    holder.stdin.close()
    holder.stdout.close()
    LockFile(path, "it").close()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"the worker cannot be used: .*no-folder.* cannot be written"):
        LockFile(tmp_path / "no-folder" / "lock", "the worker")
