"""The folder of a job, and the move of the folders of release 0.1.0."""

import logging
import os
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import JobFolder, move_old_folders

OTHER_FILES = ["journal.sqlite", "journal.sqlite-journal", "audit.jsonl", "Journal.sqlite-wal", "scores"]
"""What a process keeps in its state folder, or could."""


def write(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", [*OTHER_FILES, "jobs", "Jobs", "x" * 64, "a..b", "a-"])
def test_no_name_of_a_job_is_a_path_outside_the_folder_of_jobs(name: str, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, name)
    folder.make()
    for path in (folder.path, folder.model, folder.history, folder.unfinished_history):
        assert path.resolve().is_relative_to(tmp_path.resolve() / "jobs" / name)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]


def test_only_the_owner_may_read_the_folders(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "state", "credit")
    folder.make()
    for path in (folder.state, folder.path.parent, folder.path):
        assert path.stat().st_mode & 0o777 == 0o700


def test_jobs_do_not_share_a_folder_where_the_file_system_ignores_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobFolder(tmp_path, "Credit").make()
    monkeypatch.setattr(os, "listdir", lambda _: ["Credit"])  # as there, although `mkdir` finds `credit`
    with pytest.raises(OSError, match="another job has the folder credit in other letter case"):
        JobFolder(tmp_path, "credit").make()


def test_folders_of_0_1_0_are_moved_with_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("credit", "jobs", *OTHER_FILES):
        write(tmp_path / name / "model.json", name)
        write(tmp_path / name / "history.jsonl.partial")
    with caplog.at_level(logging.INFO):
        move_old_folders(tmp_path, Role.HOST)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
    for name in ("credit", "jobs", *OTHER_FILES):
        assert JobFolder(tmp_path, name).model.read_text() == name
        assert JobFolder(tmp_path, name).unfinished_history.exists()
        assert str(JobFolder(tmp_path, name).model) in caplog.text


def test_a_second_start_moves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "credit" / "model.json")
    move_old_folders(tmp_path, Role.HOST)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        move_old_folders(tmp_path, Role.HOST)
    assert caplog.text == ""
    assert JobFolder(tmp_path, "credit").model.exists()


def test_a_move_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    write(JobFolder(tmp_path, "credit").model, "moved")
    write(tmp_path / "credit" / "history.jsonl", "left")
    move_old_folders(tmp_path, Role.HOST)
    assert JobFolder(tmp_path, "credit").model.read_text() == "moved"
    assert JobFolder(tmp_path, "credit").history.read_text() == "left"


def test_no_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(JobFolder(tmp_path, "credit").model, "new")
    write(tmp_path / "credit" / "model.json", "old")
    move_old_folders(tmp_path, Role.HOST)
    assert JobFolder(tmp_path, "credit").model.read_text() == "new"
    assert (tmp_path / "credit" / "model.json").read_text() == "old"
    assert "keep one of them" in caplog.text


def test_other_files_and_folders_stay_where_they_are(tmp_path: Path) -> None:
    others = [tmp_path / ".scratch/model.json", tmp_path / "notes/readme.txt", tmp_path / "journal.sqlite"]
    for path in others:
        write(path)
    write(tmp_path / "credit" / "model.json")
    write(tmp_path / "credit" / "readme.txt")
    move_old_folders(tmp_path, Role.HOST)
    assert all(path.exists() for path in (*others, tmp_path / "credit/readme.txt"))
    assert not (tmp_path / "credit/model.json").exists()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_state_folder(tmp_path: Path) -> None:
    write(tmp_path / "credit" / "model.json")
    write(tmp_path / "jobs")
    with pytest.raises(ConfigError, match="the state folder of the host cannot be written"):
        move_old_folders(tmp_path, Role.HOST)


def test_a_command_finds_the_model_of_0_1_0_before_a_server_moves_it(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "credit")
    assert folder.find_model() == folder.model
    old = write(tmp_path / "credit" / "model.json")
    assert folder.find_model() == old
    write(folder.model)
    assert folder.find_model() == folder.model
