"""What is said about the weights of two models side by side."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import BinningConfig, ColumnBinning, DatasetConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.comparison import remarks_on
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.party_data import load_party_data
from trilateral.common.protocol.messages import Result

TOWNS = ["Graz"] * 60 + ["Linz"] * 40 + ["Wels"] * 30
MISSING = [""] * 70 + ["Graz"] * 40 + ["Linz"] * 20


def made(
    folder: Path, towns: Sequence[str] = TOWNS, protocol: str = "shares", binning: BinningConfig | None = None
) -> PartyModel:
    """Return a host's part of a model of one column of categories."""
    path = folder / "host.csv"
    pd.DataFrame({"id": range(len(towns)), "town": towns}).to_csv(path, index=False)
    dataset = DatasetConfig(path=path, categorical=["town"], preprocessing=PreprocessingConfig(binning=binning))
    job = JobConfig.model_validate({"name": "job", "dataset": "people", "protocol": protocol, "holdout": 0})
    data = load_party_data(dataset, job, labelled=False)
    result = Result(np.zeros(data.block.columns.shape[1]), 0.5, 7, 3, "converged", None)
    return PartyModel.of(Role.HOST, job, data, dataset, result, run_id="ab" * 16)


def test_models_of_one_loss_and_one_reference_need_no_remark(tmp_path: Path) -> None:
    assert remarks_on(made(tmp_path), made(tmp_path, TOWNS[5:])) == []


@pytest.mark.parametrize(
    ("towns", "reference"),
    [(TOWNS[30:], "'Linz'"), (MISSING, "missing values"), ([*TOWNS, *map(str, range(90))], "all other values")],
)
def test_another_reference_category_is_named(tmp_path: Path, towns: list[str], reference: str) -> None:
    first = made(tmp_path)
    (remark,) = remarks_on(first, made(tmp_path, towns))
    assert remark.startswith(f"The terms of 'town' compare with 'Graz' in the first model and with {reference} in the")


def test_another_largest_bin_is_named(tmp_path: Path) -> None:
    binning = BinningConfig(method="width", woe=False, columns={"town": ColumnBinning(method=[["Graz"]], woe=False)})
    first, second = made(tmp_path, binning=binning), made(tmp_path, [*TOWNS, *[""] * 80], binning=binning)
    (remark,) = remarks_on(first, second)
    assert remark.startswith(
        "The terms of 'town' compare with town=(other) in the first model and with town=(missing) in the second"
    )


def test_another_loss_is_named(tmp_path: Path) -> None:
    (remark,) = remarks_on(made(tmp_path), made(tmp_path, protocol="paillier"))
    assert remark.startswith("The first model minimises the logistic loss and the second the Taylor loss")
