"""Models in use and their comparison by the Python API, without a server."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trilateral
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.comparison import compare_auc
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.protocol.messages import Result

N = 1200
RNG = np.random.default_rng(5)
TABLE = pd.DataFrame({"id": [f"p{row:05d}" for row in range(N)], "age": RNG.normal(size=N), "debt": RNG.normal(size=N)})
TABLE["label"] = (TABLE["age"] + RNG.logistic(size=N) > 0).astype(int)
TABLE["home"] = np.array(["own", "rent", "free"])[RNG.integers(3, size=N)]


def trained(folder: Path, weights: list[float], name: str = "churn", **label: Any) -> Path:
    path, column = folder / "people.csv", "home" if label else "label"
    TABLE.drop(columns="label" if label else "home").to_csv(path, index=False)
    plain = PreprocessingConfig(whiten=False, clip=None)
    dataset = DatasetConfig(path=path, label=LabelConfig(column=column, **label), preprocessing=plain)
    classes = len(label["classes"]) if label else None
    job = JobConfig(name=name, dataset="people", holdout=0.5, protocol="shares", classes=classes)
    data = load_party_data(dataset, job, labelled=True)
    w = np.concatenate([[*part, 0.0] for part in np.split(np.array(weights), classes or 1)])
    columns = np.asarray(data.block.holdout_columns)
    scores = np.concatenate([columns @ part for part in np.split(w, classes or 1)])
    result = Result(w, 0.5, 7, 3, "converged", scores)
    model = PartyModel.of(Role.GUEST, job, data, dataset, result, run_id="ab" * 16)
    save_model(folder / f"{name}.json", model)
    return folder / f"{name}.json"


def test_the_shift_of_columns_and_scores_is_that_of_the_command(tmp_path: Path) -> None:
    path = trilateral.load_model(trained(tmp_path, [1.0, 0.2]))
    rows = TABLE.assign(age=TABLE["age"] + 1)
    table = path.shift(rows)
    assert [*table.index] == ["age", "debt"]
    assert table["csi"]["age"] > 0.25 > table["csi"]["debt"]
    assert (table["by_chance"] < 0.1).all()
    shift = path.score_shift(path.score(rows))
    assert (shift.n_rows, shift.n_holdout) == (N, N // 2)
    assert shift.psi > 0.25 > shift.by_chance
    assert path.score_shift(path.score(TABLE)).psi < 0.05


def test_a_session_compares_a_dataset_and_loads_the_model_of_a_class(tmp_path: Path) -> None:
    path = trained(tmp_path, [1.0, 0.0, 0.0, 2.0, 0.3, 0.3], classes=["own", "rent", "free"])
    job = tmp_path / "state/jobs/churn"
    job.mkdir(parents=True)
    path.rename(job / "model.json")
    rows = TABLE.assign(age=TABLE["age"] + 1)
    rows.to_csv(tmp_path / "march.csv", index=False)
    (tmp_path / "guest.yaml").write_text(
        "{role: guest, plaintext: true, listen: 127.0.0.1:1, state: state, datasets: {march: {path: march.csv}},"
        " peers: {host: 127.0.0.1:2, coordinator: 127.0.0.1:3}}"
    )
    with trilateral.connect(tmp_path / "guest.yaml") as session:
        table = session.shift("churn", "march")
        rent = session.model("churn", of_class="rent")
        assert session.model("churn", of_class="2").coefficients().equals(rent.coefficients())
        with pytest.raises(trilateral.PolicyError, match="no dataset named april"):
            session.shift("churn", "april")
        with pytest.raises(trilateral.ConfigError, match="name one of them, with --class or `of_class`"):
            session.model("churn")
    pd.testing.assert_frame_equal(table, rent.shift(rows))
    assert table["csi"]["age"] > 0.25


def test_probabilities_are_compared_with_labels_in_any_order() -> None:
    p = pd.Series(np.clip(RNG.random(N), 0.02, 0.98), index=TABLE["id"])
    labels = pd.Series(RNG.random(N) < p.to_numpy(), index=TABLE["id"])
    drift = trilateral.calibration_drift(p, labels.iloc[::-1])
    assert drift.n_expected == pytest.approx(p.sum())
    assert drift.metrics.n_positive == labels.sum()
    assert drift.slope is not None
    low, high = drift.slope.interval
    assert low < 1 < high
    wrong = trilateral.calibration_drift(p**3, labels)
    assert wrong.ratio > 1.5
    assert trilateral.calibration_drift(pd.Series([0.0, 1.0]), pd.Series([False, True])).metrics.auc == 1


def test_two_models_are_compared_by_weights_and_on_the_same_rows(tmp_path: Path) -> None:
    first, second = (
        trilateral.load_model(trained(tmp_path, weights, name))
        for name, weights in (("first", [1.0, 0.0]), ("second", [0.5, 1.0]))
    )
    table = first.compare(second)
    assert {*table.index} == {"age", "debt"}
    np.testing.assert_allclose(table["difference"], table["second"] - table["first"])
    rows = TABLE.set_index("id")
    a, b = first.score(rows), second.score(rows)
    compared = trilateral.compare_scores(a, b.iloc[::-1], rows["label"].sample(frac=1, random_state=1))
    labels = np.where(rows["label"] > 0, 1.0, -1.0)
    assert compared.auc == compare_auc(np.asarray(a, np.float64), np.asarray(b, np.float64), labels)
    assert compared.auc.difference < 0
    assert compared.psi > 0
    assert trilateral.compare_scores(a, a).psi == 0
    assert trilateral.compare_scores(a, b).auc is None
    assert trilateral.compare_scores(a[:300], b, rows["label"]) == trilateral.compare_scores(
        a[:300], b[:300], rows["label"][:300]
    )


def test_each_class_has_a_distribution_of_its_own_score(tmp_path: Path) -> None:
    path = trained(tmp_path, [1.0, 0.0, 0.0, 2.0, 0.3, 0.3], classes=["own", "rent", "free"])
    rows = TABLE.assign(debt=TABLE["debt"] + 1)
    own, rent = (trilateral.load_model(path, of_class=name) for name in ("own", "rent"))
    assert own.score_shift(own.score(rows)).psi < 0.1 < rent.score_shift(rent.score(rows)).psi
    part = load_model(path)
    scores = [each.score_distribution for each in part.parts]
    assert scores[0] == part.score_distribution
    assert scores[0] != scores[1]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    path = trained(tmp_path, [1.0, 0.0])
    model = trilateral.load_model(path)
    p = pd.Series([0.2, 0.7], index=["a", "b"])
    wrong: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
        (trilateral.calibration_drift, ([0.5], p), TypeError, "probabilities: expected a pandas Series"),
        (trilateral.calibration_drift, (p, [True]), TypeError, "labels: expected a pandas Series"),
        (trilateral.calibration_drift, (p, p.rename(index={"b": "c"})), trilateral.DataError, "lacks 1 row of 2"),
        (trilateral.calibration_drift, (p, p.iloc[:1]), trilateral.DataError, "lacks 1 row of 2: use the IDs"),
        (trilateral.calibration_drift, (p + 1, p), trilateral.DataError, "outside 0 to 1"),
        (trilateral.calibration_drift, (p, p), trilateral.DataError, "other than True and False, 0 and 1, or -1 and 1"),
        (trilateral.calibration_drift, (p, pd.Series([1, 2], p.index)), trilateral.DataError, "give True for the rows"),
        (trilateral.calibration_drift, (p, pd.Series(["yes", "no"], p.index)), trilateral.DataError, "not numbers$"),
        (trilateral.compare_scores, (p, p, p), trilateral.DataError, "`labels` has values other than"),
        (trilateral.compare_scores, (p, p.rename(index={"b": "a"})), trilateral.DataError, "repeats an entry"),
        (trilateral.compare_scores, (p.iloc[:0], p.iloc[:0]), trilateral.DataError, "no rows"),
        (model.shift, ([1],), TypeError, "frame: expected a pandas DataFrame"),
        (model.shift, (TABLE.iloc[:0],), trilateral.DataError, "no rows to compare"),
        (model.score_shift, ([1],), TypeError, "scores: expected a pandas Series"),
        (model.score_shift, (p * np.nan,), trilateral.DataError, "not finite"),
        (model.score_shift, (p.astype(object).replace(0.2, "a value"),), trilateral.DataError, "not numbers$"),
        (model.compare, ("churn",), TypeError, "other: expected a Model"),
    ]
    for call, arguments, kind, said in wrong:
        with pytest.raises(kind, match=said):
            call(*arguments)
    save_model(path, load_model(path).model_copy(update={"distributions": None}))
    with pytest.raises(trilateral.DataError, match="train again to compare rows"):
        trilateral.load_model(path).shift(TABLE)
