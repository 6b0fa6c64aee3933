"""``trilateral model bins``, ``scorecard`` and ``select`` on files."""

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.json_fields import documented_fields
from tests.unit.data.test_scorecard import make_part
from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.bins_file import BinsFile, HostColumn, load_bins, save_bins
from trilateral.common.data.model.model_file import save_model
from trilateral.common.data.preprocessing.bins import Bin

JOB = JobConfig(name="bins-1", dataset="made", protocol="shares", task="bins")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    part, _ = make_part(Role.GUEST, ["age", "debt"])
    path = tmp_path / "model.json"
    save_model(path, part)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_bins_of_a_model_are_printed(model: Path) -> None:
    output = run("model", "bins", model)
    # The name of the column is the title, and does not take the room of the bins.
    assert "\nage" in output
    assert "│ < " in output
    assert "age < " not in output
    assert "event rate" in output
    assert "total" in output
    record = json.loads(run("model", "bins", model, "--json"))["columns"]
    ordered = sorted(record, key=lambda each: -each["iv"])
    table = output.split("columns by IV")[1]
    found = re.findall(r"│ (\w+) +│ +(\d+) │ ([\d.]+) │", table)
    assert found == [(each["column"], str(len(each["bins"])), f"{each['iv']:.4f}") for each in ordered]


def test_a_scorecard_is_printed_and_written(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "points.csv"
    output = run("model", "scorecard", model, "--pdo", 40, "--out", out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert rows[0]["column"] == "(base)"
    assert f" {rows[0]['rounded']} " in output
    again = tmp_path / "points.json"
    run("model", "scorecard", model, "--out", again)
    assert json.loads(again.read_text())["base_odds"] == 50
    refused = CliRunner().invoke(app, ["model", "scorecard", str(model), "--out", str(out)])
    assert refused.exit_code == 2
    assert "the file exists" in refused.output


def test_figures_of_terms_are_printed(model: Path) -> None:
    output = run("model", "select", model)
    assert "age WOE" in output
    assert "VIF" in output
    lacks = "no VIF and no correlations: they need"
    assert lacks not in output

    content = json.loads(model.read_text())
    content["preprocessing"]["directions"] = None
    model.write_text(json.dumps(content))
    assert lacks in run("model", "select", model)


def test_the_file_of_a_bins_job_is_printed(tmp_path: Path) -> None:
    bins = BinsFile(
        role=Role.GUEST,
        job=JOB,
        run_id="0" * 32,
        table="",
        ids="",
        train="00" * 32,
        n_train=300,
        left_out={"branch": "`method: none`"},
        host_columns=[HostColumn(bins=[Bin(n_rows=100, n_positive=20), Bin(n_rows=200, n_positive=90)])],
    )
    save_bins(tmp_path / "bins.json", bins)
    assert load_bins(tmp_path / "bins.json") == bins
    output = run("model", "bins", tmp_path)
    assert "column 1 of the host" in output
    assert "0.2000" in output
    assert "branch" in output
    assert run("model", "bins", tmp_path / "bins.json") == output
    # One column needs no order.
    assert "columns by IV" not in output
    for command in ("show", "scorecard", "select"):
        refused = CliRunner().invoke(app, ["model", command, str(tmp_path)])
        assert refused.exit_code == 2
        assert "is a bins job, which has no model: to see its bins, run: " in refused.output


def test_a_file_that_is_no_bins_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bins.json"
    for content, text in [("{", "not JSON"), ("{}", "`format` is not 1"), ('{"format": 1, "role": "guest"}', "job")]:
        path.write_text(content)
        refused = CliRunner().invoke(app, ["model", "bins", str(path)])
        assert refused.exit_code == 1
        assert text in refused.output


def test_bins_points_and_terms_are_printed_as_json(model: Path) -> None:
    of_model = json.loads(run("model", "bins", model, "--json"))
    columns = of_model["columns"]
    assert {*of_model, *columns[0], *columns[0]["bins"][0]} == documented_fields()["model bins"]
    assert [each["column"] for each in columns] == ["age", "debt"]
    assert sum(each["iv"] for each in columns[0]["bins"]) == pytest.approx(columns[0]["iv"])
    points = json.loads(run("model", "scorecard", model, "--pdo", 40, "--json"))
    assert {*points, *points["points"][0]} == documented_fields()["model scorecard"]
    assert points["pdo"] == 40
    assert points["points"][0]["column"] == "(base)"
    terms = json.loads(run("model", "select", model, "--json"))["terms"]
    assert {"term", "iv", "weight", "vif", "correlation", "partner"} == set(terms[0])


def test_bins_without_labels_have_null_for_what_needs_them(tmp_path: Path) -> None:
    column = HostColumn(bins=[Bin(n_rows=100), Bin(n_rows=200)])
    bins = BinsFile(
        role=Role.GUEST, job=JOB, run_id="0" * 32, table="", ids="", train="00" * 32, n_train=300, host_columns=[column]
    )
    save_bins(tmp_path / "bins.json", bins)
    (found,) = json.loads(run("model", "bins", tmp_path, "--json"))["columns"]
    assert (found["iv"], found["bins"][0]["woe"], found["bins"][0]["event_rate"]) == (None, None, None)
