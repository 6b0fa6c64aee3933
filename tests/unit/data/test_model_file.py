"""A model file says all of a party's part, alone and to the last bit."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.data.party_data import PreparedData, load_party_data
from trilateral.common.protocol.messages import Result

JOB = JobConfig(name="credit", dataset="people", holdout=0.25)
RUN = "0123456789abcdef" * 2
NAN = float("nan")
UNFIT = {
    "columns": [{"kind": "number", "name": "age", "fill": 0.0}],
    "mean": [NAN],
    "scale": [1.0],
    "directions": None,
    "intercept": False,
}
Load = Callable[[bool], tuple[DatasetConfig, PreparedData]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(80, 3)), columns=["age", "income", "debt"])
    table["id"] = [f"person-{row}" for row in range(80)]
    table["label"] = (table["age"] > 0).astype(int)

    def load(labelled: bool) -> tuple[DatasetConfig, PreparedData]:
        path = tmp_path / f"{labelled}.csv"
        (table if labelled else table.drop(columns="label")).to_csv(path, index=False)
        dataset = DatasetConfig(path=path, label=LabelConfig() if labelled else None)
        return dataset, load_party_data(dataset, JOB, labelled=labelled)

    return load


def result(data: PreparedData, scores: np.ndarray | None = None) -> Result:
    coef: FloatVector = np.random.default_rng(2).normal(size=(data.block.columns.shape[1],))
    return Result(coef, 0.5, 7, 3, "converged", scores)


def test_the_weights_in_the_file_give_the_scores_of_the_training_columns(load: Load, tmp_path: Path) -> None:
    dataset, data = load(False)
    made = result(data)
    save_model(tmp_path / "model.json", PartyModel.of(Role.HOST, JOB, data, dataset, made, run_id=RUN))
    model = load_model(tmp_path / "model.json")

    table = pd.read_csv(dataset.path, dtype={"id": str}).set_index("id").sort_index()
    expected = model.steps.transform(features_of(table)) @ made.coef
    terms = model.steps.expand(features_of(table))
    np.testing.assert_allclose(terms @ np.array(list(model.weights.values())) + model.intercept, expected)
    assert model.training_weights == made.coef.tolist()
    assert model.metrics is None


def test_the_guest_reports_on_the_holdout_rows(load: Load) -> None:
    dataset, data = load(True)
    assert data.block.holdout_labels is not None
    model = PartyModel.of(Role.GUEST, JOB, data, dataset, result(data, data.block.holdout_labels), run_id=RUN)
    assert model.metrics is not None
    assert model.metrics.auc == 1.0
    assert model.metrics.n_rows == model.data.n_holdout == 20


@pytest.mark.parametrize(
    ("holdout", "method", "n_flipped", "summary"),
    [
        (0.25, "platt", 0, "calibrated by Platt scaling on the hold-out rows; 10 to 99 of the model's rows"),
        (0.25, "isotonic", 0, "calibrated by isotonic regression on the hold-out rows; 10 to 99 "),
        (0.25, "platt", 17, "calibrated on average only: .*, because fewer than 5 hold-out rows have the rarer label;"),
        (0.0, "platt", 0, "calibrated on average only: .*, because there are no hold-out rows; .* converged; 10 to"),
        (0.25, "none", 0, "not calibrated, and possibly far .*: the dataset says `calibration: none`; 10 to 99"),
    ],
)
def test_a_model_says_in_words_how_far_to_trust_its_probabilities(
    load: Load, holdout: float, method: str, n_flipped: int, summary: str
) -> None:
    dataset, _ = load(True)
    label = LabelConfig.model_validate({"calibration": method})
    job = JOB.model_copy(update={"holdout": holdout})
    data = load_party_data(dataset, job, labelled=True)
    labels = data.block.holdout_labels
    assert labels is not None
    labels[:n_flipped] = -1.0
    made = PartyModel.of(
        Role.GUEST, job, data, dataset.model_copy(update={"label": label}), result(data, labels), run_id=RUN
    )
    assert re.match(summary, made.calibration_summary or "")


def test_a_file_of_the_first_release_is_read_and_says_how_far_to_trust_it(load: Load, tmp_path: Path) -> None:
    dataset, data = load(True)
    made = PartyModel.of(Role.GUEST, JOB, data, dataset, result(data, data.block.holdout_labels), run_id=RUN)
    content = json.loads(made.model_dump_json())
    del content["data"]["n_rarer_label"]
    reason = "20 hold-out rows, 3 of them with the rarer label, where 5 are needed"
    content |= {"calibration": {"method": "none", "reason": reason}, "calibration_report": None}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(content))
    summary = load_model(path).calibration_summary
    assert summary == f"not calibrated, and possibly far from the rate of positive rows: {reason}"


def test_a_file_from_before_there_were_two_protocols_says_what_it_was_trained_with(load: Load, tmp_path: Path) -> None:
    dataset, data = load(True)
    made = PartyModel.of(Role.GUEST, JOB, data, dataset, result(data, data.block.holdout_labels), run_id=RUN)
    content = json.loads(made.model_dump_json())
    del content["job"]["protocol"], content["job"]["max_score"], content["data"]["weighted"]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(content))
    model = load_model(path)
    assert model == made
    assert (model.job.protocol, model.job.loss_name, model.data.weighted) == ("paillier", "Taylor loss", False)


@pytest.mark.parametrize("label", [{"class_weight": "balanced"}, {}])
def test_the_guests_part_says_whether_rows_had_weights_and_not_which(load: Load, label: dict[str, Any]) -> None:
    dataset, _ = load(True)
    dataset = dataset.model_copy(update={"label": LabelConfig.model_validate(label)})
    job = JobConfig(name="credit", dataset="people", protocol="shares")
    data = load_party_data(dataset, job, labelled=True)
    made = PartyModel.of(Role.GUEST, job, data, dataset, result(data, data.block.holdout_labels), run_id=RUN)
    assert made.data.weighted is bool(label)
    assert made.job.loss_name == "logistic loss"
    assert "balanced" not in made.model_dump_json()


def test_the_hosts_part_says_nothing_of_labels(load: Load) -> None:
    dataset, data = load(False)
    made = PartyModel.of(Role.HOST, JOB, data, dataset, result(data), run_id=RUN)
    assert made.calibration_summary is None
    assert made.data.n_rarer_label is None


def test_a_folder_of_parts_is_named_by_the_hash_of_all_parts(load: Load, tmp_path: Path) -> None:
    dataset, data = load(True)
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, content in (("part.10.parquet", b"second"), ("part.9.parquet", b"first"), ("_SUCCESS", b"no part")):
        (folder / name).write_bytes(content)
    dataset = dataset.model_copy(update={"path": folder})
    made = PartyModel.of(Role.GUEST, JOB, data, dataset, result(data), run_id=RUN)
    assert made.data.sha256 == hashlib.sha256(b"firstsecond").hexdigest()


def test_the_file_names_the_table_by_its_hash_and_nobody_in_it(load: Load, tmp_path: Path) -> None:
    dataset, data = load(True)
    path = tmp_path / "new" / "model.json"
    save_model(path, PartyModel.of(Role.GUEST, JOB, data, dataset, result(data), run_id=RUN))
    text = path.read_text()
    assert "person-" not in text
    assert json.loads(text)["data"]["sha256"] == hashlib.sha256(dataset.path.read_bytes()).hexdigest()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["model.json"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 2}', "\xff"])
def test_what_is_no_model_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"model\.json is not a model file"):
        load_model(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"run_id": "of none"}, "run_id"),
        ({"weights": {"age": "heavy"}}, "weights.age"),
        ({"weights": {"age": float("inf")}}, "weights.age"),
        ({"weigths": {}}, "weigths: unknown key; did you mean weights?"),
        ({"job": {"name": "credit"}}, "job.dataset: is missing"),
        ({"preprocessing": {}}, "preprocessing"),
        ({"preprocessing": UNFIT}, "does not hold a party's fitted preprocessing"),
        ({"training_weights": [1.0]}, "`training_weights` has 1 numbers, but `preprocessing` makes 4 columns"),
        ({"standardised_weights": {"age": 1.0}}, "have different terms"),
        ({"calibration": None}, "the guest's part must have a `calibration`"),
        ({"calibration": {"method": "platt", "a": -1, "b": 0}}, "calibration.a: expected at least 0, not -1"),
        ({"calibration": {"method": "isotonic", "thresholds": [2, 1], "values": [0.1, 0.2]}}, "must not decrease"),
        ({"calibration": {"method": "isotonic", "thresholds": [1], "values": [0.1, 0.2]}}, "must have the same length"),
    ],
)
def test_what_is_wrong_in_a_model_file_is_named(
    change: dict[str, object], named: str, load: Load, tmp_path: Path
) -> None:
    dataset, data = load(True)
    path = tmp_path / "model.json"
    save_model(path, PartyModel.of(Role.GUEST, JOB, data, dataset, result(data), run_id=RUN))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=re.escape(named)):
        load_model(path)


@pytest.mark.parametrize("labelled", [False, True])
def test_a_model_is_the_same_after_its_file(labelled: bool, load: Load, tmp_path: Path) -> None:
    dataset, data = load(labelled)
    scores = np.linspace(-1, 1, 20) if labelled else None
    role = Role.GUEST if labelled else Role.HOST
    model = PartyModel.of(role, JOB, data, dataset, result(data, scores), run_id=RUN)
    save_model(tmp_path / "model.json", model)
    assert load_model(tmp_path / "model.json") == model
    assert (model.calibration is not None) is labelled


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model file"):
        load_model(tmp_path / "model.json")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
