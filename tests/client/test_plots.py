"""Charts and notebook views of a model, from its file alone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes

import trilateral
from tests.unit.data.test_scorecard import make_part
from trilateral.client.asynchronous import Prediction
from trilateral.client.model import Model
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.inference import Inference, TermInference
from trilateral.common.data.model.model_file import ComparedPenaltyRow, PartyModel, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.process.job_progress import JobState, Progress
from trilateral.common.protocol.messages import Result
from trilateral.guest_party.prediction import PredictionCounts

NAME = "<b>$x^2$</b>"
QUALITY = ("roc", "precision_recall", "ks", "gain", "lift", "calibration", "distribution")


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> PartyModel:
    """A guest's part of a model with 300 hold-out rows, whose column has markup in its name."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(600, 2)), columns=["age", NAME])
    table["label"] = (table[NAME] + rng.normal(size=600) > 0).astype(int)
    table.insert(0, "id", [f"person-{row}" for row in range(600)])
    path = folder / "table.csv"
    table.to_csv(path, index=False)
    config = DatasetConfig.model_validate({"path": path, "label": {"column": "label", "positive": 1, "negative": 0}})
    job = JobConfig(name="credit", dataset="people", holdout=0.5, protocol="shares", algorithm={"name": "lbfgs"})
    data = load_party_data(config, job, labelled=True)
    w = np.array([0.1, 1.0, 0.2])
    scores = np.asarray(data.block.holdout_columns) @ w
    result = Result(w, 0.5, 7, 3, "converged", holdout_scores=scores)
    return PartyModel.of(Role.GUEST, job, data, config, result, run_id="0" * 32)


@pytest.fixture
def model(part: PartyModel, tmp_path: Path) -> Model:
    save_model(tmp_path / "model.json", part)
    lines = [{"round": number, "loss": 0.7 / number, "seconds": {"all": 1.0}} for number in (1, 2, 3)]
    (tmp_path / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return trilateral.load_model(tmp_path)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


def title(axes: Axes) -> str:
    return axes.get_title(loc="left")


@pytest.mark.parametrize("name", QUALITY)
def test_the_guest_draws_the_quality_of_a_model(model: Model, name: str) -> None:
    axes = getattr(model.plot, name)()
    assert title(axes).startswith("credit: ")
    assert title(axes).endswith(", holdout")
    axes.figure.canvas.draw()


def test_a_chart_is_drawn_on_the_axes_that_are_given(model: Model) -> None:
    _, ax = pyplot.subplots()
    assert model.plot.roc(ax, label="first") is ax
    model.plot.roc(ax=ax, label="second")
    legend = ax.get_legend()
    assert legend is not None
    assert [each.get_text().partition(":")[0] for each in legend.get_texts()] == ["first", "second"]
    assert title(ax) == ""
    assert len(pyplot.get_fignums()) == 1


def test_weights_are_drawn_with_the_intervals_of_inference(part: PartyModel) -> None:
    inference = Inference(terms={NAME: TermInference.of(part.weights[NAME], 0.1)})
    axes = Model(part.model_copy(update={"inference": inference})).plot.coefficients()
    assert [each.get_text() for each in axes.get_yticklabels()] == [NAME, "age"]
    deviation = part.standardised_weights[NAME] / part.weights[NAME]
    (segment,) = axes.collections[0].get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        segment[:, 0], part.standardised_weights[NAME] + 0.196 * deviation * np.array([-1, 1]), rtol=1e-3
    )
    axes.figure.canvas.draw()


def test_the_loss_comes_from_the_history_or_from_the_caller(model: Model, part: PartyModel) -> None:
    np.testing.assert_allclose(np.asarray(model.plot.loss().lines[0].get_ydata()), [0.7, 0.35, 0.7 / 3])
    np.testing.assert_allclose(np.asarray(model.plot.loss(losses={2: 0.5, 1: 0.6}).lines[0].get_ydata()), [0.6, 0.5])
    with pytest.raises(trilateral.DataError, match="give the losses of the rounds as `losses`"):
        Model(part).plot.loss()


def test_a_path_shows_the_compared_penalties(part: PartyModel) -> None:
    search = [
        ComparedPenaltyRow(l1=0, l2=l2, loss=l2, standard_error=0.1, n_terms=2, chosen=l2 == 1.0) for l2 in (1.0, 0.1)
    ]
    axes = Model(part.model_copy(update={"search": search})).plot.path()
    assert axes.get_xlabel() == "penalty, l1 + l2"
    with pytest.raises(trilateral.DataError, match="only the guest's part of a job with `folds` has them"):
        Model(part).plot.path()


def test_a_column_in_bins_is_drawn(tmp_path: Path) -> None:
    save_model(tmp_path / "model.json", make_part(Role.GUEST, ["age", "debt"])[0])
    model = trilateral.load_model(tmp_path)
    axes = model.plot.bins("debt")
    assert len(axes.get_yticklabels()) == (model.bins()["column"] == "debt").sum()
    with pytest.raises(trilateral.ConfigError, match="the column 'income' has no bins: these have: age, debt"):
        model.plot.bins("income")
    assert repr(model.plot).startswith("<Plots of the guest's part of job ")


def test_bins_that_do_not_exist_are_not_drawn(model: Model) -> None:
    with pytest.raises(trilateral.ConfigError, match="the column 'age' has no bins: the model has no columns in bins"):
        model.plot.bins("age")


def test_a_chart_that_cannot_be_drawn_says_why(model: Model, part: PartyModel) -> None:
    with pytest.raises(trilateral.ConfigError, match="no evaluation set 'test': it has holdout"):
        model.plot.roc(evaluation_set="test")
    old = [each.model_copy(update={"score_groups": None}) for each in part.evaluation_sets]
    with pytest.raises(trilateral.DataError, match="the evaluation set holdout cannot be drawn: it has fewer than 20"):
        Model(part.model_copy(update={"evaluation_sets": old})).plot.ks()
    with pytest.raises(trilateral.DataError, match="only the guest's part of a job with hold-out rows has one"):
        Model(part.model_copy(update={"evaluation_sets": []})).plot.gain()


def test_without_matplotlib_a_chart_says_how_to_install_it(tmp_path: Path, part: PartyModel) -> None:
    save_model(tmp_path / "model.json", part)
    program = (
        "import sys, trilateral; sys.modules['matplotlib'] = None; model = trilateral.load_model(sys.argv[1]);"
        "model.coefficients(); model._repr_html_(); model.plot"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert (
        "ConfigError: charts need matplotlib, which is not installed: run `pip install 'trilateral[report]'`"
        in ran.stderr
    )


def test_a_notebook_shows_a_model_with_its_names_escaped(model: Model, part: PartyModel) -> None:
    html = model._repr_html_()
    assert "&lt;b&gt;$x^2$&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "AUC 0." in html
    assert "person-" not in html
    host = Model(part.model_copy(update={"metrics": None, "calibration": None}))._repr_html_()
    assert "AUC" not in host
    assert "None" not in host


def test_a_notebook_shows_the_largest_weights_of_many(part: PartyModel) -> None:
    many: dict[str, Any] = {
        name: {f"term {n}": float(n) for n in range(30)} for name in ("weights", "standardised_weights")
    }
    model = Model(part.model_copy(update=many))
    frame = pd.DataFrame({"standardised": many["weights"]})
    model.coefficients = lambda: frame  # type: ignore[method-assign]
    html = model._repr_html_()
    assert "term 29" in html
    assert "term 3<" not in html
    assert "and 10 more" in html


def test_a_notebook_shows_how_a_job_ended() -> None:
    progress = Progress(
        "churn", JobState.FINISHED, "converged & <done>", round=1234, loss=0.123456789, seconds=75, notes=("a <note>",)
    )
    html = progress._repr_html_()
    assert "converged &amp; &lt;done&gt;" in html
    assert "a &lt;note&gt;" in html
    assert "1,234" in html
    assert "0.123457" in html
    assert "loss" not in replace(progress, loss=None)._repr_html_()


def test_a_notebook_shows_the_counts_of_a_prediction_and_no_row() -> None:
    scores = pd.DataFrame({"id": ["person-1"], "score": [1.5], "probability": [0.8]})
    counts = PredictionCounts(1, 20, 30, ("check <x>",), (), "calibrated with care")
    html = Prediction(scores, scores["id"], counts)._repr_html_()
    assert "check &lt;x&gt;" in html
    assert "calibrated with care" in html
    assert "person-1" not in html
