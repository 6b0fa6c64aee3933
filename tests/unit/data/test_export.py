"""A model in other layouts gives the scores that it gives here."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from tests.support.frames import features_of
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.calibration import Platt, calibrate
from trilateral.common.data.model.export import CSV_COLUMNS, ratio_text, scikit_learn_json, weights_csv, weights_of
from trilateral.common.data.model.inference import Inference, TermInference
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.onnx_graph import onnx_bytes
from trilateral.common.data.model.pmml import STD_ERROR, pmml_text
from trilateral.common.data.model.portable import Part
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.preprocessing.formulas import Lookup
from trilateral.common.protocol.messages import Result


@pytest.fixture
def made(tmp_path: Path) -> tuple[PartyModel, pd.DataFrame]:
    """A guest's part of numbers with holes and of categories, and the table that it is of."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(200, 2)) * [10, 0.1], columns=["age", "rate"])
    table.loc[:9, "age"] = np.nan
    table["branch"] = rng.choice(["north", "south", "=east"], 200)
    table["label"] = (table["rate"] + rng.normal(size=200) / 10 > 0).astype(int)
    table["id"] = [f"person-{row}" for row in range(200)]
    path = tmp_path / "guest.csv"
    table.to_csv(path, index=False)
    dataset = DatasetConfig(path=path, label=LabelConfig(), categorical=["branch"])
    job = JobConfig(name="credit", dataset="people", holdout=0.25, l2=0.01)
    data = load_party_data(dataset, job, labelled=True)
    coef: FloatVector = np.array(rng.normal(size=data.block.columns.shape[1]))
    assert data.block.holdout_labels is not None
    scores = np.asarray(data.block.holdout_columns) @ coef
    return PartyModel.of(
        Role.GUEST, job, data, dataset, Result(coef, 0.5, 7, 3, "done", scores), run_id="0" * 32
    ), table


def test_a_logistic_regression_of_the_export_gives_the_same_scores(made: tuple[PartyModel, pd.DataFrame]) -> None:
    model, table = made
    layout = json.loads(scikit_learn_json(model))
    rebuilt = LogisticRegression()
    for name in ("coef_", "intercept_", "classes_"):
        setattr(rebuilt, name, np.array(layout[name]))
    rebuilt.feature_names_in_ = np.array(layout["feature_names_in_"], dtype=object)
    rebuilt.n_features_in_ = layout["n_features_in_"]
    assert rebuilt.coef_.shape == (1, len(model.weights))
    assert layout["trained_loss"] == "Taylor loss"

    terms = pd.DataFrame(model.steps.expand(features_of(table)), columns=list(model.weights))
    expected = model.steps.transform(features_of(table)) @ np.array(model.training_weights)
    np.testing.assert_allclose(rebuilt.decision_function(terms), expected, atol=1e-9)
    np.testing.assert_allclose(rebuilt.predict(terms), expected > 0)
    calibration = Platt.model_validate(layout["calibration"])
    assert model.calibration is not None
    np.testing.assert_array_equal(calibrate(expected, calibration), calibrate(expected, model.calibration))


def test_a_number_within_its_limits_needs_no_more_than_its_weight(made: tuple[PartyModel, pd.DataFrame]) -> None:
    model, table = made
    rows = table[table["age"].between(-5, 5) & table["rate"].between(-0.05, 0.05)]
    layout = json.loads(scikit_learn_json(model))
    weights = dict(zip(layout["feature_names_in_"], layout["coef_"][0], strict=True))
    by_hand = rows["age"] * weights["age"] + rows["rate"] * weights["rate"] + layout["intercept_"][0]
    for name, weight in weights.items():
        column, _, category = name.partition("=")
        if category:
            by_hand += (rows[column] == category) * weight
    expected = model.steps.transform(features_of(rows)) @ np.array(model.training_weights)
    np.testing.assert_allclose(by_hand, expected, atol=1e-9)


def test_the_csv_has_every_weight_to_the_last_bit(made: tuple[PartyModel, pd.DataFrame]) -> None:
    model, _ = made
    head, *rows, intercept = csv.reader(io.StringIO(weights_csv(model)))
    assert tuple(head) == CSV_COLUMNS
    assert {term: float(weight) for term, weight, *_ in rows} == model.weights
    assert float(intercept[1]) == model.intercept
    assert {figure for row in (*rows, intercept) for figure in row[5:]} == {""}  # The job had no `inference`.
    for term, weight, beta, ratio, per_sd, *_ in rows:
        assert float(ratio) == math.exp(float(weight))
        assert (per_sd == "") == ("=" in term or "missing" in term)
        assert not per_sd or float(per_sd) == math.exp(float(beta))


@pytest.fixture
def inferred(made: tuple[PartyModel, pd.DataFrame]) -> PartyModel:
    """The model with standard errors, of which no two are equal."""
    model, _ = made
    terms = {term: TermInference.of(w, 0.1 + place) for place, (term, w) in enumerate(model.weights.items())}
    return model.model_copy(update={"inference": Inference(terms=terms, intercept=TermInference.of(1.0, 0.05))})


def test_each_format_has_the_standard_errors_if_the_job_had_inference(inferred: PartyModel) -> None:
    inference = inferred.inference
    assert inference is not None
    assert inference.intercept is not None
    errors = {term: each.std_error for term, each in inference.terms.items()}
    layout = json.loads(scikit_learn_json(inferred))
    assert Inference.model_validate(layout["inference"]) == inference
    *rows, intercept = csv.DictReader(io.StringIO(weights_csv(inferred)))
    assert {row["term"]: float(row["std_error"]) for row in rows} == errors
    age = inference.terms["age"]
    figures = {name: float(rows[0][name]) for name in ("std_error", "z", "p_value", "lower", "upper")}
    assert figures == age.model_dump(exclude={"weight"})
    assert float(intercept["std_error"]) == inference.intercept.std_error

    part = Part.of(inferred)
    namespace = {"": "http://www.dmg.org/PMML-4_4"}
    table = ElementTree.fromstring(pmml_text(part)).find(".//RegressionTable", namespace)
    assert table is not None
    extensions = [each.find("Extension", namespace) for each in (table, *table.findall("NumericPredictor", namespace))]
    assert all(each is not None and each.get("name") == STD_ERROR for each in extensions)
    values = [float(each.get("value", "nan")) for each in extensions if each is not None]
    assert values == [inference.intercept.std_error, *errors.values()]
    metadata = {each.key: each.value for each in onnx.load_from_string(onnx_bytes(part)).metadata_props}
    assert json.loads(metadata["std_errors"]) == errors
    assert float(metadata["intercept_error"]) == inference.intercept.std_error


def test_odds_ratios_beyond_all_numbers_are_infinite(made: tuple[PartyModel, pd.DataFrame]) -> None:
    model, _ = made
    huge = model.model_copy(update={"weights": dict.fromkeys(model.weights, 1e6)})
    assert {each.odds_ratio for each in weights_of(huge)} == {math.inf}


def test_an_odds_ratio_near_1_shows_how_it_differs_from_1() -> None:
    """As that of an income in single euros."""
    ratios = 0.0, 0.9803, 1.0, 1.3712345, 0.9996, math.exp(-3.1756e-5), math.exp(4.2e-7), math.inf
    assert [ratio_text(each) for each in ratios] == [
        "0", "0.9803", "1", "1.371", "0.9996", "0.999968", "1.00000042", "inf",
    ]  # fmt: skip


def test_a_part_without_terms_has_nothing_to_compute(made: tuple[PartyModel, pd.DataFrame]) -> None:
    model, _ = made
    with pytest.raises(DataError, match="has no terms: its part of every score is the intercept"):
        Part.of(model.model_copy(update={"weights": {}}))


def test_pmml_names_the_column_of_a_character_that_it_cannot_hold(made: tuple[PartyModel, pd.DataFrame]) -> None:
    part = Part.of(made[0])
    text = replace(part, terms={"t": (1.0, Lookup("branch", {"a\rb": 1.0}, 0.0, 0.0))})
    with pytest.raises(DataError, match="in a category of column 'branch': use `--format onnx`") as failed:
        pmml_text(text)
    assert "a\\rb" not in str(failed.value)
    with pytest.raises(DataError, match=r"in the name of column 'a\\x00': use `--format onnx`"):
        pmml_text(replace(part, inputs={"a\0": False}))


def test_the_files_of_a_part_are_the_same_every_time(made: tuple[PartyModel, pd.DataFrame]) -> None:
    model, _ = made
    assert pmml_text(Part.of(model)) == pmml_text(Part.of(model))
    assert onnx_bytes(Part.of(model)) == onnx_bytes(Part.of(model))
