"""``trilateral model``: what a person reads of a model, and what is written for others."""

import json
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from tests.support.json_fields import documented_fields
from trilateral.cli.main import app
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.elimination import Criterion, eliminate
from trilateral.common.data.model.inference import Inference, ModelFit, TermInference
from trilateral.common.data.model.model_file import Classes, ClassPart, PartyModel, load_model, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.protocol.evaluation import measure
from trilateral.common.protocol.messages import EvaluationRecord, Result, RoundKey

JOB = JobConfig(name="credit", dataset="people", holdout=0.5)


def run(*arguments: object) -> Ran:
    return CliRunner().invoke(app, ["model", *map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The guest's, with both parties' parts of a model in their state folders."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(400, 2)), columns=["small", "[red]big"])
    table["label"] = (table["[red]big"] + rng.normal(size=400) > 0).astype(int)
    table["empty"] = None
    table.insert(0, "id", [f"person-{row}" for row in range(400)])
    for role in (Role.HOST, Role.GUEST):
        path = tmp_path / f"{role}.csv"
        (table if role is Role.GUEST else table.drop(columns="label")).to_csv(path, index=False)
        dataset = DatasetConfig(path=path, label=LabelConfig() if role is Role.GUEST else None)
        data = load_party_data(dataset, JOB, labelled=role is Role.GUEST)
        coef = data.preprocessing.directions
        assert coef is not None
        w: FloatVector = np.linalg.solve(coef, [0.1, 1.0]).astype(np.float64)
        result = Result(w, 0.5, 7, 3, "converged")
        if role is Role.GUEST:
            w = np.array([*w, 0.2])
            scores = np.asarray(data.block.holdout_columns) @ w
            assert data.block.holdout_labels is not None
            evaluated = EvaluationRecord(RoundKey(4, 1), 3, measure(scores, data.block.holdout_labels))
            result = Result(w, 0.5, 7, 3, "converged", scores, (evaluated,))
        model = PartyModel.of(role, JOB, data, dataset, result, run_id="ab" * 16)
        save_model(tmp_path / f"state/{role}/jobs/credit/model.json", model)
    guest = tmp_path / "guest.yaml"
    guest.write_text(
        "role: guest\nplaintext: true\nlisten: 127.0.0.1:1\npeers: {host: 127.0.0.1:2, coordinator: 127.0.0.1:3}\n"
        "state: state/guest\n"
    )
    return guest


def test_the_folder_of_a_job_will_do_for_its_model(config: Path) -> None:
    by_folder = run("show", config.parent / "state/guest/jobs/credit")
    assert by_folder.exit_code == 0, by_folder.output
    assert by_folder.output == run("show", "credit", "--config", config).output


def test_show_prints_the_guests_part_by_importance_with_all_that_is_known_of_it(config: Path) -> None:
    shown = run("show", "credit", "--config", config)
    assert "left out column 'empty': no value in any training row" in shown.output
    assert shown.exit_code == 0, shown.output
    text = shown.output
    assert f"the guest's part of the model of job credit, run {'ab' * 16}" in text
    assert "trained on 200 rows with 200 hold-out rows; Taylor loss 0.500000 after 7 rounds; converged" in text
    assert text.index("[red]big") < text.index("small") < text.index("(intercept)")
    line = next(line for line in text.splitlines() if "[red]big" in line)
    assert "2.718" in line  # e to the power of one standard deviation
    for word in ("AUC", "Gini", "calibrated by Platt", "log loss before", "reliability", "lift", "during the training"):
        assert word in text
    assert "person-" not in text
    assert "by evaluation set, with 95% confidence intervals" in text
    auc = next(line for line in text.splitlines() if "holdout" in line)
    figure, low, high = map(float, auc.replace("│", " ").split()[-3:])
    assert low < figure < high


def test_show_names_the_evaluation_sets(config: Path) -> None:
    path = config.parent / "state/host/jobs/credit/model.json"
    model = load_model(path)
    assert "several sets" not in run("show", path).output
    data = model.data.model_copy(update={"sets": {"valid": 1200, "out_of_time": 7}})
    save_model(path, model.model_copy(update={"data": data}))
    assert "evaluated on several sets: valid 1,200 rows, out_of_time 7 rows" in run("show", path).output


def test_show_says_which_loss_was_trained_and_whether_rows_had_weights(config: Path) -> None:
    path = config.parent / "state/guest/jobs/credit/model.json"
    model = load_model(path)
    job = model.job.model_copy(update={"protocol": "shares"})
    save_model(path, model.model_copy(update={"job": job, "data": model.data.model_copy(update={"weighted": True})}))
    text = run("show", path).output.replace("\n", " ")
    assert "200 rows, which count by their weights, with 200 hold-out rows; logistic loss 0.500000 after 7" in text


def test_show_takes_a_path_and_a_host_has_weights_alone(config: Path) -> None:
    shown = run("show", config.parent / "state/host/jobs/credit/model.json")
    assert shown.exit_code == 0, shown.output
    assert "the host's part" in shown.output
    assert "AUC" not in shown.output
    assert "calibrated" not in shown.output


def test_a_model_of_several_classes_needs_the_name_of_one(config: Path) -> None:
    path = config.parent / "state/guest/jobs/credit/model.json"
    model = load_model(path)
    part = ClassPart(**{name: getattr(model, name) for name in ClassPart.model_fields})
    classes = Classes(parts=[part] * 3, names=["own", "rent", "free"])
    save_model(path, model.model_copy(update={"classes": classes}))
    for arguments in (["select", path], ["scorecard", path], ["compare", path, path]):
        shown = run(*arguments)
        assert shown.exit_code == 2, arguments
        assert "name one of them, with --class or `of_class`: own, rent, free" in " ".join(shown.output.split())
    assert run("select", path, "--class", "rent").exit_code == 0
    assert run("compare", path, path, "--class", "rent").exit_code == 0


def test_a_model_without_bins_says_so(config: Path) -> None:
    shown = run("bins", config.parent / "state/guest/jobs/credit/model.json")
    assert shown.exit_code == 0
    assert "no column is in bins: name a bins job" in shown.output


def test_long_names_of_terms_are_not_cut(config: Path) -> None:
    path = config.parent / "state/host/jobs/credit/model.json"
    name = "a" * 90
    path.write_text(path.read_text().replace("[red]big", name))
    assert run("show", path).output.count("a") >= len(name)


def test_a_narrow_terminal_gets_whole_words(config: Path) -> None:
    shown = CliRunner().invoke(app, ["model", "show", "credit", "--config", str(config)], env={"COLUMNS": "60"})
    assert shown.exit_code == 0
    assert "Traceback" not in shown.output


BEGINNINGS = {"sklearn": b"{", "csv": b"term,weight", "pmml": b"<?xml", "onnx": b"\x08"}


@pytest.mark.parametrize("form", BEGINNINGS)
def test_export_writes_a_file_and_overwrites_none(config: Path, form: str) -> None:
    out = config.parent / "exports" / "weights"
    done = run("export", "credit", "--config", config, "--format", form, "--out", out)
    assert done.exit_code == 0, done.output
    assert out.stat().st_mode & 0o777 == 0o600
    content = out.read_bytes()
    assert content.startswith(BEGINNINGS[form])
    summary = "calibrated by Platt scaling on the hold-out rows; 100 to 999 of the model's rows have the rarer label"
    assert f"probabilities: {summary}\n" in done.output
    if form == "sklearn":
        assert json.loads(content)["calibration_summary"] == summary
        assert json.loads(content)["feature_names_in_"] == ["small", "[red]big"]
    again = run("export", "credit", "--config", config, "--format", form, "--out", out)
    assert again.exit_code == 2
    assert "the file exists: choose another name" in again.output


@pytest.mark.parametrize(
    ("model", "with_config", "exit_code", "said"),
    [
        (
            "credit",
            False,
            2,
            "there is no file credit: give the path of a file, or the name of a job together with --config",
        ),
        ("no/model.json", False, 1, "there is no model file no/model.json"),
        ("other", True, 1, "there is no model file"),
        ("../../etc/passwd", True, 2, "is not a valid job name"),
    ],
)
def test_a_model_that_is_not_there_is_told_with_the_way_out(
    config: Path, model: str, with_config: bool, exit_code: int, said: str
) -> None:
    shown = run("show", model, *(["--config", config] if with_config else []))
    assert shown.exit_code == exit_code
    assert said in " ".join(shown.output.split())


def test_a_broken_file_is_told_with_what_is_wrong(config: Path) -> None:
    path = config.parent / "state/guest/jobs/credit/model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": "low", "rounds": None}))
    shown = run("show", path)
    assert shown.exit_code == 1
    assert "loss: expected a number, not low" in shown.output
    assert "rounds: " in shown.output


def test_export_says_how_to_install_what_onnx_needs(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "trilateral.common.data.model.onnx_graph", raising=False)
    out = config.parent / "part.onnx"
    refused = run("export", "credit", "--config", config, "--format", "onnx", "--out", out)
    assert refused.exit_code == 2
    assert "onnx is not installed: run `pip install '.[export]'`" in refused.output
    assert not out.exists()


def test_show_prints_the_same_figures_as_json(config: Path) -> None:
    text = run("show", "credit", "--config", config).output
    found = json.loads(run("show", "credit", "--config", config, "--json").output)
    model = load_model(config.parent / "state/guest/jobs/credit/model.json")
    assert {*found, *found["terms"][0]} == documented_fields()["model show"] - {"class", "classes", "class_metrics"}
    assert (found["job"], found["role"], found["run_id"]) == ("credit", "guest", "ab" * 16)
    assert [each["term"] for each in found["terms"]] == list(model.weights)
    assert f"{found['terms'][1]['weight']:+.5g}" in text
    assert found["terms"][0]["std_error"] is None
    assert found["metrics"]["auc"] == pytest.approx(model.metrics.auc if model.metrics else None)
    assert found["evaluation_sets"][0]["intervals"]["auc"][0] < found["metrics"]["auc"]
    assert "score_groups" not in json.dumps(found)
    host = json.loads(run("show", config.parent / "state/host/jobs/credit/model.json", "--json").output)
    assert (host["metrics"], host["calibration"], host["evaluation_sets"]) == (None, None, [])


def test_a_backward_elimination_is_printed(config: Path) -> None:
    path = config.parent / "state/guest/jobs/credit/model.json"
    refused = run("select", path, "--by", "aic")
    assert refused.exit_code == 2
    assert "train with `inference: true`" in " ".join(refused.output.split())
    values, names = np.array([0.5, 0.04, 0.01, -0.3]), ["age", "<b>", "income"]
    columns = [(name, 1) for name in names]
    orders = {by: eliminate(values, np.diag([0.01] * 4), columns, by) for by in get_args(Criterion)}
    model = load_model(path)
    save_model(path, model.model_copy(update={"inference": Inference(elimination=orders)}))

    found = json.loads(run("select", path, "--by", "p-value", "--json").output)["columns"]
    assert [each["column"] for each in found] == ["income", "<b>", "age"]
    assert [each["stays"] for each in found] == [False, False, True]
    assert found[2]["statistic"] == pytest.approx(25)
    assert found[2]["aic_change"] == pytest.approx(23)
    # Every p-value is above 0.
    strict = json.loads(run("select", path, "--by", "p-value", "--alpha", "0", "--json").output)["columns"]
    assert not any(each["stays"] for each in strict)
    for words in (["--by", "aic"], []):
        refused = run("select", path, *words, "--alpha", "0.1")
        assert refused.exit_code == 2
        assert "--alpha is a limit on p-values: give --by p-value too" in " ".join(refused.output.split())
    text = run("select", path, "--by", "aic").output
    assert "<b>" in text
    assert text.count("leave out") == 2


def test_figures_of_separated_labels_are_marked(config: Path) -> None:
    path = config.parent / "state/guest/jobs/credit/model.json"
    model = load_model(path)
    columns = [(name, 1) for name in model.weights]
    weights, variances = np.array([*model.weights.values(), 0.5]), np.eye(len(columns) + 1)
    fit = ModelFit(
        n_rows=60,
        n_parameters=3,
        deviance=0.0,
        null_deviance=80.0,
        aic=6.0,
        bic=9.0,
        mcfadden_r2=1.0,
        likelihood_ratio=None,
    )
    found = Inference(
        terms={term: TermInference.of(weight, 30.0) for term, weight in model.weights.items()},
        elimination={"aic": eliminate(weights, variances, columns, "aic")},
        fit=fit,
        warnings=["complete or quasi-complete separation: features of the host separate the labels"],
    )
    commands = ("show", path), ("select", path, "--by", "aic")
    for may_be_separated in (False, True):
        inference = found.model_copy(update={"may_be_separated": may_be_separated})
        save_model(path, model.model_copy(update={"inference": inference}))
        shown, selected = (" ".join(run(*command).output.split()) for command in commands)
        marked = 2 if may_be_separated else 0
        assert shown.count("say nothing if features separate the labels") == marked
        assert selected.count("say nothing if features separate the labels") == marked / 2
        assert "warning: complete or quasi-complete separation" in shown
        as_json = json.loads(run("show", path, "--json").output)["inference"]
        assert as_json["may_be_separated"] is may_be_separated


def test_show_prints_classes_and_the_accuracy_of_weights_as_json(config: Path) -> None:
    path = config.parent / "state/guest/jobs/credit/model.json"
    model = load_model(path)
    accuracy = Inference(terms={term: TermInference.of(weight, 0.1) for term, weight in model.weights.items()})
    with_accuracy = model.model_copy(update={"inference": accuracy})
    save_model(path, with_accuracy)
    found = json.loads(run("show", path, "--json").output)
    assert found["terms"][0]["std_error"] == 0.1
    assert found["inference"] == {
        "intercept": None,
        "columns": {},
        "fit": None,
        "may_be_separated": False,
        "warnings": [],
    }
    part = ClassPart(**{name: getattr(model, name) for name in ClassPart.model_fields})
    classes = Classes(parts=[part] * 3, names=["own", "<b>", "free"])
    save_model(path, model.model_copy(update={"classes": classes}))
    found = json.loads(run("show", path, "--json").output)
    assert [each["class"] for each in found["classes"]] == ["own", "<b>", "free"]
    assert "terms" not in found
