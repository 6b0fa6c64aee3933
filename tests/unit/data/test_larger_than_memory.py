"""A table whose rows lie on disk gives the same training, to the last bit, as one in memory."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from trilateral.common.base.arrays import BLOCK_ROWS, RowArray
from trilateral.common.base.errors import ConfigError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.features import Categories
from trilateral.common.data.party_data import PreparedData, check_labels, make_party_data, read_party_table
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.party_record import table_digest
from trilateral.common.protocol.arithmetic import check_scaled, holdout_scores
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.label_secrecy import LabelSecrecy, effective_rank, shown_bits, start_score
from trilateral.common.scratch.arrays import IN_MEMORY, Scratch
from trilateral.common.scratch.files import FileArray
from trilateral.common.scratch.space import ScratchSpace

N_ROWS = 2 * BLOCK_ROWS + 1234


class Prepared(NamedTuple):
    table: PartyTable
    data: PreparedData


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what real tables have: missing values, outliers, categories, and rows in any order."""
    random = np.random.default_rng(5)
    income = np.exp(2 * random.standard_normal(N_ROWS))
    income[random.random(N_ROWS) < 0.1] = np.nan
    age = random.integers(18, 90, N_ROWS).astype(float)
    kinds = np.array(["north", "south", "east", "west", "at sea"])
    frame = pd.DataFrame(
        {
            "id": random.permutation(N_ROWS),
            "income": income,
            "age": age,
            "twice the age": 2 * age + 1e-3 * random.standard_normal(N_ROWS),
            "constant": 3.0,
            "mostly zero": np.where(random.random(N_ROWS) < 0.001, random.random(N_ROWS), 0.0),
            "branch": kinds[random.integers(0, 5, N_ROWS)],
            "weight": random.random(N_ROWS).round(3),
            "bad": random.integers(0, 2, N_ROWS),
        }
    )
    frame.loc[random.random(N_ROWS) < 0.05, "branch"] = np.nan
    made = tmp_path_factory.mktemp("large") / "people.csv"
    frame.to_csv(made, index=False)
    return made


def prepare(
    path: Path, preprocessing: dict[str, Any], label: dict[str, Any], job: JobConfig, scratch: Scratch
) -> Prepared:
    dataset = DatasetConfig.model_validate(
        {
            "path": path,
            "id": "id",
            "categorical": ["branch"],
            "label": {"column": "bad", **label},
            "exclude": [] if "weight" in label else ["weight"],
            "preprocessing": preprocessing,
        }
    )
    table = read_party_table(dataset, job, labelled=True, scratch=scratch)
    return Prepared(table, make_party_data(table, dataset.preprocessing, job, scratch=scratch))


def content(array: RowArray[Any] | None) -> bytes:
    return b"" if array is None else np.asarray(array).tobytes()


@pytest.mark.parametrize(
    ("preprocessing", "label", "holdout"),
    [
        ({"missing_indicator": True}, {"weight": "weight", "class_weight": "balanced"}, 0.2),
        ({"whiten": False, "fill": "mean", "clip": [0.01, 0.9]}, {}, 0.3),
        ({"clip": None, "encoding": "frequency"}, {"class_weight": {"positive": 3, "negative": 0.7}}, 0),
        (
            {
                "columns": {"income": {"transform": "yeo_johnson"}, "age": {"spline": {"knots": 4}}},
                "interactions": [["age", "income"], ["age", "branch"]],
            },
            {},
            0.2,
        ),
    ],
    ids=["whitened, weighted", "clipped", "without hold-out", "transformed"],
)
def test_rows_on_disk_give_the_same_training_to_the_last_bit(
    path: Path, tmp_path: Path, preprocessing: dict[str, Any], label: dict[str, Any], holdout: float
) -> None:
    job = JobConfig(name="large", dataset="people", holdout=holdout, protocol="shares")
    memory = prepare(path, preprocessing, label, job, IN_MEMORY)
    with ScratchSpace(tmp_path, max_bytes=None, memory_bytes=0, encrypt=True).open() as scratch:
        disk = prepare(path, preprocessing, label, job, scratch)
        assert isinstance(disk.data.block.columns, FileArray)
        assert isinstance(memory.data.block.columns, np.ndarray)
        assert any(isinstance(each, FileArray) for each in disk.table.features.columns.values())

        assert table_digest(disk.table) == table_digest(memory.table)
        for name, column in memory.table.features.columns.items():
            other = disk.table.features[name]
            if isinstance(column, Categories):
                assert isinstance(other, Categories)
                assert other.levels == column.levels
                assert content(other.codes) == content(column.codes)
            else:
                assert not isinstance(other, Categories)
                assert content(other) == content(column)
        assert disk.data.preprocessing.to_dict() == memory.data.preprocessing.to_dict()
        assert disk.data.left_out == memory.data.left_out
        for part in ("columns", "holdout_columns", "labels", "holdout_labels", "penalty", "sample_weights"):
            assert content(getattr(disk.data.block, part)) == content(getattr(memory.data.block, part)), part

        own, theirs = memory.data.block, disk.data.block
        assert own.labels is not None
        check_labels(theirs)
        check_scaled(theirs.columns)
        for measure in (start_score, shown_bits, effective_rank):
            assert measure(theirs.columns) == measure(own.columns)
        batches = Batches(len(own.columns), 30_000, seed=1)
        assert LabelSecrecy.of(theirs.columns, own.labels, batches, secret_start=True) == LabelSecrecy.of(
            own.columns, own.labels, batches, secret_start=True
        )
        coef = np.linspace(-1, 1, own.columns.shape[1])
        assert content(holdout_scores(theirs, coef)) == content(holdout_scores(own, coef))


def test_a_table_that_does_not_fit_into_the_scratch_space_is_refused_by_the_name_of_the_setting(
    path: Path, tmp_path: Path
) -> None:
    job = JobConfig(name="large", dataset="people")
    space = ScratchSpace(tmp_path, max_bytes=1_000_000, memory_bytes=100_000, encrypt=True)
    with space.open() as scratch, pytest.raises(ConfigError, match=r"^scratch\.max_gb"):
        prepare(path, {}, {}, job, scratch)
    with space.open() as scratch:
        scratch.reserve(1_000_000)  # What the table had is free again.
