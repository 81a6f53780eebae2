"""Two containers number their processes alike, and LMDB knows a reader by its number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.errors import StoreDamaged, StoreError
from rhymed_store.database.tables import Reader
from rhymed_store.database.transactions import Database

TWIN = """
import fcntl, sys
stream = open(sys.argv[1], "r+b")
fcntl.lockf(stream, fcntl.LOCK_EX, 1, int(sys.argv[2]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_process_of_the_same_number_is_reported_and_is_no_damage(tmp_path: Path) -> None:
    Database(tmp_path, 64 << 20, durable=False).close()
    command = [sys.executable, "-c", TWIN, str(tmp_path / "lock.mdb"), str(os.getpid())]  # as LMDB marks a reader
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as twin:
        assert twin.stdout is not None
        assert twin.stdout.readline() == "locked\n"
        with pytest.raises(StoreError, match=f"our process id \\({os.getpid()}\\), in another container") as reported:
            Reader(tmp_path)
        assert not isinstance(reported.value, StoreDamaged)
        assert twin.stdin is not None
        twin.stdin.close()
    Reader(tmp_path).close()
