"""The file of shifts: what is kept, and what a reader finds."""

from pathlib import Path

import pytest

from trilateral.common.data.model.distributions import Shift
from trilateral.common.jobs.drift_file import DRIFT, keep_shift, newest_shifts
from trilateral.common.jobs.folder import JobFolder

LARGE = Shift(2000, {"age": 0.123}, 1500, 0.456)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path, "credit")
    folder.make()
    return folder


def test_the_newest_shift_is_found_rounded(folder: JobFolder, tmp_path: Path) -> None:
    keep_shift(folder, "march", Shift(3000, {"age": 1.0}))
    keep_shift(folder, "april", LARGE)
    assert newest_shifts(tmp_path, 10) == {"credit": Shift(2000, {"age": 0.12}, 1500, 0.46)}
    assert len((folder.path / DRIFT).read_text().splitlines()) == 2


def test_few_rows_leave_no_line(folder: JobFolder, tmp_path: Path) -> None:
    keep_shift(folder, "march", Shift(999, {"age": 1.0}))
    assert not (folder.path / DRIFT).exists()
    assert newest_shifts(tmp_path, 10) == {}


def test_the_jobs_with_the_newest_predictions_are_found(tmp_path: Path) -> None:
    for number in range(3):
        folder = JobFolder(tmp_path, f"job-{number}")
        folder.make()
        keep_shift(folder, "march", LARGE)
    assert len(newest_shifts(tmp_path, 2)) == 2


@pytest.mark.parametrize("content", ["", "{", "[]\n", '{"n_rows": "x"}\n', "\x00"])
def test_a_damaged_file_is_left_out(folder: JobFolder, tmp_path: Path, content: str) -> None:
    (folder.path / DRIFT).write_text(content)
    assert newest_shifts(tmp_path, 10) == {}
    assert newest_shifts(tmp_path / "nowhere", 10) == {}


def test_a_folder_that_cannot_be_written_does_not_end_the_prediction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_shift(JobFolder(tmp_path, "gone"), "march", LARGE)
    assert "job gone: cannot write" in caplog.text
