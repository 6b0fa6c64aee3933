"""A history is read while the job writes it, in pieces, and from the start if the file was replaced."""

import json
from pathlib import Path

from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history_file import read_history


def line(number: int, **fields: object) -> str:
    return json.dumps({"round": number, "loss": 1 / number, **fields}) + "\n"


def numbers(folder: JobFolder, place: int = 0, max_bytes: int = 10_000) -> tuple[list[int], int, bool, bool]:
    piece = read_history(folder, place, max_bytes)
    return [each["round"] for each in piece.lines], piece.place, piece.is_from_start, piece.is_more


def made(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path, "credit")
    folder.make()
    return folder


def test_a_job_without_history_has_no_rounds(tmp_path: Path) -> None:
    assert numbers(JobFolder(tmp_path, "credit")) == ([], 0, True, False)


def test_each_piece_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.unfinished_history.write_text(line(1) + line(2))
    found, place, is_from_start, _ = numbers(folder)
    assert (found, is_from_start) == ([1, 2], True)
    with folder.unfinished_history.open("a") as file:
        file.write(line(3))
    assert numbers(folder, place)[0::2] == ([3], False)


def test_the_end_of_the_job_changes_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.unfinished_history.write_text(line(1))
    place = read_history(folder).place
    folder.unfinished_history.rename(folder.history)
    assert numbers(folder, place) == ([], place, False, False)
    assert numbers(folder)[0] == [1]


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.unfinished_history.write_text(line(1) + line(2)[:-5])
    found, place, _, is_more = numbers(folder)
    assert (found, is_more) == ([1], False)
    folder.unfinished_history.write_text(line(1) + line(2))
    assert numbers(folder, place)[0] == [2]


def test_a_long_history_comes_in_pieces(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.history.write_text("".join(map(line, range(1, 101))))
    found, place, more = [], 0, True
    while more:
        part, place, _, more = numbers(folder, place, 1000)
        found += part
    assert found == list(range(1, 101))


def test_another_file_is_read_from_its_start(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.history.write_text(line(1) + line(2))
    place = read_history(folder).place
    folder.history.write_text(line(1, attempt=7))
    assert numbers(folder, place)[0::2] == ([1], True)


def test_a_line_of_another_program_is_left_out(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.history.write_text("no json\n[1]\n" + line(1) + '{"round": "2"}\n')
    assert numbers(folder)[0] == [1]


def test_a_place_that_no_file_has_means_the_start(tmp_path: Path) -> None:
    folder = made(tmp_path)
    folder.history.write_text(line(1))
    for place in (1000, 2**63, 2**64 - 1):
        assert numbers(folder, place)[0] == [1]
