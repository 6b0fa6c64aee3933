"""The files of scores: exact, in order, whole or not there."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import expit

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.data.tables.id_form import SEPARATOR
from trilateral.guest_party.score_file import score_files

IDS = ["007", 'a "b", c', "ü", " d"]
ABOUT = {"trilateral.calibration": "calibrated by hand"}
SCORES = np.array([1 / 3, np.nan, -1e-300, np.nan])


def with_probabilities(scores: FloatVector) -> list[pa.Array]:
    return [pa.array(scores), pa.array(expit(scores))]


def pieces() -> Iterator[tuple[pa.Array, FloatVector]]:
    for start in (0, 2):
        yield pa.array(IDS[start : start + 2]), SCORES[start : start + 2]


def write_scores(out: Path, missing: Path | None, rows: Iterator[tuple[pa.Array, FloatVector]]) -> None:
    with score_files(out, missing, ABOUT) as files:
        for ids, scores in rows:
            files.write(ids, scores, with_probabilities)


def read(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype={"id": str})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_scores_and_what_has_none_are_written_in_order_to_the_last_bit(tmp_path: Path, suffix: str) -> None:
    out, missing = tmp_path / f"scores{suffix}", tmp_path / f"missing{suffix}"
    write_scores(out, missing, pieces())
    table = read(out)
    assert list(table.columns) == ["id", "score", "probability"]
    assert table["id"].tolist() == ["007", "ü"]
    assert table["score"].tolist() == [1 / 3, -1e-300]
    assert table["probability"].tolist() == expit([1 / 3, -1e-300]).tolist()
    assert read(missing)["id"].tolist() == ['a "b", c', " d"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_nothing_missing_is_an_empty_list_so_that_no_older_one_is_taken_for_it(tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    missing.write_text("id\nold\n")
    write_scores(tmp_path / "scores.csv", missing, iter([(pa.array(["a"]), np.zeros(1))]))
    assert read(missing)["id"].tolist() == []


def test_after_an_error_the_old_file_is_there_and_no_part_of_a_new_one(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    out.write_text("old")

    def failing() -> Iterator[tuple[pa.Array, FloatVector]]:
        yield from pieces()
        raise DataError("it ends here")

    with pytest.raises(DataError, match="it ends here"):
        write_scores(out, tmp_path / "missing.csv", failing())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"scores.csv": "old"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_id_of_several_columns_is_written_as_it_was_read(tmp_path: Path, suffix: str) -> None:
    out, missing = tmp_path / f"scores{suffix}", tmp_path / f"missing{suffix}"
    ids = pa.array([SEPARATOR.join(parts) for parts in (("a", "bc"), ("ab", " c"), ("d", "e"))])
    with score_files(out, missing, ABOUT, ["country", "number"]) as files:
        files.write(ids, np.array([0.5, np.nan, 1.5]), with_probabilities)
        files.write(ids[:0], np.zeros(0), with_probabilities)
    table = read(out)
    assert list(table.columns) == ["country", "number", "score", "probability"]
    assert table[["country", "number"]].to_numpy().tolist() == [["a", "bc"], ["d", "e"]]
    assert read(missing).to_numpy().tolist() == [["ab", " c"]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scores.xlsx", r"scores\.xlsx: unknown file type"),
        ("none/scores.csv", r"none/scores\.csv: the folder .*none does not exist"),
        ("file.csv/scores.csv", r"file\.csv/scores\.csv: cannot be written: Not a directory"),
        ("folder.csv", r"folder\.csv: is a folder"),
    ],
)
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_done(
    tmp_path: Path, name: str, said: str, is_missing: bool
) -> None:
    (tmp_path / "file.csv").touch()
    (tmp_path / "folder.csv").mkdir()
    paths = tmp_path / "good.csv", tmp_path / name
    out, missing = paths if is_missing else reversed(paths)
    with pytest.raises(ConfigError, match=said), score_files(out, missing, ABOUT):
        pytest.fail("the block began")
    assert {path.name for path in tmp_path.iterdir()} == {"file.csv", "folder.csv"}


def test_a_folder_that_may_not_be_read_is_a_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)  # no mode keeps root out of a folder
    with (
        pytest.raises(ConfigError, match=r"scores\.csv: cannot be written: Permission denied"),
        score_files(tmp_path / "scores.csv", None, ABOUT),
    ):
        pytest.fail("the block began")


def test_a_disk_without_room_is_found_before_any_score_comes(tmp_path: Path) -> None:
    with score_files(tmp_path / "scores.csv", tmp_path / "missing.csv", ABOUT) as files:
        files.check_room(1)
        with pytest.raises(ConfigError, match=r"scores\.csv: the scores need up to .* MiB, and .* MiB are free"):
            files.check_room(2**62)


def test_a_disk_that_fills_up_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trilateral.common.base.files.os.fsync", full)
    with pytest.raises(ConfigError, match=r"scores\.csv: cannot be written: No space left on device"):
        write_scores(tmp_path / "scores.csv", None, pieces())
    assert not list(tmp_path.iterdir())


def test_a_parquet_file_says_how_far_its_probabilities_can_be_trusted(tmp_path: Path) -> None:
    write_scores(tmp_path / "scores.parquet", None, pieces())
    metadata = pq.read_schema(tmp_path / "scores.parquet").metadata
    assert metadata[b"trilateral.calibration"] == b"calibrated by hand"
