"""``trilateral model drift`` and ``compare``: what a person reads, from a model file, tables and files of scores."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from tests.support.json_fields import documented_fields
from trilateral.cli.main import app
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.classes import Normalised
from trilateral.common.data.model.model_file import Classes, ClassPart, PartyModel, load_model, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.protocol.messages import Result

N = 1500
CONFIG = """role: {role}
plaintext: true
listen: 127.0.0.1:1
peers: {peers}
state: state/{role}
datasets:
  march: {{path: march.csv}}
  outcomes: {{path: outcomes.csv, id: person, label: {{}}}}
""".replace("  outcomes: {{path: outcomes.csv, id: person, label: {{}}}}\n", "{outcomes}")
OUTCOMES = """  outcomes: {path: outcomes.csv, id: person, label: {}}
  homes: {path: outcomes.csv, id: person, label: {classes: [own, rent, free]}}
"""
PEERS = {
    "guest": "{host: 127.0.0.1:2, coordinator: 127.0.0.1:3}",
    "host": "{guest: 127.0.0.1:2, coordinator: 127.0.0.1:3}",
}


def run(*arguments: object) -> Ran:
    return CliRunner().invoke(app, ["model", *map(str, arguments)], env={"COLUMNS": "120"})


def people(seed: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"id": [f"person-{row}" for row in range(N)], "age": rng.normal(shift, 1, N)})
    table["[red]debt"] = rng.normal(size=N)
    table["label"] = (table["age"] + rng.logistic(size=N) > 0).astype(int)
    return table


def train(folder: Path, role: Role, job: str, weight: float) -> None:
    path = folder / f"{role}.csv"
    table = people(1)
    (table if role is Role.GUEST else table.drop(columns="label")).to_csv(path, index=False)
    dataset = DatasetConfig(path=path, label=LabelConfig() if role is Role.GUEST else None)
    settings = JobConfig(name=job, dataset="people", holdout=0.5, protocol="shares")
    data = load_party_data(dataset, settings, labelled=role is Role.GUEST)
    assert data.preprocessing.directions is not None
    w: FloatVector = np.linalg.solve(data.preprocessing.directions, [weight, 0.0]).astype(np.float64)
    scores = None
    if role is Role.GUEST:
        w = np.array([*w, 0.0])
        scores = np.asarray(data.block.holdout_columns) @ w
    model = PartyModel.of(role, settings, data, dataset, Result(w, 0.5, 7, 3, "converged", scores), run_id="ab" * 16)
    save_model(folder / f"state/{role}/jobs/{job}/model.json", model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for role in (Role.GUEST, Role.HOST):
        train(tmp_path, role, "first", 1.0)
        train(tmp_path, role, "second", 0.8)
        outcomes = OUTCOMES if role is Role.GUEST else ""
        text = CONFIG.format(role=role, peers=PEERS[role.value], outcomes=outcomes)
        (tmp_path / f"{role}.yaml").write_text(text)
    march = people(2, shift=1.0)
    march.drop(columns="label").to_csv(tmp_path / "march.csv", index=False)
    march[["id", "label"]].rename(columns={"id": "person"}).iloc[::-1].to_csv(tmp_path / "outcomes.csv", index=False)
    for name, weight in (("first", 1.0), ("second", 0.8)):
        scores = pd.DataFrame({"id": march["id"], "score": weight * march["age"], "probability": 0.5})
        scores.to_csv(tmp_path / f"{name}.csv", index=False)
    of_classes = pd.DataFrame({"id": march["id"], "class": "own", "score_own": 1.0, "probability_own": 1.0})
    of_classes.to_csv(tmp_path / "homes.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("role", ["guest", "host"])
def test_drift_prints_the_csi_of_each_column_at_each_party(folder: Path, role: str) -> None:
    shown = run("drift", "first", "--config", folder / f"{role}.yaml", "--dataset", "march")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    age, debt = (next(line for line in lines if name in line) for name in ("age", "[red]debt"))
    assert lines.index(age) < lines.index(debt)
    assert "large" in age
    assert "small" in debt
    assert "1,500 rows of march" in shown.output
    assert "person-" not in shown.output


def test_drift_prints_the_psi_of_the_score_and_whether_probabilities_are_still_right(folder: Path) -> None:
    shown = run(
        "drift", "first", "--config", folder / "guest.yaml", "--scores", folder / "first.csv", "--labels", "outcomes"
    )
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "PSI of the score, 1,500 rows against 750 hold-out rows: " in text
    assert ": large" in text
    for word in ("observed over expected positives", "calibration slope", "calibration intercept", "Hosmer-Lemeshow"):
        assert word in text
    assert "person-" not in text


def test_compare_prints_weights_quality_and_the_test_of_the_difference(folder: Path) -> None:
    shown = run(
        *("compare", "first", "second", "--config", folder / "guest.yaml", "--labels", "outcomes"),
        *("--scores", folder / "first.csv", "--scores", folder / "second.csv"),
    )
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "first (first)" in text
    assert "-0.2" in next(line for line in shown.output.splitlines() if "age" in line)
    assert "PSI of the score, second model against first, on 1,500 rows" in text
    assert "DeLong's test z = 0.00, p = 1.0000" in text  # The second score is a multiple of the first.
    assert "[red]debt" in text


@pytest.mark.parametrize("role", ["guest", "host"])
def test_compare_scores_a_dataset_with_the_own_parts_of_both_models(folder: Path, role: str) -> None:
    model = load_model(folder / f"state/{role}/jobs/second/model.json")
    march = pd.read_csv(folder / "march.csv")
    words = ("compare", "first", "second", "--config", folder / f"{role}.yaml", "--dataset", "march")
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    # The second part is a multiple of the first.
    assert (
        f"PSI of the {role}'s part of the score, second model against first, on 1,500 rows of march: " in shown.output
    )
    assert "correlation 1.0000" in shown.output
    found = json.loads(run(*words, "--json").output)["own_scores"]
    limits = model.preprocessing["columns"][0]
    age = np.clip(march["age"], limits["lower"], limits["upper"]).to_numpy()
    models = (load_model(folder / f"state/{role}/jobs/{name}/model.json") for name in ("first", "second"))
    first, second = (each.weights["age"] * age + each.intercept for each in models)
    deciles = np.unique(np.quantile(first, np.arange(1, 10) / 10, method="inverted_cdf"))
    # In the middle between a decile and the next score.
    bounds = [*((each + first[first > each].min()) / 2 for each in deciles[deciles < first.max()]), np.inf]
    groups = [np.bincount(np.searchsorted(bounds, each), minlength=len(bounds)) / N for each in (first, second)]
    before, after = np.maximum(groups, 10 / N)
    assert found["n_rows"] == N
    assert found["psi"] == pytest.approx(float(np.sum((after - before) * np.log(after / before))))


def test_parts_of_one_value_have_no_correlation(folder: Path) -> None:
    path = folder / "state/host/jobs/second/model.json"
    model = load_model(path)
    save_model(path, model.model_copy(update={"training_weights": [0.0] * len(model.training_weights)}))
    shown = run("compare", "first", "second", "--config", folder / "host.yaml", "--dataset", "march")
    assert shown.exit_code == 0, shown.output
    assert "rows of march" in shown.output
    assert "correlation" not in shown.output


def test_compare_needs_no_scores_and_a_host_has_weights_alone(folder: Path) -> None:
    shown = run("compare", "first", "second", "--config", folder / "host.yaml")
    assert shown.exit_code == 0, shown.output
    assert "AUC" not in shown.output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["drift", "first"], 2, "give --dataset, --scores or both"),
        (["drift", "first", "--dataset", "march", "--class", "own"], 2, "--class chooses a score"),
        (["drift", "first", "--dataset", "april"], 2, "datasets has no april: it has march, outcomes, homes"),
        (["drift", "first", "--scores", "march.csv"], 1, "march.csv has no IDs with columns 'score'"),
        (["drift", "first", "--scores", "april.csv"], 1, "there is no file of scores april.csv"),
        (["drift", "first", "--scores", "homes.csv"], 1, "has a score for each of several classes"),
        (["drift", "first", "--dataset", "march", "--labels", "outcomes"], 2, "--labels needs the scores"),
        (["drift", "first", "--labels", "outcomes"], 2, "--labels needs the scores"),
        (["drift", "first", "--scores", "first.csv", "--labels", "homes"], 2, "the label has several classes"),
        (["drift", "first", "--scores", "first.csv", "--labels", "march"], 2, "datasets.march: labels are needed"),
        (["compare", "first", "second", "--scores", "first.csv"], 2, "give two files, one of each model"),
        (["compare", "first", "../host/jobs/first"], 2, "is not a valid job name"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(folder)
    shown = run(*arguments, "--config", folder / "guest.yaml")
    assert said in " ".join(shown.output.split())
    assert shown.exit_code == code


@pytest.mark.parametrize(
    "arguments",
    [
        ["drift", "first", "--scores", "second.parquet"],
        ["drift", "first", "--scores", "second.parquet", "--labels", "outcomes"],
        ["compare", "first", "second", "--scores", "second.parquet", "--scores", "first.parquet"],
    ],
)
def test_scores_of_another_model_are_refused_if_the_file_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder)
    for job in ("first", "second"):
        path = folder / f"state/guest/jobs/{job}/model.json"
        model = load_model(path).model_copy(update={"run_id": {"first": "1a", "second": "2b"}[job] * 16})
        save_model(path, model)
        about = {"trilateral.job": job, "trilateral.run_id": model.run_id}
        table = pa.Table.from_pandas(pd.read_csv(f"{job}.csv"), preserve_index=False)
        pq.write_table(table.replace_schema_metadata(about), f"{job}.parquet")
    shown = run(*arguments, "--config", "guest.yaml")
    assert shown.exit_code == 1
    assert "second.parquet has the scores of job second" in " ".join(shown.output.split())
    assert run("drift", "first", "--scores", "first.parquet", "--config", "guest.yaml").exit_code == 0


def test_drift_compares_probabilities_with_labels_even_if_the_model_has_no_hold_out_rows(folder: Path) -> None:
    path = folder / "state/guest/jobs/first/model.json"
    model = load_model(path)
    assert model.distributions is not None
    save_model(
        path,
        model.model_copy(
            update={"distributions": model.distributions.model_copy(update={"score": None}), "metrics": None}
        ),
    )
    options = ["drift", "first", "--config", folder / "guest.yaml", "--scores", folder / "first.csv"]
    assert "no distribution of the score" in " ".join(run(*options).output.split())
    shown = run(*options, "--labels", "outcomes")
    assert shown.exit_code == 0, shown.output
    assert "calibration slope" in shown.output
    assert "PSI" not in shown.output


def test_reasons_beside_the_scores_are_no_part_of_an_id(folder: Path) -> None:
    path = folder / "first.csv"
    pd.read_csv(path).assign(reason_1="age", host_reason_1="Income").to_csv(path, index=False)
    shown = run("drift", "first", "--config", folder / "guest.yaml", "--scores", path, "--labels", "outcomes")
    assert shown.exit_code == 0, shown.output


def test_drift_of_a_class_compares_its_scores_and_probabilities(folder: Path) -> None:
    path = folder / "state/guest/jobs/first/model.json"
    model = load_model(path)
    parts = [ClassPart(**{name: getattr(model, name) for name in ClassPart.model_fields})] * 3
    names = ["own", "rent", "free"]
    classes = Classes(parts=parts, names=names, calibration=Normalised(reason="of this test"))
    save_model(path, model.model_copy(update={"classes": classes}))
    march = pd.read_csv(folder / "first.csv").rename(columns={"score": "score_own", "probability": "probability_own"})
    others = {f"{figure}_{name}": 0.25 for figure in ("score", "probability") for name in names[1:]}
    march = march.rename(columns={"id": "score_id"})  # A column of an ID may have such a name.
    march.assign(**others, **{"class": "own"}).to_csv(folder / "homes.csv", index=False)
    outcomes = pd.read_csv(folder / "outcomes.csv")
    outcomes["label"] = np.where(outcomes["label"] == 1, "own", "rent")
    outcomes.loc[:5, "label"] = "free"
    outcomes.to_csv(folder / "outcomes.csv", index=False)
    words = ["drift", "first", "--config", folder / "guest.yaml", "--scores", folder / "homes.csv", "--labels", "homes"]
    shown = run(*words, "--class", "own")
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "PSI of the score of class own, 1,500 rows against 750 hold-out rows: " in text
    assert "/ 750.0 = " in text  # Each of 1,500 rows has the probability 0.5.
    by_number = run(*words, "--class", "1")
    assert by_number.output == shown.output
    pair = ["compare", "first", "first", *words[2:4], *words[4:6], *words[4:], "--class", "1"]
    compared = run(*pair)
    assert compared.exit_code == 0, compared.output
    assert "AUC on 1,500 rows" in " ".join(compared.output.split())
    shown = run(*words)
    assert shown.exit_code == 2
    assert "has several classes: name one of them" in " ".join(shown.output.split())
    shown = run(*words[:-1], "outcomes", "--class", "own")
    assert "datasets.outcomes: the label has no class own" in " ".join(shown.output.split())


def test_parts_of_two_parties_are_not_compared(folder: Path) -> None:
    shown = run("compare", folder / "state/guest/jobs/first", folder / "state/host/jobs/second")
    assert shown.exit_code == 1
    assert "compare two parts of your own organisation" in " ".join(shown.output.split())


def test_a_model_of_an_earlier_release_is_refused_with_the_reason(folder: Path) -> None:
    path = folder / "state/guest/jobs/first/model.json"
    save_model(path, load_model(path).model_copy(update={"distributions": None}))
    shown = run("drift", "first", "--config", folder / "guest.yaml", "--dataset", "march")
    assert shown.exit_code == 1
    assert "an earlier release wrote it: train again" in " ".join(shown.output.split())


def test_scores_without_common_ids_are_told_without_an_id(folder: Path) -> None:
    table = pd.read_csv(folder / "first.csv")
    table.assign(id="other-" + table["id"]).to_csv(folder / "first.csv", index=False)
    shown = run(
        "drift", "first", "--config", folder / "guest.yaml", "--scores", folder / "first.csv", "--labels", "outcomes"
    )
    assert shown.exit_code == 1
    assert "have no IDs in common" in " ".join(shown.output.split())
    assert "person-" not in shown.output


def test_drift_prints_the_same_figures_as_json(folder: Path) -> None:
    config = ("--config", folder / "guest.yaml")
    options = (*config, "--dataset", "march", "--scores", folder / "first.csv", "--labels", "outcomes")
    text, found = run("drift", "first", *options).output, json.loads(run("drift", "first", *options, "--json").output)
    assert set(found) <= documented_fields()["model drift"]
    assert (found["job"], found["role"]) == ("first", "guest")
    age, debt = found["columns"]["columns"]
    assert (age["column"], debt["column"], found["columns"]["n_rows"]) == ("age", "[red]debt", N)
    for figure in (age["csi"], debt["by_chance"], found["score"]["psi"], found["calibration"]["slope"]["upper"]):
        assert f"{figure:.4f}" in text
    assert len(found["calibration"]["groups"]) == 10
    assert "person-" not in json.dumps(found)
    columns_alone = json.loads(run("drift", "first", *config, "--dataset", "march", "--json").output)
    assert (columns_alone["score"], columns_alone["calibration"]) == (None, None)


def test_compare_prints_the_same_figures_as_json(folder: Path) -> None:
    scores = ("--scores", folder / "first.csv", "--scores", folder / "second.csv", "--labels", "outcomes")
    models = ("compare", "first", "second", "--config", folder / "guest.yaml")
    found = json.loads(run(*models, *scores, "--json").output)
    own = json.loads(run(*models, "--dataset", "march", "--json").output)["own_scores"]
    names = {*found, *found["first"], *found["terms"][0], *found["scores"], *own}
    assert names <= documented_fields()["model compare"]
    age = next(each for each in found["terms"] if each["term"] == "age")
    assert age["difference"] == pytest.approx(age["second"] - age["first"])
    assert found["first"]["metrics"]["auc"] > 0.5
    auc = found["scores"]["auc"]
    assert auc["lower"] <= auc["difference"] <= auc["upper"]
    assert json.loads(run(*models, "--json").output)["scores"] is None
