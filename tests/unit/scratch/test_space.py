"""Arrays hold the same rows wherever they lie; room is checked before anything is written, and freed in any case."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trilateral.common.base.arrays import RowArray, SelectedRows
from trilateral.common.base.errors import ConfigError, notes
from trilateral.common.base.roles import Role
from trilateral.common.scratch import space as space_module
from trilateral.common.scratch.arrays import IN_MEMORY, Array, Scratch
from trilateral.common.scratch.files import FileArray
from trilateral.common.scratch.folders import SCRATCH
from trilateral.common.scratch.space import ScratchSpace

KB = 1000


def make_space(folder: Path, *, memory: int = 0, most: int | None = None, encrypt: bool = False) -> ScratchSpace:
    return ScratchSpace(folder, max_bytes=most, memory_bytes=memory, encrypt=encrypt)


def open_files(folder: Path) -> list[int]:
    """The files of this process below a folder. They have no name, but the system remembers the last one."""
    found = []
    for file in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{file}").startswith(f"{folder}/"):
                assert os.fstat(int(file)).st_nlink == 0
                found.append(int(file))
    return found


def filled(scratch: Scratch, rows: NDArray[Any], cuts: list[int], *, expected: int = 0) -> Array[Any]:
    array = scratch.array(rows.dtype.type, (expected, *rows.shape[1:]))
    for start, end in pairwise([0, *sorted(cuts), len(rows)]):
        array.append(rows[start:end])
    return array


@st.composite
def tables(draw: st.DrawFn) -> tuple[NDArray[Any], list[int], list[int]]:
    n_rows = draw(st.integers(0, 300))
    dtype = draw(st.sampled_from([np.float64, np.uint64, np.int32, np.uint8]))
    rows = np.random.default_rng(draw(st.integers(0, 9))).integers(
        0, 250, (n_rows, *draw(st.sampled_from([(), (1,), (3,)])))
    )
    places = st.lists(st.integers(0, n_rows), max_size=5)
    chosen = draw(st.lists(st.integers(0, n_rows - 1), max_size=20)) if n_rows else []
    return rows.astype(dtype), draw(places), sorted(chosen)


@pytest.mark.parametrize("encrypt", [False, True])
@given(tables(), st.integers(0, 2000), st.integers(0, 400))
def test_an_array_has_the_rows_that_were_appended_wherever_it_lies(
    encrypt: bool, table: tuple[NDArray[Any], list[int], list[int]], memory: int, expected: int
) -> None:
    rows, cuts, chosen = table
    with (
        tempfile.TemporaryDirectory() as folder,
        make_space(Path(folder), memory=memory, encrypt=encrypt).open() as scratch,
    ):
        for array in (filled(scratch, rows, cuts, expected=expected), filled(IN_MEMORY, rows, cuts, expected=expected)):
            for each in (array, array.finish()):
                assert len(each) == len(rows)
                assert each.shape == rows.shape
                np.testing.assert_array_equal(np.asarray(each), rows)
                for start, end in pairwise(sorted(cuts)):
                    np.testing.assert_array_equal(each[start:end], rows[start:end])
                some = np.array(chosen, dtype=np.int64)
                np.testing.assert_array_equal(each[some], rows[some])
                selected = SelectedRows(each, some)
                assert selected.shape == rows[some].shape
                np.testing.assert_array_equal(selected[1:3], rows[some][1:3])
                np.testing.assert_array_equal(np.asarray(selected), rows[some])
            assert array[:].dtype == rows.dtype


def test_rows_far_apart_are_read_from_a_large_file(tmp_path: Path) -> None:
    rows = np.arange(400_000, dtype=np.float64).reshape(-1, 2)
    some = np.array([0, 1, 5, 40_000, 40_000, 131_071, 131_072, 199_999])
    with make_space(tmp_path, encrypt=True).open() as scratch:
        array = filled(scratch, rows, [17, 150_001])
        np.testing.assert_array_equal(array[some], rows[some])
        np.testing.assert_array_equal(array[150_000:], rows[150_000:])
        np.testing.assert_array_equal(array[some[:0]], rows[:0])


def test_small_arrays_never_touch_the_disk(tmp_path: Path) -> None:
    with make_space(tmp_path, memory=8 * KB).open() as scratch:
        array = filled(scratch, np.arange(1000.0), [], expected=1000)
        assert isinstance(array.finish(), np.ndarray)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_free_again_once_nothing_refers_to_an_array(tmp_path: Path) -> None:
    space = make_space(tmp_path, memory=8 * KB)
    with space.open() as scratch:
        view: RowArray[Any] | None = filled(scratch, np.arange(1000.0), [], expected=1000).finish()[500:]
        assert isinstance(filled(scratch, np.arange(10.0), []).finish(), FileArray)
        assert view is not None
        assert view[0:1] == 500
        view = None
        assert isinstance(filled(scratch, np.arange(10.0), []).finish(), np.ndarray)
    assert space.memory_left == 8 * KB


def test_an_array_moves_to_disk_when_it_outgrows_the_memory(tmp_path: Path) -> None:
    space = make_space(tmp_path, memory=8 * KB)
    with space.open() as scratch:
        array = scratch.array(np.float64, (0,))
        for start in range(0, 5000, 100):
            array.append(np.arange(start, start + 100.0))
        assert isinstance(array.finish(), FileArray)
        assert space.memory_left == 8 * KB
        np.testing.assert_array_equal(np.asarray(array), np.arange(5000.0))
        assert scratch.peak_bytes >= 40 * KB


# --- secrecy


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_lies_on_disk_can_be_read_only_if_it_is_not_encrypted(tmp_path: Path, encrypt: bool) -> None:
    secret = np.frombuffer(b"a secret row of a table " * 100, np.uint8)
    with make_space(tmp_path, encrypt=encrypt).open() as scratch:
        arrays = [filled(scratch, secret, [7, 100]) for _ in range(2)]
        (first, second) = (os.pread(file, 10 * KB, 0) for file in open_files(tmp_path))
        assert len(first) == len(secret)
        assert (b"secret" in first) is not encrypt
        assert (first == second) is not encrypt  # Two files with one key would show where two arrays are equal.
        assert all((array[:] == secret).all() for array in arrays)


def test_no_part_of_a_key_stream_is_used_twice(tmp_path: Path) -> None:
    """Else the difference of two parts of the file would be that of the rows."""
    with make_space(tmp_path, encrypt=True).open() as scratch:
        array = filled(scratch, np.zeros(2_100_000, np.uint8), [1, 15, 16, 33, 1_048_576, 1_048_577])
        (file,) = open_files(tmp_path)
        blocks = [os.pread(file, 2_100_000, 0)[start : start + 16] for start in range(0, 2_100_000, 16)]
        assert len(set(blocks)) == len(blocks)
        assert not array[:].any()


def test_a_part_that_failed_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows at the same place of the key stream would show the difference."""
    with make_space(tmp_path, encrypt=True).open() as scratch:
        array = filled(scratch, np.zeros(10), [])

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(ConfigError, match=r"scratch\.folder.*No space left") as error:
                array.append(np.ones(10))
        assert str(tmp_path) not in str(error.value)
        assert str(tmp_path) in notes(error.value)[0]
        with pytest.raises(ValueError, match="could not be written"):
            array.append(np.ones(10))
        assert len(array) == 10


def test_a_disk_that_cannot_be_read_is_named_with_the_setting_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with make_space(tmp_path).open(Role.HOST) as scratch:
        array = filled(scratch, np.arange(10.0), [])
        monkeypatch.setattr(os, "preadv", broken)
        for rows in (slice(0, 3), np.array([1, 5])):
            with pytest.raises(ConfigError, match=r"^the host: scratch\.folder: .*cannot read what") as error:
                array[rows]
        assert "Input/output error: check the disk, or choose a folder on another one" in str(error.value)
        assert str(tmp_path) not in str(error.value)
        assert str(tmp_path) in notes(error.value)[0]


@pytest.mark.parametrize("encrypt", [False, True])
def test_threads_that_append_at_the_same_time_use_no_place_twice(tmp_path: Path, encrypt: bool) -> None:
    rows = np.arange(20_000.0)
    with make_space(tmp_path, encrypt=encrypt).open() as scratch:
        array = scratch.array(np.float64, (len(rows),))
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(array.append, np.split(rows, 2000)))
        np.testing.assert_array_equal(np.sort(array[:]), rows)


def test_a_file_is_for_this_user_alone_and_has_no_name(tmp_path: Path) -> None:
    with make_space(tmp_path).open() as scratch:
        array = filled(scratch, np.arange(10.0), [])
        (file,) = open_files(tmp_path)
        assert os.fstat(file).st_mode & 0o777 == 0o600
        assert (tmp_path / SCRATCH).stat().st_mode & 0o777 == 0o700
        assert list((tmp_path / SCRATCH).iterdir()) == []
        assert len(array) == 10


@pytest.mark.parametrize("how", ["mode", "link"])
def test_a_folder_that_others_can_read_is_refused(tmp_path: Path, how: str) -> None:
    if how == "mode":
        (tmp_path / SCRATCH).mkdir()
        (tmp_path / SCRATCH).chmod(0o755)
    else:
        (tmp_path / "other").mkdir(mode=0o700)
        (tmp_path / SCRATCH).symlink_to(tmp_path / "other")
    with make_space(tmp_path).open() as scratch, pytest.raises(ConfigError, match="mode 0700"):
        scratch.array(np.float64, (10,))


# --- room


def test_more_than_the_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with make_space(tmp_path, most=80 * KB).open() as scratch:
        array = scratch.array(np.float64, (10_000,))
        message = r"^scratch\.max_gb: 0\.1 MB of scratch space .* the limit is 0\.1 MB: raise it, or wait"
        with pytest.raises(ConfigError, match=message):
            scratch.array(np.float64, (1,))
        assert open_files(tmp_path)
        assert not any(os.fstat(file).st_size for file in open_files(tmp_path))
        array.close()
        scratch.array(np.float64, (10_000,))


def test_more_than_the_disk_has_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = space_module.FREE_BYTES + 100 * KB

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    space = make_space(tmp_path)
    with space.open() as scratch, space.open() as other:
        first = scratch.array(np.float64, (10_000,))
        with pytest.raises(ConfigError, match=r"^scratch\.folder: 0\.1 MB .* are needed, and 0\.0 MB are free"):
            other.array(np.float64, (10_000,))  # The first array has not used its room yet.
        first.append(np.zeros(10_000))
        other.array(np.float64, (10_000,))  # It has used it, and the system counts it.


def test_what_is_reserved_is_kept_from_other_jobs_until_the_job_ends(tmp_path: Path) -> None:
    space = make_space(tmp_path, most=100 * KB, memory=10 * KB)
    with space.open() as other:
        with space.open() as scratch:
            scratch.reserve(90 * KB)
            with pytest.raises(ConfigError, match="wait until other jobs"):
                other.reserve(40 * KB)
            for _ in range(3):  # One after the other, each in the same room.
                array = scratch.array(np.float64, (10_000,))
                array.close()
            with pytest.raises(ConfigError):
                scratch.reserve(120 * KB)
        other.reserve(100 * KB)


def test_room_for_a_file_that_cannot_be_made_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    space = make_space(tmp_path, most=100 * KB, memory=10 * KB)
    with space.open() as scratch:
        small = filled(scratch, np.zeros(1000), [])
        monkeypatch.setattr(tempfile, "mkstemp", no_more)
        for failing in (lambda: scratch.array(np.float64, (10_000,)), lambda: small.append(np.zeros(10_000))):
            with pytest.raises(ConfigError, match=r"scratch\.memory_mb.*raise its limit of open files"):
                failing()
    with space.open() as other:
        other.reserve(100 * KB)


@pytest.mark.parametrize("rows", [np.zeros(3), np.zeros((3, 3)), np.zeros((3, 2), np.int32)])
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: NDArray[Any]) -> None:
    with make_space(tmp_path).open() as scratch:
        for each in (scratch, IN_MEMORY):
            with pytest.raises(ValueError, match="do not fit"):
                each.array(np.float64, (5, 2)).append(rows)


@pytest.mark.parametrize("rows", [np.array([-1]), np.array([10])])
def test_rows_that_an_array_does_not_have_are_not_read(tmp_path: Path, rows: NDArray[np.int64]) -> None:
    with make_space(tmp_path).open() as scratch, pytest.raises(IndexError):
        filled(scratch, np.zeros(10), [])[rows]


def test_a_file_is_read_forwards_only(tmp_path: Path) -> None:
    with make_space(tmp_path).open() as scratch, pytest.raises(ValueError, match="step 1"):
        filled(scratch, np.zeros(10), [])[::-1]


# --- the end


@pytest.fixture
def ended(tmp_path: Path) -> tuple[ScratchSpace, Array[Any], RowArray[Any]]:
    space = make_space(tmp_path, most=100 * KB)
    with space.open() as scratch:
        array = filled(scratch, np.zeros(1000), [])
        rows = array.finish()
        scratch.reserve(100 * KB)
    return space, array, rows


def test_at_the_end_of_a_job_its_space_is_free_even_if_somebody_still_has_its_arrays(
    tmp_path: Path, ended: tuple[ScratchSpace, Array[Any], RowArray[Any]]
) -> None:
    space, array, rows = ended
    assert not any(os.fstat(file).st_size for file in open_files(tmp_path))
    for each in (array, rows):
        for some in (np.array([5]), slice(5, 7)):
            with pytest.raises(ValueError, match="closed"):
                each[some]
    with space.open() as scratch:
        scratch.reserve(100 * KB)


def test_what_is_being_written_at_the_end_is_freed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may be stopped while a thread appends."""
    begun, pwrite = Event(), os.pwrite

    def slow(file: int, content: memoryview, place: int) -> int:
        begun.set()
        time.sleep(0.01)
        return pwrite(file, content[:1000], place)

    monkeypatch.setattr(os, "pwrite", slow)
    with ThreadPoolExecutor(1) as threads, make_space(tmp_path).open() as scratch:
        array = scratch.array(np.float64, (1000,))
        written = threads.submit(array.append, np.zeros(1000))
        begun.wait()
        scratch.close()
        written.result()
        assert not any(os.fstat(file).st_size for file in open_files(tmp_path))
        with pytest.raises(ValueError, match="closed"):
            array.append(np.zeros(1000))


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    with make_space(tmp_path).open() as scratch:
        array = filled(scratch, np.zeros(10), [])
    with pytest.raises(ValueError, match="closed"):
        array.append(np.zeros(10))
    with pytest.raises(ValueError, match="closed"):
        scratch.array(np.float64, (10,))


HOLDER = """
import sys, time
from pathlib import Path
import numpy as np
from trilateral.common.scratch.space import ScratchSpace
with ScratchSpace(Path(sys.argv[1]), max_bytes=None, memory_bytes=0, encrypt=False).open() as scratch:
    array = scratch.array(np.float64, (1000,))
    array.append(np.zeros(1000))
    print(flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        os.kill(holder.pid, signal.SIGKILL)
    finally:
        holder.kill()
        holder.communicate()
    assert list((tmp_path / SCRATCH).iterdir()) == []
