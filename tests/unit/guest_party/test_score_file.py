"""The files of scores: exact, in order, whole or not there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.special import expit

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.data.tables.id_form import SEPARATOR
from trilateral.guest_party.score_file import check_suffix, write_scores

IDS = ["007", 'a "b", c', "ü", " d"]
SCORES = np.array([1 / 3, np.nan, -1e-300, np.nan])


def pieces() -> Iterator[tuple[pa.Array, FloatVector]]:
    for start in (0, 2):
        yield pa.array(IDS[start : start + 2]), SCORES[start : start + 2]


def read(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype={"id": str})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_scores_and_what_has_none_are_written_in_order_to_the_last_bit(tmp_path: Path, suffix: str) -> None:
    out, missing = tmp_path / f"scores{suffix}", tmp_path / f"missing{suffix}"
    write_scores(out, missing, pieces(), expit)
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
    write_scores(tmp_path / "scores.csv", missing, iter([(pa.array(["a"]), np.zeros(1))]), expit)
    assert read(missing)["id"].tolist() == []


def test_after_an_error_the_old_file_is_there_and_no_part_of_a_new_one(tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    out.write_text("old")

    def failing() -> Iterator[tuple[pa.Array, FloatVector]]:
        yield from pieces()
        raise DataError("it ends here")

    with pytest.raises(DataError, match="it ends here"):
        write_scores(out, tmp_path / "missing.csv", failing(), expit)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"scores.csv": "old"}


def test_a_file_of_no_known_kind_or_in_no_folder_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    check_suffix(tmp_path / "scores.parquet")
    with pytest.raises(ConfigError, match=r"scores\.xlsx: unknown file type"):
        check_suffix(tmp_path / "scores.xlsx")
    with pytest.raises(ConfigError, match="does not exist"):
        check_suffix(tmp_path / "none" / "scores.csv")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_id_of_several_columns_is_written_as_it_was_read(tmp_path: Path, suffix: str) -> None:
    out, missing = tmp_path / f"scores{suffix}", tmp_path / f"missing{suffix}"
    ids = pa.array([SEPARATOR.join(parts) for parts in (("a", "bc"), ("ab", " c"), ("d", "e"))])
    rows = iter([(ids, np.array([0.5, np.nan, 1.5])), (ids[:0], np.zeros(0))])
    write_scores(out, missing, rows, expit, ["country", "number"])
    table = read(out)
    assert list(table.columns) == ["country", "number", "score", "probability"]
    assert table[["country", "number"]].to_numpy().tolist() == [["a", "bc"], ["d", "e"]]
    assert read(missing).to_numpy().tolist() == [["ab", " c"]]
