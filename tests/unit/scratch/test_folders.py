"""Scratch folders are private, vanish with their use, and are swept once whoever used them is dead."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trilateral.common.scratch.folders import SCRATCH, scratch_folder, sweep_scratch

HOLDER = """
import sys, time
from pathlib import Path
from trilateral.common.scratch.folders import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "rows").write_text("secret")
    print(folder, flush=True)
    time.sleep(60)
"""


def folders(state: Path) -> list[Path]:
    return [path for path in (state / SCRATCH).iterdir() if path.is_dir()]


def test_a_folder_is_for_this_user_alone_and_gone_at_the_end(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder, scratch_folder(tmp_path) as other:
        (folder / "rows").write_text("secret")
        assert folder != other
        assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    assert folders(tmp_path) == []


def test_a_folder_is_gone_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_folder(tmp_path):
        raise RuntimeError
    assert folders(tmp_path) == []


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_uses_is_not(tmp_path: Path) -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        dead, living = (Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout)
        os.kill(holders[0].pid, signal.SIGKILL)
        holders[0].wait()
        assert (dead / "rows").exists()
        sweep_scratch(tmp_path)
        assert folders(tmp_path) == [living]
        assert (living / "rows").exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
    with scratch_folder(tmp_path) as folder:
        assert folders(tmp_path) == [folder]


def test_sweeping_where_nothing_was_makes_nothing(tmp_path: Path) -> None:
    sweep_scratch(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_only_what_is_in_the_scratch_folder_is_swept(tmp_path: Path) -> None:
    """The setting may name a folder that other programs use as well, such as /dev/shm."""
    (tmp_path / "others").mkdir()
    (tmp_path / SCRATCH).mkdir(mode=0o700)
    (tmp_path / SCRATCH / ".array-1").write_text("of a process that was killed at the wrong moment")
    sweep_scratch(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [SCRATCH, "others"]
    assert [path.name for path in (tmp_path / SCRATCH).iterdir()] == [".sweep"]
