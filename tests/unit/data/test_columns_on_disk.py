"""Reading gives the same table, to the last bit, whether its columns lie on disk or in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trilateral.common.data.tables.table
from tests.support.frames import frame_of
from trilateral.common.base.arrays import SelectedRows
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.progress import Stage, reporting
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.features import Categories
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.table import PartyTable, read_table, stream_table
from trilateral.common.jobs.party_record import table_digest
from trilateral.common.scratch.files import FileArray
from trilateral.common.scratch.space import ScratchSpace

N_ROWS = 1000


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trilateral.common.data.tables.table, "_PARSED_ROWS", 64)


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f" {row:05}.0" for row in rng.permutation(N_ROWS)],
            "b": np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.standard_normal(N_ROWS)),
            # New values appear in the middle of the file, and not in their order.
            "kind": [(f"z{999 - row}", "car", None)[row % 3] for row in range(N_ROWS)],
            "y": rng.integers(0, 2, N_ROWS),
            "w": rng.lognormal(size=N_ROWS),
            "a": rng.integers(0, 9, N_ROWS),
        }
    )


def space(folder: Path, *, most: int | None = None) -> ScratchSpace:
    return ScratchSpace(folder / "scratch", max_bytes=most, memory_bytes=0, encrypt=True)


def dataset(folder: Path, frame: pd.DataFrame, name: str = "t.parquet", **settings: Any) -> DatasetConfig:
    path = folder / name
    frame.to_parquet(path, row_group_size=300) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    label = {"column": "y", "weight": "w"}
    return DatasetConfig.model_validate({"path": path, "categorical": ["kind"], "label": label, **settings})


def assert_same(one: PartyTable, other: PartyTable) -> None:
    assert one.ids == other.ids
    assert [*one.features.columns] == [*other.features.columns]
    for name, column in one.features.columns.items():
        same = other.features[name]
        if isinstance(column, Categories):
            assert isinstance(same, Categories)
            assert column.levels == same.levels
            np.testing.assert_array_equal(column.codes[:], same.codes[:])
        else:
            assert not isinstance(same, Categories)
            assert column[:].tobytes() == same[:].tobytes()
    assert one.labels is not None
    assert other.labels is not None
    assert one.labels.tobytes() == other.labels.tobytes()
    assert one.weights is not None
    assert other.weights is not None
    assert one.weights.tobytes() == other.weights.tobytes()
    assert (one.changed_ids, one.n_repeated) == (other.changed_ids, other.n_repeated)
    assert table_digest(one) == table_digest(other)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
@pytest.mark.parametrize("repeated", ["none", "first", "aggregate", "in order"])
def test_the_table_is_the_same_wherever_it_lies(frame: pd.DataFrame, tmp_path: Path, name: str, repeated: str) -> None:
    settings = {}
    if repeated == "in order":
        frame = frame.sort_values("id")
    elif repeated != "none":
        again = frame.iloc[::7].assign(b=1.5, kind="car", a=3, w=2.5)
        frame = pd.concat([frame, again], ignore_index=True).sample(frac=1, random_state=1)
        settings = {"repeated_ids": repeated}
    config = dataset(tmp_path, frame, name, **settings)
    in_memory = read_table(config)
    with space(tmp_path).open() as scratch:
        on_disk = read_table(config, scratch)
        assert isinstance(on_disk.features["b"], FileArray)
        assert_same(in_memory, on_disk)
        rows = np.arange(3, N_ROWS, 7)
        selected = on_disk.select(rows)
        assert isinstance(selected.features["b"], SelectedRows)
        assert_same(in_memory.select(rows), selected)


def test_a_table_that_needs_more_room_than_the_settings_allow_is_refused_before_it_is_read(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    config = dataset(tmp_path, frame)
    # Two columns of numbers, the codes of one of categories, and one column again while it is put in order.
    enough = N_ROWS * (8 + 8 + 4 + 8)
    with space(tmp_path, most=enough - 1).open() as scratch, pytest.raises(ConfigError, match=r"scratch\.max_gb"):
        read_table(config, scratch)
    with space(tmp_path, most=enough).open() as scratch:
        assert len(read_table(config, scratch).ids) == N_ROWS
    # Three training columns, beside those of the table.
    enough = N_ROWS * (8 + 8 + 4 + 3 * 8)
    with space(tmp_path, most=enough - 1).open() as scratch, pytest.raises(ConfigError, match=r"scratch\.max_gb"):
        read_table(config, scratch, is_trained=True)
    with space(tmp_path, most=enough).open() as scratch:
        assert len(read_table(config, scratch, is_trained=True).ids) == N_ROWS


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_reading_and_sorting_report_how_far_they_have_come(frame: pd.DataFrame, tmp_path: Path, name: str) -> None:
    config = dataset(tmp_path, frame, name)
    reported: dict[Stage, list[float]] = {}
    with reporting(lambda stage, share: reported.setdefault(stage, []).append(share)):
        read_table(config)
    assert [*reported] == [Stage.READING, Stage.SORTING]
    for shares in reported.values():
        assert shares == sorted(shares)
    assert len(reported[Stage.READING]) == 16
    assert reported[Stage.READING][-1] == pytest.approx(1)


@pytest.mark.parametrize("repeated", ["first", "aggregate"])
def test_rows_to_score_are_merged_in_the_same_way_wherever_they_lie(
    frame: pd.DataFrame, tmp_path: Path, repeated: str
) -> None:
    again = frame.iloc[::7].assign(b=1.5, kind="car", a=3)
    config = dataset(tmp_path, pd.concat([frame, again]), repeated_ids=repeated)
    kind = CategoryColumn(name="kind", reference=None, categories=["car"], missing="other", other="reference")
    in_memory = list(stream_table(config, ["a", "b", "kind"], [kind], rows=300))
    with space(tmp_path).open() as scratch:
        on_disk = list(stream_table(config, ["a", "b", "kind"], [kind], rows=300, scratch=scratch))
        assert scratch.peak_bytes > 0
        assert [len(chunk.ids) for chunk in on_disk] == [300, 300, 300, 100]
        for one, other in zip(in_memory, on_disk, strict=True):
            assert one.ids == other.ids
            pd.testing.assert_frame_equal(frame_of(one.features), frame_of(other.features))
