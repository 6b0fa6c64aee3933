"""A lock is held by one holder at a time, and ends with the process that holds it."""

import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trilateral.common.base.locks import is_locked, lock_file

HOLD = """
import sys
from pathlib import Path
from trilateral.common.base.locks import lock_file
lock = lock_file(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_has_one_holder_until_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path):
        assert is_locked(path)
        with pytest.raises(BlockingIOError):
            lock_file(path, wait=False)
    assert not is_locked(path)
    lock_file(path, wait=False).close()


def test_whoever_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    path, got = tmp_path / "lock", threading.Event()

    def wait() -> None:
        with lock_file(path):
            got.set()

    with lock_file(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.is_set()
    waiting.join(10)
    assert got.is_set()


def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert is_locked(path)
        holder.kill()
        holder.wait(10)
        assert not is_locked(path)


def test_looking_whether_a_file_is_locked_neither_makes_nor_locks_it(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


def test_a_locked_file_is_for_its_user_alone_and_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path) as file:
        file.write("host 1\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with lock_file(path) as file:
        assert file.read() == "host 1\n"
